-- The fast path for a limiter with one fixed window: see bucket_fast.lua.

local VALUE_LENGTH = 48

if fast == 1 then
  -- A template has 100 bytes, and the parameters begin behind 20 of them.
  local first, cursor, last = pos + 2 + 20 - 100, pos + 2 + 100 * template_count, 0
  local limit, period, cost, is_aligned
  for index = 1, operation_count do
    local template, key, count = 1, index, 1
    if not is_plain then
      template, key, count, cursor = unpack('<HHH', input, cursor)
    end
    if template ~= last then
      limit, period, cost, is_aligned = unpack('<dddd', input, first + 100 * template)
      last = template
    end
    local window_end, used, first_hit, kinds, expires = now, 0, 0, is_aligned, 0
    local value = new_values[key] or values[key]
    if value then
      local written_at
      if #value ~= VALUE_LENGTH then
        fast = 0
        break
      end
      window_end, used, written_at, first_hit, kinds, expires = unpack('<dddddd', value)
      if not (written_at >= 0 and written_at <= now and window_end >= 0 and window_end <= MAX_EXACT
          and used >= 0 and used <= MAX_EXACT and first_hit >= 0 and first_hit <= MAX_EXACT
          and kinds >= 0 and kinds <= 1 and expires >= 0 and expires <= MAX_EXACT) then
        fast = 0
        break
      end
    end
    local new_start = now
    if is_aligned == 1 then
      new_start = now - now % period
    end
    if window_end <= now then
      used, first_hit, window_end, kinds = 0, now, new_start + period, is_aligned
    -- A window of another period. The driver decides.
    elseif kinds ~= is_aligned or kinds == 0 and window_end - first_hit ~= period
        or kinds == 1 and (window_end ~= new_start + period or first_hit < new_start) then
      fast = 0
      break
    end
    local admitted = math.floor((limit - used) / cost)
    if admitted > count then
      admitted = count
    elseif admitted < 0 then
      admitted = 0
    end
    result_count = result_count + admitted
    if admitted > 0 then
      used = used + admitted * cost
      if window_end > expires or expires - window_end > EXCESS then
        expires = window_end + TTL_SLACK
        expiries[key] = expires
      end
      new_values[key] = pack('<dddddd', window_end, used, now, first_hit, kinds, expires)
    end
    for _ = admitted + 1, count do
      result_count = result_count + 1
      results[result_count] = window_end - now
      has_results = true
    end
  end
end
