-- Decisions of one fixed window by a short cut, where no clock stepped back: see bucket_short.lua.

if short == 1 then
  local at = pos + 2
  local shapes = {}
  for index = 1, shape_count do
    shapes[index] = { unpack('<ddddd', input, at + 20) }
    at = at + 60
  end
  for _ = 1, order_count do
    local shape, key, count
    shape, key, count, at = unpack('<HHH', input, at)
    local p = shapes[shape]
    local limit, period, cost = p[1], p[2], p[3]
    local till, used, start, expires, written_till = now, 0, 0, 0, 0
    local value = after[key] or values[key]
    if value then
      local written_at
      if #value ~= 40 then
        short = 0
        break
      end
      written_till, used, written_at, start, expires = unpack('<ddddd', value)
      if not (written_at >= 0 and written_at <= now and written_till >= 0 and written_till <= MOST
          and used >= 0 and used <= MOST and start >= 0 and start <= MOST and expires >= 0 and expires <= MOST) then
        short = 0
        break
      end
      till = written_till
      if start + period < till then till = start + period end
    elseif call('EXISTS', KEYS[key]) == 1 then
      short = 0
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
      length = length + 1
      says[length] = 0
    end
    if room > 0 then
      used = used + room * cost
      local extends = expiries[key]
      if written_till > expires or expires - written_till > EXCESS then
        expires, extends = written_till + SPARE, true
      end
      after[key], expiries[key] = pack('<ddddd', written_till, used, now, start, expires), extends and expires
    elseif room < 0 then
      room = 0
    end
    for _ = room + 1, count do
      length = length + 1
      says[length] = till - now
    end
  end
end
