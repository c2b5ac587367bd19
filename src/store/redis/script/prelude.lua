-- Reads what every call begins with: see driver.lua.

local call = redis.call
local unpack, pack = struct.unpack, struct.pack
local table_unpack = table.unpack or _G.unpack
local ceil = math.ceil

-- Up to this all integers are exact. No number of ours is above it.
local MAX_EXACT = 2 ^ 53

-- For tests, which bring their own time: keys are kept for a day.
local TEST_TTL = 86400000
-- How much longer than need be a key is kept, in microseconds: then most writes can leave its expiry as it is, which halves
-- what they cost.
local TTL_SLACK = 1000000
-- A former expiry that lies further than this behind the state is not kept: the server's clock has stepped back, the period has
-- become shorter, or a hold has ended.
local EXCESS = 2 * TTL_SLACK

local input = ARGV[1]
local now, fast, template_count, operation_count, pos = unpack('<dHHH', input)
local virtual = now ~= 0
if not virtual then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- What a short cut reads, and what it leaves for short.lua: by their keys' index the values before and after, and when keys
-- expire that did not yet; what is said of each decision.
local values, new_values, expiries, results, result_count
if fast == 1 then
  if #KEYS > 1 then
    values = call('MGET', table_unpack(KEYS))
  else
    values = { redis.pcall('GET', KEYS[1]) }
    -- A key of another type: the driver tells.
    if type(values[1]) == 'table' then
      fast = 0
    end
  end
  new_values, expiries, results, result_count = {}, {}, {}, 0
end
