-- The sliding log: see sliding_log.rs.
--
-- Its hits lie in one string: a head of nine numbers, then a ring of hits, the time and the weight of each. So a decision
-- reads the head and the oldest hits, and writes one hit, however long the log is.
-- Head: 1 the moment from which on it is as good as new, 2 the period of the last charge, 3 used (the weights of all hits),
-- 4 the index of the oldest hit, 5 the number of hits, 6 the newest hit's time, 7 the ring's size, 8 and 9 the driver's.
-- Parameters: 1 limit, 2 period, 3 cost.

local struct_pack, struct_unpack = struct.pack, struct.unpack
-- In bytes.
local HEAD, HIT = 72, 16
local MOST = 2 ^ 53

-- Whether a head can be one: what is said of the ring is true of it, and it fits into a string.
local function holds(s)
  return s[5] <= s[7] and s[7] <= 2 ^ 25 and (s[4] < s[7] or s[4] == 0)
end

-- The hits `from` to `till` in order of age, 0 the oldest. Ends early where the string does, which only others can cut.
local function read(s, from, till, visit)
  local first, size = s[4], s[7]
  while from <= till do
    local slot = (first + from) % size
    local count = math.min(till - from + 1, size - slot, 32)
    local offset = HEAD + slot * HIT
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
  redis.call('SETRANGE', s.key, HEAD + slot * HIT, struct_pack('<dd', time, weight))
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

-- The same. A decision asks for it several times, and all of a call are made at one moment: it is read once for each change.
local function window(s, now, p)
  if s.seen_for ~= p[2] then
    s.seen_for, s.first, s.live, s.period, s.at = p[2], look(s, now, p)
  end
  return s.first, s.live, s.period, s.at
end

-- The moment at which so much of what is used no longer counts.
local function freed_at(s, first, amount, period, at)
  local freed, moment = 0, at
  read(s, first, s[5] - 1, function(_, time, weight)
    freed = freed + weight
    if freed >= amount then
      moment = time + period
      return true
    end
  end)
  return moment
end

local function peek(s, now, patience, p)
  if p[3] > p[1] then
    return -1
  end
  local first, used, period, at = window(s, now, p)
  local over = used + p[3] - p[1]
  if over <= 0 then
    return 0
  end
  return math.max(freed_at(s, first, over, period, at) - now, 0)
end

-- A larger ring. What had wrapped around goes to the new end, as far as there is room.
local function grow(s, size)
  local first, old = s[4], s[7]
  s[7] = size
  if first > 0 then
    local moved = math.min(first, size - old) * HIT
    local wrapped = redis.call('GETRANGE', s.key, HEAD, HEAD + first * HIT - 1)
    redis.call('SETRANGE', s.key, HEAD + old * HIT, wrapped:sub(1, moved))
    if moved < #wrapped then
      redis.call('SETRANGE', s.key, HEAD, wrapped:sub(moved + 1))
    end
  end
end

-- Leaves out the hits that weigh nothing any more.
local function compact(s)
  local hits, count = {}, 0
  read(s, 0, s[5] - 1, function(_, time, weight)
    if weight > 0 then
      count = count + 1
      hits[count] = struct_pack('<dd', time, weight)
    end
  end)
  s[4], s[5] = 0, count
  redis.call('SETRANGE', s.key, HEAD, table.concat(hits))
end

local function commit(s, now, delay, p)
  local first, used, _, at = window(s, now, p)
  s[3], s[5] = used, s[5] - first
  if s[7] > 0 then
    s[4] = (s[4] + first) % s[7]
  end
  s[2], s[1] = p[2], at + p[2]
  s[3] = math.min(s[3] + p[3], MOST)
  if s[5] >= p[1] then
    compact(s)
  end
  -- Beyond the bound only penalties go: they count with the hit before them, for longer.
  if s[5] > 0 and (s[6] == at or s[5] >= p[1]) then
    read(s, s[5] - 1, s[5] - 1, function(index, _, weight)
      write_hit(s, index, at, math.min(weight + p[3], MOST))
    end)
  else
    if s[5] >= s[7] then
      grow(s, math.max(4, math.min(s[7] * 2, p[1])))
    end
    write_hit(s, s[5], at, p[3])
    s[5] = s[5] + 1
  end
  s[6] = at
  s.seen_for, s.first, s.live, s.period, s.at = p[2], 0, s[3], p[2], at
end

local function give_back(s, now, charge, p)
  s.seen_for = nil
  local time = charge.till - s[2]
  -- The hit of that time, by halving.
  local low, high = 0, s[5] - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local found, weight
    read(s, middle, middle, function(_, t, w) found, weight = t, w end)
    if not found then
      return false
    elseif found == time then
      local back = math.min(weight, p[3])
      s[3] = s[3] - back
      write_hit(s, middle, time, weight - back)
      -- One that weighs nothing any more stays in its place until it leaves, if it is not the newest.
      while s[5] > 0 do
        local newest, weighs
        read(s, s[5] - 1, s[5] - 1, function(_, t, w) newest, weighs = t, w end)
        if not newest then
          return false
        end
        s[6], s[1] = newest, newest + s[2]
        if weighs > 0 then
          return true
        end
        s[5] = s[5] - 1
      end
      s[1], s[6] = 0, 0
      return true
    elseif found < time then
      low = middle + 1
    else
      high = middle - 1
    end
  end
  return false
end

-- What the figures are made of: used, the moment at which all of it has left, that at which more is to be had.
local function view(s, now, p)
  local first, used, period, at = window(s, now, p)
  if used == 0 then
    return 0, now, now
  end
  -- The newest hit is never one that weighs nothing: all has left when it has.
  local more = math.max(1, used - p[1] + 1)
  return used, s[6] + period, freed_at(s, first, more, period, at)
end

return {
  words = 7, params = 3, promises = false, head = HEAD, holds = holds,
  peek = peek, commit = commit, give_back = give_back, view = view,
}
