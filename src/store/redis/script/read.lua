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
--   H  1 if the kernel's fast path of decisions supports all templates, 2 if its fast path of holds does, 3 if all are plain
--      decisions on one limit, else 0
--   H  the number of templates
--   H  the number of operations; 0 if there is one limit and one template, and each key in its order has one operation.
--      Only their own numbers are then sent
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
--      for each limit that has a part in guaranteed shares, and the next power of 2 for a request that only limits on
--      requests in flight hold, of which one is a shadow
--   d  arg2: the maximum delay (-1 for the algorithm's default); the expiry of a hold; the maximum that leases hold
--   d  for each limit of the template: its kernel's parameters, 1 for a shadow limit, and the cost
--   d  of a decision: for each limit that keeps units free its kernel's parameters for the cost and these units; for a
--      request that only limits on requests in flight hold, of which one is a shadow, the maximum delay plus 1
--
-- An operation is the number of its template, for each limit the number of its key (0 for a limit without part in the
-- operation), and a repeat count (all H). Then come its own numbers:
--
--   d  HOLD: for each limit the id of the session, negative for a new session, 0 for a limit that is charged
--   d  UPDATE, LEASE: the fields UPDATE and REPORT
--   d  RESERVE: for each limit 1 if it holds, 0 if it is charged; and the fields RESERVE
--   d  ONCE, ONCE_HOLD: for each limit the id of the session, as for HOLD; the fields RESERVE; for each limit what the
--      request was charged before, -1 if the client does not know yet
--   d  RECORD: for each limit the charged cost; and the fields RESERVE
--   d  SETTLE: for each limit the actual cost, -1 for the held one; and the fields SETTLE
--
-- Names in capitals are codes and lists of fields in fields.rs, which puts a number in the place of each name in the
-- code.
--
-- # Values
--
-- A value is a state's words, the key's expiry, and the end of a block if there is one: all doubles. The end has the
-- fraction 0.5 if the reason of the block is an escalation. If costs are held on the key, the end of the block is always there, and the words in holds.lua follow. A kernel with a list stores only
-- the list's first element, the header, this way; it reads and writes the other elements by itself.

-- The results of operations that failed.
local INVALID_STATE, EXPIRED, FULL, UNSUPPORTED = FAILURE.invalid_state, FAILURE.expired, FAILURE.full, FAILURE.unsupported
local CONFLICT, TOO_MANY_IDS, UNKNOWN_ID = FAILURE.conflict, FAILURE.too_many_ids, FAILURE.unknown_id
local ALREADY_SETTLED, DENIED_REPEAT = FAILURE.already_settled, FAILURE.repeated
-- In the sum of a decision: the id is remembered, and nothing more is held or charged.
local REPEATED = FLAG.repeated
local max = math.max
-- The maximum number of entries of a key: of sessions, and of leases; of groups of reservations.
local MAX_ENTRIES, MAX_GROUPS = BOUND.max_entries, BOUND.max_groups

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
  if kernel.further_words then
    return kernel.words + kernel.further_words(s)
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
    cost = words[from + HELD.cost], leased = words[from + HELD.leased], due = words[from + HELD.due],
    latest = words[from + HELD.latest], span = words[from + HELD.span], most = words[from + HELD.most],
    duration = words[from + HELD.duration], yields_until = words[from + HELD.yields_until],
    count = words[from + HELD.count], packed = entries, entries = false, lasts_until = 0, is_reported = false,
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
  -- The longest value has fewer words: 138 of a state, HELD.LENGTH of its holds, and ENTRY.LENGTH for each entry.
  if count <= words or count % 1 ~= 0 or count > 1700 then
    return false
  end
  local known = count
  if count > words + 2 and not kernel.further_words then
    known = words + HELD.LENGTH
  -- With a variable width, all words before the entries are among the first 160.
  elseif count > 160 then
    known = 160
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
    local entries = s[words + HELD.count]
    if not entries or entries > 2 * MAX_ENTRIES + MAX_GROUPS or entries % 1 ~= 0
        or count ~= words + HELD.LENGTH + entries * ENTRY.LENGTH then
      return false
    end
    blocks[index] = s[words + HELD.block]
    holds[index] = decode_holds(s, words, value:sub((words + HELD.LENGTH) * 8 + 1))
  end
  reasons[index] = blocks[index] % 1
  blocks[index] = blocks[index] - reasons[index]
  expiries[index] = s[words + HELD.key_expiry]
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
  -- A fast path may have read them.
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

-- The fast path of plain decisions on one limit, on keys without a block and held costs. The driver then only writes and
-- replies. Script time: 0.79 of the driver's alone, and 0.76 to 0.84 in batches (benches/NOTES.md).
for index = 1, key_count do
  if not states[index] or blocks[index] > 0 or holds[index] then
    fast = 0
  end
end
if fast == 3 then
  local kernel, asked = kernels[1], {}
  local params, peek, commit, view = kernel.params, kernel.peek, kernel.commit, kernel.view
  local length = 36 + 8 * params
  local first, cursor = pos - length, pos + length * template_count
  for index = 1, operation_count do
    local template, key, count = 1, index, 1
    if not is_plain then
      template, key, count, cursor = unpack('<HHH', input, cursor)
    end
    local p, s = asked[template], states[key]
    if not p then
      p = { unpack(format(params + 2), input, first + length * template + 20) }
      p.max_delay = unpack('<d', input, first + length * template + 12)
      p.flags = (kernel.supports_scheduling or p[params + 1] == 1) and 0 or FLAG.cannot_schedule
      asked[template] = p
      if kernel.covers and not kernel.covers(now, p) then
        return pack('<d', now)
      end
    end
    for _ = 1, count do
      local own = peek(s, now, p.max_delay, p)
      if (own == 0 or own < -1) and p[params + 2] > 0 then
        commit(s, now, max(0, -1 - own), p)
        changed[key] = true
      end
      results[result_count + 1], results[result_count + 2] = own, p.flags
      result_count = result_count + 2
      if view then
        results[result_count + 1], results[result_count + 2], results[result_count + 3] = view(s, now, p)
        result_count = result_count + 3
      end
    end
  end
  template_count, operation_count = 0, 0
end

-- Reads the own numbers of an operation into its template. Returns the position behind them.
local function read_numbers(template, at)
  local ids, code = { unpack(format(template.numbers), input, at) }, template.code
  template.ids = ids
  if code >= OPERATION.reserve then
    -- A settlement has its record's key in the same place.
    template.record = KEYS[key_count + ids[limits + RESERVE.record_key]]
  end
  if code == OPERATION.reserve or code >= OPERATION.once then
    template.counts = KEYS[key_count + ids[limits + RESERVE.counts_key]]
    template.lifetime, template.max_ids = ids[limits + RESERVE.lifetime], ids[limits + RESERVE.max_ids]
    local repeats = ids[limits + RESERVE.repeats]
    if code == OPERATION.reserve then
      template.hold_repeats = repeats
    else
      template.repeats = repeats
    end
    if code == OPERATION.once or code == OPERATION.once_hold then
      template.charges_before = { table_unpack(ids, limits + RESERVE.LENGTH + 1, 2 * limits + RESERVE.LENGTH) }
    end
  end
  return ids[template.numbers + 1]
end

local templates = {}
for index = 1, template_count do
  local op, limit, arg1, arg2, max_delay
  op, limit, arg1, arg2, pos = unpack('<HHdd', input, pos)
  local template = { nil, nil, nil, nil, op = op, code = op, limit = limit, arg1 = arg1, arg2 = arg2, ids = false, asked = false }
  template.group, template.record, template.numbers = false, false, 0
  -- False if the request holds.
  template.max_delay = op ~= OPERATION.hold and op ~= OPERATION.reserve and op ~= OPERATION.once_hold and arg2
  for l = limit > 0 and limit or 1, limit > 0 and limit or limits do
    local params = kernels[l].params
    local p = { unpack(format(params + 2), input, pos) }
    pos = p[params + 3]
    p.is_shadow, p.cost = p[params + 1] == 1, p[params + 2]
    template[l] = p
  end
  if (op <= OPERATION.hold or op == OPERATION.reserve or op == OPERATION.once or op == OPERATION.once_hold) and arg1 > 0 then
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
    if arg1 > 0 then
      max_delay, pos = unpack('<d', input, pos)
      template.max_delay = max_delay - 1
    end
  end
  if op == OPERATION.hold or op >= OPERATION.update then
    template.numbers = op == OPERATION.update and UPDATE.LENGTH or op == OPERATION.lease and REPORT.LENGTH
      or limits + (op == OPERATION.hold and 0 or op == OPERATION.settle and SETTLE.LENGTH or RESERVE.LENGTH)
      + ((op == OPERATION.once or op == OPERATION.once_hold) and limits or 0)
    if op == OPERATION.reserve or op == OPERATION.once_hold then
      -- A hold, and the record of its id.
      template.op = OPERATION.hold
    elseif op == OPERATION.once then
      template.op = OPERATION.acquire
    end
  end
  templates[index] = template
end

-- The client's clock is wrong by more than a window of a calendar. Nothing has changed: the client sends again, with the
-- windows around this time. So does the fast path.
for index = 1, template_count do
  local template = templates[index]
  for l = 1, limits do
    if template[l] and kernels[l].covers and not kernels[l].covers(now, template[l]) then
      return pack('<d', now)
    end
  end
end

-- The functions of holds.lua and reservations.lua, created on first use.
local held_costs, reservations
