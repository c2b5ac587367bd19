-- The sliding window of blocks: see sliding_window.rs.
--
-- Words: 1 the moment from which on it is as good as new, 2 the newest block, 3 the time of the last charge, 4 the blocks'
-- width, 5 how many a hit counts in, then their counts: block j in word 6 + j mod (word 5).
-- Parameters: 1 limit, 2 the blocks' width, 3 the number of blocks, 4 cost, 5 whether it is weighted.

local MAX_EXACT = 2 ^ 53
local floor = math.floor

-- The blocks that still count, oldest first: how many, the block of this window that each counts in, when it leaves, its count;
-- then the moment to decide at.
local function view(s, now, p)
  local width, kept = p[2], p[3] + 1
  local live, blocks, leaves, counts = 0, {}, {}, {}
  local written_at = s[3]
  local at = written_at
  if at < now then
    at = now
  elseif at - now > width * kept then
    return live, blocks, leaves, counts, now
  end
  if s[1] <= at then
    return live, blocks, leaves, counts, at
  end
  local newest, old_width, old_kept = s[2], s[4], s[5]
  for written = newest - old_kept + 1, newest do
    local count = s[6 + written % old_kept] or 0
    if count > 0 then
      -- No hit of the block is later than its last microsecond, nor than the last charge: neither depends on `at`. In a state
      -- of this window it is the block itself.
      local last = (written + 1) * old_width - 1
      if last > written_at then last = written_at end
      local block = floor(last / width)
      local leaves_at, left_at = (block + kept) * width, (written + old_kept) * old_width
      if left_at < leaves_at then leaves_at = left_at end
      if leaves_at > at then
        live = live + 1
        blocks[live], leaves[live], counts[live] = block, leaves_at, count
      end
    end
  end
  return live, blocks, leaves, counts, at
end

-- What still counts by age, the current block's first; the moment to decide at, and its block.
local function by_age(s, now, p)
  local live, blocks, _, counts, at = view(s, now, p)
  local sums, current = {}, floor(at / p[2])
  for age = 0, p[3] do
    sums[age] = 0
  end
  for i = 1, live do
    local age = current - blocks[i]
    if age > p[3] then age = p[3] end
    sums[age] = sums[age] + counts[i]
  end
  return sums, at, current
end

local function write(s, counts, at, current, p)
  local width, kept = p[2], p[3] + 1
  local fresh = 0
  for age = p[3], 0, -1 do
    local block = current - age
    local count = counts[age]
    if count > MAX_EXACT then count = MAX_EXACT end
    if count > 0 then
      fresh = (block + kept) * width
    end
    s[6 + block % kept] = count
  end
  s[1], s[2], s[3], s[4], s[5] = fresh, current, at, width, kept
end

local function peek(s, now, max_delay, p)
  local limit, width, cost = p[1], p[2], p[4]
  if cost > limit then
    return -1
  end
  local live, blocks, leaves, counts, at = view(s, now, p)
  local room, used = limit - cost, 0
  for i = 1, live do
    used = used + counts[i]
  end
  local from, i = at, 1
  while used > room and i <= live do
    if p[5] == 1 then
      -- Former blocks may have gone over into the same block of this window: they count by the same share.
      local sharing = counts[i]
      for j = i + 1, live do
        if blocks[j] ~= blocks[i] then break end
        sharing = sharing + counts[j]
      end
      local left = room + sharing - used
      if left >= 0 then
        local admits_at = (blocks[i] + p[3] + 1) * width - floor(left * width / sharing)
        if admits_at < from then admits_at = from end
        if admits_at < leaves[i] then
          return admits_at - now
        end
      end
    end
    used, from, i = used - counts[i], leaves[i], i + 1
  end
  if from <= at then
    return 0
  end
  return from - now
end

local function charge(s, now, cost, p)
  local counts, at, current = by_age(s, now, p)
  counts[0] = counts[0] + cost
  write(s, counts, at, current, p)
end

local function commit(s, now, delay, p)
  charge(s, now, p[4], p)
end

return { words = 5, params = 5, supports_scheduling = false, variable_width = true, peek = peek, commit = commit, charge = charge }
