-- The end of the fast path: writes the changed values, and replies. driver.lua documents the reply.

local keys = #KEYS

-- Writes the keys that had no value. MGET also returns none for a key of another type, which NX keeps. Then the keys
-- that were just created are deleted, and the driver starts afresh, and reports the type.
if fast == 1 then
  for index = 1, keys do
    if not values[index] and new_values[index] then
      local ttl = uses_test_time and TEST_TTL or ceil((expiries[index] - now) / 1000) + 1
      if not call('SET', KEYS[index], new_values[index], 'PX', ttl, 'NX') then
        for created = 1, index - 1 do
          if not values[created] and new_values[created] then
            call('DEL', KEYS[created])
          end
        end
        fast = 0
        break
      end
    end
  end
end

if fast == 1 then
  for index = 1, keys do
    local value, expires = new_values[index], expiries[index]
    if not value or not values[index] then
      -- Unchanged, or written above.
    elseif expires then
      call('PSETEX', KEYS[index], uses_test_time and TEST_TTL or ceil((expires - now) / 1000) + 1, value)
    else
      call('SET', KEYS[index], value, 'KEEPTTL')
    end
  end
  if keys == 1 and result_count == 1 then
    local value = values[1] or ''
    return pack('<dHHHdH', now, 1, 1, 1, results[1], #value) .. value
  end
  local lengths = { nil, nil, nil, nil, nil, nil, nil, nil }
  for index = 1, keys do
    local value = values[index]
    if not value then
      value = ''
      values[index] = value
    end
    lengths[index] = #value
  end
  return pack('<dHHH', now, 1, result_count, keys) .. pack('<' .. ('d'):rep(result_count), table_unpack(results))
    .. pack('<' .. ('H'):rep(keys), table_unpack(lengths)) .. table.concat(values)
end
