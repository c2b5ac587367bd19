-- The sliding window of blocks: the transition of sliding_window.rs.
--
-- Words: 1 time at which the key is idle, 2 newest block, 3 time of the last charge, 4 width of a block, 5 number of
-- blocks for which a hit counts, then the counts: block j in word 6 + j mod (word 5).
-- Parameters: 1 limit, 2 width of a block, 3 number of blocks, 4 cost, 5 whether the window is weighted (1 or 0).

local MAX_EXACT = 2 ^ 53
local floor = math.floor

-- Returns the blocks that count, oldest first: their number, the block of this window in which each counts, its
-- expiry and its count; then the time at which to decide.
local function read_blocks(s, now, p)
  local width, live_blocks = p[2], p[3] + 1
  local live, blocks, expiry, counts = 0, {}, {}, {}
  local written_at = s[3]
  local at = written_at
  if at < now then
    at = now
  elseif at - now > width * live_blocks then
    return live, blocks, expiry, counts, now
  end
  if s[1] <= at then
    return live, blocks, expiry, counts, at
  end
  local newest, old_width, old_blocks = s[2], s[4], s[5]
  for written = newest - old_blocks + 1, newest do
    local count = s[6 + written % old_blocks] or 0
    if count > 0 then
      -- The last possible time of a hit in this block. It does not depend on `at`, so that the block is counted in
      -- the same new block at all times. In a state that this window wrote, that is the block itself.
      local last = (written + 1) * old_width - 1
      if last > written_at then last = written_at end
      local block = floor(last / width)
      local expires_at, old_expiry = (block + live_blocks) * width, (written + old_blocks) * old_width
      if old_expiry < expires_at then expires_at = old_expiry end
      if expires_at > at then
        live = live + 1
        blocks[live], expiry[live], counts[live] = block, expires_at, count
      end
    end
  end
  return live, blocks, expiry, counts, at
end

-- Returns the counts by age, starting with the current block; the time at which to decide; and the current block.
local function by_age(s, now, p)
  local live, blocks, _, counts, at = read_blocks(s, now, p)
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
  local width, live_blocks = p[2], p[3] + 1
  local idle_at = 0
  -- Oldest first: the newest block with a count sets the end.
  for age = p[3], 0, -1 do
    local block = current - age
    local count = counts[age]
    if count > MAX_EXACT then count = MAX_EXACT end
    if count > 0 then
      idle_at = (block + live_blocks) * width
    end
    s[6 + block % live_blocks] = count
  end
  s[1], s[2], s[3], s[4], s[5] = idle_at, current, at, width, live_blocks
end

local function peek(s, now, max_delay, p)
  local limit, width, cost = p[1], p[2], p[4]
  if cost > limit then
    return -1
  end
  local live, blocks, expiry, counts, at = read_blocks(s, now, p)
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

return {
  words = 5, params = 5, supports_scheduling = false, further_words = function(s) return s[5] end,
  peek = peek, commit = commit, charge = charge,
}
