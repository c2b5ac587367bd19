-- Decisions of one fixed window by a short cut, where no clock stepped back: see bucket_short.lua.

if fast == 1 then
  local at = pos + 2
  local templates = {}
  for index = 1, template_count do
    templates[index] = { unpack('<ddddd', input, at + 20) }
    at = at + 60
  end
  for _ = 1, operation_count do
    local template, key, count
    template, key, count, at = unpack('<HHH', input, at)
    local p = templates[template]
    local limit, period, cost = p[1], p[2], p[3]
    local till, used, start, expires, written_till = now, 0, 0, 0, 0
    local value = new_values[key] or values[key]
    if value then
      local written_at
      if #value ~= 40 then
        fast = 0
        break
      end
      written_till, used, written_at, start, expires = unpack('<ddddd', value)
      if not (written_at >= 0 and written_at <= now and written_till >= 0 and written_till <= MAX_EXACT
          and used >= 0 and used <= MAX_EXACT and start >= 0 and start <= MAX_EXACT and expires >= 0 and expires <= MAX_EXACT) then
        fast = 0
        break
      end
      till = written_till
      if start + period < till then till = start + period end
    elseif call('EXISTS', KEYS[key]) == 1 then
      fast = 0
      break
    end
    local new_start = now
    if p[4] == 1 then
      new_start = now - now % period
    end
    local new_till = new_start + period
    if till <= now then
      used, start, till = 0, new_start, new_till
      written_till = till
    end
    local room = math.floor((limit - used) / cost)
    if room > count then room = count end
    if room > 0 and p[4] == 1 and till < new_till then
      start, till, written_till = new_start, new_till, new_till
    end
    for _ = 1, room do
      result_count = result_count + 1
      results[result_count] = 0
    end
    if room > 0 then
      used = used + room * cost
      local extends = expiries[key]
      if written_till > expires or expires - written_till > EXCESS then
        expires, extends = written_till + TTL_SLACK, true
      end
      new_values[key], expiries[key] = pack('<ddddd', written_till, used, now, start, expires), extends and expires
    elseif room < 0 then
      room = 0
    end
    for _ = room + 1, count do
      result_count = result_count + 1
      results[result_count] = till - now
    end
  end
end
