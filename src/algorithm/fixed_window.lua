-- The fixed window: the transition of fixed_window.rs, which states how windows of several periods count.
--
-- Words: 1 end, 2 used, 3 time of the last charge, 4 first hit, 5 kinds; then end, used and first hit of each further
-- window.
-- Parameters: 1 limit, 2 period, 3 cost, 4 to 8 the boundaries: 0 if a hit opens a window; 1 and zeros for windows at
-- multiples of the period; of a calendar five instants, between which are four windows. The client's time is in the
-- second one.

local MAX_EXACT, MAX_WINDOWS = 2 ^ 53, 4
local floor, min, max = math.floor, math.min, math.max

-- Returns the number of words behind the first five.
local function further_words(s)
  return 3 * floor(s[5] / 16)
end

-- Returns whether the time is in one of the first three windows. The last charge may be in the window after it.
local function covers(now, p)
  return p[8] == 0 or p[4] <= now and now < p[7]
end

-- Returns the time at which to decide.
local function moment(s, now, p)
  local at = s[3]
  if at <= now or at - now > p[2] then
    return now
  end
  if p[8] > 0 then
    local i = 4
    while i < 6 and p[i + 1] <= now do
      i = i + 1
    end
    -- The window after that of now has ended.
    if at >= p[i + 2] then
      return now
    end
  end
  return at
end

-- Returns start and end of the window that a hit at this time opens, nil before the calendar's instants.
local function window_at(at, p)
  if p[8] == 0 then
    local start = p[4] == 1 and at - at % p[2] or at
    return start, start + p[2]
  end
  for i = 4, 7 do
    if p[i] <= at and at < p[i + 1] then
      return p[i], p[i + 1]
    end
  end
  -- When all held costs have expired. The window then is not longer.
  if at >= p[8] then
    return at, at + p[2]
  end
end

-- Returns the open windows, of which the one that ends last is first; whether one of them is this limit's own; the time at
-- which to decide; and start and end of the window that a hit opens.
local function read(s, now, p)
  local at = moment(s, now, p)
  local start, finish = window_at(at, p)
  local open, own = {}, false
  if s[3] <= at then
    local kinds = s[5]
    for i = 0, further_words(s) / 3 do
      local first = i == 0 and 1 or 3 * i + 3
      local w = { finish = s[first], used = s[first + 1], hit = s[i == 0 and 4 or first + 2], by_clock = kinds % 2 }
      kinds = floor(kinds / 2)
      if w.finish <= at then
        break
      end
      open[i + 1] = w
      local is_own
      if p[4] == 0 and p[8] == 0 then
        is_own = w.by_clock == 0 and w.finish - w.hit == p[2]
      else
        is_own = w.by_clock == 1 and w.finish == finish and w.hit >= start
      end
      w.is_own, own = is_own, own or is_own
    end
  end
  return open, own, at, start, finish
end

local function peek(s, now, max_delay, p)
  local limit, cost = p[1], p[3]
  if cost > limit then
    return -1
  end
  local open, own, at, start, finish = read(s, now, p)
  local admits_at = at
  for i = 1, #open do
    local w = open[i]
    if w.used > limit - cost then
      local counts_until = w.finish
      if not w.is_own then
        counts_until = min(counts_until, w.hit + p[2])
        if p[8] > 0 then
          counts_until = start and s[3] >= start and min(counts_until, finish) or 0
        end
      end
      admits_at = max(admits_at, counts_until)
    end
  end
  if not own and #open == MAX_WINDOWS and cost > 0 then
    admits_at = max(admits_at, open[MAX_WINDOWS].finish)
  end
  return admits_at > at and admits_at - now or 0
end

local function charge(s, now, cost, p)
  local open, own, at, start, finish = read(s, now, p)
  for i = 1, #open do
    open[i].used = min(open[i].used + cost, MAX_EXACT)
  end
  if not own and start and #open < MAX_WINDOWS then
    local i = 1
    while open[i] and open[i].finish >= finish do
      i = i + 1
    end
    local by_clock = (p[4] > 0 or p[8] > 0) and 1 or 0
    table.insert(open, i, { finish = finish, used = cost, hit = at, by_clock = by_clock })
  end
  local kinds, bit = 16 * max(#open - 1, 0), 1
  for i = 1, #open do
    local w, first = open[i], i == 1 and 1 or 3 * i
    s[first], s[first + 1], s[i == 1 and 4 or first + 2] = w.finish, w.used, w.hit
    kinds, bit = kinds + bit * w.by_clock, 2 * bit
  end
  s[3], s[5] = at, kinds
end

local function commit(s, now, delay, p)
  charge(s, now, p[3], p)
end

local function is_valid(s)
  return s[5] % 1 == 0 and s[5] < 16 * MAX_WINDOWS
end

return {
  words = 5, params = 8, supports_scheduling = false, further_words = further_words, is_valid = is_valid,
  covers = covers, peek = peek, commit = commit, charge = charge,
}
