-- The fast path for a limiter with one fixed window: see bucket_fast.lua.

if fast == 1 then
  local cursor = pos + 2
  local templates = {}
  for index = 1, template_count do
    templates[index] = { unpack('<ddddd', input, cursor + 20) }
    cursor = cursor + 68
  end
  for _ = 1, operation_count do
    local template, key, count
    template, key, count, cursor = unpack('<HHH', input, cursor)
    local p = templates[template]
    local limit, period, cost = p[1], p[2], p[3]
    local window_end, used, start, expires, written_end = now, 0, 0, 0, 0
    local value = new_values[key] or values[key]
    if value then
      local written_at
      if #value ~= 40 then
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
    if p[4] == 1 then
      new_start = now - now % period
    end
    local new_end = new_start + period
    if window_end <= now then
      used, start, window_end = 0, new_start, new_end
      written_end = window_end
    end
    local admitted = math.floor((limit - used) / cost)
    if admitted > count then admitted = count end
    if admitted > 0 and p[4] == 1 and window_end < new_end then
      start, window_end, written_end = new_start, new_end, new_end
    end
    for _ = 1, admitted do
      result_count = result_count + 1
      results[result_count] = 0
    end
    if admitted > 0 then
      used = used + admitted * cost
      if written_end > expires or expires - written_end > EXCESS then
        expires = written_end + TTL_SLACK
        expiries[key] = expires
      end
      new_values[key] = pack('<ddddd', written_end, used, now, start, expires)
    elseif admitted < 0 then
      admitted = 0
    end
    for _ = admitted + 1, count do
      result_count = result_count + 1
      results[result_count] = window_end - now
    end
  end
end
