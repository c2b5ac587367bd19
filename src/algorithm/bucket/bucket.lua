-- The bucket: the transition of mod.rs. All numbers are integers of at most 2^53.
--
-- The rate is `tokens` per `ticks`; a tick is a microsecond. A span of time is whole ticks plus a fraction, in units of
-- 1 / tokens of a tick. The theoretical arrival time (`tat`) is whole ticks less such a fraction.
-- Words: 1 tat, 2 its fraction, 3 tokens, 4 ticks, 5 time of the last charge.
-- Parameters: 1 tokens, 2 ticks, 3 and 4 tolerance (the span of usage up to which the cost is allowed), 5 and 6 span
-- of the cost, 7 time to full, 8 burst less cost plus one (0 if the cost exceeds the burst), 9 whether it is a queue
-- (1 or 0).

local MAX_PERIOD = 6311520000000000

-- Exact arithmetic beyond 2^53, for states of another quota. Built on first use: see `make_slow`.
local slow, make_slow

-- Returns the arrival time and its fraction, the time at which to decide, and the rate at which the state drains.
local function fill(s, now, p)
  local at = s[5]
  if at < now then
    at = now
  elseif at - now > p[7] then
    return now, 0, now, p[1], p[2]
  end
  local tat = s[1]
  if tat <= at then
    return at, 0, at, p[1], p[2]
  end
  if s[3] ~= p[1] or s[4] ~= p[2] then
    slow = slow or make_slow()
    return slow.fill(s, at, p)
  end
  return tat, s[2], at, p[1], p[2]
end

-- Adds a span to the state's arrival time, which is at least `scheduled_at`.
local function add(s, now, scheduled_at, span, span_fraction, p)
  local tat, fraction, at, tokens, ticks = fill(s, now, p)
  if tokens ~= p[1] or ticks ~= p[2] then
    tat, fraction = slow.carry_over(tat, fraction, tokens, ticks, at, p)
  end
  if tat < scheduled_at then
    tat, fraction = scheduled_at, 0
  end
  tat, fraction = tat + span, fraction - span_fraction
  if fraction < 0 then
    tat, fraction = tat + 1, fraction + p[1]
  end
  if tat > at + MAX_PERIOD then
    tat, fraction = at + MAX_PERIOD, 0
  end
  s[1], s[2], s[3], s[4], s[5] = tat, fraction, p[1], p[2], at
end

local function ceil_span(p)
  if p[6] > 0 then return p[5] + 1 end
  return p[5]
end

-- Returns the time until the key is idle.
local function owed_for(s, now, p)
  local tat, _, at = fill(s, now, p)
  if tat == at then return 0 end
  return tat - now
end

-- Returns 0: allowed; above 0: denied for that time; -1: exceeds the limit; below -1: allowed after the delay
-- `-1 - result`.
local function peek(s, now, max_delay, p)
  if p[8] == 0 then
    return -1
  end
  local tat, fraction, at, tokens, ticks = fill(s, now, p)
  local tolerance, tolerance_fraction = p[3], p[4]
  if tokens ~= p[1] or ticks ~= p[2] then
    tolerance, tolerance_fraction = slow.span(p[8] - 1, tokens, ticks)
  end
  local wait = tat - at - tolerance
  if fraction + tolerance_fraction >= tokens then
    wait = wait - 1
  end
  local clock_lag = at - now
  local delay = wait
  if p[9] == 1 then
    delay = tat - at
    if wait > 0 then wait = wait + clock_lag else wait = 0 end
    -- No bound: no delay is that long.
    if max_delay < 0 then max_delay = MAX_PERIOD * 2 end
  elseif wait <= 0 then
    return 0
  else
    wait = 0
    if max_delay < 0 then max_delay = 0 end
  end
  if delay > 0 then
    delay = delay + clock_lag
    local over = delay - max_delay
    if over > wait then wait = over end
    over = tat - now + ceil_span(p) - MAX_PERIOD
    if over > wait then wait = over end
  else
    delay = 0
  end
  if wait > delay and p[9] == 0 then
    -- After `delay` the request starts without a delay, whatever the horizon is.
    wait = delay
  end
  if wait > 0 then
    return wait
  end
  if delay == 0 then
    return 0
  end
  return -1 - delay
end

local function commit(s, now, delay, p)
  add(s, now, now + delay, p[5], p[6], p)
end

-- Charges any cost. The span is cost * ticks / tokens. Products stay exact, because tokens * ticks is at most 2^53
-- and larger spans are cut to MAX_PERIOD.
local function charge(s, now, cost, p)
  local tokens, ticks = p[1], p[2]
  local whole_ticks, rounds = math.floor(ticks / tokens), math.floor(cost / tokens)
  local rest_ticks, rest = ticks - whole_ticks * tokens, cost - rounds * tokens
  local product = rest * rest_ticks
  local quotient = math.floor(product / tokens)
  add(s, now, now, cost * whole_ticks + rounds * rest_ticks + quotient, product - quotient * tokens, p)
end

-- Builds the exact arithmetic. Most scripts never need it, and building it takes as long as a decision.
function make_slow()
  local floor = math.floor
  local BASE = 2 ^ 24
  local EXACT = 2 ^ 53

  -- Returns a * b as digits to the base 2^24, the lowest first.
  local function product(a, b)
    local x, y, digits = {}, {}, { 0, 0, 0, 0, 0, 0 }
    for i = 1, 3 do
      x[i], y[i] = a % BASE, b % BASE
      a, b = floor(a / BASE), floor(b / BASE)
    end
    for i = 1, 3 do
      local carry = 0
      for j = 1, 3 do
        local sum = digits[i + j - 1] + x[i] * y[j] + carry
        digits[i + j - 1] = sum % BASE
        carry = floor(sum / BASE)
      end
      digits[i + 3] = carry
    end
    return digits
  end

  -- Returns floor(digits / divisor), at most 2^53, and the remainder.
  local function divide(digits, divisor)
    local quotient, rest = 0, 0
    for i = #digits, 1, -1 do
      local digit, bit = digits[i], BASE / 2
      for _ = 1, 24 do
        local one = 0
        if digit >= bit then
          digit, one = digit - bit, 1
        end
        bit = bit / 2
        quotient = quotient * 2
        -- rest * 2 + one, less the divisor if it fits; no intermediate result exceeds 2^53.
        if rest >= divisor - rest - one then
          rest = rest - (divisor - rest) + one
          quotient = quotient + 1
        else
          rest = rest * 2 + one
        end
      end
    end
    if quotient > EXACT then
      return EXACT, 0
    end
    return quotient, rest
  end

  -- Returns floor(a * b / divisor) and the remainder.
  local function scaled(a, b, divisor)
    if a * b <= EXACT then
      local quotient = floor(a * b / divisor)
      return quotient, a * b - quotient * divisor
    end
    return divide(product(a, b), divisor)
  end

  -- Returns whether a / b > c / d.
  local function exceeds(a, b, c, d)
    while true do
      local x, y = floor(a / b), floor(c / d)
      if x ~= y then
        return x > y
      end
      a, c = a % b, c % d
      if a == 0 then
        return false
      elseif c == 0 then
        return true
      end
      -- Of two fractions below one, the larger has the smaller reciprocal.
      a, b, c, d = d, c, b, a
    end
  end

  local slow = {}

  function slow.span(count, tokens, ticks)
    return scaled(count, ticks, tokens)
  end

  -- Converts the usage at `at` under the rate of `tokens` per `ticks` into an arrival time under the current rate.
  function slow.carry_over(tat, fraction, tokens, ticks, at, p)
    if tokens == 0 or ticks == 0 then
      return at, 0
    end
    -- The usage in units of 1 / ticks of a token: (tat - at) * tokens - fraction.
    -- The product may exceed 2^53, so the fraction is subtracted after the division.
    local whole, rest = scaled(tat - at, tokens, ticks)
    rest = rest - fraction
    if rest < 0 and whole == 0 then
      whole, rest = 0, 0
    elseif rest < 0 then
      local borrowed = math.ceil(-rest / ticks)
      whole, rest = whole - borrowed, rest + borrowed * ticks
      if whole < 0 then
        whole, rest = 0, 0
      end
    end
    -- In ticks of the current rate: whole * p.ticks / p.tokens, plus that of the rest, which is less than one token.
    local units, left = scaled(rest, p[2], ticks)
    if left > 0 then
      units = units + 1
    end
    local span, over = scaled(whole, p[2], p[1])
    units = units + over
    local more = math.ceil(units / p[1])
    tat = at + span + more
    if tat > at + MAX_PERIOD then
      return at + MAX_PERIOD, 0
    end
    return tat, more * p[1] - units
  end

  -- The state drains at the faster of both rates: at the old rate as it is, at the current rate since the last charge.
  function slow.fill(s, at, p)
    local tat, fraction, tokens, ticks = s[1], s[2], s[3], s[4]
    if tokens == 0 or ticks == 0 then
      return at, 0, at, p[1], p[2]
    end
    if exceeds(tokens, ticks, p[1], p[2]) then
      return tat, fraction, at, tokens, ticks
    end
    tat, fraction = slow.carry_over(tat, fraction, tokens, ticks, s[5], p)
    if tat <= at then
      return at, 0, at, p[1], p[2]
    end
    return tat, fraction, at, p[1], p[2]
  end

  return slow
end

return {
  words = 5, params = 9, supports_scheduling = true,
  peek = peek, commit = commit, charge = charge, owed_for = owed_for,
}
