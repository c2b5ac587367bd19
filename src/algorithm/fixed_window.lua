-- The fixed window: see fixed_window.rs.
--
-- Words: 1 end, 2 used, 3 the time of the last charge, 4 start.
-- Parameters: 1 limit, 2 period, 3 cost, 4 whether windows are aligned to the clock.

local MAX_EXACT = 2 ^ 53

-- The moment to decide at, and the end of the window that is open then, if there is one.
local function open(s, now, p)
  local at = s[3]
  if at < now or at - now > p[2] then
    at = now
  end
  local till = s[1]
  if s[4] + p[2] < till then
    till = s[4] + p[2]
  end
  if s[3] <= at and at < till then
    return at, till
  end
  return at, nil
end

local function peek(s, now, max_delay, p)
  if p[3] > p[1] then
    return -1
  end
  local at, till = open(s, now, p)
  if till and s[2] > p[1] - p[3] then
    return till - now
  end
  return 0
end

local function charge(s, now, cost, p)
  local at, open_till = open(s, now, p)
  local start = at
  if p[4] == 1 then
    start = at - at % p[2]
  end
  local till = start + p[2]
  if open_till then
    s[2], s[3] = math.min(s[2] + cost, MAX_EXACT), at
    if p[4] == 1 and open_till < till then
      s[1], s[4] = till, start
    end
    return
  end
  s[1], s[2], s[3], s[4] = till, cost, at, start
end

local function commit(s, now, delay, p)
  charge(s, now, p[3], p)
end

return { words = 4, params = 4, supports_scheduling = false, peek = peek, commit = commit, charge = charge }
