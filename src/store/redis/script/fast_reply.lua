-- The end of the fast path: writes the changed values, and replies. driver.lua documents the reply.

if fast == 1 then
  for index, value in pairs(new_values) do
    local expires = expiries[index]
    if expires then
      call('PSETEX', KEYS[index], uses_test_time and TEST_TTL or ceil((expires - now) / 1000) + 1, value)
    else
      call('SET', KEYS[index], value, 'KEEPTTL')
    end
  end
  local keys = #KEYS
  if keys == 1 and result_count == 1 then
    local value = values[1] or ''
    return pack('<dHHHdH', now, 1, 1, 1, results[1], #value) .. value
  end
  local lengths = {}
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
