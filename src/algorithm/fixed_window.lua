-- The fixed window: the transition of fixed_window.rs.
--
-- Words: 1 end, 2 used, 3 time of the last charge, 4 start.
-- Parameters: 1 limit, 2 period, 3 cost, 4 whether windows are aligned to the clock (1 or 0).

local MAX_EXACT = 2 ^ 53

-- Returns the time at which to decide, and the end of the window that is open then, nil if none is.
local function current_window(s, now, p)
  local effective_now = s[3]
  if effective_now < now or effective_now - now > p[2] then
    effective_now = now
  end
  local window_end = s[1]
  if s[4] + p[2] < window_end then
    window_end = s[4] + p[2]
  end
  if s[3] <= effective_now and effective_now < window_end then
    return effective_now, window_end
  end
  return effective_now, nil
end

local function peek(s, now, max_delay, p)
  if p[3] > p[1] then
    return -1
  end
  local effective_now, window_end = current_window(s, now, p)
  if window_end and s[2] > p[1] - p[3] then
    return window_end - now
  end
  return 0
end

local function charge(s, now, cost, p)
  local effective_now, open_end = current_window(s, now, p)
  local start = effective_now
  if p[4] == 1 then
    start = effective_now - effective_now % p[2]
  end
  local window_end = start + p[2]
  if open_end then
    s[2], s[3] = math.min(s[2] + cost, MAX_EXACT), effective_now
    if p[4] == 1 and open_end < window_end then
      s[1], s[4] = window_end, start
    end
    return
  end
  s[1], s[2], s[3], s[4] = window_end, cost, effective_now, start
end

local function commit(s, now, delay, p)
  charge(s, now, p[3], p)
end

return { words = 4, params = 4, supports_scheduling = false, peek = peek, commit = commit, charge = charge }
