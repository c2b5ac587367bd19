-- Reads what a batch of orders needs: the states of all keys, and the shapes.
--
-- KEYS are the keys of all states, each once, limit by limit; those of kernels with a head come last. ARGV[1] is packed,
-- little-endian: the time in microseconds (a double; 0 for the server's own, anything else is for tests), whether a short cut
-- will do, how many shapes and orders there are (16 bits each); for each limit how many keys it has; the shapes; the orders.
-- A shape is what many orders have in common: the operation and a limit (16 bits each), then doubles: two arguments, and for
-- each limit, or for the one that is meant, its kernel's parameters and whether it is a shadow. To hold, an id for each limit
-- follows; to update a session its id, what it has released and charged since it began, and whether it ends.
-- An order is its shape, for each limit the index of its key, and how many times in a row (16 bits each).
--
-- A value is a state's words, then when the key expires, and until when it is blocked, if it is: all doubles. If costs are
-- held on the key there is always the block, and then what holds.lua says.

local ACQUIRE, PEEK, HOLD, CHARGE, SET, BLOCK, RESET, UPDATE = 0, 1, 2, 3, 4, 5, 6, 7
-- What stands in the place of an answer.
local INVALID_STATE, EXPIRED, FULL, UNSUPPORTED = -MAX_EXACT, 1 - MAX_EXACT, 2 - MAX_EXACT, 3 - MAX_EXACT
local max = math.max
-- How many words there are behind a state's if costs are held on its key, and how many each entry has.
local HELD_WORDS, ENTRY_WORDS, MAX_ENTRIES = 7, 5, 64

local limits = #kernels
-- Tables are made with room for some: in Lua one that grows step by step costs more than all else here.
results, result_count = { nil, nil, nil, nil, nil, nil, nil, nil }, 0

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
local kernel_of_key = { nil, nil, nil, nil }
expiries = { nil, nil, nil, nil }
-- The costs held on them, where there are any, and how many holds have expired: see holds.lua.
local holds, expired = {}, 0

-- How many words a state has. Behind them there may be others, which mean nothing.
local function state_words(kernel, s)
  if kernel.variable_width then
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

-- Somebody else's bytes: an error in a kernel would fail all who travel along, or leave them half written.
local function are_numbers(numbers, count)
  for word = 1, count do
    local number = numbers[word]
    -- Not so for what is no number, either.
    if not (number >= 0 and number <= MAX_EXACT) then
      return false
    end
  end
  return true
end

-- The costs held on a key: seven words, of which the first two are those that every value ends with, then the entries.
local function decode_holds(words, from, entries)
  return {
    cost = words[from + 3], due = words[from + 4], latest = words[from + 5], span = words[from + 6],
    count = words[from + 7], packed = entries, entries = false, lasts_until = 0, is_told = false,
  }
end

-- A state from what its key holds, false if that is not ours.
local function decode(index, kernel, value)
  local words = kernel.words
  expiries[index], blocks[index] = 0, 0
  if not value or #value == 0 then
    return zeros(words)
  end
  local count = #value / 8
  if count <= words or count % 1 ~= 0 or count > 500 then
    return false
  end
  local known = count
  if count > words + 2 and not kernel.variable_width then
    known = words + HELD_WORDS
  elseif count > 100 then
    known = 100
  end
  if known > count then
    return false
  end
  local s = { unpack(format(known), value) }
  if not are_numbers(s, known) then
    return false
  end
  words = state_words(kernel, s)
  if count == words + 2 then
    blocks[index] = s[count]
  elseif count ~= words + 1 then
    local entries = s[words + HELD_WORDS]
    if not entries or entries > MAX_ENTRIES or entries % 1 ~= 0 or count ~= words + HELD_WORDS + entries * ENTRY_WORDS then
      return false
    end
    blocks[index] = s[words + 2]
    holds[index] = decode_holds(s, words, value:sub((words + HELD_WORDS) * 8 + 1))
  end
  expiries[index] = s[words + 1]
  return (not kernel.is_valid or kernel.is_valid(s)) and s
end

-- Reads what a kernel with a head has in its room for holds.
local function decode_room(index, kernel, s)
  if s[kernel.held_space_word] > 0 then
    local words = HELD_WORDS - 2
    local value = call('GETRANGE', s.key, kernel.header_bytes, kernel.header_bytes + words * 8 - 1)
    if #value < words * 8 then
      return false
    end
    local numbers = { 0, 0, unpack(format(words), value) }
    if not are_numbers(numbers, HELD_WORDS) or numbers[HELD_WORDS] > MAX_ENTRIES or numbers[HELD_WORDS] % 1 ~= 0 then
      return false
    end
    if numbers[HELD_WORDS] > 0 then
      holds[index] = decode_holds(numbers, 0, false)
    end
  end
  return s
end

local full_count = 0
do
  local counts = { nil, nil, nil, nil }
  for l = 1, limits do
    counts[l], pos = unpack('<H', input, pos)
    if not kernels[l].header_bytes then
      full_count = full_count + counts[l]
    end
  end
  if full_count > 0 then
    values = call('MGET', table_unpack(KEYS, 1, full_count))
  else
    values = {}
  end
  local index = 0
  for heads = 0, 1 do
    for l = 1, limits do
      local kernel = kernels[l]
      if (kernel.header_bytes and 1 or 0) == heads then
        for _ = 1, counts[l] do
          index = index + 1
          kernel_of_key[index] = kernel
          local key, s = KEYS[index], false
          if heads == 0 then
            local value = values[index]
            -- MGET tells a key of another type as one that is not there.
            if value or call('EXISTS', key) == 0 then
              s = decode(index, kernel, value)
            end
            values[index] = s and not holds[index] and value or ''
          else
            local value = redis.pcall('GETRANGE', key, 0, kernel.header_bytes - 1)
            -- A key of another type fails its own orders; any other error, such as a missing permission, the call.
            if type(value) == 'table' and not value.err:find('WRONGTYPE', 1, true) then
              return value
            end
            s = type(value) == 'string' and decode(index, kernel, value)
            values[index] = ''
            if s then
              s.key = key
              s = decode_room(index, kernel, s)
            end
          end
          states[index] = s
        end
      end
    end
  end
end

local templates = {}
for index = 1, template_count do
  local op, limit, arg1, arg2
  op, limit, arg1, arg2, pos = unpack('<HHdd', input, pos)
  local template = { nil, nil, nil, nil, op = op, limit = limit, arg1 = arg1, arg2 = arg2, ids = false }
  for l = limit > 0 and limit or 1, limit > 0 and limit or limits do
    local params = kernels[l].params
    local p = { unpack(format(params + 1), input, pos) }
    pos = p[params + 2]
    template[l] = p
  end
  if op == HOLD or op == UPDATE then
    local count = op == HOLD and limits or 4
    template.ids = { unpack(format(count), input, pos) }
    pos = template.ids[count + 1]
  end
  templates[index] = template
end
