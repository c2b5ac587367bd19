-- The fast path for a limiter with one bucket: decisions without a delay, on states of the current quota, with a clock
-- that did not step back. For any other batch it sets `fast` to 0, and the general script decides the whole batch. It
-- writes nothing itself: new values are written by fast_reply.lua, after all operations were decided. Without that, the
-- general script would charge operations twice. Holds are in fast_holds.lua.

-- The state, and the expiry. A template.
local VALUE_LENGTH, TEMPLATE_LENGTH = 48, 108

if fast == 1 then
  -- The parameters begin behind 20 bytes of a template.
  local first, cursor, last = pos + 2 + 20 - TEMPLATE_LENGTH, pos + 2 + TEMPLATE_LENGTH * template_count, 0
  local tokens, ticks, tolerance_fraction, cost, cost_fraction, latest_tat
  for index = 1, operation_count do
    local template, key, count = 1, index, 1
    if not is_plain then
      template, key, count, cursor = unpack('<HHH', input, cursor)
    end
    if template ~= last then
      tokens, ticks, latest_tat, tolerance_fraction, cost, cost_fraction =
        unpack('<dddddd', input, first + TEMPLATE_LENGTH * template)
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
      has_results = true
      while result_count < count do
        result_count = result_count + 1
        results[result_count] = wait
      end
    end
  end
end
