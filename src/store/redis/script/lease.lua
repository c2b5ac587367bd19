-- Leases: holds that processes spend by themselves. Only in the script of a limiter that has leases; for any other
-- script the entry of a lease is that of a session, except for its id.
--
-- # Layout
--
-- The entry of a lease has the five words of a session's: the id, the held units, the sum of the spent units that was
-- applied, the number of the last report, and the expiry.
--
-- # Protocol
--
-- A report has a number, and is applied if its number is above that of the entry. It carries the sum of all units that
-- the process has spent, so the entry determines which of them are new, whatever reports were lost. The new ones are
-- charged. Of the rest the process keeps a part; the others are released. Then the report asks for more units. They are
-- held, not charged: tokens that were charged now and spent later would drain in between.
--
-- A repeated report finds its own number, and gets the same reply. A report that names a past expiry and finds no entry
-- is about a hold that was charged whole. If it names a later one, the server has lost data.
--
-- If the key is blocked, or its usage leaves no room for the kept units, the report is applied, but the expiry stays.
-- The process finds the expiry that it knows, and spends nothing more. What it spends until then is still held.
--
-- # Large costs
--
-- A cost above an eighth of what leases hold together at most is *large*: no lease serves it. If only leases deny a
-- request with such a cost, the key is marked: the leases on it yield. Each report of a lease that keeps units is answered like
-- that of a blocked key, and nothing is granted, so all units return within one duration. The mark lasts for
-- YIELD_DURATIONS. A further large cost that leases would deny, if they held as much as they may, renews it.
--
-- Three words of the key serve this: the units that all leases together hold at most, their duration (both as of the last
-- report), and the end of the mark, or 0.
--
-- # Waits
--
-- The wait of a request that is denied behind leases suffices, if no other request comes: see `wait_behind_leases`.

local make_holds_of_sessions = make_holds

-- A smaller grant is not worth a call.
local MIN_GRANT = BOUND.min_grant
-- For so many durations the leases on a key yield to a large cost.
local YIELD_DURATIONS = 32

function make_holds()
  local this = make_holds_of_sessions()

  -- Returns whether a cost is allowed on top of the held ones. `p` is for a cost of 1.
  local function has_room(index, cost, p)
    local kernel, s, h = kernel_of_key[index], states[index], holds[index]
    local held = h and h.cost or 0
    if kernel.is_list then
      s.held = held + cost - 1
      local verdict = kernel.peek(s, now, 0, p)
      s.held = held > 0 and held or nil
      return verdict == 0
    end
    s = this.copy(kernel, s)
    kernel.charge(s, now, held + cost - 1, p)
    return kernel.peek(s, now, 0, p) == 0
  end

  -- Returns how many units are granted: at most half of the room, so that others find some, and at most so many that
  -- all held costs together are `most`.
  local function granted_of(index, wanted, most, p)
    local h = holds[index]
    local units = math.floor(math.min(wanted, most - (h and h.cost or 0)))
    while units >= MIN_GRANT do
      if has_room(index, 2 * units, p) then
        return units
      end
      units = math.floor(units / 2)
    end
    return 0
  end

  -- Applies a report, and grants units. Returns the units that are held then, their expiry, the charged cost, and all
  -- held costs of the key.
  function this.renew(template, index, p)
    local ids = template.ids
    local id, sequence, keep, want = ids[REPORT.id], ids[REPORT.sequence], ids[REPORT.keep], ids[REPORT.want]
    local spent, unconfirmed, named_expiry = ids[REPORT.spent], ids[REPORT.unconfirmed], ids[REPORT.expiry]
    local kernel, entry = kernel_of_key[index], this.find(index, id)
    local h = holds[index]
    if not kernel.charge then
      return UNSUPPORTED, 0, 0, h and h.cost or 0
    elseif entry and sequence <= entry[ENTRY.sequence] then
      return sequence == entry[ENTRY.sequence] and entry[ENTRY.held] or EXPIRED, entry[ENTRY.expiry], 0, h.cost
    elseif not entry and named_expiry > 0 and named_expiry <= now then
      return EXPIRED, 0, 0, h and h.cost or 0
    end
    local charged = entry and max(0, spent - entry[ENTRY.spent]) or unconfirmed
    if charged > 0 then
      kernel.charge(states[index], now, charged, p)
      changed[index] = true
    end
    if not entry and this.is_full(index, OPERATION.lease) then
      this.extend_lifetime(index, p)
      return FULL, 0, charged, h.cost
    end
    if entry then
      h.cost = h.cost + keep - entry[ENTRY.held]
    elseif keep > 0 then
      h = this.with_holds(index)
      h.cost = h.cost + keep
    end
    -- A later end was set before the server's clock was set back.
    local yields = h and h.yields_until > now and h.yields_until <= now + YIELD_DURATIONS * template.arg1
    local must_stop = blocks[index] > now or keep > 0 and (yields or not has_room(index, 0, p))
    local held = keep + ((must_stop or yields) and 0 or granted_of(index, want - keep, template.arg2, p))
    if not entry and held == 0 then
      if h then
        this.extend_lifetime(index, p)
      end
      return 0, 0, charged, h and h.cost or 0
    end
    h = this.with_holds(index)
    if not entry then
      entry = { id, 0, 0, 0, named_expiry }
      h.entries[#h.entries + 1] = entry
    end
    if not must_stop then
      entry[ENTRY.expiry] = now + template.arg1
    end
    entry[ENTRY.held], entry[ENTRY.spent], entry[ENTRY.sequence] = held, spent, sequence
    h.cost, h.span = h.cost + held - keep, max(h.span, template.arg1)
    h.most, h.duration = math.floor(template.arg2), template.arg1
    this.refresh(index, p)
    return held, entry[ENTRY.expiry], charged, h.cost
  end

  -- Returns a sufficient wait for a denied request on a key where all held costs are those of leases; otherwise `own`.
  --
  -- Without further requests, each lease ends. Its next report may renew it, for what was spent before. That report
  -- arrives before the expiry that the server knows, so it sets an expiry at most one duration later. The report after
  -- it returns everything. In the worst case all units are charged at that end.
  --
  -- A report may also get more units. A grant leaves room for at least MIN_GRANT units, so a request of at most that
  -- cost is allowed then.
  function this.wait_behind_leases(index, at, max_delay, own, p)
    local h = holds[index]
    if h.leased < h.cost then
      return own
    end
    local ends = max(at, h.latest + h.duration)
    local wait = kernel_of_key[index].peek(this.charged(index, ends, p), ends, max_delay, p)
    return max(own, ends - at + max(0, wait))
  end

  -- Returns whether a limit would allow the request if leases held so much.
  local function allows_beside(index, leased, p)
    local h = holds[index]
    local cost = h.cost
    h.cost = cost - h.leased + leased
    local verdict = kernel_of_key[index].peek(this.charged(index, now, p), now, 0, p)
    h.cost = cost
    this.charged(index, now, p)
    return verdict == 0
  end

  -- Returns whether a limit would allow the request if leases held nothing.
  local function allows_without_leases(index, p)
    local h = holds[index]
    return h and h.leased > 0 and blocks[index] <= now and allows_beside(index, 0, p)
  end

  -- Returns whether each limit that denies would allow the request if leases held nothing.
  function this.is_denied_by_leases(template, operation, verdicts)
    for l = 1, limits do
      local own, p = verdicts[l], template[l]
      if not p.is_shadow and (own > 0 or own == -1) and not allows_without_leases(operation[l + 1], p) then
        return false
      end
    end
    return true
  end

  -- Marks the keys on which leases must yield to the request. Called before the request is charged.
  function this.mark_large_costs(template, operation, verdicts, by_leases)
    for l = 1, limits do
      local p, index = template[l], operation[l + 1]
      local h = holds[index]
      if h and not p.is_shadow and h.most > 0 and p.cost > max(1, math.floor(h.most / 8)) then
        if by_leases and verdicts[l] > 0 or h.yields_until > now and not allows_beside(index, h.most, p) then
          -- At most one write in each duration.
          if h.yields_until < now + (YIELD_DURATIONS - 1) * h.duration then
            this.entries_of(index, h)
            h.yields_until = now + YIELD_DURATIONS * h.duration
            this.refresh(index, p)
          end
        end
      end
    end
  end

  return this
end
