-- The fast path for a limiter with one fixed window: see bucket_fast.lua.

local VALUE_LENGTH = 40

if fast == 1 then
  -- A template has 68 bytes, and the parameters begin behind 20 of them.
  local first, cursor, last = pos + 2 + 20 - 68, pos + 2 + 68 * template_count, 0
  local limit, period, cost, is_aligned
  for index = 1, operation_count do
    local template, key, count = 1, index, 1
    if not is_plain then
      template, key, count, cursor = unpack('<HHH', input, cursor)
    end
    if template ~= last then
      limit, period, cost, is_aligned = unpack('<dddd', input, first + 68 * template)
      last = template
    end
    local window_end, used, start, expires, written_end = now, 0, 0, 0, 0
    local value = new_values[key] or values[key]
    if value then
      local written_at
      if #value ~= VALUE_LENGTH then
        fast = 0
        break
      end
      written_end, used, written_at, start, expires = unpack('<ddddd', value)
      if not (written_at >= 0 and written_at <= now and written_end >= 0 and written_end <= MAX_EXACT
          and used >= 0 and used <= MAX_EXACT and start >= 0 and start <= MAX_EXACT
          and expires >= 0 and expires <= MAX_EXACT) then
        fast = 0
        break
      end
      window_end = written_end
      if start + period < window_end then window_end = start + period end
    end
    local new_start = now
    if is_aligned == 1 then
      new_start = now - now % period
    end
    local new_end = new_start + period
    if window_end <= now then
      used, start, window_end = 0, new_start, new_end
      written_end = window_end
    end
    local admitted = math.floor((limit - used) / cost)
    if admitted > count then
      admitted = count
    elseif admitted < 0 then
      admitted = 0
    end
    if admitted > 0 and is_aligned == 1 and window_end < new_end then
      start, window_end, written_end = new_start, new_end, new_end
    end
    result_count = result_count + admitted
    if admitted > 0 then
      used = used + admitted * cost
      if written_end > expires or expires - written_end > EXCESS then
        expires = written_end + TTL_SLACK
        expiries[key] = expires
      end
      new_values[key] = pack('<ddddd', written_end, used, now, start, expires)
    end
    for _ = admitted + 1, count do
      result_count = result_count + 1
      results[result_count] = window_end - now
      has_denials = true
    end
  end
end
