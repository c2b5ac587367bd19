-- The fast paths for a limiter with one bucket. First decisions without a delay, on states of the current quota, with a
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

-- The fast path for holds, and for updates of their sessions: on states of the current quota, without a block, leases,
-- ids, or entries that have expired. It replies as the driver does (driver.lua, holds.lua), to which it leaves any other
-- batch, and then it has written nothing. Benchmark: `redis holding callers`.
if fast == 2 then
  local MAX_PERIOD = 6311520000000000
  -- A value: the state and the words HELD, for the usual single entry with it; an entry.
  local HELD_FORMAT, VALUE_FORMAT, ENTRY_FORMAT = '<dddddddddddddddd', '<ddddddddddddddddddddd', '<ddddd'
  local HELD_LENGTH, ENTRY_LENGTH = VALUE_LENGTH - 8 + 8 * HELD.LENGTH, 8 * ENTRY.LENGTH
  -- A template: the codes, two arguments and the parameters, in front of the fields of a hold and of an update.
  local HOLD_FORMAT, UPDATE_FORMAT = '<HHdddddddddddddd', '<HHdddddddddddddddddd'
  local HEAD, COST, IDS = 4, 15, 15
  local floor, max, min = math.floor, math.max, math.min

  -- Charges a cost at a time, at which the state has the parameters' rate: see `charge` in bucket.lua.
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

  -- Returns a key's state and entries, and the value for the reply; nil if the driver must decide.
  local function read(value)
    local tat, fraction, tokens, ticks, charged_at, expires, reported = 0, 0, 0, 0, 0, 0, ''
    local block, cost, leased, due, latest, span, most = 0, 0, 0, MAX_EXACT, 0, 0, 0
    local duration, yields_until, count, entries = 0, 0, 0, {}
    if value then
      reported = value
      if #value == VALUE_LENGTH then
        tat, fraction, tokens, ticks, charged_at, expires = unpack('<dddddd', value)
      elseif #value >= HELD_LENGTH then
        tat, fraction, tokens, ticks, charged_at, expires, block, cost, leased, due, latest, span, most, duration,
          yields_until, count = unpack(HELD_FORMAT, value)
        if #value ~= HELD_LENGTH + count * ENTRY_LENGTH then
          return
        end
        -- The sum of the held costs, the state, and one byte that marks this format.
        reported = value:sub(VALUE_LENGTH + 9, VALUE_LENGTH + 16) .. value:sub(1, VALUE_LENGTH - 8) .. '\0'
      else
        return
      end
    end
    -- The conditions are positive because all comparisons with NaN are false. The driver handles foreign values.
    if not (tat >= 0 and tat <= MAX_EXACT and fraction >= 0 and fraction <= MAX_EXACT
        and tokens >= 0 and tokens <= MAX_EXACT and ticks >= 0 and ticks <= MAX_EXACT
        and charged_at >= 0 and charged_at <= now and expires >= 0 and expires <= MAX_EXACT
        and block == 0 and leased == 0 and yields_until == 0 and due > now and latest >= 0 and latest <= now + span
        and span <= MAX_EXACT and most >= 0 and most <= MAX_EXACT and duration >= 0 and duration <= MAX_EXACT
        and count <= BOUND.max_entries and count % 1 == 0) then
      return
    end
    local held = 0
    for index = 1, count do
      local id, own, released, charged, expiry =
        unpack(ENTRY_FORMAT, value, HELD_LENGTH + 1 + (index - 1) * ENTRY_LENGTH)
      -- Neither a lease nor a group of reservations.
      if not (id >= 0 and id < BOUND.lease_ids and id % 1 == 0 and own >= 0 and own <= MAX_EXACT
          and released >= 0 and released <= MAX_EXACT and charged >= 0 and charged <= MAX_EXACT
          and expiry >= 0 and expiry <= MAX_EXACT) then
        return
      end
      entries[index], held = { id, own, released, charged, expiry }, held + own
    end
    if held ~= cost then
      return
    end
    return {
      tat = tat, fraction = fraction, tokens = tokens, ticks = ticks, charged_at = charged_at, expires = expires,
      cost = cost, span = span, most = most, duration = duration, count = count, entries = entries, changed = false,
    }, reported
  end

  local function find(s, id)
    local entries = s.entries
    for index = 1, s.count do
      if entries[index][ENTRY.id] == id then
        return entries[index], index
      end
    end
  end

  -- Returns the wait of a denied hold, 0 for an allowed one; nil if the driver must decide.
  local function hold(s, p)
    local tat, fraction, tokens, id = s.tat, s.fraction, p[HEAD + 1], p[IDS + 1]
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
    local entry = find(s, id < 0 and -id or id)
    if not entry then
      if id > 0 or s.count >= BOUND.max_entries then
        return
      end
      entry = { -id, 0, 0, 0, 0 }
      s.count = s.count + 1
      s.entries[s.count] = entry
    end
    entry[ENTRY.held], entry[ENTRY.expiry] = entry[ENTRY.held] + p[COST], now + p[4]
    s.cost, s.span, s.changed = s.cost + p[COST], max(s.span, p[4]), p
    return 0
  end

  -- Returns the released and the charged cost of an update; nil if the driver must decide.
  local function update(s, p)
    local entry, position = find(s, p[IDS + UPDATE.id])
    if not entry then
      return
    end
    local held, sum_released, sum_charged = entry[ENTRY.held], p[IDS + UPDATE.released], p[IDS + UPDATE.charged]
    local released, charged = max(0, sum_released - entry[ENTRY.released]), max(0, sum_charged - entry[ENTRY.charged])
    local ends = p[IDS + UPDATE.ends] == 1
    if ends or released > held then
      released = held
    end
    entry[ENTRY.held], entry[ENTRY.expiry] = held - released, now + p[3]
    entry[ENTRY.released], entry[ENTRY.charged] =
      max(entry[ENTRY.released], sum_released), max(entry[ENTRY.charged], sum_charged)
    s.cost, s.span, s.changed = s.cost - released, max(s.span, p[3]), p
    if ends then
      table.remove(s.entries, position)
      s.count = s.count - 1
      if s.count == 0 then
        s.span, s.most, s.duration = 0, 0, 0
      end
    end
    if charged > 0 then
      s.tat, s.fraction = charge(s.tat, s.fraction, now, charged, p[HEAD + 1], p[HEAD + 2])
      s.tokens, s.ticks, s.charged_at = p[HEAD + 1], p[HEAD + 2], now
    end
    return released, charged
  end

  -- Returns the results and their number, and by key the states and the values for the reply; nil if the driver must
  -- decide.
  local function run()
    local templates, at = { nil, nil, nil, nil, nil, nil, nil, nil }, pos + 2
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
      templates[index] = p
    end
    local keys = #KEYS
    local states, reported = { nil, nil, nil, nil, nil, nil, nil, nil }, { nil, nil, nil, nil, nil, nil, nil, nil }
    for index = 1, keys do
      -- MGET returns none for a key of another type, too.
      if not values[index] and keys > 1 and call('EXISTS', KEYS[index]) == 1 then
        return
      end
      local s, value = read(values[index])
      if not s then
        return
      end
      states[index], reported[index] = s, value
    end
    local found, count = { nil, nil, nil, nil, nil, nil, nil, nil }, 0
    for index = 1, operation_count do
      local template, key, repeats = 1, index, 1
      if not is_plain then
        template, key, repeats, at = unpack('<HHH', input, at)
      end
      local s, p = states[key], templates[template]
      if s.tat > now and (s.tokens ~= p[HEAD + 1] or s.ticks ~= p[HEAD + 2]) then
        return
      end
      for _ = 1, repeats do
        local first, second
        if p[1] == OPERATION.hold then
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
    return found, count, states, reported
  end

  -- Writes a key.
  local function write(key, s)
    local due, latest, last, count, entries = MAX_EXACT, 0, s.tat, s.count, s.entries
    for index = 1, count do
      local expiry = entries[index][ENTRY.expiry]
      due, latest = min(due, expiry), max(latest, expiry)
    end
    if count > 0 then
      last = max(last, latest)
      if s.cost > 0 then
        last = max(last, (charge(s.tat, s.fraction, latest, s.cost, s.changed[HEAD + 1], s.changed[HEAD + 2])))
      end
    end
    if last <= now then
      return call('DEL', key)
    end
    local expires, value = s.expires, nil
    if last > expires or expires - last > EXCESS then
      expires = last + TTL_SLACK
    end
    if count == 0 then
      value = pack('<dddddd', s.tat, s.fraction, s.tokens, s.ticks, s.charged_at, expires)
    elseif count == 1 then
      value = pack(VALUE_FORMAT, s.tat, s.fraction, s.tokens, s.ticks, s.charged_at, expires,
        0, s.cost, 0, due, latest, s.span, s.most, s.duration, 0, 1, table_unpack(entries[1], 1, ENTRY.LENGTH))
    else
      local parts = { pack(HELD_FORMAT, s.tat, s.fraction, s.tokens, s.ticks, s.charged_at, expires,
        0, s.cost, 0, due, latest, s.span, s.most, s.duration, 0, count) }
      for index = 1, count do
        parts[index + 1] = pack(ENTRY_FORMAT, table_unpack(entries[index], 1, ENTRY.LENGTH))
      end
      value = table.concat(parts)
    end
    if expires == s.expires then
      call('SET', key, value, 'KEEPTTL')
    else
      call('PSETEX', key, uses_test_time and TEST_TTL or ceil((expires - now) / 1000) + 1, value)
    end
  end

  local found, count, states, reported = run()
  if found then
    local keys = #KEYS
    for index = 1, keys do
      if states[index].changed then
        write(KEYS[index], states[index])
      end
      -- After the results come the lengths of the values.
      found[count + index] = #reported[index]
    end
    return pack('<dHHH' .. ('d'):rep(count) .. ('H'):rep(keys), now, 0, count, keys,
      table_unpack(found, 1, count + keys)) .. table.concat(reported, '', 1, keys)
  end
end
