-- A limit on requests in flight: the state is always zero, and the held costs are the usage. See in_flight.rs.
--
-- p: the maximum, the cost.

-- The wait that a denial estimates, in microseconds.
local RETRY_AFTER = 1000000

local function peek(s, now, max_delay, p)
  if p[2] > p[1] then
    return -1
  end
  return p[2] + (s.held or 0) > p[1] and RETRY_AFTER or 0
end

-- Costs are held and released, and never charged.
local function charge() end

-- Returns how much more can be held.
local function room(held, p)
  return p[1] - held
end

return {
  words = 1, params = 2, supports_scheduling = false, held_until_end = true,
  peek = peek, commit = charge, charge = charge, room = room,
}
