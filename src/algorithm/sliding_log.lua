-- The sliding log: the transition of sliding_log.rs.
--
-- The hits are in one string: a header of ten numbers, the driver's space for holds, then a ring of hits, each with
-- time and weight. So a decision reads the header and the oldest hits, and writes one hit, regardless of the log's
-- length.
-- Header: 1 time at which the key is idle, 2 period at the last charge, 3 used (the sum of all weights), 4 index of
-- the oldest hit, 5 number of hits, 6 time of the newest hit, 7 size of the ring, 8 bytes of space for holds, 9 and
-- 10 the driver's.
-- Parameters: 1 limit, 2 period, 3 cost.
-- `s.held` is the cost of all holds, which counts as if it were charged now.

local struct_pack, struct_unpack = struct.pack, struct.unpack
-- In bytes.
local HEADER_BYTES, HIT = 80, 16
local MAX_EXACT = 2 ^ 53

-- Returns whether the header is valid: the ring's numbers are consistent, and the ring fits into a string.
local function is_valid(s)
  if (s[4] % 1) + (s[5] % 1) + (s[7] % 1) + (s[8] % 1) > 0 then
    return false
  end
  return s[8] <= 65536 and s[5] <= s[7] and s[7] <= 2 ^ 25 and (s[4] < s[7] or s[4] == 0)
end

-- Visits the hits `from` to `till` in order of age, 0 the oldest. Ends early if another program has truncated the
-- string.
local function read(s, from, till, visit)
  local first, size = s[4], s[7]
  while from <= till do
    local slot = (first + from) % size
    local count = math.min(till - from + 1, size - slot, 32)
    local offset = HEADER_BYTES + s[8] + slot * HIT
    local hits = redis.call('GETRANGE', s.key, offset, offset + count * HIT - 1)
    if #hits < count * HIT then
      return
    end
    for i = 0, count - 1 do
      local time, weight = struct_unpack('<dd', hits, i * HIT + 1)
      if visit(from + i, time, weight) then
        return
      end
    end
    from = from + count
  end
end

local function write_hit(s, index, time, weight)
  local slot = (s[4] + index) % s[7]
  redis.call('SETRANGE', s.key, HEADER_BYTES + s[8] + slot * HIT, struct_pack('<dd', time, weight))
end

-- Returns the index of the oldest hit that counts at `now`, the sum of weights, the period, and the time at which to
-- decide.
local function read_window(s, now, p)
  local period = p[2]
  local at = s[6]
  if at < now then at = now end
  if s[1] <= at or at - now > period then
    if at - now > period then at = now end
    return s[5], 0, period, at
  end
  if s[2] < period then period = s[2] end
  local first, used = s[5], s[3]
  local expired = 0
  read(s, 0, s[5] - 1, function(index, time, weight)
    if time + period > at then
      first = index
      return true
    end
    expired = expired + weight
  end)
  return first, used - expired, period, at
end

-- Returns the same from a cache. A decision calls this several times at one time; the hits are read once for each
-- change.
local function window(s, now, p)
  if s.cached_period ~= p[2] or s.cached_at ~= now then
    s.cached_period, s.cached_at, s.first, s.live, s.period, s.at = p[2], now, read_window(s, now, p)
  end
  -- A charge, and so a hold, counts all hits for the current period.
  return s.first, s.live, s.held and p[2] or s.period, s.at
end

-- Returns the time at which hits of this total weight have expired. Holds expire last.
local function capacity_freed_at(s, first, amount, period, at)
  local freed, time_freed = 0, at
  if s.held then
    time_freed = at + period
  end
  read(s, first, s[5] - 1, function(_, time, weight)
    freed = freed + weight
    if freed >= amount then
      time_freed = time + period
      return true
    end
  end)
  return time_freed
end

local function peek(s, now, max_delay, p)
  if p[3] > p[1] then
    return -1
  end
  local first, used, period, at = window(s, now, p)
  local over = used + (s.held or 0) + p[3] - p[1]
  if over <= 0 then
    return 0
  end
  return math.max(capacity_freed_at(s, first, over, period, at) - now, 0)
end

-- Enlarges the ring. Moves the wrapped hits to the new end as far as it has space.
local function grow(s, size)
  local first, old, ring = s[4], s[7], HEADER_BYTES + s[8]
  s[7] = size
  if first > 0 then
    local moved = math.min(first, size - old) * HIT
    local wrapped = redis.call('GETRANGE', s.key, ring, ring + first * HIT - 1)
    redis.call('SETRANGE', s.key, ring + old * HIT, wrapped:sub(1, moved))
    if moved < #wrapped then
      redis.call('SETRANGE', s.key, ring, wrapped:sub(moved + 1))
    end
  end
end

-- Moves the ring, so that this many bytes precede it for holds.
local function reserve_held_space(s, bytes)
  local from = HEADER_BYTES + s[8]
  local ring = s[7] > 0 and redis.call('GETRANGE', s.key, from, from + s[7] * HIT - 1) or ''
  s[8] = bytes
  if #ring > 0 then
    redis.call('SETRANGE', s.key, HEADER_BYTES + bytes, ring)
  end
end

local function charge(s, now, cost, p)
  local first, used, _, at = window(s, now, p)
  s[3], s[5] = used, s[5] - first
  if s[7] > 0 then
    s[4] = (s[4] + first) % s[7]
  end
  s[2], s[1] = p[2], at + p[2]
  s[3] = math.min(s[3] + cost, MAX_EXACT)
  -- Only surcharges exceed the limit. They are added to the newest hit, which then counts for longer.
  if s[5] > 0 and (s[6] == at or s[5] >= p[1]) then
    read(s, s[5] - 1, s[5] - 1, function(index, _, weight)
      write_hit(s, index, at, math.min(weight + cost, MAX_EXACT))
    end)
  else
    if s[5] >= s[7] then
      grow(s, math.max(4, math.min(s[7] * 2, p[1])))
    end
    write_hit(s, s[5], at, cost)
    s[5] = s[5] + 1
  end
  s[6] = at
  s.cached_period, s.cached_at, s.first, s.live, s.period, s.at = p[2], now, 0, s[3], p[2], at
end

local function commit(s, now, delay, p)
  charge(s, now, p[3], p)
end

-- Returns the numbers of the snapshot: used, the time at which the key is idle, and the time of the next token.
local function view(s, now, p)
  local first, used, period, at = window(s, now, p)
  local idle_at = s[6] + period
  if s.held then
    used, idle_at = used + s.held, at + period
  elseif used == 0 then
    return 0, now, now
  end
  local needed = math.max(1, used - p[1] + 1)
  return used, idle_at, capacity_freed_at(s, first, needed, period, at)
end

return {
  words = 8, params = 3, supports_scheduling = false, header_bytes = HEADER_BYTES, is_valid = is_valid,
  peek = peek, commit = commit, charge = charge, view = view,
  -- For holds: the word with the bytes of space, the function that reserves it, the parameter with a charge's lifetime.
  held_space_word = 8, reserve_held_space = reserve_held_space, period_param = 2,
}
