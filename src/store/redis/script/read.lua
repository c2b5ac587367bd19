-- Reads the input and the states that a batch of operations needs.
--
-- # Input
--
-- KEYS are the keys of all states, each once, ordered by limit. Keys of kernels with a list come last. Then come the keys
-- of reservation ids, which are numbered from 1. ARGV[1] is
-- packed little-endian; d is a double, H an unsigned integer of 16 bits:
--
--   d  the time in microseconds: 0 for the server's time, otherwise a test's
--   d  the latest time at which decisions are made: 0 for no limit
--   H  1 if the fast path supports all templates
--   H  the number of templates
--   H  the number of operations
--   H  for each limit the number of its keys
--      the templates
--      the operations
--
-- A template is the part that many operations have in common:
--
--   H  the operation code
--   H  the number of the limit, from 1; 0 for all limits
--   d  arg1: the cost of a charge or a set; twice the time of a block, plus 1 for an escalation; the expiry of an update
--      or a lease; of a decision the sum of 1, 2, 4 .. for each limit that keeps units free, and of the next powers of 2
--      for each limit that has a part in guaranteed shares
--   d  arg2: the maximum delay (-1 for the algorithm's default); the expiry of a hold; the maximum that leases hold
--   d  for each limit of the template: its kernel's parameters, 1 for a shadow limit, and the cost
--   d  of a decision: for each limit that keeps units free its kernel's parameters for the cost and these units
--   d  HOLD: for each limit the id of the session, negative for a new session, 0 for a limit that is charged
--   d  UPDATE: the session's id, the sums that it has released and charged, 1 to end it, and the costs that it holds
--   d  RESERVE: for each limit 1 if it holds, 0 if it is charged; the numbers of the record's and of the counts' key; the
--      time until the expiry; and the maximum number of ids
--   d  ONCE, ONCE_HOLD: for each limit the id of the session, as for HOLD; the numbers of the record's and of the counts'
--      key; for how long the id is remembered; the maximum number of ids; the repeats that pass (0 if the settlement
--      records the request); for each limit what the request was charged before, -1 if the client does not know yet
--   d  RECORD: for each limit the charged cost; and the five numbers of ONCE
--   d  SETTLE: for each limit the actual cost, -1 for the held one; and the number of the record's key
--   d  LEASE: the lease's id, the number of the report, the sum of the spent units, those that no reply has confirmed,
--      the units to keep, the units to hold, and the expiry of the hold that the report is about (0 for none)
--
-- An operation is the number of its template, for each limit the number of its key (0 for a limit without part in the
-- operation), and a repeat count (all H).
--
-- # Values
--
-- A value is a state's words, the key's expiry, and the end of a block if there is one: all doubles. The end has the
-- fraction 0.5 if the reason of the block is an escalation. If costs are held on the key, the end of the block is always there, and the words in holds.lua follow. A kernel with a list stores only
-- the list's first element, the header, this way; it reads and writes the other elements by itself.

local ACQUIRE, PEEK, HOLD, CHARGE, SET, BLOCK, RESET, UPDATE, LEASE = 0, 1, 2, 3, 4, 5, 6, 7, 8
local RESERVE, SETTLE, ONCE, ONCE_HOLD, RECORD = 9, 10, 11, 12, 13
-- The results of operations that failed.
local INVALID_STATE, EXPIRED, FULL, UNSUPPORTED = -MAX_EXACT, 1 - MAX_EXACT, 2 - MAX_EXACT, 3 - MAX_EXACT
local LATE, CONFLICT, TOO_MANY_IDS, UNKNOWN_ID = 4 - MAX_EXACT, 5 - MAX_EXACT, 6 - MAX_EXACT, 7 - MAX_EXACT
-- In the sum of a decision: the id is remembered, and nothing more is held or charged.
local REPEATED = 2 ^ 40
local max = math.max
-- The number of words after those of a state with held costs; the words of an entry; the maximum number of entries of a
-- key: of sessions, of leases, and of groups of reservations.
local HELD_WORDS, ENTRY_WORDS, MAX_ENTRIES = 11, 5, 64

local limits = #kernels
-- Tables are created with slots: growing a table step by step costs more in Lua than the rest of this file.
results, result_count = { nil, nil, nil, nil, nil, nil, nil, nil }, 0

local formats = { [7] = '<ddddddd', [10] = '<dddddddddd' }
local function format(words)
  local cached = formats[words]
  if not cached then
    cached = '<' .. ('d'):rep(words)
    formats[words] = cached
  end
  return cached
end

-- By key index: the state, the end of a block, whether the state has changed, the kernel, and the key's expiry.
local states, blocks, changed = { nil, nil, nil, nil }, { nil, nil, nil, nil }, { nil, nil, nil, nil }
-- By key index 0.5 if the reason of the block is an escalation, otherwise 0.
local reasons = { nil, nil, nil, nil }
local kernel_of_key = { nil, nil, nil, nil }
expiries = { nil, nil, nil, nil }
-- By key index the held costs, if there are any; and the number of holds that have expired. holds.lua documents both.
local holds, expired = {}, 0

-- Returns the number of words of a state. Words behind them have no meaning.
local function state_words(kernel, s)
  if kernel.variable_width then
    return kernel.words + s[kernel.words]
  end
  return kernel.words
end

-- Returns the state of a never-seen key.
local function zeros(words)
  local s = {}
  for word = 1, words do
    s[word] = 0
  end
  return s
end

-- Checks that a value's words are numbers of the limiter. Foreign bytes could raise an error in a kernel, which would
-- fail the whole batch, or leave it half written.
local function are_numbers(numbers, count)
  for word = 1, count do
    local number = numbers[word]
    -- Written so that NaN fails, too.
    if not (number >= 0 and number <= MAX_EXACT) then
      return false
    end
  end
  return true
end

-- Returns the held costs of a key, from the words behind `from`. `entries` are the packed entries, decoded when
-- needed.
local function decode_holds(words, from, entries)
  return {
    cost = words[from + 3], leased = words[from + 4], due = words[from + 5], latest = words[from + 6],
    span = words[from + 7], most = words[from + 8], duration = words[from + 9], yields_until = words[from + 10],
    count = words[from + 11], packed = entries, entries = false, lasts_until = 0, is_reported = false,
  }
end

-- Returns the state in a key's value, or false if the value is not one of this kernel.
local function decode(index, kernel, value)
  local words = kernel.words
  expiries[index], blocks[index], reasons[index] = 0, 0, 0
  if not value or #value == 0 then
    return zeros(words)
  end
  local count = #value / 8
  if count <= words or count % 1 ~= 0 or count > 1100 then
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
    if not entries or entries > 3 * MAX_ENTRIES or entries % 1 ~= 0
        or count ~= words + HELD_WORDS + entries * ENTRY_WORDS then
      return false
    end
    blocks[index] = s[words + 2]
    holds[index] = decode_holds(s, words, value:sub((words + HELD_WORDS) * 8 + 1))
  end
  reasons[index] = blocks[index] % 1
  blocks[index] = blocks[index] - reasons[index]
  expiries[index] = s[words + 1]
  return (not kernel.is_valid or kernel.is_valid(s)) and s
end

-- Reads a key of a kernel with a list. Returns its state, or false if the value is not one of this kernel; and an error
-- that fails the call, such as a missing permission.
local function read_list(index, kernel, key)
  -- The header, and two elements that nearly every decision needs.
  local elements = redis.pcall('LRANGE', key, 0, 2)
  if elements.err then
    -- A key of another type fails its own operations.
    return false, not elements.err:find('WRONGTYPE', 1, true) and elements
  end
  local header = elements[1]
  local s = header ~= '' and decode(index, kernel, header)
  return s and kernel.open(s, key, elements) and s
end

local full_count, key_count = 0, 0
do
  local counts = { nil, nil, nil, nil }
  for l = 1, limits do
    counts[l], pos = unpack('<H', input, pos)
    key_count = key_count + counts[l]
    if not kernels[l].is_list then
      full_count = full_count + counts[l]
    end
  end
  -- The fast path may have read them: it does not support a key with held costs.
  if full_count > 0 then
    values = values or call('MGET', table_unpack(KEYS, 1, full_count))
  else
    values = {}
  end
  local index = 0
  for with_list = 0, 1 do
    for l = 1, limits do
      local kernel = kernels[l]
      if (kernel.is_list and 1 or 0) == with_list then
        for _ = 1, counts[l] do
          index = index + 1
          kernel_of_key[index] = kernel
          local key, s = KEYS[index], false
          if with_list == 0 then
            local value = values[index]
            -- MGET returns false for a key of another type, as for a missing one.
            if value or call('EXISTS', key) == 0 then
              s = decode(index, kernel, value)
            end
            values[index] = s and not holds[index] and value or ''
          else
            local problem
            s, problem = read_list(index, kernel, key)
            if problem then
              return problem
            end
            values[index] = ''
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
  local template = { nil, nil, nil, nil, op = op, limit = limit, arg1 = arg1, arg2 = arg2, ids = false, asked = false }
  template.group, template.record = false, false
  for l = limit > 0 and limit or 1, limit > 0 and limit or limits do
    local params = kernels[l].params
    local p = { unpack(format(params + 2), input, pos) }
    pos = p[params + 3]
    p.is_shadow, p.cost = p[params + 1] == 1, p[params + 2]
    template[l] = p
  end
  if (op <= HOLD or op == RESERVE or op == ONCE or op == ONCE_HOLD) and arg1 > 0 then
    -- By these parameters the limit allows the request. It is charged by the others.
    template.asked = {}
    for l = 1, limits do
      local params = kernels[l].params
      if arg1 % 2 == 1 then
        template.asked[l] = { unpack(format(params), input, pos) }
        pos = template.asked[l][params + 1]
      end
      arg1 = math.floor(arg1 / 2)
    end
    if arg1 > 0 then
      -- The share, and the limits beside it, which keep units free.
      template.group = {}
      for l = 1, limits do
        template.group[l] = arg1 % 2 == 1
        arg1 = math.floor(arg1 / 2)
      end
    end
  end
  if op == HOLD or op >= UPDATE then
    local count = op == HOLD and limits or op == UPDATE and 5 or op == LEASE and 7 or limits + 1
    if op == RESERVE then
      count = limits + 4
    elseif op >= ONCE then
      count = op == RECORD and limits + 5 or 2 * limits + 5
    end
    local ids = { unpack(format(count), input, pos) }
    pos = ids[count + 1]
    template.ids = ids
    if op >= RESERVE then
      template.record = KEYS[key_count + ids[limits + 1]]
    end
    if op == RESERVE or op >= ONCE then
      template.counts = KEYS[key_count + ids[limits + 2]]
      template.lifetime, template.max_ids = ids[limits + 3], ids[limits + 4]
    end
    if op == RESERVE then
      -- A hold, and the record of its id.
      template.op = HOLD
    elseif op >= ONCE then
      template.repeats = ids[limits + 5]
      if op ~= RECORD then
        template.op = op == ONCE and ACQUIRE or HOLD
        template.credits = { table_unpack(ids, limits + 6, 2 * limits + 5) }
      end
    end
  end
  templates[index] = template
end
