-- The fast path for holds, and for updates of their sessions, of a limiter with one bucket or one limit on requests in
-- flight: on states of the current quota, without a block, leases, ids, or entries that have expired. It stores what the
-- driver would (driver.lua, holds.lua). As bucket_fast.lua, it leaves any other batch to the driver. Benchmark:
-- `redis holding callers`.
if fast == 2 then
  local IN_FLIGHT, max = VALUE_LENGTH == 16, math.max
  local MAX_PERIOD, RETRY_AFTER = 6311520000000000, 1000000
  local HELD_LENGTH, ENTRY_LENGTH = VALUE_LENGTH - 8 + 8 * HELD.LENGTH, 8 * ENTRY.LENGTH

  -- Charges a cost at a time, at which the state has the parameters' rate: see `charge` in bucket.lua.
  local function charge(tat, fraction, at, cost, tokens, ticks)
    if tat <= at then
      tat, fraction = at, 0
    end
    local rest_ticks, rest = ticks % tokens, cost % tokens
    local product = rest * rest_ticks
    local over = product % tokens
    tat = tat + (cost * ((ticks - rest_ticks) / tokens) + (cost - rest) / tokens * rest_ticks + (product - over) / tokens)
    fraction = fraction - over
    if fraction < 0 then
      tat, fraction = tat + 1, fraction + tokens
    end
    if tat > at + MAX_PERIOD then
      return at + MAX_PERIOD, 0
    end
    return tat, fraction
  end

  local first, cursor, last = pos + 2 - TEMPLATE_LENGTH, pos + 2 + TEMPLATE_LENGTH * template_count, 0
  -- Of the template. `capacity` is that of a limit on requests in flight.
  local is_hold, lifetime, tokens, ticks, tolerance, tolerance_fraction, span, span_fraction, capacity, cost
  reported = { nil, nil, nil, nil, nil, nil, nil, nil }
  for index = 1, operation_count do
    local template, key, repeats = 1, index, 1
    if not is_plain then
      template, key, repeats, cursor = unpack('<HHH', input, cursor)
    end
    if template ~= last then
      local op, arg1, arg2, _
      if IN_FLIGHT then
        op, _, arg1, arg2, capacity, cost = unpack('<HHdddd', input, first + TEMPLATE_LENGTH * template)
      else
        op, _, arg1, arg2, tokens, ticks, tolerance, tolerance_fraction, span, span_fraction, _, _, _, _, cost =
          unpack('<HHddddddddddddd', input, first + TEMPLATE_LENGTH * template)
      end
      is_hold, last = op == OPERATION.hold, template
      lifetime = is_hold and arg2 or arg1
    end
    local id, sum_released, sum_charged, ends, in_flight
    if is_hold then
      id, cursor = unpack('<d', input, cursor)
    else
      id, sum_released, sum_charged, ends, in_flight, cursor = unpack('<ddddd', input, cursor)
    end
    local is_new = id < 0
    if is_new then
      id = -id
    end

    local value = new_values[key] or values[key]
    local length = value and #value or 0
    local tat, fraction, state_tokens, state_ticks, charged_at, expires = 0, 0, 0, 0, 0, 0
    local block, held, leased, due, latest, longest, most, duration = 0, 0, 0, MAX_EXACT, 0, 0, 0, 0
    local yields_until, entries = 0, 0
    if length > VALUE_LENGTH and length >= HELD_LENGTH then
      if IN_FLIGHT then
        tat, expires, block, held, leased, due, latest, longest, most, duration, yields_until, entries =
          unpack('<dddddddddddd', value)
      else
        tat, fraction, state_tokens, state_ticks, charged_at, expires, block, held, leased, due, latest, longest, most,
          duration, yields_until, entries = unpack('<dddddddddddddddd', value)
      end
    elseif length == VALUE_LENGTH and not IN_FLIGHT then
      tat, fraction, state_tokens, state_ticks, charged_at, expires = unpack('<dddddd', value)
    end
    -- The conditions are positive because all comparisons with NaN are false. The driver handles foreign values.
    if not ((length <= VALUE_LENGTH and length % VALUE_LENGTH == 0 or length == HELD_LENGTH + entries * ENTRY_LENGTH)
        and tat >= 0 and tat <= MAX_EXACT and fraction >= 0 and fraction <= MAX_EXACT
        and charged_at >= 0 and charged_at <= now and expires >= 0 and expires <= MAX_EXACT
        and (tat <= now and not IN_FLIGHT or tat == 0 or state_tokens == tokens and state_ticks == ticks)
        and block == 0 and leased == 0 and yields_until == 0 and due > now and latest >= 0 and latest <= now + longest
        and longest <= MAX_EXACT and most >= 0 and most <= MAX_EXACT and duration >= 0 and duration <= MAX_EXACT
        and state_tokens >= 0 and state_tokens <= MAX_EXACT and state_ticks >= 0 and state_ticks <= MAX_EXACT
        and entries <= BOUND.max_entries and entries % 1 == 0) then
      fast = 0
      break
    end

    -- The session's entry, and of the others the expiries.
    local own_at, own_held, own_released, own_charged, sum = 0, 0, 0, 0, 0
    due, latest = MAX_EXACT, 0
    for at = HELD_LENGTH + 1, length, ENTRY_LENGTH do
      local entry, entry_held, released, charged, expiry = unpack('<ddddd', value, at)
      -- Neither a lease nor a group of reservations.
      if not (entry >= 0 and entry < BOUND.lease_ids and entry % 1 == 0 and entry_held >= 0 and entry_held <= MAX_EXACT
          and released >= 0 and released <= MAX_EXACT and charged >= 0 and charged <= MAX_EXACT
          and expiry >= 0 and expiry <= MAX_EXACT) then
        fast = 0
        break
      end
      sum = sum + entry_held
      if entry == id then
        own_at, own_held, own_released, own_charged = at, entry_held, released, charged
      else
        if expiry < due then due = expiry end
        if expiry > latest then latest = expiry end
      end
    end
    if fast == 0 or sum ~= held or own_at == 0 and (not is_new or entries == BOUND.max_entries)
        or not is_hold and (repeats > 1 or ends == 2) then
      fast = 0
      break
    end
    -- The sum of the held costs, the state, and one byte that marks this format.
    if not reported[key] then
      reported[key] = IN_FLIGHT and pack('<ddB', held, 0, 0)
        or pack('<ddddddB', held, tat, fraction, state_tokens, state_ticks, charged_at, 0)
    end

    local changes, is_kept = true, true
    if is_hold then
      local allowed, wait = 0, RETRY_AFTER
      if IN_FLIGHT then
        while allowed < repeats and held + (allowed + 1) * cost <= capacity do
          allowed = allowed + 1
        end
      else
        local held_tat, held_fraction = now, 0
        if held > 0 then
          held_tat, held_fraction = charge(tat, fraction, now, held, tokens, ticks)
        elseif tat > now then
          held_tat, held_fraction = tat, fraction
        end
        while true do
          wait = held_tat - now - tolerance
          if held_fraction + tolerance_fraction >= tokens then
            wait = wait - 1
          end
          if wait > 0 or allowed == repeats then
            break
          end
          allowed, held_tat, held_fraction = allowed + 1, held_tat + span, held_fraction - span_fraction
          if held_fraction < 0 then
            held_tat, held_fraction = held_tat + 1, held_fraction + tokens
          end
        end
      end
      for denied = result_count + allowed + 1, result_count + repeats do
        results[denied], has_results = wait, true
      end
      result_count, changes = result_count + repeats, allowed > 0
      own_held, held = own_held + allowed * cost, held + allowed * cost
      if own_at == 0 and changes then
        entries = entries + 1
      end
    else
      local released, charged = max(0, sum_released - own_released), max(0, sum_charged - own_charged)
      if ends == 1 then
        released = max(released, own_held - in_flight)
      end
      if released > own_held then
        released = own_held
      end
      own_held, held = own_held - released, held - released
      -- Costs of requests in flight that the server has lost are held again.
      if IN_FLIGHT and in_flight > own_held then
        fast = 0
        break
      end
      own_released, own_charged = max(own_released, sum_released), max(own_charged, sum_charged)
      if ends == 1 then
        is_kept, entries = false, entries - 1
      end
      if charged > 0 and not IN_FLIGHT then
        tat, fraction = charge(tat, fraction, now, charged, tokens, ticks)
        state_tokens, state_ticks, charged_at = tokens, ticks, now
      end
      results[result_count + 1], results[result_count + 2] = released, charged
      result_count, has_results = result_count + 2, true
    end

    if changes then
      local expiry, last_used = now + lifetime, tat
      longest = max(longest, lifetime)
      if is_kept then
        if expiry < due then due = expiry end
        if expiry > latest then latest = expiry end
      end
      if entries > 0 then
        last_used = max(tat, latest)
        if held > 0 and not IN_FLIGHT then
          last_used = max(last_used, (charge(tat, fraction, latest, held, tokens, ticks)))
        end
      end
      if last_used > expires or expires - last_used > EXCESS then
        expires = last_used + TTL_SLACK
        expiries[key] = expires
      end
      if last_used <= now then
        new_values[key] = ''
      elseif entries == 0 then
        new_values[key] = pack('<dddddd', tat, fraction, state_tokens, state_ticks, charged_at, expires)
      elseif entries == 1 and is_kept then
        if IN_FLIGHT then
          new_values[key] = pack('<ddddddddddddddddd', 0, expires, 0, held, 0, due, latest, longest, most, duration, 0, 1,
            id, own_held, own_released, own_charged, expiry)
        else
          new_values[key] = pack('<ddddddddddddddddddddd', tat, fraction, state_tokens, state_ticks, charged_at, expires, 0,
            held, 0, due, latest, longest, most, duration, 0, 1, id, own_held, own_released, own_charged, expiry)
        end
      else
        local own = ''
        if is_kept then
          own = pack('<ddddd', id, own_held, own_released, own_charged, expiry)
        end
        if own_at > 0 then
          own = value:sub(HELD_LENGTH + 1, own_at - 1) .. own .. value:sub(own_at + ENTRY_LENGTH)
        elseif length > HELD_LENGTH then
          own = value:sub(HELD_LENGTH + 1) .. own
        end
        if IN_FLIGHT then
          new_values[key] = pack('<dddddddddddd', 0, expires, 0, held, 0, due, latest, longest, most, duration, 0, entries) .. own
        else
          new_values[key] = pack('<dddddddddddddddd', tat, fraction, state_tokens, state_ticks, charged_at, expires, 0,
            held, 0, due, latest, longest, most, duration, 0, entries) .. own
        end
      end
    end
  end
  if fast == 2 then
    fast = 1
  end
end
