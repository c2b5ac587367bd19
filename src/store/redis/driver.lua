-- Runs a batch of orders, one after the other, on the kernels of `kernels`: one for each limit of the limiter, in their order.
--
-- KEYS are the keys of all states, each once. ARGV[1] is packed, little-endian: the time in microseconds (a double; 0 for the
-- server's own, anything else is for tests), how many of the keys are read whole, how many shapes and how many orders there
-- are (16 bits each); for each key its limit; the shapes; the orders.
-- A shape is what many orders have in common: the operation and a limit (16 bits each), then doubles: two arguments, and for
-- each limit, or for the one that is meant, whether it is a shadow and its kernel's parameters.
-- An order is its shape, then for each limit the index of its key (16 bits each).
--
-- The reply is flat: the time; for each key that was read whole how its state was (where their number varies, the number
-- of words first); for each decision what each limit says by itself, as `peek` returns it, and with several limits whether
-- no later turn could be promised; for kernels with a head, what their figures are made of; for each other operation 0. A
-- key that holds what is not ours answers BAD.

local ACQUIRE, PEEK, GIVE_BACK, CHARGE, SET, BLOCK, RESET = 0, 1, 2, 3, 4, 5, 6
local MOST = 2 ^ 53
local BAD = -MOST
local LONG = 86400000

local call = redis.call
local unpack, pack = struct.unpack, struct.pack
local spread = table.unpack or _G.unpack
local max, ceil = math.max, math.ceil

local limits = #kernels
local input = ARGV[1]
local now, whole, shape_count, order_count, pos = unpack('<dHHH', input)
local virtual = now ~= 0
if not virtual then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local out = { now }
local length = 1

local formats = {}
local function format(words)
  local made = formats[words]
  if not made then
    made = '<' .. ('d'):rep(words)
    formats[words] = made
  end
  return made
end

-- A state from what its key holds, false if that is not ours.
local function decode(kernel, value)
  local words = kernel.words
  local s
  if not value or #value == 0 then
    s = {}
    for word = 1, words do
      s[word] = 0
    end
    s.block = 0
    return s
  end
  local count = #value / 8
  if count < words or count % 1 ~= 0 or count > 100 then
    return false
  end
  s = { unpack(format(count), value) }
  s[count + 1] = nil
  -- Somebody else's bytes: an error in a kernel would fail all who travel along, or leave them half written.
  for word = 1, count do
    local number = s[word]
    -- Not so for what is no number, either.
    if not (number >= 0 and number <= MOST) then
      return false
    end
  end
  if kernel.grows then
    words = words + s[words]
  end
  s.block = 0
  if count == words + 1 then
    s.block, s[count] = s[count], nil
  elseif count ~= words then
    return false
  end
  return (not kernel.holds or kernel.holds(s)) and s
end

-- The states, by their keys' index, and how those read whole were.
local states = {}
do
  local values = whole > 0 and call('MGET', spread(KEYS, 1, whole))
  for index = 1, #KEYS do
    local key, s = KEYS[index], nil
    local kernel
    kernel, pos = unpack('<H', input, pos)
    kernel = kernels[kernel]
    if index <= whole then
      local value = values[index]
      -- MGET tells a key of another type as one that is not there.
      if value or call('EXISTS', key) == 0 then
        s = decode(kernel, value)
      end
      if not s then
        out[length + 1] = 0
        length = length + 1
        for _ = 2, kernel.grows and 1 or kernel.words do
          length = length + 1
          out[length] = 0
        end
      else
        if kernel.grows then
          length = length + 1
          out[length] = #s
        end
        for word = 1, #s do
          out[length + word] = s[word]
        end
        length = length + #s
      end
    else
      local value = redis.pcall('GETRANGE', key, 0, kernel.head - 1)
      s = type(value) == 'string' and decode(kernel, value)
    end
    if s then
      s.key = key
    end
    states[index] = s
  end
end

local shapes = {}
for index = 1, shape_count do
  local op, limit, first, second
  op, limit, first, second, pos = unpack('<HHdd', input, pos)
  local shape = { op = op, limit = limit, first = first, second = second }
  for l = limit > 0 and limit or 1, limit > 0 and limit or limits do
    local params = kernels[l].params
    local p = { unpack(format(params + 1), input, pos) }
    pos = p[params + 2]
    p.shadow = p[params + 1] == 1
    shape[l] = p
  end
  shapes[index] = shape
end

local order_words = limits + 1
local order_format = '<' .. ('H'):rep(order_words)

-- What each limit says by itself, and all together: 0, above 0, -1 and below -1 as in `peek`.
local function ask(shape, order, patience, says)
  local wait, delay, never = 0, 0, false
  for l = 1, limits do
    local p, s = shape[l], states[order[l + 1]]
    local own = kernels[l].peek(s, now, patience, p)
    if s.block > now and own ~= -1 then
      own = max(own, s.block - now)
    end
    says[l] = own
    if not p.shadow then
      if own > 0 then
        if own > wait then wait = own end
      elseif own == -1 then
        never = true
      elseif -1 - own > delay then
        delay = -1 - own
      end
    end
  end
  if never then
    return -1, 0
  elseif wait > 0 then
    return wait, 0
  end
  return 0, delay
end

-- Whether a turn after `delay` can't be promised: not all limits can, or it would shut one of them until then.
local function is_beyond(shape, order, delay)
  for l = 1, limits do
    local p = shape[l]
    if not p.shadow then
      local kernel = kernels[l]
      if not kernel.promises or (delay > 0 and kernel.owed(states[order[l + 1]], now, p) < delay) then
        return true
      end
    end
  end
  return false
end

local function decide(shape, order)
  for l = 1, limits do
    if not states[order[l + 1]] then
      for _ = 1, limits > 1 and limits + 1 or limits do
        length = length + 1
        out[length] = BAD
      end
      return
    end
  end
  local says = {}
  local verdict, delay = ask(shape, order, shape.second, says)
  local asked_again = 0
  if limits > 1 and shape.second ~= 0 and is_beyond(shape, order, delay) then
    asked_again = 1
    verdict, delay = ask(shape, order, 0, says)
  end
  if verdict == 0 and shape.first > 0 and shape.op == ACQUIRE then
    for l = 1, limits do
      local own, p = says[l], shape[l]
      if not p.shadow or own == 0 or own < -1 then
        local s = states[order[l + 1]]
        kernels[l].commit(s, now, delay, p)
        s.dirty = true
      end
    end
  end
  for l = 1, limits do
    out[length + l] = says[l]
  end
  length = length + limits
  if limits > 1 then
    length = length + 1
    out[length] = asked_again
  end
  for l = 1, limits do
    local view = kernels[l].view
    if view then
      out[length + 1], out[length + 2], out[length + 3] = view(states[order[l + 1]], now, shape[l])
      length = length + 3
    end
  end
end

-- All but decisions: on one limit.
local function operate(shape, order)
  local l = shape.limit
  local kernel, p, s = kernels[l], shape[l], states[order[l + 1]]
  length = length + 1
  out[length] = s and 0 or BAD
  if not s then
    return
  end
  local op = shape.op
  if op == GIVE_BACK then
    if kernel.give_back(s, now, shape.first, shape.second, p) then
      s.dirty = true
    end
    return
  end
  if op == SET or op == RESET then
    for word = #s, kernel.words + 1, -1 do
      s[word] = nil
    end
    for word = 1, kernel.words do
      s[word] = 0
    end
  elseif op == BLOCK then
    s.block = shape.first > 0 and now + shape.first or 0
  end
  if op == CHARGE or (op == SET and shape.first > 0) then
    kernel.commit(s, now, 0, p)
  end
  s.dirty = true
end

for _ = 1, order_count do
  local order = { unpack(order_format, input, pos) }
  pos = order[order_words + 1]
  local shape = shapes[order[1]]
  if shape.op <= PEEK then
    decide(shape, order)
  else
    operate(shape, order)
  end
end

for index = 1, #KEYS do
  local s = states[index]
  if s and s.dirty then
    local key = s.key
    local last = max(s[1], s.block)
    -- A millisecond more: the key must not go before its state is as good as new.
    local ttl = virtual and LONG or ceil((last - now) / 1000) + 1
    if last <= now then
      call('DEL', key)
    elseif index > whole then
      local words = #s
      s[words + 1] = s.block
      call('SETRANGE', key, 0, pack(format(words + 1), spread(s)))
      call('PEXPIRE', key, ttl)
    else
      local words = #s
      if s.block > 0 then
        words = words + 1
        s[words] = s.block
      end
      call('PSETEX', key, ttl, pack(format(words), spread(s, 1, words)))
    end
  end
end

return out
