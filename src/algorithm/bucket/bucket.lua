-- The bucket: see bucket.rs, which decides the same in integers.
--
-- Words: 1 whole, 2 part, 3 tokens, 4 ticks, 5 the time of the last charge.
-- Parameters: 1 tokens, 2 ticks, 3 and 4 the debt up to which the cost is allowed, 5 and 6 what the cost adds, 7 the time to
-- full, 8 the burst less the cost plus one (0 if it can never be had), 9 whether admissions wait for their turn.
-- Spans of time are whole ticks and a part, in units of 1 / tokens of a tick; all numbers are integers of at most 2^53.

local LONGEST = 6311520000000000

-- What follows up to `slow` is for states of a former quota, where products pass 2^53.
local slow, make_slow

-- The arrival time and its part, the moment to decide at, and the rate that the state drains at.
local function level(s, now, p)
  local at = s[5]
  if at < now then
    at = now
  elseif at - now > p[7] then
    return now, 0, now, p[1], p[2]
  end
  local whole = s[1]
  if whole <= at then
    return at, 0, at, p[1], p[2]
  end
  if s[3] ~= p[1] or s[4] ~= p[2] then
    slow = slow or make_slow()
    return slow.level(s, at, p)
  end
  return whole, s[2], at, p[1], p[2]
end

-- Adds a span to the arrival time of the state.
local function add(s, now, turn, span, span_part, p)
  local whole, part, at, tokens, ticks = level(s, now, p)
  if tokens ~= p[1] or ticks ~= p[2] then
    whole, part = slow.carry_over(whole, part, tokens, ticks, at, p)
  end
  if whole < turn then
    whole, part = turn, 0
  end
  whole, part = whole + span, part - span_part
  if part < 0 then
    whole, part = whole + 1, part + p[1]
  end
  if whole > at + LONGEST then
    whole, part = at + LONGEST, 0
  end
  s[1], s[2], s[3], s[4], s[5] = whole, part, p[1], p[2], at
end

local function ceil_span(p)
  if p[6] > 0 then return p[5] + 1 end
  return p[5]
end

-- For how long something is owed yet.
local function owed_for(s, now, p)
  local whole, _, at = level(s, now, p)
  if whole == at then return 0 end
  return whole - now
end

-- 0: allowed. Above: refused, and for how long. -1: never. Below: allowed after so much less one.
local function peek(s, now, max_delay, p)
  if p[8] == 0 then
    return -1
  end
  local whole, part, at, tokens, ticks = level(s, now, p)
  local room, room_part = p[3], p[4]
  if tokens ~= p[1] or ticks ~= p[2] then
    room, room_part = slow.span(p[8] - 1, tokens, ticks)
  end
  local wait = whole - at - room
  if part + room_part >= tokens then
    wait = wait - 1
  end
  local behind = at - now
  local delay = wait
  if p[9] == 1 then
    delay = whole - at
    if wait > 0 then wait = wait + behind else wait = 0 end
    if max_delay < 0 then max_delay = LONGEST * 2 end
  elseif wait <= 0 then
    return 0
  else
    wait = 0
    if max_delay < 0 then max_delay = 0 end
  end
  if delay > 0 then
    delay = delay + behind
    local over = delay - max_delay
    if over > wait then wait = over end
    over = whole - now + ceil_span(p) - LONGEST
    if over > wait then wait = over end
  else
    delay = 0
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

-- Charges any cost. The span is cost * ticks / tokens: no product here that counts is above 2^53, as tokens * ticks is not.
local function charge(s, now, cost, p)
  local tokens, ticks = p[1], p[2]
  local whole, rounds = math.floor(ticks / tokens), math.floor(cost / tokens)
  local rest_ticks, rest = ticks - whole * tokens, cost - rounds * tokens
  local product = rest * rest_ticks
  local quotient = math.floor(product / tokens)
  add(s, now, now, cost * whole + rounds * rest_ticks + quotient, product - quotient * tokens, p)
end

-- Exact beyond 2^53. Made only where it is needed: most calls never do.
function make_slow()
  local floor = math.floor
  local BASE = 2 ^ 24
  local EXACT = 2 ^ 53

  -- a * b as digits to the base 2^24, the lowest first.
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

  -- floor(digits / divisor) and the remainder, the quotient at most 2^53.
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
        -- rest * 2 + one, less the divisor if that is not more; nothing on the way passes 2^53.
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

  -- floor(a * b / divisor) and the remainder.
  local function scaled(a, b, divisor)
    if a * b <= EXACT then
      local quotient = floor(a * b / divisor)
      return quotient, a * b - quotient * divisor
    end
    return divide(product(a, b), divisor)
  end

  -- Whether a / b is above c / d.
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
      -- Of two fractions below one, that with the smaller reciprocal is the larger.
      a, b, c, d = d, c, b, a
    end
  end

  local slow = {}

  function slow.span(count, tokens, ticks)
    return scaled(count, ticks, tokens)
  end

  -- What is owed at `at` under the rate of `tokens` each `ticks`, as an arrival time under this rate.
  function slow.carry_over(whole, part, tokens, ticks, at, p)
    if tokens == 0 or ticks == 0 then
      return at, 0
    end
    -- Owed, in units of 1 / ticks of a token: (whole - at) * tokens - part.
    local owed, rest = scaled(whole - at, tokens, ticks)
    rest = rest - part
    if rest < 0 and owed == 0 then
      owed, rest = 0, 0
    elseif rest < 0 then
      local borrowed = math.ceil(-rest / ticks)
      owed, rest = owed - borrowed, rest + borrowed * ticks
      if owed < 0 then
        owed, rest = 0, 0
      end
    end
    -- In ticks of this rate: owed * p.ticks / p.tokens, and the rest's share, which is below one token's.
    local units, left = scaled(rest, p[2], ticks)
    if left > 0 then
      units = units + 1
    end
    local span, over = scaled(owed, p[2], p[1])
    units = units + over
    local more = math.ceil(units / p[1])
    whole = at + span + more
    if whole > at + LONGEST then
      return at + LONGEST, 0
    end
    return whole, more * p[1] - units
  end

  -- The faster of both rates drains: the former one from the state as it is, the present one since the last charge.
  function slow.level(s, at, p)
    local whole, part, tokens, ticks = s[1], s[2], s[3], s[4]
    if tokens == 0 or ticks == 0 then
      return at, 0, at, p[1], p[2]
    end
    if exceeds(tokens, ticks, p[1], p[2]) then
      return whole, part, at, tokens, ticks
    end
    whole, part = slow.carry_over(whole, part, tokens, ticks, s[5], p)
    if whole <= at then
      return at, 0, at, p[1], p[2]
    end
    return whole, part, at, p[1], p[2]
  end

  return slow
end

return {
  words = 5, params = 9, supports_scheduling = true,
  peek = peek, commit = commit, charge = charge, owed_for = owed_for,
}
