-- Runs a batch of orders, one after the other, on the kernels of `kernels`: one for each limit of the limiter, in their order.
--
-- The reply is packed: the time (a double); 1 after a short cut, else twice the number of holds that have expired; how many
-- numbers and keys follow (16 bits each); the numbers (doubles): for each decision what each limit says by itself, as `peek`
-- returns it, then, but after a short cut, 1 if no later turn could be promised, and for kernels with a head what their figures
-- are made of; for each update what it has released and charged; for each other operation 0; for each key the length of what it
-- held (16 bits), then all of that: nothing of kernels with a head; where costs are held on it, the sum of them, the state, and
-- one byte more. A key that holds what is not ours says BAD, a hold that fails EXPIRED, FULL or UNSUPPORTED, and nothing follows.

-- What holds.lua makes, once it is needed.
local keeper = next(holds) and make_holds()

-- What each limit says by itself at a moment, and to who accepts no delay, if it is asked together with others; and whether
-- they can promise the turn that is the latest of theirs: if each can, and owes at least until then already.
local function look(template, operation, at, max_delay, with_blocks)
  local verdicts, immediates, charged = { nil, nil, nil, nil }, { nil, nil, nil, nil }, { nil, nil, nil, nil }
  local promise, longest_wait, denied = template.op ~= HOLD, 0, false
  for l = 1, limits do
    local p, index, kernel = template[l], operation[l + 1], kernels[l]
    local s, block = states[index], with_blocks and blocks[index] or 0
    if holds[index] then
      s = keeper.charged(index, at, p)
    end
    charged[l] = s
    local own = kernel.peek(s, at, max_delay, p)
    local immediate, supports_scheduling = own, kernel.supports_scheduling
    if limits > 1 and supports_scheduling and own ~= 0 then
      immediate = kernel.peek(s, at, 0, p)
    end
    if block > now then
      -- No turn is promised while it lasts: if there is one in time after it, it is to be asked for then.
      supports_scheduling = supports_scheduling and own ~= 0 and own >= -1
      if own ~= -1 then own = max(own, block - now) end
      if immediate ~= -1 then immediate = max(immediate, block - now) end
    end
    verdicts[l], immediates[l] = own, immediate
    if p[#p - 1] == 0 then
      promise = promise and supports_scheduling
      if immediate > longest_wait then
        longest_wait = immediate
      elseif immediate == -1 then
        denied = true
      end
    end
  end
  if limits > 1 and promise and longest_wait > 0 and not denied then
    for l = 1, limits do
      local p = template[l]
      if p[#p - 1] == 0 and kernels[l].owed_for(charged[l], at, p) < longest_wait then
        promise = false
      end
    end
  end
  return verdicts, immediates, promise
end

-- For how long an enforced limit blocks who would wait for several of them.
local function blocked_for(template, operation)
  local longest = 0
  if limits > 1 and template.arg2 ~= 0 and template.op ~= HOLD then
    for l = 1, limits do
      local p = template[l]
      if p[#p - 1] == 0 then
        longest = max(longest, blocks[operation[l + 1]] - now)
      end
    end
  end
  return longest
end

-- What the enforced limits say as of the end of a block. Before that nothing is allowed; from then on turns may be promised.
local function look_beyond(template, operation, verdicts, blocked)
  local later, immediates, promise = look(template, operation, now + blocked, template.arg2, false)
  if not promise then
    later = immediates
  end
  for l = 1, limits do
    local p = template[l]
    if p[#p - 1] == 0 then
      local own = later[l]
      if own > 0 then
        own = own + blocked
      elseif own ~= -1 then
        own = max(0, blocks[operation[l + 1]] - now)
      end
      verdicts[l] = own
    end
  end
end

local function fail(with)
  for _ = 0, limits do
    result_count = result_count + 1
    results[result_count] = with
  end
end

-- Decides. What several limits say where they can't promise a turn is what they say to who accepts no delay.
local function decide(template, operation)
  for l = 1, limits do
    if not states[operation[l + 1]] then
      return fail(INVALID_STATE)
    end
  end
  local holding = template.op == HOLD
  if holding and not keeper then
    keeper = make_holds()
  end
  if keeper then
    for l = 1, limits do
      keeper.touch(operation[l + 1], template[l])
    end
  end
  local verdicts, immediates, promise = look(template, operation, now, holding and 0 or template.arg2, true)
  local blocked = blocked_for(template, operation)
  if blocked > 0 then
    look_beyond(template, operation, verdicts, blocked)
    promise = false
  elseif limits > 1 and not promise then
    verdicts = immediates
  end
  local allowed, delay = true, 0
  for l = 1, limits do
    local own, p = verdicts[l], template[l]
    if p[#p - 1] == 0 then
      if own > 0 or own == -1 then
        allowed = false
      elseif -1 - own > delay then
        delay = -1 - own
      end
    end
  end
  if allowed and template.arg1 > 0 and template.op ~= PEEK then
    local takes = { nil, nil, nil, nil }
    for l = 1, limits do
      local own, p = verdicts[l], template[l]
      takes[l] = p[#p - 1] == 0 or own == 0 or own < -1
    end
    if holding then
      local problems = keeper.hold(template, operation, takes)
      if problems then
        for l = 1, limits do
          results[result_count + l] = problems[l] or 0
        end
        result_count = result_count + limits + 1
        results[result_count] = 0
        return
      end
    else
      for l = 1, limits do
        if takes[l] then
          local index = operation[l + 1]
          kernels[l].commit(states[index], now, delay, template[l])
          changed[index] = true
          if holds[index] then
            keeper.cover(index, template[l])
          end
        end
      end
    end
  end
  for l = 1, limits do
    results[result_count + l] = verdicts[l]
  end
  result_count = result_count + limits + 1
  results[result_count] = promise and 0 or 1
  for l = 1, limits do
    local view = kernels[l].view
    if view then
      local index = operation[l + 1]
      if holds[index] then
        keeper.charged(index, now, template[l])
      end
      results[result_count + 1], results[result_count + 2], results[result_count + 3] = view(states[index], now, template[l])
      result_count = result_count + 3
    end
  end
end

-- All but decisions: on one limit.
local function operate(template, operation)
  local l, op = template.limit, template.op
  local kernel, p, index = kernels[l], template[l], operation[l + 1]
  local s = states[index]
  result_count = result_count + 1
  results[result_count] = s and 0 or INVALID_STATE
  if op == UPDATE then
    result_count = result_count + 1
    results[result_count] = 0
  end
  if not s then
    return
  end
  if keeper then
    keeper.touch(index, p)
  end
  if op == UPDATE then
    keeper = keeper or make_holds()
    results[result_count - 1], results[result_count] = keeper.update(template, index, p)
    return
  end
  if op == SET or op == RESET then
    -- A new one: what a kernel has noted of the old one is gone with it.
    local former = s
    s = zeros(kernel.words)
    s.key, s.is_cleared, states[index] = former.key, former.is_cleared, s
    if kernel.header_bytes then
      s[kernel.held_space_word] = former[kernel.held_space_word]
    end
  elseif op == BLOCK then
    blocks[index] = template.arg1 > 0 and now + template.arg1 or 0
  end
  if op == CHARGE or (op == SET and template.arg1 > 0) then
    kernel.commit(s, now, 0, p)
  end
  changed[index] = true
  if holds[index] then
    keeper.cover(index, p)
  end
end

local operation_words = limits + 2
local operation_format = '<' .. ('H'):rep(operation_words)
for _ = 1, operation_count do
  local operation = { unpack(operation_format, input, pos) }
  pos = operation[operation_words + 1]
  local template = templates[operation[1]]
  for _ = 1, operation[operation_words] do
    if template.op <= HOLD then
      decide(template, operation)
    else
      operate(template, operation)
    end
  end
end

for index = 1, #KEYS do
  if changed[index] then
    local key, s, block, expires, h = KEYS[index], states[index], blocks[index], expiries[index], holds[index]
    local words, last = state_words(kernel_of_key[index], s), max(s[1], block)
    if h then
      last = max(last, h.lasts_until)
    end
    if last > expires or expires - last > EXCESS then
      expires = last + TTL_SLACK
    end
    local extends = expires ~= expiries[index]
    local ttl = virtual and TEST_TTL or ceil((expires - now) / 1000) + 1
    if last <= now then
      call('DEL', key)
    elseif index > full_count then
      s[words + 1], s[words + 2] = expires, block
      call('SETRANGE', key, 0, pack(format(words + 2), table_unpack(s, 1, words + 2)))
      if h then
        call('SETRANGE', key, kernel_of_key[index].header_bytes, keeper.pack(index))
      elseif s.is_cleared then
        call('SETRANGE', key, kernel_of_key[index].header_bytes, pack('<ddddd', 0, 0, 0, 0, 0))
      end
      if extends then
        call('PEXPIRE', key, ttl)
      end
    else
      words = words + 1
      s[words] = expires
      if block > 0 or h then
        words = words + 1
        s[words] = block
      end
      local value = pack(format(words), table_unpack(s, 1, words))
      if h then
        value = value .. keeper.pack(index)
      end
      if extends then
        call('PSETEX', key, ttl, value)
      else
        call('SET', key, value, 'KEEPTTL')
      end
    end
  end
end

local lengths = { nil, nil, nil, nil }
for index = 1, #KEYS do
  lengths[index] = #values[index]
end
return pack('<dHHH', now, expired * 2, result_count, #KEYS) .. pack(format(result_count), table_unpack(results, 1, result_count))
  .. pack('<' .. ('H'):rep(#KEYS), table_unpack(lengths)) .. table.concat(values)
