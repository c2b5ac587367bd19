-- The sliding window of blocks: the transition of sliding_window.rs, which states how windows of several periods count.
--
-- Words: 1 time at which the key is idle, 2 newest block, 3 time of the last charge, 4 width of a block, 5 number of
-- blocks for which a hit counts, 6 a time that no hit of the newest block is before, 7 number of further rings, then the
-- counts: block j at j mod (word 5). Then for each further ring the words 1, 2, 4, 5, 6 and the counts.
-- Parameters: 1 limit, 2 width of a block, 3 number of blocks, 4 cost, 5 whether the window is weighted (1 or 0).

local MAX_EXACT, MAX_RINGS, MAX_WORDS, HEAD = 2 ^ 53, 4, 134, 6
local floor, min, max = math.floor, math.min, math.max

-- Returns the number of words behind the first seven.
local function further_words(s)
  local words = s[5]
  for _ = 1, min(s[7], MAX_RINGS - 1) do
    words = words + 5 + (s[words + 11] or MAX_EXACT)
  end
  return words
end

local function is_valid(s)
  return s[7] % 1 == 0 and s[7] < MAX_RINGS
end

-- Returns all rings, the number of rings that are not idle, and the time at which to decide. The ring that is idle last is
-- first.
local function read_rings(s, now, p)
  local rings, live, at, base = {}, 0, s[3], 8
  if at < now then
    at = now
  elseif at - now > p[2] * (p[3] + 1) then
    return rings, live, now
  end
  local ring = { idle_at = s[1], newest = s[2], width = s[4], kept = s[5], first_at = s[6], base = base }
  for i = 1, s[7] + 1 do
    rings[i] = ring
    if ring.idle_at > at then
      live = i
    end
    base = ring.base + ring.kept
    ring = {
      idle_at = s[base], newest = s[base + 1], width = s[base + 2], kept = s[base + 3], first_at = s[base + 4],
      base = base + 5,
    }
  end
  return rings, live, at
end

-- Returns the ring of a window, else the ring from which the window takes over the usage, nil if that ring is idle; and
-- whether it is the window's own. Of other rings that with the shortest time that covers the window, else that with the
-- longest time.
local function choose(rings, at, width, kept)
  local span, best, best_span = width * kept, nil, nil
  for i = 1, #rings do
    local ring = rings[i]
    if ring.width == width and ring.kept == kept then
      best, best_span = ring, span
      break
    end
    local own = ring.width * ring.kept
    local better = not best
    if best and own >= span then
      better = best_span < span or own < best_span
    elseif best then
      better = best_span < span and own > best_span
    end
    if better then
      best, best_span = ring, own
    end
  end
  if best and best.idle_at > at then
    return best, best.width == width and best.kept == kept
  end
  return nil, false
end

-- Returns the blocks of a ring that count for a window, oldest first: their number, the block of the window in which each
-- counts, its expiry and its count.
local function read_blocks(s, ring, at, width, kept)
  local live, blocks, expiry, counts = 0, {}, {}, {}
  if ring then
    for written = ring.newest - ring.kept + 1, ring.newest do
      local count = s[ring.base + written % ring.kept] or 0
      if count > 0 then
        -- The first possible time of a hit in this block: the hits may be as old, and must not count for longer.
        local first = written * ring.width
        if written == ring.newest then
          first = max(first, ring.first_at)
        end
        local block = floor(first / width)
        local expires_at = min((block + kept) * width, (written + ring.kept) * ring.width)
        if expires_at > at then
          live = live + 1
          blocks[live], expiry[live], counts[live] = block, expires_at, count
        end
      end
    end
  end
  return live, blocks, expiry, counts
end

-- Returns when a ring of the window fits into the state, nil if it does now.
local function full_until(rings, live, kept)
  local words = HEAD + kept
  for i = 1, live do
    words = words + HEAD + rings[i].kept
    -- The first ring that does not fit beside the new ring. All later rings are idle by then.
    if i == MAX_RINGS or words > MAX_WORDS then
      return rings[i].idle_at
    end
  end
end

-- Returns the time at which to decide, and its block, if the state is one ring of this window that is not idle. Then the
-- blocks of the window count as they are. Script time in batches: 0.62 (benches/NOTES.md).
local function read_own_ring(s, now, p)
  local at, width, kept = max(s[3], now), p[2], p[3] + 1
  if s[7] == 0 and s[4] == width and s[5] == kept and s[1] > at and at - now <= width * kept then
    return at, floor(at / width)
  end
end

local function peek(s, now, max_delay, p)
  local limit, width, cost = p[1], p[2], p[4]
  if cost > limit then
    return -1
  end
  local own_at, current = read_own_ring(s, now, p)
  if own_at then
    local used, kept = cost, s[5]
    for block = current - p[3], s[2] do
      used = used + s[8 + block % kept]
    end
    if used <= limit then
      return 0
    end
  end
  local rings, live_rings, at = read_rings(s, now, p)
  local ring, is_own = choose(rings, at, width, p[3] + 1)
  local live, blocks, expiry, counts = read_blocks(s, ring, at, width, p[3] + 1)
  local capacity, used = limit - cost, 0
  for i = 1, live do
    used = used + counts[i]
  end
  local from, i = at, 1
  while used > capacity and i <= live do
    if p[5] == 1 then
      -- Several old blocks may count in the same new block, and then count by the same fraction.
      local sharing = counts[i]
      for j = i + 1, live do
        if blocks[j] ~= blocks[i] then break end
        sharing = sharing + counts[j]
      end
      local left = capacity + sharing - used
      if left >= 0 then
        local admits_at = (blocks[i] + p[3] + 1) * width - floor(left * width / sharing)
        if admits_at < from then admits_at = from end
        if admits_at < expiry[i] then
          from = admits_at
          break
        end
      end
    end
    used, from, i = used - counts[i], expiry[i], i + 1
  end
  if not is_own and cost > 0 then
    from = max(from, full_until(rings, live_rings, p[3] + 1) or 0)
  end
  return from > at and from - now or 0
end

-- Returns the ring of a window after a charge, with its counts by age.
local function charged(s, ring, is_own, at, width, kept, cost)
  local live, blocks, _, counts = read_blocks(s, ring, at, width, kept)
  local current, sums = floor(at / width), {}
  local first_at = current * width
  if is_own and ring.newest == current then
    first_at = ring.first_at
  end
  for age = 0, kept - 1 do
    sums[age] = 0
  end
  for i = 1, live do
    local age = min(max(current - blocks[i], 0), kept - 1)
    sums[age] = sums[age] + counts[i]
  end
  if sums[0] == 0 then
    first_at = at
  end
  sums[0] = sums[0] + cost
  return {
    idle_at = (current + kept) * width, newest = current, width = width, kept = kept, first_at = first_at, sums = sums,
  }
end

local function charge(s, now, cost, p)
  local own_at, current = read_own_ring(s, now, p)
  if own_at then
    local kept, newest = s[5], s[2]
    for block = newest + 1, current do
      s[8 + block % kept] = 0
    end
    local word = 8 + current % kept
    if s[word] == 0 then
      s[6] = own_at
    end
    s[1], s[2], s[3], s[word] = (current + kept) * p[2], current, own_at, min(s[word] + cost, MAX_EXACT)
    return
  end
  local rings, live, at = read_rings(s, now, p)
  local width, kept, changed = p[2], p[3] + 1, {}
  local own, is_own = choose(rings, at, width, kept)
  if is_own or not full_until(rings, live, kept) then
    changed[1] = charged(s, own, is_own, at, width, kept, cost)
  end
  for i = 1, live do
    local ring = rings[i]
    if ring ~= own or not is_own then
      local next, place = charged(s, ring, true, at, ring.width, ring.kept, cost), #changed + 1
      while place > 1 and changed[place - 1].idle_at < next.idle_at do
        place = place - 1
      end
      table.insert(changed, place, next)
    end
  end
  local base = 8
  for i = 1, #changed do
    local ring = changed[i]
    if i == 1 then
      s[1], s[2], s[3], s[4], s[5] = ring.idle_at, ring.newest, at, ring.width, ring.kept
      s[6], s[7] = ring.first_at, #changed - 1
    else
      s[base], s[base + 1], s[base + 2], s[base + 3], s[base + 4] =
        ring.idle_at, ring.newest, ring.width, ring.kept, ring.first_at
      base = base + 5
    end
    for age = 0, ring.kept - 1 do
      s[base + (ring.newest - age) % ring.kept] = min(ring.sums[age], MAX_EXACT)
    end
    base = base + ring.kept
  end
end

local function commit(s, now, delay, p)
  charge(s, now, p[4], p)
end

return {
  words = 7, params = 5, supports_scheduling = false, further_words = further_words, is_valid = is_valid,
  peek = peek, commit = commit, charge = charge,
}
