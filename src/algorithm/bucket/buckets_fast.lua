-- The fast path for a limiter with several buckets: decisions that all limits allow without a delay, on states of the current
-- quotas. As bucket_fast.lua, it leaves any other batch to the driver, which finds the verdicts of all limits. Benchmark:
-- `redis spread 512 three limits`.

-- The state, and the expiry. The parameters of a limit.
local VALUE_LENGTH, PARAMETERS_LENGTH = 48, 88

if fast == 1 then
  local template_length, first = 20 + PARAMETERS_LENGTH * LIMITS, pos + 2 * LIMITS
  local cursor = first + template_length * template_count
  local operation_format = '<' .. ('H'):rep(LIMITS + 2)
  local template_format = '<' .. ('x'):rep(20) .. ('dddddd' .. ('x'):rep(40)):rep(LIMITS)
  -- By key index.
  local tats, fractions, rates, spans = {}, {}, {}, {}
  local templates = {}
  for _ = 1, operation_count do
    local operation = { unpack(operation_format, input, cursor) }
    cursor = operation[LIMITS + 3]
    local template = templates[operation[1]]
    if not template then
      template = { unpack(template_format, input, first + template_length * (operation[1] - 1)) }
      templates[operation[1]] = template
    end
    for _ = 1, operation[LIMITS + 2] do
      local at = 0
      for l = 2, LIMITS + 1 do
        local key = operation[l]
        -- Other limits do not apply.
        if key > 0 then
          local tokens, ticks = template[at + 1], template[at + 2]
          local tat, fraction = tats[key], fractions[key]
          if not tat then
            local expires, value = 0, values[key]
            tat, fraction = now, 0
            if value then
              if #value ~= VALUE_LENGTH then
                fast = 0
                break
              end
              local written_at
              tat, fraction, rates[key], spans[key], written_at, expires = unpack('<dddddd', value)
              -- The conditions are positive because all comparisons with NaN are false. The driver handles foreign values.
              if not (written_at >= 0 and written_at <= now and tat >= 0 and tat <= MAX_EXACT
                  and fraction >= 0 and fraction <= MAX_EXACT and expires >= 0 and expires <= MAX_EXACT) then
                fast = 0
                break
              elseif tat <= now then
                tat, fraction = now, 0
              end
            else
              rates[key], spans[key] = tokens, ticks
            end
            expiries[key] = expires
          end
          local latest, spare = now + template[at + 3], tokens - template[at + 4]
          if not (rates[key] == tokens and spans[key] == ticks
              and (tat <= latest or (fraction >= spare and tat <= latest + 1))) then
            fast = 0
            break
          end
          tat, fraction = tat + template[at + 5], fraction - template[at + 6]
          if fraction < 0 then
            tat, fraction = tat + 1, fraction + tokens
          end
          tats[key], fractions[key] = tat, fraction
        end
        at = at + 6
      end
      if fast == 0 then
        break
      end
    end
    if fast == 0 then
      break
    end
  end
  if fast == 1 then
    for key = 1, #KEYS do
      local tat, expires = tats[key], expiries[key]
      if tat > expires then
        expires = tat + TTL_SLACK
        expiries[key] = expires
      else
        expiries[key] = nil
      end
      new_values[key] = pack('<dddddd', tat, fractions[key], rates[key], spans[key], now, expires)
    end
  end
end
