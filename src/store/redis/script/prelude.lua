-- The start of the script: constants, the header of the input, the time. read.lua documents the input.

local call = redis.call
local unpack, pack = struct.unpack, struct.pack
local table_unpack = table.unpack or _G.unpack
local ceil = math.ceil

-- Doubles represent all integers up to this one exactly. No number of the limiter is above it.
local MAX_EXACT = 2 ^ 53

-- The TTL of keys, in milliseconds, if a test supplies the time.
local TEST_TTL = 86400000
-- The time, in microseconds, that a key is kept after its state has ended. Most writes can then keep the key's expiry
-- (SET with KEEPTTL instead of PSETEX), which halves their cost.
local TTL_SLACK = 1000000
-- An expiry that is later than the state's end by more than this is replaced: the server's clock was set back, the
-- period became shorter, or a hold ended.
local EXCESS = 2 * TTL_SLACK

local input = ARGV[1]
local now, latest_start, fast, template_count, operation_count, pos = unpack('<ddHHH', input)
local uses_test_time = now ~= 0
if not uses_test_time then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
-- The replies to decisions would come after the callers' deadline, so the driver makes none.
local is_late = latest_start > 0 and now > latest_start
if is_late then
  fast = 0
end

-- Each key has one operation in its order, all by the only template.
local is_plain = operation_count == 0 and template_count == 1
if is_plain then
  operation_count = #KEYS
end

-- There are two fast paths of a kernel: 1 for decisions, 2 for holds and their updates. (3 is the fast path of decisions by
-- any kernel, in read.lua.) Both decide on `values`, by key
-- index, and write nothing before they know that they support the whole batch; otherwise the driver starts afresh, with
-- the values that were read. They leave the rest for fast_reply.lua. By key index: the values after the batch ('' for no
-- value), and the expiry of keys whose TTL must change. One after the other: the results other than 0. That of holds also
-- leaves the values for the reply.
local values, new_values, expiries, results, reported
local result_count, has_results = 0, false
if fast == 1 or fast == 2 then
  if #KEYS > 1 then
    values = call('MGET', table_unpack(KEYS))
  else
    values = { redis.pcall('GET', KEYS[1]) }
    -- The key has another type, or the user must not call GET. The driver reads by MGET.
    if type(values[1]) == 'table' then
      fast, values = 0, nil
    end
  end
end
-- Tables are created with slots: growing a table step by step costs more in Lua than a decision.
if #KEYS > 1 then
  new_values, expiries = { nil, nil, nil, nil, nil, nil, nil, nil }, { nil, nil, nil, nil, nil, nil, nil, nil }
  results = { nil, nil, nil, nil, nil, nil, nil, nil }
else
  new_values, expiries, results = { nil }, { nil }, { nil }
end
