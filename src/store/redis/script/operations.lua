-- The operations on the states of a batch. This file is the body of a function, which returns two functions: a function
-- takes a variable of an enclosing function faster than one of the same function. Script time of a lone decision:
-- 0.93 (benches/NOTES.md).

held_costs = next(holds) and make_holds()

-- Returns a limit's own verdict.
local function peek(kernel, index, s, at, max_delay, p)
  local own, h = kernel.peek(s, at, max_delay, p), holds[index]
  if own > 0 and h and h.leased > 0 and held_costs.wait_behind_leases then
    return held_costs.wait_behind_leases(index, at, max_delay, own, p)
  end
  return own
end

-- The number of the share that applies, and of the share if the request borrows: 0 for none.
local share, borrowed_share = 0, 0

-- Returns the stricter of two verdicts without delays.
local function stricter(a, b)
  return (a == -1 or b == -1) and -1 or max(a, b)
end

local function is_sooner(a, b)
  return a ~= -1 and (b == -1 or a < b)
end

-- Applies the rule of guaranteed shares: see src/decision/shares.rs. A limit beside the share has the verdict for a request
-- that borrows, and as the immediate one the verdict for a request within its share. The share keeps its own verdict: if
-- the request borrows, `borrowed_share` excludes the share from the decision.
local function combine_shares(template, operation, verdicts, immediates)
  local group, asked, own, can_borrow = template.group, template.asked, -1, false
  for l = 1, limits do
    can_borrow = can_borrow or group[l] and asked[l] and not template[l].is_shadow
  end
  for l = 1, limits do
    if group[l] and not asked[l] then
      share, own = l, immediates[l]
      local blocked = blocks[operation[l + 1]] - now
      if blocked > 0 then
        verdicts[l], immediates[l] = blocked, blocked
      elseif own ~= 0 and can_borrow then
        borrowed_share = l
      end
    end
  end
  local within, borrowing = own, 0
  for l = 1, limits do
    if group[l] and asked[l] and not template[l].is_shadow then
      within, borrowing = stricter(within, immediates[l]), stricter(borrowing, verdicts[l])
    end
  end
  local all_within = is_sooner(within, borrowing)
  for l = 1, limits do
    if group[l] and asked[l] then
      local own_within, goes_within = stricter(own, immediates[l]), all_within
      if template[l].is_shadow then
        goes_within = is_sooner(own_within, verdicts[l])
      end
      if own == 0 or goes_within then
        verdicts[l] = own_within
      end
      immediates[l] = verdicts[l]
    end
  end
end

-- Returns each limit's own verdict at a time; with several limits, also its verdict if no delay is acceptable; and
-- whether the limits can schedule a common start. They can if each limit supports scheduling, and its charged usage
-- lasts at least until the latest start of any other limit. A limit with less usage has free capacity before that start;
-- a charge as of the start would waste it. Held costs do not count: they are no part of the state that is charged.
local function evaluate(template, operation, at, max_delay, with_blocks)
  local verdicts, immediates = { nil, nil, nil, nil }, { nil, nil, nil, nil }
  local can_schedule, longest_wait, second_wait, exceeds = true, 0, 0, false
  local group = template.group
  share, borrowed_share = 0, 0
  for l = 1, limits do
    local p, index, kernel = template[l], operation[l + 1], kernels[l]
    local s, block = states[index], with_blocks and blocks[index] or 0
    if holds[index] then
      s = held_costs.charged(index, at, p)
    end
    -- A limit that keeps units free schedules nothing, and a share schedules nothing.
    local asked = template.asked and template.asked[l]
    local is_in_shares = group and group[l]
    local own = peek(kernel, index, s, at, (asked or is_in_shares) and 0 or max_delay, asked or p)
    local immediate, supports_scheduling = own, kernel.supports_scheduling and not asked and not is_in_shares
    if asked and is_in_shares then
      immediate = peek(kernel, index, s, at, 0, p)
    end
    if limits > 1 and supports_scheduling and own ~= 0 then
      immediate = peek(kernel, index, s, at, 0, p)
    end
    if block > now then
      -- While a block lasts, no start is scheduled. `evaluate_after_block` decides as of its end.
      supports_scheduling = supports_scheduling and own ~= 0 and own >= -1
      if own ~= -1 then own = max(own, block - now) end
      if immediate ~= -1 then immediate = max(immediate, block - now) end
    end
    verdicts[l], immediates[l] = own, immediate
    if not p.is_shadow then
      -- A request that holds starts now.
      can_schedule = can_schedule and supports_scheduling and template.max_delay ~= false
      if immediate > longest_wait then
        longest_wait, second_wait = immediate, longest_wait
      elseif immediate > second_wait then
        second_wait = immediate
      elseif immediate == -1 then
        exceeds = true
      end
    end
  end
  if group then
    combine_shares(template, operation, verdicts, immediates)
  end
  if limits > 1 and can_schedule and longest_wait > 0 and not exceeds then
    for l = 1, limits do
      local p, wait_of_others = template[l], immediates[l] == longest_wait and second_wait or longest_wait
      if not p.is_shadow and kernels[l].owed_for(states[operation[l + 1]], at, p) < wait_of_others then
        can_schedule = false
      end
    end
  end
  return verdicts, immediates, can_schedule
end

-- Returns for how long a block delays a decision of several limits that accepts a delay.
local function blocked_for(template, operation)
  local longest = 0
  -- Nothing is scheduled beside a share, so the waits of now are exact.
  if limits > 1 and share == 0 and template.max_delay and template.max_delay ~= 0 then
    for l = 1, limits do
      local p = template[l]
      if not p.is_shadow then
        if template.op == OPERATION.hold and template.ids[l] ~= 0 then
          return 0
        end
        longest = max(longest, blocks[operation[l + 1]] - now)
      end
    end
  end
  return longest
end

-- Replaces the verdicts of enforced limits by those as of the end of a block: nothing is allowed before.
local function evaluate_after_block(template, operation, verdicts, blocked)
  local as_of_end, immediates, can_schedule = evaluate(template, operation, now + blocked, template.max_delay, false)
  if not can_schedule then
    as_of_end = immediates
  end
  for l = 1, limits do
    local p = template[l]
    if not p.is_shadow then
      local own = as_of_end[l]
      if own > 0 then
        own = own + blocked
      elseif own ~= -1 then
        own = max(0, blocks[operation[l + 1]] - now)
      end
      verdicts[l] = own
    end
  end
end

-- Fails a decision.
local function fail(result)
  -- One for each limit, and one in place of the flags.
  for _ = 0, limits do
    result_count = result_count + 1
    results[result_count] = result
  end
end

-- Adds the three figures of a kernel with a list.
local function push_view(index, p)
  if holds[index] then
    held_costs.charged(index, now, p)
  end
  local at = result_count
  results[at + VIEW.first], results[at + VIEW.second], results[at + VIEW.third] =
    kernel_of_key[index].view(states[index], now, p)
  result_count = at + VIEW.LENGTH
end

-- Adds the figures of all kernels with a list.
local function push_views(template, operation)
  for l = 1, limits do
    if kernels[l].view then
      push_view(operation[l + 1], template[l])
    end
  end
end

-- Decides. If several limits cannot schedule a common start, their verdicts are those without an acceptable delay.
local function decide(template, operation)
  for l = 1, limits do
    if not states[operation[l + 1]] then
      return fail(INVALID_STATE)
    end
  end
  local holding = template.op == OPERATION.hold
  if holding and not held_costs then
    held_costs = make_holds()
  end
  if held_costs then
    for l = 1, limits do
      held_costs.prepare(operation[l + 1], template[l])
    end
  end
  if template.record then
    reservations = reservations or make_reservations()
    local known = reservations.find(template)
    if known == REPEATED then
      for l = 1, limits do
        result_count = result_count + 1
        results[result_count] = reservations.charged(l)
      end
      result_count = result_count + 1
      results[result_count] = REPEATED + FLAG.cannot_schedule
      return push_views(template, operation)
    elseif known then
      fail(known)
      results[result_count] = known == DENIED_REPEAT and reservations.remembered_for() or known
      return
    end
  end
  local verdicts, immediates, can_schedule = evaluate(template, operation, now, template.max_delay or 0, true)
  local blocked = blocked_for(template, operation)
  if blocked > 0 then
    evaluate_after_block(template, operation, verdicts, blocked)
  elseif limits > 1 and not can_schedule then
    verdicts = immediates
  end
  local allowed, delay = true, 0
  for l = 1, limits do
    local own, p = verdicts[l], template[l]
    if not p.is_shadow and l ~= borrowed_share then
      if own > 0 or own == -1 then
        allowed = false
      elseif -1 - own > delay then
        delay = -1 - own
      end
    end
  end
  local by_leases = not allowed and held_costs and held_costs.is_denied_by_leases
    and held_costs.is_denied_by_leases(template, operation, verdicts)
  if held_costs and held_costs.mark_large_costs and template.op ~= OPERATION.peek then
    held_costs.mark_large_costs(template, operation, verdicts, by_leases)
  end
  if allowed and template.op ~= OPERATION.peek then
    local charged_limits, counts = { nil, nil, nil, nil }, { nil, nil, nil, nil }
    for l = 1, limits do
      local own, p = verdicts[l], template[l]
      -- A shadow counts only what it would allow, and a share nothing of a request that borrows.
      counts[l] = l ~= borrowed_share and (not p.is_shadow or own == 0 or own < -1)
      charged_limits[l] = p.cost > 0 and counts[l]
    end
    -- Before the charges, because holds can fail, and nothing may be charged then.
    local problems
    if template.record and not template.repeats then
      problems = reservations.hold(template, operation, charged_limits, counts)
    elseif holding then
      problems = held_costs.hold(template, operation, charged_limits)
    end
    if problems then
      for l = 1, limits do
        -- In place of the verdicts.
        results[result_count + l] = problems[l] or 0
      end
      result_count = result_count + limits + 1
      results[result_count] = 0
      return
    end
    for l = 1, limits do
      if charged_limits[l] and not (holding and template.ids[l] ~= 0) then
        local index, own, p = operation[l + 1], verdicts[l], template[l]
        -- A shadow counts the request at the start that it would have scheduled, not at that of the enforced limits.
        local own_delay = p.is_shadow and max(0, -1 - own) or delay
        kernels[l].commit(states[index], now, own_delay, p)
        changed[index] = true
        if holds[index] then
          held_costs.extend_lifetime(index, p)
        end
      end
    end
    if template.repeats then
      reservations.record_decision(template, holding)
    end
  end
  for l = 1, limits do
    results[result_count + l] = verdicts[l]
  end
  result_count = result_count + limits + 1
  local flag = FLAG.first_blocked
  local flags = (can_schedule and 0 or FLAG.cannot_schedule) + (by_leases and FLAG.denied_by_leases or 0)
  for l = 1, limits do
    if blocks[operation[l + 1]] > now then
      flags = flags + flag
    end
    flag = flag * 2
  end
  for l = 1, limits do
    if blocks[operation[l + 1]] > now then
      flags = flags + flag * 2 * reasons[operation[l + 1]]
    end
    flag = flag * 2
  end
  results[result_count] = flags
  push_views(template, operation)
end

-- Runs an operation on one limit: everything but decisions.
local function operate(template, operation)
  local l, op = template.limit, template.op
  local kernel, p, index = kernels[l], template[l], operation[l + 1]
  local s, at = states[index], result_count
  result_count = at + (op == OPERATION.update and UPDATED.LENGTH or op == OPERATION.lease and GRANT.LENGTH or 1)
  results[at + 1] = s and 0 or INVALID_STATE
  for result = at + 2, result_count do
    results[result] = 0
  end
  if not s then
    return
  end
  if held_costs then
    held_costs.prepare(index, p)
  end
  if op == OPERATION.update then
    held_costs = held_costs or make_holds()
    results[at + UPDATED.released], results[at + UPDATED.charged] = held_costs.update(template, index, p)
    return
  elseif op == OPERATION.lease then
    held_costs = held_costs or make_holds()
    results[at + GRANT.held], results[at + GRANT.expiry], results[at + GRANT.charged], results[at + GRANT.total] =
      held_costs.renew(template, index, p)
    if kernel.view and results[at + GRANT.held] >= 0 then
      push_view(index, p)
    end
    return
  end
  if op == OPERATION.set or op == OPERATION.reset then
    if kernel.is_list then
      kernel.clear(s)
    else
      -- A new table: a kernel may have cached fields in the old one.
      s = zeros(kernel.words)
      states[index] = s
    end
  elseif op == OPERATION.block then
    reasons[index] = template.arg1 % 2 / 2
    blocks[index] = template.arg1 > 1 and now + math.floor(template.arg1 / 2) or 0
  end
  if op == OPERATION.charge or (op == OPERATION.set and template.arg1 > 0) then
    kernel.commit(s, now, 0, p)
  end
  changed[index] = true
  if holds[index] then
    held_costs.extend_lifetime(index, p)
  end
end

-- Runs an operation on all limits: a decision, or a settlement by id.
local function run_decision(template, operation)
  if template.op == OPERATION.settle then
    held_costs = held_costs or make_holds()
    reservations = reservations or make_reservations()
    reservations.run_settlement(template, operation)
  elseif template.op == OPERATION.record then
    held_costs = held_costs or make_holds()
    reservations = reservations or make_reservations()
    reservations.record_settlement(template)
  elseif is_late then
    fail(FAILURE.late)
  else
    decide(template, operation)
  end
end

return run_decision, operate
