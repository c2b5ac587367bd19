-- Decisions of one bucket by a short cut: all of them at once or not at all, nobody in debt under a former quota, no clock that
-- stepped back. What is not like that is left to bucket.lua; nothing is written before that is known.

if short == 1 then
  local at = pos + 2
  local shapes = {}
  for index = 1, shape_count do
    shapes[index] = { unpack('<dddddddddd', input, at + 20) }
    at = at + 100
  end
  for _ = 1, order_count do
    local shape, key, count
    shape, key, count, at = unpack('<HHH', input, at)
    local p = shapes[shape]
    local tokens, ticks = p[1], p[2]
    local whole, part, expires = now, 0, 0
    local value = after[key] or values[key]
    if value then
      local former_tokens, former_ticks, written_at
      if #value ~= 48 then
        short = 0
        break
      end
      whole, part, former_tokens, former_ticks, written_at, expires = unpack('<dddddd', value)
      -- Asked so that what is no number fails too: somebody else's bytes are left to the driver.
      if not (written_at >= 0 and written_at <= now and former_tokens == tokens and former_ticks == ticks
          and whole >= 0 and whole <= MOST and part >= 0 and part <= MOST
          and expires >= 0 and expires <= MOST) then
        short = 0
        break
      elseif whole <= now then
        whole, part = now, 0
      end
    elseif call('EXISTS', KEYS[key]) == 1 then
      short = 0
      break
    end
    local latest, rest, cost, cost_part = now + p[3], tokens - p[4], p[5], p[6]
    local before = length
    count = length + count
    while length < count and (whole <= latest or (part >= rest and whole <= latest + 1)) do
      whole, part = whole + cost, part - cost_part
      if part < 0 then
        whole, part = whole + 1, part + tokens
      end
      length = length + 1
      says[length] = 0
    end
    if length > before then
      local extends = expiries[key]
      if whole > expires then
        expires, extends = whole + SPARE, true
      end
      after[key], expiries[key] = pack('<dddddd', whole, part, tokens, ticks, now, expires), extends and expires
    end
    if length < count then
      local wait = whole - latest
      if part >= rest then
        wait = wait - 1
      end
      while length < count do
        length = length + 1
        says[length] = wait
      end
    end
  end
end
