-- The fast path for a limiter with one bucket: decisions without a delay, on states of the current quota, with a
-- clock that did not step back. For any other batch it sets `fast` to 0, and the general script decides the whole
-- batch. It writes nothing itself: new values are written by fast_reply.lua, after all operations were decided.
-- Without that, the general script would charge operations twice.

-- The state, and the expiry.
local VALUE_LENGTH = 48

if fast == 1 then
  -- A template has 108 bytes, and the parameters begin behind 20 of them.
  local first, cursor, last = pos + 2 + 20 - 108, pos + 2 + 108 * template_count, 0
  local tokens, ticks, tolerance_fraction, cost, cost_fraction, latest_tat
  for index = 1, operation_count do
    local template, key, count = 1, index, 1
    if not is_plain then
      template, key, count, cursor = unpack('<HHH', input, cursor)
    end
    if template ~= last then
      tokens, ticks, latest_tat, tolerance_fraction, cost, cost_fraction =
        unpack('<dddddd', input, first + 108 * template)
      latest_tat, tolerance_fraction, last = latest_tat + now, tokens - tolerance_fraction, template
    end
    local tat, fraction, expires = now, 0, 0
    local value = new_values[key] or values[key]
    if value then
      local state_tokens, state_ticks, written_at
      if #value ~= VALUE_LENGTH then
        fast = 0
        break
      end
      tat, fraction, state_tokens, state_ticks, written_at, expires = unpack('<dddddd', value)
      -- The conditions are positive because all comparisons with NaN are false. The driver handles foreign values.
      if not (written_at >= 0 and written_at <= now and state_tokens == tokens and state_ticks == ticks
          and tat >= 0 and tat <= MAX_EXACT and fraction >= 0 and fraction <= MAX_EXACT
          and expires >= 0 and expires <= MAX_EXACT) then
        fast = 0
        break
      elseif tat <= now then
        tat, fraction = now, 0
      end
    end
    local before = result_count
    count = result_count + count
    while result_count < count and (tat <= latest_tat or (fraction >= tolerance_fraction and tat <= latest_tat + 1)) do
      tat, fraction = tat + cost, fraction - cost_fraction
      if fraction < 0 then
        tat, fraction = tat + 1, fraction + tokens
      end
      result_count = result_count + 1
    end
    if result_count > before then
      if tat > expires then
        expires = tat + TTL_SLACK
        expiries[key] = expires
      end
      new_values[key] = pack('<dddddd', tat, fraction, tokens, ticks, now, expires)
    end
    if result_count < count then
      local wait = tat - latest_tat
      if fraction >= tolerance_fraction then
        wait = wait - 1
      end
      has_denials = true
      while result_count < count do
        result_count = result_count + 1
        results[result_count] = wait
      end
    end
  end
end

-- The fast path for holds, and for updates of their sessions: on states of the current quota, without a block, leases, ids,
-- or entries that have expired. It replies as the driver does (driver.lua, holds.lua), to which it leaves any other batch,
-- and then it has written nothing. Benchmark: `redis holding callers`.
if fast == 2 then
  local MAX_PERIOD = 6311520000000000
  -- A hold has 14 doubles behind its codes, an update 18.
  local HOLD_FORMAT, UPDATE_FORMAT = '<HH' .. ('d'):rep(14), '<HH' .. ('d'):rep(18)
  -- A value: the state's words, and the words HELD. Of a template: the codes, two arguments, and the parameters.
  local WORDS, HEAD = 5, 4
  local COST, IDS = HEAD + 11, HEAD + 11
  local floor, max = math.floor, math.max

  -- Charges a cost at a time, at which the state's rate is that of the parameters: see `charge` in bucket.lua.
  local function charge(tat, fraction, at, cost, tokens, ticks)
    if tat <= at then
      tat, fraction = at, 0
    end
    local whole_ticks, rounds = floor(ticks / tokens), floor(cost / tokens)
    local rest_ticks, rest = ticks - whole_ticks * tokens, cost - rounds * tokens
    local product = rest * rest_ticks
    local quotient = floor(product / tokens)
    tat = tat + (cost * whole_ticks + rounds * rest_ticks + quotient)
    fraction = fraction - (product - quotient * tokens)
    if fraction < 0 then
      tat, fraction = tat + 1, fraction + tokens
    end
    if tat > at + MAX_PERIOD then
      return at + MAX_PERIOD, 0
    end
    return tat, fraction
  end

  local function is_number(number)
    return number >= 0 and number <= MAX_EXACT
  end

  -- Returns a key's state and entries, and the value for the reply; nil if the driver must decide.
  local function read(value)
    if not value then
      return { 0, 0, 0, 0, 0, expires = 0, entries = {}, count = 0, cost = 0, span = 0, most = 0, duration = 0 }, ''
    end
    local count = (#value - 8 * (WORDS + HELD.LENGTH)) / (8 * ENTRY.LENGTH)
    local is_held = count >= 0 and count <= BOUND.max_entries and count % 1 == 0
    if not is_held and #value ~= VALUE_LENGTH then
      return
    end
    local s = { unpack(is_held and '<dddddddddddddddd' or '<dddddd', value) }
    for word = 1, is_held and WORDS + HELD.LENGTH or WORDS + HELD.key_expiry do
      if not is_number(s[word]) then
        return
      end
    end
    -- The clock was not set back.
    if s[5] > now then
      return
    end
    s.expires = s[WORDS + HELD.key_expiry]
    if not is_held then
      s.entries, s.count, s.cost, s.span, s.most, s.duration = {}, 0, 0, 0, 0, 0
      return s, value
    end
    if s[WORDS + HELD.block] ~= 0 or s[WORDS + HELD.leased] ~= 0 or s[WORDS + HELD.yields_until] ~= 0
        or s[WORDS + HELD.count] ~= count or s[WORDS + HELD.due] <= now
        or s[WORDS + HELD.latest] > now + s[WORDS + HELD.span] then
      return
    end
    s.cost, s.span, s.count = s[WORDS + HELD.cost], s[WORDS + HELD.span], count
    s.most, s.duration = s[WORDS + HELD.most], s[WORDS + HELD.duration]
    local entries, held = {}, 0
    for index = 1, count do
      local entry = { unpack('<ddddd', value, 8 * (WORDS + HELD.LENGTH + (index - 1) * ENTRY.LENGTH) + 1) }
      for word = 1, ENTRY.LENGTH do
        if not is_number(entry[word]) then
          return
        end
      end
      -- Neither a lease nor a group of reservations.
      if entry[ENTRY.id] >= BOUND.lease_ids or entry[ENTRY.id] % 1 ~= 0 then
        return
      end
      entries[index], held = entry, held + entry[ENTRY.held]
    end
    if held ~= s.cost then
      return
    end
    s.entries = entries
    -- The sum of the held costs, and one byte that marks this format.
    return s, pack('<d', held) .. value:sub(1, 8 * WORDS) .. '\0'
  end

  local function find(s, id)
    for index = 1, s.count do
      if s.entries[index][ENTRY.id] == id then
        return s.entries[index], index
      end
    end
  end

  -- Returns the wait of a denied hold, 0 for an allowed one; nil if the driver must decide.
  local function hold(s, p)
    local tat, fraction, tokens, id, cost = s[1], s[2], p[HEAD + 1], math.abs(p[IDS + 1]), p[COST]
    if s.cost > 0 then
      tat, fraction = charge(tat, fraction, now, s.cost, tokens, p[HEAD + 2])
    elseif tat <= now then
      tat, fraction = now, 0
    end
    local wait = tat - now - p[HEAD + 3]
    if fraction + p[HEAD + 4] >= tokens then
      wait = wait - 1
    end
    if wait > 0 then
      return wait
    end
    local entry = find(s, id)
    if not entry then
      if p[IDS + 1] > 0 or s.count >= BOUND.max_entries then
        return
      end
      entry = { id, 0, 0, 0, 0 }
      s.count = s.count + 1
      s.entries[s.count] = entry
    end
    entry[ENTRY.held], entry[ENTRY.expiry] = entry[ENTRY.held] + cost, now + p[4]
    s.cost, s.span, s.changed = s.cost + cost, max(s.span, p[4]), p
    return 0
  end

  -- Returns the released and the charged cost of an update; nil if the driver must decide.
  local function update(s, p)
    local entry, position = find(s, p[IDS + UPDATE.id])
    if not entry then
      return
    end
    local released = max(0, p[IDS + UPDATE.released] - entry[ENTRY.released])
    local charged = max(0, p[IDS + UPDATE.charged] - entry[ENTRY.charged])
    local ends = p[IDS + UPDATE.ends] == 1
    if ends or released > entry[ENTRY.held] then
      released = entry[ENTRY.held]
    end
    entry[ENTRY.held] = entry[ENTRY.held] - released
    entry[ENTRY.released] = max(entry[ENTRY.released], p[IDS + UPDATE.released])
    entry[ENTRY.charged] = max(entry[ENTRY.charged], p[IDS + UPDATE.charged])
    entry[ENTRY.expiry] = now + p[3]
    s.cost, s.span, s.changed = s.cost - released, max(s.span, p[3]), p
    if ends then
      table.remove(s.entries, position)
      s.count = s.count - 1
      if s.count == 0 then
        s.span, s.most, s.duration = 0, 0, 0
      end
    end
    if charged > 0 then
      s[1], s[2] = charge(s[1], s[2], now, charged, p[HEAD + 1], p[HEAD + 2])
      s[3], s[4], s[5] = p[HEAD + 1], p[HEAD + 2], now
    end
    return released, charged
  end

  -- Returns the results, and the states and the values for the reply by key; nil if the driver must decide.
  local function run()
    local templates, found, states, reported, at = {}, {}, {}, {}, pos + 2
    for index = 1, template_count do
      local op, limit = unpack('<HH', input, at)
      local is_hold = op == OPERATION.hold and limit == 0
      if not is_hold and op ~= OPERATION.update then
        return
      end
      local p = { unpack(is_hold and HOLD_FORMAT or UPDATE_FORMAT, input, at) }
      at = p[#p]
      -- No queue, no shadow; and of a hold no unit is kept free, and the cost is possible and held.
      if p[HEAD + 9] ~= 0 or p[HEAD + 10] ~= 0
          or is_hold and (p[3] ~= 0 or p[HEAD + 8] == 0 or p[COST] == 0 or p[IDS + 1] == 0) then
        return
      end
      p.is_hold, templates[index] = is_hold, p
    end
    if #KEYS > 1 then
      values = call('MGET', table_unpack(KEYS))
    else
      local value = redis.pcall('GET', KEYS[1])
      if type(value) == 'table' then
        return
      end
      values = { value }
    end
    for index = 1, #KEYS do
      -- MGET returns none for a key of another type, too.
      if not values[index] and #KEYS > 1 and call('EXISTS', KEYS[index]) == 1 then
        return
      end
      states[index], reported[index] = read(values[index])
      if not states[index] then
        return
      end
    end
    local count = 0
    for index = 1, operation_count do
      local template, key, repeats = 1, index, 1
      if not is_plain then
        template, key, repeats, at = unpack('<HHH', input, at)
      end
      local s, p = states[key], templates[template]
      if s[1] > now and (s[3] ~= p[HEAD + 1] or s[4] ~= p[HEAD + 2]) then
        return
      end
      for _ = 1, repeats do
        local first, second
        if p.is_hold then
          first, second = hold(s, p), FLAG.cannot_schedule
        else
          first, second = update(s, p)
        end
        if not first then
          return
        end
        found[count + 1], found[count + 2], count = first, second, count + 2
      end
    end
    return found, states, reported
  end

  -- Writes a key.
  local function write(key, s)
    local due, latest, last, parts = MAX_EXACT, 0, s[1], { '', '' }
    for index = 1, s.count do
      local entry = s.entries[index]
      due, latest = math.min(due, entry[ENTRY.expiry]), max(latest, entry[ENTRY.expiry])
      parts[index + 2] = pack('<ddddd', table_unpack(entry, 1, ENTRY.LENGTH))
    end
    if s.count > 0 then
      last = max(last, latest)
      if s.cost > 0 then
        last = max(last, (charge(s[1], s[2], latest, s.cost, s.changed[HEAD + 1], s.changed[HEAD + 2])))
      end
      parts[2] = pack('<dddddddddd', 0, s.cost, 0, due, latest, s.span, s.most, s.duration, 0, s.count)
    end
    if last <= now then
      return call('DEL', key)
    end
    local expires = s.expires
    if last > expires or expires - last > EXCESS then
      expires = last + TTL_SLACK
    end
    parts[1] = pack('<dddddd', s[1], s[2], s[3], s[4], s[5], expires)
    local value = table.concat(parts)
    if expires == s.expires then
      call('SET', key, value, 'KEEPTTL')
    else
      call('PSETEX', key, uses_test_time and TEST_TTL or ceil((expires - now) / 1000) + 1, value)
    end
  end

  local found, states, reported = run()
  if found then
    local lengths = { nil, nil, nil, nil }
    for index = 1, #KEYS do
      if states[index].changed then
        write(KEYS[index], states[index])
      end
      lengths[index] = #reported[index]
    end
    return pack('<dHHH', now, 0, #found, #KEYS) .. pack('<' .. ('d'):rep(#found), table_unpack(found))
      .. pack('<' .. ('H'):rep(#KEYS), table_unpack(lengths)) .. table.concat(reported)
  end
end
