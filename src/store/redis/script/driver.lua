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
local function look(shape, order, at, patience, with_blocks)
  local said, at_once, charged = { nil, nil, nil, nil }, { nil, nil, nil, nil }, { nil, nil, nil, nil }
  local promise, turn, denied = shape.op ~= HOLD, 0, false
  for l = 1, limits do
    local p, index, kernel = shape[l], order[l + 1], kernels[l]
    local s, block = states[index], with_blocks and blocks[index] or 0
    if holds[index] then
      s = keeper.charged(index, at, p)
    end
    charged[l] = s
    local own = kernel.peek(s, at, patience, p)
    local own_at_once, promises = own, kernel.promises
    if limits > 1 and promises and own ~= 0 then
      own_at_once = kernel.peek(s, at, 0, p)
    end
    if block > now then
      -- No turn is promised while it lasts: if there is one in time after it, it is to be asked for then.
      promises = promises and own ~= 0 and own >= -1
      if own ~= -1 then own = max(own, block - now) end
      if own_at_once ~= -1 then own_at_once = max(own_at_once, block - now) end
    end
    said[l], at_once[l] = own, own_at_once
    if p[#p - 1] == 0 then
      promise = promise and promises
      if own_at_once > turn then
        turn = own_at_once
      elseif own_at_once == -1 then
        denied = true
      end
    end
  end
  if limits > 1 and promise and turn > 0 and not denied then
    for l = 1, limits do
      local p = shape[l]
      if p[#p - 1] == 0 and kernels[l].owed(charged[l], at, p) < turn then
        promise = false
      end
    end
  end
  return said, at_once, promise
end

-- For how long an enforced limit blocks who would wait for several of them.
local function blocked_for(shape, order)
  local longest = 0
  if limits > 1 and shape.till ~= 0 and shape.op ~= HOLD then
    for l = 1, limits do
      local p = shape[l]
      if p[#p - 1] == 0 then
        longest = max(longest, blocks[order[l + 1]] - now)
      end
    end
  end
  return longest
end

-- What the enforced limits say as of the end of a block. Before that nothing is allowed; from then on turns may be promised.
local function look_beyond(shape, order, said, blocked)
  local later, at_once, promise = look(shape, order, now + blocked, shape.till, false)
  if not promise then
    later = at_once
  end
  for l = 1, limits do
    local p = shape[l]
    if p[#p - 1] == 0 then
      local own = later[l]
      if own > 0 then
        own = own + blocked
      elseif own ~= -1 then
        own = max(0, blocks[order[l + 1]] - now)
      end
      said[l] = own
    end
  end
end

local function fail(with)
  for _ = 0, limits do
    length = length + 1
    says[length] = with
  end
end

-- Decides. What several limits say where they can't promise a turn is what they say to who accepts no delay.
local function decide(shape, order)
  for l = 1, limits do
    if not states[order[l + 1]] then
      return fail(BAD)
    end
  end
  local holding = shape.op == HOLD
  if holding and not keeper then
    keeper = make_holds()
  end
  if keeper then
    for l = 1, limits do
      keeper.touch(order[l + 1], shape[l])
    end
  end
  local said, at_once, promise = look(shape, order, now, holding and 0 or shape.till, true)
  local blocked = blocked_for(shape, order)
  if blocked > 0 then
    look_beyond(shape, order, said, blocked)
    promise = false
  elseif limits > 1 and not promise then
    said = at_once
  end
  local allowed, delay = true, 0
  for l = 1, limits do
    local own, p = said[l], shape[l]
    if p[#p - 1] == 0 then
      if own > 0 or own == -1 then
        allowed = false
      elseif -1 - own > delay then
        delay = -1 - own
      end
    end
  end
  if allowed and shape.at > 0 and shape.op ~= PEEK then
    local takes = { nil, nil, nil, nil }
    for l = 1, limits do
      local own, p = said[l], shape[l]
      takes[l] = p[#p - 1] == 0 or own == 0 or own < -1
    end
    if holding then
      local problems = keeper.hold(shape, order, takes)
      if problems then
        for l = 1, limits do
          says[length + l] = problems[l] or 0
        end
        length = length + limits + 1
        says[length] = 0
        return
      end
    else
      for l = 1, limits do
        if takes[l] then
          local index = order[l + 1]
          kernels[l].commit(states[index], now, delay, shape[l])
          changed[index] = true
          if holds[index] then
            keeper.cover(index, shape[l])
          end
        end
      end
    end
  end
  for l = 1, limits do
    says[length + l] = said[l]
  end
  length = length + limits + 1
  says[length] = promise and 0 or 1
  for l = 1, limits do
    local view = kernels[l].view
    if view then
      local index = order[l + 1]
      if holds[index] then
        keeper.charged(index, now, shape[l])
      end
      says[length + 1], says[length + 2], says[length + 3] = view(states[index], now, shape[l])
      length = length + 3
    end
  end
end

-- All but decisions: on one limit.
local function operate(shape, order)
  local l, op = shape.limit, shape.op
  local kernel, p, index = kernels[l], shape[l], order[l + 1]
  local s = states[index]
  length = length + 1
  says[length] = s and 0 or BAD
  if op == UPDATE then
    length = length + 1
    says[length] = 0
  end
  if not s then
    return
  end
  if keeper then
    keeper.touch(index, p)
  end
  if op == UPDATE then
    keeper = keeper or make_holds()
    says[length - 1], says[length] = keeper.update(shape, index, p)
    return
  end
  if op == SET or op == RESET then
    -- A new one: what a kernel has noted of the old one is gone with it.
    local former = s
    s = zeros(kernel.words)
    s.key, s.is_cleared, states[index] = former.key, former.is_cleared, s
    if kernel.head then
      s[kernel.room] = former[kernel.room]
    end
  elseif op == BLOCK then
    blocks[index] = shape.at > 0 and now + shape.at or 0
  end
  if op == CHARGE or (op == SET and shape.at > 0) then
    kernel.commit(s, now, 0, p)
  end
  changed[index] = true
  if holds[index] then
    keeper.cover(index, p)
  end
end

local order_words = limits + 2
local order_format = '<' .. ('H'):rep(order_words)
for _ = 1, order_count do
  local order = { unpack(order_format, input, pos) }
  pos = order[order_words + 1]
  local shape = shapes[order[1]]
  for _ = 1, order[order_words] do
    if shape.op <= HOLD then
      decide(shape, order)
    else
      operate(shape, order)
    end
  end
end

for index = 1, #KEYS do
  if changed[index] then
    local key, s, block, expires, h = KEYS[index], states[index], blocks[index], expiries[index], holds[index]
    local words, last = width(holders[index], s), max(s[1], block)
    if h then
      last = max(last, h.lasts_until)
    end
    if last > expires or expires - last > EXCESS then
      expires = last + SPARE
    end
    local extends = expires ~= expiries[index]
    local ttl = virtual and LONG or ceil((expires - now) / 1000) + 1
    if last <= now then
      call('DEL', key)
    elseif index > whole then
      s[words + 1], s[words + 2] = expires, block
      call('SETRANGE', key, 0, pack(format(words + 2), spread(s, 1, words + 2)))
      if h then
        call('SETRANGE', key, holders[index].head, keeper.pack(index))
      elseif s.is_cleared then
        call('SETRANGE', key, holders[index].head, pack('<ddddd', 0, 0, 0, 0, 0))
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
      local value = pack(format(words), spread(s, 1, words))
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
return pack('<dHHH', now, expired * 2, length, #KEYS) .. pack(format(length), spread(says, 1, length))
  .. pack('<' .. ('H'):rep(#KEYS), spread(lengths)) .. table.concat(values)
