-- The sliding window of blocks: see sliding_window.rs.
--
-- Words: 1 the moment from which on it is as good as new, 2 the newest block, 3 the time of the last charge, 4 the blocks'
-- width, 5 how many a hit counts in, then their counts: block j in word 6 + j mod (word 5).
-- Parameters: 1 limit, 2 the blocks' width, 3 the number of blocks, 4 cost, 5 whether it is weighted.

local MOST = 2 ^ 53
local floor = math.floor

-- The counts by age, the current block's first; the moment to decide at, and its block.
local function view(s, now, p)
  local width, blocks = p[2], p[3]
  local counts = {}
  for age = 0, blocks do
    counts[age] = 0
  end
  local at = s[3]
  if at < now then
    at = now
  elseif at - now > width * (blocks + 1) then
    return counts, now, floor(now / width)
  end
  local current = floor(at / width)
  if s[1] <= at then
    return counts, at, current
  end
  local newest, old_width, old_kept = s[2], s[4], s[5]
  for back = old_kept - 1, 0, -1 do
    local block = newest - back
    local count = s[6 + block % old_kept] or 0
    if count > 0 and (block + old_kept) * old_width > at then
      local ends = (block + 1) * old_width - 1
      if ends > at then ends = at end
      local age = current - floor(ends / width)
      if age <= blocks then
        counts[age] = counts[age] + count
      end
    end
  end
  return counts, at, current
end

local function write(s, counts, at, current, p)
  local width, kept = p[2], p[3] + 1
  local fresh = 0
  for age = p[3], 0, -1 do
    local block = current - age
    local count = counts[age]
    if count > MOST then count = MOST end
    if count > 0 then
      fresh = (block + kept) * width
    end
    s[6 + block % kept] = count
  end
  s[1], s[2], s[3], s[4], s[5] = fresh, current, at, width, kept
end

local function peek(s, now, patience, p)
  local limit, width, blocks, cost = p[1], p[2], p[3], p[4]
  if cost > limit then
    return -1
  end
  local counts, at = view(s, now, p)
  local into = at % width
  local behind = at - now
  local sum = cost
  for age = 0, blocks do
    sum = sum + counts[age]
  end
  -- After `passed` more blocks have begun, those of an age of over `blocks - passed` have left.
  for passed = 0, blocks do
    local oldest = counts[blocks - passed]
    local room = limit - (sum - oldest)
    sum = sum - oldest
    if room >= 0 then
      local from = passed == 0 and into or 0
      if oldest > room then
        if p[5] == 1 then
          local opens = width - floor(room * width / oldest)
          if opens > from then from = opens end
        else
          from = width
        end
      end
      if from < width then
        local wait = passed * width + from - into
        if wait <= 0 then
          return 0
        end
        return wait + behind
      end
    end
  end
  return (blocks + 1) * width - into + behind
end

local function commit(s, now, delay, p)
  local counts, at, current = view(s, now, p)
  counts[0] = counts[0] + p[4]
  write(s, counts, at, current, p)
end

local function give_back(s, now, charge, p)
  local width, blocks = p[2], p[3]
  local counts, at, current = view(s, now, p)
  if charge.till <= at then
    return false
  end
  local block = floor(charge.at / width)
  local oldest = current - block
  if oldest < 0 then
    return false
  end
  -- Under one geometry the block is known; else the oldest hits are credited first.
  local youngest = (block + blocks + 1) * width == charge.till and oldest or 0
  local amount = p[4]
  for age = math.min(oldest, blocks), youngest, -1 do
    local credit = math.min(amount, counts[age])
    counts[age], amount = counts[age] - credit, amount - credit
  end
  write(s, counts, at, current, p)
  return true
end

return { words = 5, params = 5, promises = false, grows = true, peek = peek, commit = commit, give_back = give_back }
