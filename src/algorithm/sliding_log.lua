-- The sliding log: the transition of sliding_log.rs.
--
-- The state is a Redis list: the header, then the hits, oldest first. A hit consists of its time and of the sum of all
-- weights up to and including its own, two integers of 7 bytes. The weight of any run of hits is the difference of two
-- sums. So a decision finds the oldest hit that counts, and the hit whose expiry frees a cost, by binary search, and
-- never reads or moves the log as a whole.
--
-- Words of the header: 1 time at which the key is idle, 2 longest period of the present generation of charges, 3 sum
-- before the oldest hit, 4 sum up to the newest hit, 5 time of the newest hit, 6 number of hits, 7 largest limit of the
-- present generation, 8 and 9 period and limit of the previous generation, 10 time from which a charge begins a
-- generation. hit_log.rs explains generations.
-- Parameters: 1 limit, 2 period, 3 cost.
--
-- Fields of a state: `key`; `exists`, whether the list exists; `elements`, the header and the oldest hits, packed;
-- `stored`, the number of hits in the list; `dropped`, the number of hits to remove from its start; `times` and `sums`,
-- the hits that were read or added, by position in the list. `store` writes the changes at the end of the batch.
-- `s.held` is the cost of all holds, which counts as if it were charged now.

local struct_pack, struct_unpack = struct.pack, struct.unpack
local list_unpack = table.unpack or _G.unpack
local HIT_FORMAT, HIT_BYTES = '<I7I7', 14
-- Sums are counted modulo this number. A weight is at most MAX_WEIGHT: a hit that is heavier than the largest limit
-- decides like one of that weight. So the weights of all hits are less than the modulus.
local MODULUS, MAX_WEIGHT, MAX_HITS = 2 ^ 52, 2 ^ 24, 2 ^ 24
local floor, min, max = math.floor, math.min, math.max

-- Prepares a state, where `elements` are the first ones of the list. Returns whether the header is valid.
local function open(s, key, elements)
  s.key, s.elements, s.exists, s.stored, s.dropped, s.times, s.sums = key, elements, #elements > 0, s[6], 0, {}, {}
  return s[3] % 1 + s[4] % 1 + s[6] % 1 == 0 and max(s[3], s[4]) < MODULUS and s[6] < MAX_HITS
end

-- Removes all hits.
local function clear(s)
  s.dropped, s.cached_period = s.dropped + s[6], nil
  for word = 1, 10 do
    s[word] = 0
  end
end

-- Returns the time of a hit, and the sum up to it. The oldest hit has index 0. If another program has shortened the
-- list, the missing hits have expired.
local function read(s, index)
  local position = s.dropped + index
  local time = s.times[position]
  if time then
    return time, s.sums[position]
  end
  local packed, sum = s.elements[position + 2] or redis.call('LINDEX', s.key, position + 1), 0
  time = 0
  if packed and #packed == HIT_BYTES then
    time, sum = struct_unpack(HIT_FORMAT, packed)
  end
  s.times[position], s.sums[position] = time, sum
  return time, sum
end

-- Returns the sum before a hit.
local function sum_before(s, index)
  if index == 0 then
    return s[3]
  end
  local _, sum = read(s, index - 1)
  return sum
end

-- Returns the first hit from `from` on for which `test` holds, or the number of hits. `test` must hold for all later
-- hits, too. The distance of the probes grows until one succeeds, so a hit near `from` is found by few probes.
local function find(s, from, test)
  local before, found, step = from - 1, s[6], 1
  while before + 1 < found do
    local probe = min(before + step, floor((before + found) / 2))
    if test(read(s, probe)) then
      found, step = probe, found
    else
      before, step = probe, 3 * (probe - from) + 1
    end
  end
  return found
end

-- Returns the index of the oldest hit that counts at `now`, the sum before it, the period, and the time at which to
-- decide.
local function read_window(s, now, p)
  local period = p[2]
  local at = max(s[5], now)
  if at - now > period then
    return s[6], s[4], period, now
  elseif s[1] <= at then
    return s[6], s[4], period, at
  end
  period = min(max(s[2], s[8]), period)
  local first = find(s, 0, function(time) return time + period > at end)
  return first, sum_before(s, first), period, at
end

-- Returns the same from a cache, and the sum of weights. A decision calls this several times at one time.
local function window(s, now, p)
  if s.cached_period ~= p[2] or s.cached_at ~= now then
    s.cached_period, s.cached_at, s.first, s.base, s.period, s.at = p[2], now, read_window(s, now, p)
  end
  -- A charge, and so a hold, counts all hits for the current period.
  return s.first, s.base, s.held and p[2] or s.period, s.at, (s[4] - s.base) % MODULUS
end

-- Returns the time at which hits of this total weight have expired. Holds expire last.
local function capacity_freed_at(s, amount, now, p)
  local first, base, period, at, used = window(s, now, p)
  if amount > used then
    return s.held and at + period or at
  end
  local time = read(s, find(s, first, function(_, sum) return (sum - base) % MODULUS >= amount end))
  return time + period
end

local function peek(s, now, max_delay, p)
  if p[3] > p[1] then
    return -1
  end
  local _, _, _, _, used = window(s, now, p)
  local over = used + (s.held or 0) + p[3] - p[1]
  if over <= 0 then
    return 0
  end
  return max(capacity_freed_at(s, over, now, p) - now, 0)
end

local function charge(s, now, cost, p)
  local first, base, _, at = window(s, now, p)
  local period = max(s[2], s[8])
  if s[1] <= at or at < s[5] then
    -- No hit counts for any reader: the key is idle, or the clock has stepped back too far.
    for word = 7, 10 do
      s[word] = 0
    end
    s[2] = 0
  elseif period > p[2] then
    -- Readers with longer periods count hits that this one does not.
    local kept = find(s, 0, function(time) return time + period > at end)
    first, base = kept, sum_before(s, kept)
  end
  s.dropped, s[6], s[3] = s.dropped + first, s[6] - first, base
  if at >= s[10] then
    s[8], s[9], s[10], s[2], s[7] = s[2], s[7], at + s[2], 0, 0
  end
  s[2], s[7] = max(s[2], p[2]), max(s[7], p[1])
  s[1] = at + max(s[2], s[8])
  local before = s[4]
  if s[6] > 0 and s[5] == at then
    before = sum_before(s, s[6] - 1)
  else
    -- A limit of zero keeps surcharges in one hit.
    local limit = max(s[7], s[9], 1)
    while s[6] >= limit do
      -- The weight of the oldest hit is added to the hit after it. While the newer hits use the limit up, no reader sees
      -- whether the oldest one counts for longer.
      s.dropped, s[6] = s.dropped + 1, s[6] - 1
    end
    s[6] = s[6] + 1
  end
  local newest = s.dropped + s[6] - 1
  s[4] = (before + min((s[4] - before) % MODULUS + cost, MAX_WEIGHT)) % MODULUS
  s[5], s.times[newest], s.sums[newest] = at, at, s[4]
  s.changes_newest = s.changes_newest or newest < s.stored
  local _, oldest = read(s, 0)
  if (oldest - s[3]) % MODULUS > MAX_WEIGHT then
    s[3] = (oldest - MAX_WEIGHT) % MODULUS
  end
  s.cached_period = nil
  if period <= p[2] then
    s.cached_period, s.cached_at, s.first, s.base, s.period, s.at = p[2], now, 0, s[3], p[2], at
  end
end

local function commit(s, now, delay, p)
  charge(s, now, p[3], p)
end

-- Returns the numbers of the snapshot: used, the time at which the key is idle, and the time of the next token.
local function view(s, now, p)
  local _, _, period, at, used = window(s, now, p)
  local idle_at = s[5] + period
  if s.held then
    used, idle_at = used + s.held, at + period
  elseif used == 0 then
    return 0, now, now
  end
  return used, idle_at, capacity_freed_at(s, max(1, used - max(p[1] - 1, 0)), now, p)
end

-- Writes the header, and the changes of the list.
local function store(s, header)
  local key, stored, dropped = s.key, s.stored, s.dropped
  local added = s.exists and {} or { header }
  for position = max(stored, dropped), dropped + s[6] - 1 do
    added[#added + 1] = struct_pack(HIT_FORMAT, s.times[position], s.sums[position])
  end
  if s.exists then
    if dropped > 0 and stored > 0 then
      -- Keeps one element, which the header overwrites. So the list is never empty, which would delete it.
      redis.call('LTRIM', key, dropped < stored and dropped or -1, -1)
    end
    if s.changes_newest and dropped < stored then
      redis.call('LSET', key, -1, struct_pack(HIT_FORMAT, s.times[stored - 1], s.sums[stored - 1]))
    end
    redis.call('LSET', key, 0, header)
  end
  if #added > 0 then
    redis.call('RPUSH', key, list_unpack(added))
  end
end

return {
  words = 10, params = 3, supports_scheduling = false, is_list = true,
  open = open, clear = clear, store = store, peek = peek, commit = commit, charge = charge, view = view,
  -- For holds: the time for which a charge is kept.
  lifetime = function(s, p) return max(s[2], s[8], p[2]) end,
}
