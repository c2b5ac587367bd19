-- Holds with an id, which any process can settle, and requests that are charged once. This code runs only for an operation
-- that names an id.
--
-- # Layout
--
-- The held costs of all ids of a key that expire together are one entry of the key: a *group*. Its id is its expiry and a
-- half, which is no whole number, so it is none of a session or a lease. The sums of the entry are 0. So decisions read
-- no ids, and their work does not grow with the number of ids.
--
-- Two more keys belong to an id. Both have the cluster slot of the states:
--
-- - The *record*, of doubles: the time at which the id is forgotten, the id of its group, the repeats that are allowed (-1
--   if it is settled), and for each limit the cost of the request and the id of its group there (-1 if the limit holds
--   nothing): a limit with a maximum duration may hold for a shorter time. Of a
--   request that is charged once: the repeats that pass in place of the group, then for how long the id is remembered,
--   the charged costs, and -1.
-- - The *counts* of the user's key: for each time at which ids are forgotten, the time and the number of these ids.
--
-- # Protocol
--
-- A hold without a record adds its costs to the group's entries, and writes the record. A hold with a record counts its
-- repeats. A settlement takes the held costs from the entry and marks the record, so a repeat changes nothing. If the
-- entry is absent, the held costs were charged at their expiry, and only what exceeds them is charged.
--
-- A request that is charged once writes its record in the operation that charges it. A repeat is two operations, because the
-- parameters of a limit depend on the cost: the first one returns what was charged, and the second one charges what the
-- cost exceeds it. It fails if the record has changed meanwhile. A held cost is recorded when it is settled: a repeat (without
-- repeats of its own) adds what it was charged, and records no id that was forgotten before.

local RECORD_WORDS = 3
-- The shortest span of which expiries are multiples, in microseconds: a fraction of the shortest lifetime, a millisecond.
local MIN_STEP = 125
-- No id is remembered for longer: twice 24 hours and what expiries are rounded.
local MAX_REMEMBERED = 2.5 * 86400000000

local function make_reservations()
  local this = {}

  -- Returns the bytes of a key, nil if it is absent, or false if it has another type.
  local function get(key)
    local value = redis.pcall('GET', key)
    if type(value) == 'table' then
      return false
    end
    return value or nil
  end

  local function put(key, words, lasts_until)
    local ttl = uses_test_time and TEST_TTL or max(1, ceil((lasts_until - now) / 1000))
    call('PSETEX', key, ttl, pack(format(#words), table_unpack(words)))
  end

  -- Returns the record of an id, nil if there is none, or false if the key holds foreign bytes.
  local function read(template)
    local value, count = get(template.record), RECORD_WORDS + 2 * limits
    if not value then
      return value
    end
    if #value ~= count * 8 then
      return false
    end
    local record = { unpack(format(count), value) }
    -- `unpack` has added the position behind the words.
    record[count + 1] = nil
    for word = 1, count do
      if not (record[word] >= -1 and record[word] <= MAX_EXACT) then
        return false
      end
    end
    -- When its hold expires or its request is forgotten, and how long that lasts at most. A record of a clock that was
    -- further ahead than that does not count.
    local ends_at, span = record[1], record[3]
    if not template.repeats then
      ends_at, span = record[2], record[1] - record[2]
    end
    if record[1] <= now or ends_at > now + 2 * span then
      return nil
    end
    return record
  end

  -- The record of the request that is decided, nil if there is none.
  local current

  -- Returns what the limit was charged for the request.
  function this.charged(l)
    return current and current[RECORD_WORDS + 2 * l - 1] or 0
  end

  -- Returns REPEATED for a request that repeats a remembered id, a failure, or nil for a request to decide.
  local function find_request(template)
    local record = read(template)
    if record == false then
      return INVALID_STATE
    end
    current = record
    local passes = record and record[2] > 0
    for l = 1, limits do
      local charge_before = template.charges_before[l]
      if passes and charge_before < 0 then
        return REPEATED
      elseif charge_before >= 0 and not (passes and this.charged(l) == charge_before) then
        return CONFLICT
      end
    end
  end

  -- Returns for how long the id of the request is remembered.
  function this.remembered_for()
    return current[1] - now
  end

  -- Returns REPEATED for an id that is remembered, a failure, or nil for a new one. Counts a repeat.
  function this.find(template)
    current = nil
    if template.repeats then
      return find_request(template)
    end
    local record = read(template)
    if not record then
      return record == false and INVALID_STATE or nil
    end
    for l = 1, limits do
      if record[RECORD_WORDS + 2 * l - 1] ~= template[l].cost then
        return CONFLICT
      end
    end
    -- The group expires at a whole number.
    if record[3] < 0 or record[2] - 0.5 <= now then
      return ALREADY_SETTLED
    elseif record[3] == 0 then
      current = record
      return DENIED_REPEAT
    end
    record[3] = record[3] - 1
    put(template.record, record, record[1])
    return REPEATED
  end

  -- Adds one id to the counts that are not forgotten. Returns nothing, with nothing written, if there are too many.
  local function count_id(template, forgotten_at)
    local value, counts, total, latest = get(template.counts), {}, 1, forgotten_at
    local found = false
    if value and #value % 16 == 0 then
      for at = 1, #value, 16 do
        local time, ids = unpack('<dd', value, at)
        -- Not of a clock that was far ahead.
        if time > now and time <= now + MAX_REMEMBERED and ids >= 1 and ids <= MAX_EXACT then
          total, latest = total + ids, max(latest, time)
          if time == forgotten_at then
            found, ids = true, ids + 1
          end
          counts[#counts + 1] = time
          counts[#counts + 1] = ids
        end
      end
    end
    if not found then
      counts[#counts + 1] = forgotten_at
      counts[#counts + 1] = 1
    end
    if total > template.max_ids or #counts > 4 * MAX_GROUPS then
      return
    end
    put(template.counts, counts, latest)
    return true
  end

  -- Returns the span of which all expiries of a lifetime are multiples: at most a quarter of the lifetime, and more than
  -- an eighth. So the groups of all lifetimes are few.
  local function step_of(lifetime)
    local step = MIN_STEP
    while step * 8 <= lifetime do
      step = step * 2
    end
    return step
  end

  -- Returns the id of the group whose holds expire after this time.
  local function group_of(lifetime)
    local step = step_of(lifetime)
    return ceil((now + lifetime) / step) * step + 0.5
  end

  -- Records a request of these costs, unless the key has too many ids.
  local function record_request(template, cost_of)
    local step = step_of(template.lifetime)
    local forgotten_at = ceil((now + template.lifetime) / step) * step
    if template.repeats > 0 and count_id(template, forgotten_at) then
      local record = { forgotten_at, template.repeats, forgotten_at - now }
      for l = 1, limits do
        record[RECORD_WORDS + 2 * l - 1], record[RECORD_WORDS + 2 * l] = cost_of(l), -1
      end
      put(template.record, record, forgotten_at)
    end
  end

  -- Records what the decided request is charged. What it holds is recorded by its settlement.
  function this.record_decision(template, holding)
    local function cost_of(l)
      return holding and template.ids[l] ~= 0 and 0 or template[l].cost
    end
    if not current then
      record_request(template, cost_of)
    elseif current[2] > 0 then
      current[2] = current[2] - 1
      for l = 1, limits do
        local word = RECORD_WORDS + 2 * l - 1
        current[word] = current[word] + cost_of(l)
      end
      put(template.record, current, current[1])
    end
  end

  -- Records what a settled request was charged.
  function this.record_settlement(template)
    local record = read(template)
    if record then
      for l = 1, limits do
        local word = RECORD_WORDS + 2 * l - 1
        local charged = template.ids[l]
        record[word] = template.repeats == 0 and record[word] + charged or max(record[word], charged)
      end
      put(template.record, record, record[1])
    elseif record == nil then
      record_request(template, function(l) return template.ids[l] end)
    end
    for _ = 1, SETTLED.LENGTH * limits do
      result_count = result_count + 1
      results[result_count] = 0
    end
  end

  -- Holds the costs, and records the id. `counts` has the limits that count the request. Returns the failures by limit, or
  -- nil.
  function this.hold(template, operation, charged_limits, counts)
    local step, group = step_of(template.lifetime), group_of(template.lifetime)
    local forgotten_at, hold = group - 0.5 + ceil(template.lifetime / step) * step, { ids = {}, record = true }
    local record = { forgotten_at, group, template.hold_repeats }
    for l = 1, limits do
      -- The limit holds for so long at most.
      local p, most = template[l], template.ids[l]
      local own = most ~= 0 and group_of(math.min(template.lifetime, most))
      hold[l], hold.ids[l] = p, own and -own or 0
      record[#record + 1] = p.cost
      record[#record + 1] = own and counts[l] and own or -1
    end
    local problems = held_costs.check_hold(hold, operation, charged_limits)
    -- The last check, because it writes.
    if not problems and not count_id(template, forgotten_at) then
      problems = {}
      for l = 1, limits do
        problems[l] = TOO_MANY_IDS
      end
    end
    if problems then
      return problems
    end
    held_costs.hold(hold, operation, charged_limits)
    put(template.record, record, forgotten_at)
  end

  -- Settles one limit. Returns the newly released and charged costs.
  local function settle_limit(index, p, group, held, actual)
    local kernel, released = kernel_of_key[index], 0
    local entry, position = held_costs.find(index, group)
    if entry then
      local h = holds[index]
      released = math.min(held, entry[ENTRY.held])
      entry[ENTRY.held], h.cost = entry[ENTRY.held] - released, h.cost - released
      if entry[ENTRY.held] == 0 then
        table.remove(h.entries, position)
      end
    else
      -- The held cost was charged at its expiry.
      actual = max(0, actual - held)
    end
    if kernel.held_until_end or not kernel.charge then
      actual = 0
    elseif actual > 0 then
      kernel.charge(states[index], now, actual, p)
    end
    if entry then
      held_costs.refresh(index, p)
    elseif actual > 0 then
      changed[index] = true
      held_costs.extend_lifetime(index, p)
    end
    return released, actual
  end

  -- Settles a hold with the actual costs, unless it is settled. Returns a failure, or nil.
  local function settle(template, operation)
    for l = 1, limits do
      if not states[operation[l + 1]] then
        return INVALID_STATE
      end
    end
    for l = 1, limits do
      held_costs.prepare(operation[l + 1], template[l])
    end
    local record = read(template)
    if not record then
      return record == false and INVALID_STATE or UNKNOWN_ID
    end
    for l = 1, limits do
      local held, group = record[RECORD_WORDS + 2 * l - 1], record[RECORD_WORDS + 2 * l]
      local actual, released, charged = template.ids[l], 0, 0
      if record[3] >= 0 and group >= 0 then
        released, charged = settle_limit(operation[l + 1], template[l], group, held, actual < 0 and held or actual)
      end
      results[result_count + SETTLED.released], results[result_count + SETTLED.charged] = released, charged
      result_count = result_count + SETTLED.LENGTH
    end
    if record[3] >= 0 then
      record[3] = -1
      put(template.record, record, record[1])
    end
  end

  -- Settles a hold, and adds the results.
  function this.run_settlement(template, operation)
    local problem = settle(template, operation)
    for _ = 1, problem and SETTLED.LENGTH * limits or 0 do
      result_count = result_count + 1
      results[result_count] = problem
    end
  end

  return this
end
