-- The sliding log: see sliding_log.rs.
--
-- Its hits lie in one string: a head of ten numbers, the driver's room for holds, then a ring of hits, the time and the weight
-- of each. So a decision reads the head and the oldest hits, and writes one hit, however long the log is.
-- Head: 1 the moment from which on it is as good as new, 2 the period of the last charge, 3 used (the weights of all hits),
-- 4 the index of the oldest hit, 5 the number of hits, 6 the newest hit's time, 7 the ring's size, 8 how many bytes of room
-- there are for holds, 9 and 10 the driver's.
-- Parameters: 1 limit, 2 period, 3 cost.
-- `s.held` is what counts beside the hits, as if it were charged now.

local struct_pack, struct_unpack = struct.pack, struct.unpack
-- In bytes.
local HEADER_BYTES, HIT = 80, 16
local MAX_EXACT = 2 ^ 53

-- Whether a head can be one: what is said of the ring is true of it, and it fits into a string.
local function is_valid(s)
  if (s[4] % 1) + (s[5] % 1) + (s[7] % 1) + (s[8] % 1) > 0 then
    return false
  end
  return s[8] <= 65536 and s[5] <= s[7] and s[7] <= 2 ^ 25 and (s[4] < s[7] or s[4] == 0)
end

-- The hits `from` to `till` in order of age, 0 the oldest. Ends early where the string does, which only others can cut.
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

-- Reads what counts at `now`: the index of the oldest hit that does, how much is used, the period, the moment to decide at.
local function look(s, now, p)
  local period = p[2]
  local at = s[6]
  if at < now then at = now end
  if s[1] <= at or at - now > period then
    if at - now > period then at = now end
    return s[5], 0, period, at
  end
  if s[2] < period then period = s[2] end
  local first, used = s[5], s[3]
  local gone = 0
  read(s, 0, s[5] - 1, function(index, time, weight)
    if time + period > at then
      first = index
      return true
    end
    gone = gone + weight
  end)
  return first, used - gone, period, at
end

-- The same. A decision asks for it several times, mostly at one moment: it is read once for each change.
local function window(s, now, p)
  if s.seen_for ~= p[2] or s.seen_at ~= now then
    s.seen_for, s.seen_at, s.first, s.live, s.period, s.at = p[2], now, look(s, now, p)
  end
  -- A charge counts all hits for the present period: so does what is held.
  return s.first, s.live, s.held and p[2] or s.period, s.at
end

-- The moment at which so much of what is used no longer counts. What is held leaves last.
local function freed_at(s, first, amount, period, at)
  local freed, moment = 0, at
  if s.held then
    moment = at + period
  end
  read(s, first, s[5] - 1, function(_, time, weight)
    freed = freed + weight
    if freed >= amount then
      moment = time + period
      return true
    end
  end)
  return moment
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
  return math.max(freed_at(s, first, over, period, at) - now, 0)
end

-- A larger ring. What had wrapped around goes to the new end, as far as there is room.
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

-- Moves the ring so that there is so much room for holds before it.
local function reserve_held_space(s, bytes)
  local ring = s[7] > 0 and redis.call('GETRANGE', s.key, HEADER_BYTES + s[8], HEADER_BYTES + s[8] + s[7] * HIT - 1) or ''
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
  -- Beyond the bound only penalties go: they count with the hit before them, for longer.
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
  s.seen_for, s.seen_at, s.first, s.live, s.period, s.at = p[2], now, 0, s[3], p[2], at
end

local function commit(s, now, delay, p)
  charge(s, now, p[3], p)
end

-- What the figures are made of: used, the moment at which all of it has left, that at which more is to be had.
local function view(s, now, p)
  local first, used, period, at = window(s, now, p)
  local left_at = s[6] + period
  if s.held then
    used, left_at = used + s.held, at + period
  elseif used == 0 then
    return 0, now, now
  end
  local more = math.max(1, used - p[1] + 1)
  return used, left_at, freed_at(s, first, more, period, at)
end

return {
  words = 8, params = 3, supports_scheduling = false, header_bytes = HEADER_BYTES, is_valid = is_valid,
  peek = peek, commit = commit, charge = charge, view = view,
  -- Of what the driver holds: which word says how much room there is for it, how to make some, how long a charge counts.
  held_space_word = 8, reserve_held_space = reserve_held_space, period_param = 2,
}
