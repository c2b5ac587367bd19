-- Runs a batch of orders, one after the other, on the kernels of `kernels`: one for each limit of the limiter, in their order.
--
-- KEYS are the keys of all states, each once, limit by limit; those of kernels with a head come last. ARGV[1] is packed,
-- little-endian: the time in microseconds (a double; 0 for the server's own, anything else is for tests), whether a short cut
-- will do, how many shapes and orders there are (16 bits each); for each limit how many keys it has; the shapes; the orders.
-- A shape is what many orders have in common: the operation and a limit (16 bits each), then doubles: two arguments, and for
-- each limit, or for the one that is meant, its kernel's parameters and whether it is a shadow. To give back, a third argument
-- follows, and the parameters of the whole charge and of what is kept of it.
-- An order is its shape, for each limit the index of its key, and how many times in a row (16 bits each).
--
-- The reply is packed as well: the time (a double), whether the short cut did, how many numbers and keys follow (16 bits
-- each); the numbers (doubles): for each decision what each limit says by itself, as `peek` returns it, then, but after a short
-- cut, 1 if no later turn could be promised, and for kernels with a head what their figures are made of; for each other
-- operation 0; for each key the length of what it held (16 bits; 0 for those of kernels with a head), then all of that. A key
-- that holds what is not ours says BAD.
--
-- A value is a state's words, then when the key expires, and until when it is blocked, if it is: all doubles.

local ACQUIRE, PEEK, GIVE_BACK, CHARGE, SET, BLOCK, RESET = 0, 1, 2, 3, 4, 5, 6
local BAD = -MOST
local max = math.max

local limits = #kernels
-- Tables are made with room for some: in Lua one that grows step by step costs more than all else here.
says, length = { nil, nil, nil, nil, nil, nil, nil, nil }, 0

local formats = { [7] = '<ddddddd', [10] = '<dddddddddd' }
local function format(words)
  local made = formats[words]
  if not made then
    made = '<' .. ('d'):rep(words)
    formats[words] = made
  end
  return made
end

-- The states by their keys' index, what those that are read whole held, when their keys expire, until when they are blocked,
-- whether they have changed, and whose they are.
local states, blocks, changed = { nil, nil, nil, nil }, { nil, nil, nil, nil }, { nil, nil, nil, nil }
local holders = { nil, nil, nil, nil }
expiries = { nil, nil, nil, nil }

-- How many words a state has. Behind them there may be others, which mean nothing.
local function width(kernel, s)
  if kernel.grows then
    return kernel.words + s[kernel.words]
  end
  return kernel.words
end

-- The state of a key never seen.
local function zeros(words)
  local s = {}
  for word = 1, words do
    s[word] = 0
  end
  return s
end

-- A state from what its key holds, false if that is not ours.
local function decode(index, kernel, value)
  local words = kernel.words
  expiries[index], blocks[index] = 0, 0
  if not value or #value == 0 then
    return zeros(words)
  end
  local count = #value / 8
  if count <= words or count % 1 ~= 0 or count > 100 then
    return false
  end
  local s = { unpack(format(count), value) }
  -- Somebody else's bytes: an error in a kernel would fail all who travel along, or leave them half written.
  for word = 1, count do
    local number = s[word]
    -- Not so for what is no number, either.
    if not (number >= 0 and number <= MOST) then
      return false
    end
  end
  words = width(kernel, s)
  if count == words + 2 then
    blocks[index] = s[count]
  elseif count ~= words + 1 then
    return false
  end
  expiries[index] = s[words + 1]
  return (not kernel.holds or kernel.holds(s)) and s
end

local whole = 0
do
  local counts = { nil, nil, nil, nil }
  for l = 1, limits do
    counts[l], pos = unpack('<H', input, pos)
    if not kernels[l].head then
      whole = whole + counts[l]
    end
  end
  if whole > 0 then
    values = call('MGET', spread(KEYS, 1, whole))
  else
    values = {}
  end
  local index = 0
  for heads = 0, 1 do
    for l = 1, limits do
      local kernel = kernels[l]
      if (kernel.head and 1 or 0) == heads then
        for _ = 1, counts[l] do
          index = index + 1
          holders[index] = kernel
          local key, s = KEYS[index], false
          if heads == 0 then
            local value = values[index]
            -- MGET tells a key of another type as one that is not there.
            if value or call('EXISTS', key) == 0 then
              s = decode(index, kernel, value)
            end
            values[index] = s and value or ''
          else
            local value = redis.pcall('GETRANGE', key, 0, kernel.head - 1)
            s = type(value) == 'string' and decode(index, kernel, value)
            values[index] = ''
            if s then
              s.key = key
            end
          end
          states[index] = s
        end
      end
    end
  end
end

local shapes = {}
for index = 1, shape_count do
  local op, limit, first, second
  op, limit, first, second, pos = unpack('<HHdd', input, pos)
  local shape = { nil, nil, nil, nil, op = op, limit = limit, at = first, till = second, turn = 0, cost = false, rest = false }
  for l = limit > 0 and limit or 1, limit > 0 and limit or limits do
    local params = kernels[l].params
    local p = { unpack(format(params + 1), input, pos) }
    pos = p[params + 2]
    shape[l] = p
    if op == GIVE_BACK then
      local cost, rest
      shape.turn, pos = unpack('<d', input, pos)
      cost = { unpack(format(params), input, pos) }
      rest = { unpack(format(params), input, cost[params + 1]) }
      pos = rest[params + 1]
      shape.cost, shape.rest = cost, rest
    end
  end
  shapes[index] = shape
end

local order_words = limits + 2
local order_format = '<' .. ('H'):rep(order_words)

-- Decides. Several limits promise a later turn only if each can, and owes at least until then already; else what counts is what
-- they say to who accepts no delay.
local function decide(shape, order)
  for l = 1, limits do
    if not states[order[l + 1]] then
      for _ = 0, limits do
        length = length + 1
        says[length] = BAD
      end
      return
    end
  end
  local patience = shape.till
  local said, at_once = { nil, nil, nil, nil }, { nil, nil, nil, nil }
  local promise, turn, denied = true, 0, false
  for l = 1, limits do
    local p, index, kernel = shape[l], order[l + 1], kernels[l]
    local s, block = states[index], blocks[index]
    local own = kernel.peek(s, now, patience, p)
    local own_at_once, promises = own, kernel.promises
    if limits > 1 and promises and own ~= 0 then
      own_at_once = kernel.peek(s, now, 0, p)
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
  if limits > 1 then
    if promise and turn > 0 and not denied then
      for l = 1, limits do
        local p = shape[l]
        if p[#p - 1] == 0 and kernels[l].owed(states[order[l + 1]], now, p) < turn then
          promise = false
        end
      end
    end
    if not promise then
      said = at_once
    end
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
    says[length + l] = own
  end
  length = length + limits + 1
  says[length] = promise and 0 or 1
  if allowed and shape.at > 0 and shape.op == ACQUIRE then
    for l = 1, limits do
      local own, p = said[l], shape[l]
      if p[#p - 1] == 0 or own == 0 or own < -1 then
        local index = order[l + 1]
        kernels[l].commit(states[index], now, delay, p)
        changed[index] = true
      end
    end
  end
  for l = 1, limits do
    local view = kernels[l].view
    if view then
      says[length + 1], says[length + 2], says[length + 3] = view(states[order[l + 1]], now, shape[l])
      length = length + 3
    end
  end
end

-- All but decisions: on one limit.
local function operate(shape, order)
  local l = shape.limit
  local kernel, p, index = kernels[l], shape[l], order[l + 1]
  local s = states[index]
  length = length + 1
  says[length] = s and 0 or BAD
  if not s then
    return
  end
  local op = shape.op
  if op == GIVE_BACK then
    if kernel.give_back(s, now, shape, p) then
      changed[index] = true
    end
    return
  end
  if op == SET or op == RESET then
    -- A new one: what a kernel has noted of the old one is gone with it.
    local key = s.key
    s = zeros(kernel.words)
    s.key, states[index] = key, s
  elseif op == BLOCK then
    blocks[index] = shape.at > 0 and now + shape.at or 0
  end
  if op == CHARGE or (op == SET and shape.at > 0) then
    kernel.commit(s, now, 0, p)
  end
  changed[index] = true
end

for _ = 1, order_count do
  local order = { unpack(order_format, input, pos) }
  pos = order[order_words + 1]
  local shape = shapes[order[1]]
  for _ = 1, order[order_words] do
    if shape.op <= PEEK then
      decide(shape, order)
    else
      operate(shape, order)
    end
  end
end

for index = 1, #KEYS do
  if changed[index] then
    local key, s, block, expires = KEYS[index], states[index], blocks[index], expiries[index]
    local words, last = width(holders[index], s), max(s[1], block)
    if last > expires then
      expires = last + SPARE
    end
    local extends = expires ~= expiries[index]
    local ttl = virtual and LONG or ceil((expires - now) / 1000) + 1
    if last <= now then
      call('DEL', key)
    elseif index > whole then
      s[words + 1], s[words + 2] = expires, block
      call('SETRANGE', key, 0, pack(format(words + 2), spread(s, 1, words + 2)))
      if extends then
        call('PEXPIRE', key, ttl)
      end
    else
      words = words + 1
      s[words] = expires
      if block > 0 then
        words = words + 1
        s[words] = block
      end
      local value = pack(format(words), spread(s, 1, words))
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
return pack('<dHHH', now, 0, length, #KEYS) .. pack(format(length), spread(says, 1, length))
  .. pack('<' .. ('H'):rep(#KEYS), spread(lengths)) .. table.concat(values)
