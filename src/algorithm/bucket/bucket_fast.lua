-- Decisions of one bucket by a short cut: all of them at once or not at all, nobody in debt under a former quota, no clock that
-- stepped back. What is not like that is left to bucket.lua; nothing is written before that is known.

if fast == 1 then
  local at = pos + 2
  local templates = {}
  for index = 1, template_count do
    templates[index] = { unpack('<dddddddddd', input, at + 20) }
    at = at + 100
  end
  for _ = 1, operation_count do
    local template, key, count
    template, key, count, at = unpack('<HHH', input, at)
    local p = templates[template]
    local tokens, ticks = p[1], p[2]
    local whole, part, expires = now, 0, 0
    local value = new_values[key] or values[key]
    if value then
      local former_tokens, former_ticks, written_at
      if #value ~= 48 then
        fast = 0
        break
      end
      whole, part, former_tokens, former_ticks, written_at, expires = unpack('<dddddd', value)
      -- Asked so that what is no number fails too: somebody else's bytes are left to the driver.
      if not (written_at >= 0 and written_at <= now and former_tokens == tokens and former_ticks == ticks
          and whole >= 0 and whole <= MAX_EXACT and part >= 0 and part <= MAX_EXACT
          and expires >= 0 and expires <= MAX_EXACT) then
        fast = 0
        break
      elseif whole <= now then
        whole, part = now, 0
      end
    elseif call('EXISTS', KEYS[key]) == 1 then
      fast = 0
      break
    end
    local latest, rest, cost, cost_part = now + p[3], tokens - p[4], p[5], p[6]
    local before = result_count
    count = result_count + count
    while result_count < count and (whole <= latest or (part >= rest and whole <= latest + 1)) do
      whole, part = whole + cost, part - cost_part
      if part < 0 then
        whole, part = whole + 1, part + tokens
      end
      result_count = result_count + 1
      results[result_count] = 0
    end
    if result_count > before then
      local extends = expiries[key]
      if whole > expires then
        expires, extends = whole + TTL_SLACK, true
      end
      new_values[key], expiries[key] = pack('<dddddd', whole, part, tokens, ticks, now, expires), extends and expires
    end
    if result_count < count then
      local wait = whole - latest
      if part >= rest then
        wait = wait - 1
      end
      while result_count < count do
        result_count = result_count + 1
        results[result_count] = wait
      end
    end
  end
end
