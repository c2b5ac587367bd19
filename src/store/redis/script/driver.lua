-- Runs a batch of operations, one after the other, on `kernels`: one kernel for each limit, in the order of the limits.
--
-- # Reply
--
-- If the client must send other boundaries of a calendar, the reply is the time alone, a double. Any other reply is
-- packed little-endian; d is a double, H an unsigned integer of 16 bits:
--
--   d  the time in microseconds
--   H  1 after a fast path, else twice the number of holds that have expired
--   H  the number of results
--   H  the number of keys
--   d  the results
--   H  for each key the length of its value before the batch (not after a fast path)
--      the values
--
-- After a fast path there are no results if all of them are 0, and all values have the same length. After that of
-- decisions the value of a never-seen key is zeros. After that of holds every value is the sum of the held costs, the
-- state and one more byte, also if no costs are held on the key.
--
-- The results of a decision are, for each limit that applies, its verdict as `peek` returns it (of a share whose key is
-- not blocked its own verdict: not 0 if the request borrows); then (not after a fast path) the sum of the flags FLAG,
-- with a bit for each limit whose key is blocked, and then one for each limit whose key is blocked by an escalation;
-- then, for each kernel with a list, the figures VIEW. If an id is remembered, and the client has not said what its request
-- was charged, the results are these costs. The results of an update are UPDATED, those of a report GRANT (for a kernel
-- with a list with VIEW), those of a settlement by id, and of a record of one (zeros), for each limit SETTLED. The result of any other operation is 0.
--
-- An operation that fails has a code of FAILURE in each place (a failed update or report in the first one; a denied
-- repeat has the time for which its id is remembered in place of the flags), and no figures follow. Names in capitals are lists of fields.rs.
--
-- The value of a kernel with a list is empty. If costs are held on a key, its value is their sum, the state after
-- expired holds were charged, and one more byte.

-- Runs a decision over the limits that apply to its key: those with a key in Redis. The others have no part in the
-- decision, and no results, as if the limiter did not have them.
local function run_decision_of_some(template, operation)
  local all_kernels, all_limits, ids = kernels, limits, template.ids
  local applying, some, keys = {}, { op = template.op, limit = 0, arg1 = template.arg1, arg2 = template.arg2 }, { 0 }
  local asked, group = template.asked, template.group
  some.ids, some.asked, some.group = ids and {}, asked and {}, group and {}
  some.record, some.counts = template.record, template.counts
  some.lifetime, some.max_ids = template.lifetime, template.max_ids
  some.repeats, some.charges_before = template.repeats, template.charges_before and {}
  some.hold_repeats, some.max_delay = template.hold_repeats, template.max_delay
  for l = 1, all_limits do
    if operation[l + 1] > 0 then
      local next = #applying + 1
      applying[next], some[next], keys[next + 1] = all_kernels[l], template[l], operation[l + 1]
      if ids then
        some.ids[next] = ids[l]
      end
      if some.charges_before then
        some.charges_before[next] = template.charges_before[l]
      end
      if asked then
        some.asked[next] = asked[l]
      end
      if group then
        some.group[next] = group[l]
      end
    end
  end
  kernels, limits = applying, #applying
  run_decision(some, keys)
  kernels, limits = all_kernels, all_limits
end

local operation_words = limits + 2
local operation_format = '<' .. ('H'):rep(operation_words)
for index = 1, operation_count do
  local operation
  if is_plain then
    operation = { 1, index, 1 }
  else
    operation = { unpack(operation_format, input, pos) }
    pos = operation[operation_words + 1]
  end
  local template = templates[operation[1]]
  if template.numbers > 0 then
    pos = read_numbers(template, pos)
  end
  local run = run_decision
  for l = 1, limits do
    if operation[l + 1] == 0 then
      run = run_decision_of_some
    end
  end
  for _ = 1, operation[operation_words] do
    if template.limit == 0 then
      run(template, operation)
    else
      operate(template, operation)
    end
  end
end

for index = 1, key_count do
  if changed[index] then
    local key, s, block, expires, h = KEYS[index], states[index], blocks[index], expiries[index], holds[index]
    local words, last = state_words(kernel_of_key[index], s), max(s[1], block)
    if h then
      last = max(last, h.lasts_until)
    end
    if last > expires or expires - last > EXCESS then
      expires = last + TTL_SLACK
    end
    local extends = expires ~= expiries[index]
    -- Redis counts from the whole millisecond before `now`, so one more than rounding up.
    local ttl = uses_test_time and TEST_TTL or ceil((expires - now) / 1000) + 1
    if last <= now then
      call('DEL', key)
    else
      words = words + 1
      s[words] = expires
      if block > 0 or h then
        words = words + 1
        s[words] = block + reasons[index]
      end
      local value = pack(format(words), table_unpack(s, 1, words))
      if h then
        value = value .. held_costs.pack(index)
      end
      if index > full_count then
        kernel_of_key[index].store(s, value)
        if extends then
          call('PEXPIRE', key, ttl)
        end
      elseif extends then
        call('PSETEX', key, ttl, value)
      else
        call('SET', key, value, 'KEEPTTL')
      end
    end
  end
end

local lengths = { nil, nil, nil, nil }
for index = 1, key_count do
  lengths[index] = #values[index]
end
return pack('<dHHH', now, expired * 2, result_count, key_count)
  .. pack(format(result_count), table_unpack(results, 1, result_count))
  .. pack('<' .. ('H'):rep(key_count), table_unpack(lengths)) .. table.concat(values)
