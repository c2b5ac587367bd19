-- Costs held on keys. This code runs only if a key of the batch has held costs, or an operation holds.
--
-- # Layout
--
-- Behind the words of a state are eleven words: the key's expiry, the end of a block, the sum of the held costs, the part
-- of it that leases hold, the earliest expiry of an entry or of the mark, the latest expiry of an entry, the longest time
-- until one (in microseconds), three words of leases (lease.lua), and the number of entries. Then the entries, one for
-- each session, of five words: the id, the held cost, the sums that the session has released and charged since it began,
-- and its expiry. The id of a lease is at least LEASE_IDS. The id of a group of reservations (reservations.lua) is no whole
-- number.
--
-- # Protocol
--
-- A hold adds its cost to its session's entry, and sets the entry's expiry. A negative id creates the entry; a positive
-- one must name an existing entry, or the hold fails with EXPIRED. An update carries the session's sums. The entry
-- stores the sums that were applied, so only the difference takes effect, and updates may be lost, repeated or
-- reordered. An update that ends the session releases what is left. A process that has lost the reply to a hold does not
-- know what its entry holds. Its next update renames the entry, by adding 1 to the id, and releases what the entry holds
-- beyond the process's guards. Calls with the earlier id that come late then find no entry.
--
-- The costs of requests in flight (a kernel with `held_until_end`) are never charged. An update of a session that the
-- server does not know any more holds them again, as far as there is room: the requests have not ended. An update that
-- is older than the last one may be late, so it holds nothing again.
--
-- A decision on a key with held costs is made on a copy of the state in which they are charged, so a held cost counts
-- like a charged one. An expired entry is charged to the state, as of its expiry.

local LEASE_IDS = BOUND.lease_ids

local function make_holds()
  local this = {}

  -- Returns the entries of a key, decoded on first use. The sum of the held costs is computed from them.
  local function entries_of(index, h)
    local entries = h.entries
    if entries then
      return entries
    end
    entries = {}
    local cost = 0
    for at = 1, h.count * ENTRY.LENGTH * 8, ENTRY.LENGTH * 8 do
      local entry = { unpack(format(ENTRY.LENGTH), h.packed, at) }
      if are_numbers(entry, ENTRY.LENGTH) then
        entries[#entries + 1] = entry
        cost = cost + entry[ENTRY.held]
      end
    end
    h.entries, h.cost = entries, cost
    return entries
  end

  local function copy(kernel, s)
    return { table_unpack(s, 1, state_words(kernel, s)) }
  end

  -- Returns whether an entry is a group of reservations.
  local function is_group(id)
    return id % 1 ~= 0
  end

  -- Returns a copy of the state in which the held costs are charged at this time. A kernel with a list, or with
  -- `held_until_end`, adds `s.held` by itself.
  function this.charged(index, at, p)
    local kernel, s, h = kernel_of_key[index], states[index], holds[index]
    if kernel.is_list or kernel.held_until_end then
      s.held = h.cost > 0 and h.cost or nil
    elseif h.cost > 0 then
      s = copy(kernel, s)
      kernel.charge(s, at, h.cost, p)
    end
    return s
  end

  -- Computes until when the key is needed. The worst case: all held costs are charged at the latest expiry, and drain
  -- from then.
  function this.extend_lifetime(index, p)
    local h = holds[index]
    if h then
      local kernel, lasts_until = kernel_of_key[index], h.latest
      if kernel.is_list then
        lasts_until = lasts_until + kernel.lifetime(states[index], p)
      elseif h.cost > 0 then
        local s = copy(kernel, states[index])
        kernel.charge(s, h.latest, h.cost, p)
        lasts_until = max(lasts_until, s[1])
      end
      h.lasts_until = max(lasts_until, h.yields_until)
    end
  end

  -- Recomputes the sums after a change of the entries.
  local function refresh(index, p)
    local h = holds[index]
    local entries = h.entries
    local due, latest, leased = MAX_EXACT, 0, 0
    for i = 1, #entries do
      local expiry = entries[i][ENTRY.expiry]
      if entries[i][ENTRY.id] >= LEASE_IDS then leased = leased + entries[i][ENTRY.held] end
      if expiry < due then due = expiry end
      if expiry > latest then latest = expiry end
    end
    if h.yields_until <= now then
      h.yields_until = 0
    elseif h.yields_until < due then
      due = h.yields_until
    end
    h.due, h.latest, h.leased, h.count = due, latest, leased, #entries
    changed[index] = true
    if #entries == 0 then
      h.span = 0
    end
    if #entries == 0 and h.yields_until == 0 then
      holds[index] = nil
      states[index].held = nil
    else
      this.extend_lifetime(index, p)
    end
  end

  -- Charges each expired entry as of its expiry, in the order of the expiries, and removes it.
  local function expire(index, p)
    local kernel, s, h = kernel_of_key[index], states[index], holds[index]
    local entries, latest, kept = entries_of(index, h), now + h.span, {}
    table.sort(entries, function(a, b) return a[ENTRY.expiry] < b[ENTRY.expiry] end)
    for i = 1, #entries do
      local entry = entries[i]
      -- Nobody renews a group. One of a clock that was far ahead does not count.
      local is_stale = is_group(entry[ENTRY.id]) and entry[ENTRY.expiry] > now + 2 * h.span
      if entry[ENTRY.expiry] <= now or is_stale then
        if entry[ENTRY.held] > 0 then
          if not is_stale then
            kernel.charge(s, entry[ENTRY.expiry], entry[ENTRY.held], p)
          end
          h.cost, expired = h.cost - entry[ENTRY.held], expired + 1
        end
      else
        -- The clock was set back: the entry must not outlive its expiry by more.
        if entry[ENTRY.expiry] > latest then entry[ENTRY.expiry] = latest end
        kept[#kept + 1] = entry
      end
    end
    h.entries = kept
    refresh(index, p)
  end

  -- Prepares a key for its first operation: charges expired entries, and stores the state for the reply.
  function this.prepare(index, p)
    local h = holds[index]
    if not h or h.is_reported then
      return
    end
    if h.due <= now or h.latest > now + h.span then
      expire(index, p)
    end
    -- The reply contains the state after that, with the sum of the held costs before it. One extra byte marks this
    -- format.
    h.is_reported = true
    local kernel, s = kernel_of_key[index], states[index]
    local packed = ''
    if not kernel.is_list then
      local words = state_words(kernel, s)
      packed = pack(format(words), table_unpack(s, 1, words))
    end
    if holds[index] then
      packed = pack('<d', h.cost) .. packed .. '\0'
    end
    values[index] = packed
  end

  -- Returns the kind of an entry: of a session, a lease, or a group of reservations.
  local function kind_of(id)
    return id >= LEASE_IDS and OPERATION.lease or is_group(id) and OPERATION.reserve or OPERATION.hold
  end

  -- Returns whether a key has the maximum number of entries of this kind.
  local function is_full(index, kind)
    local h, count, most = holds[index], 0, kind == OPERATION.reserve and MAX_GROUPS or MAX_ENTRIES
    if not h or h.count < most then
      return false
    end
    local entries = entries_of(index, h)
    for i = 1, #entries do
      if kind_of(entries[i][ENTRY.id]) == kind then count = count + 1 end
    end
    return count >= most
  end

  local function find(index, id)
    local h = holds[index]
    if h then
      local entries = entries_of(index, h)
      for i = 1, #entries do
        if entries[i][ENTRY.id] == id then
          return entries[i], i
        end
      end
    end
  end

  -- Returns the held costs of a key, which it adds to a key without any.
  local function with_holds(index)
    local h = holds[index]
    if not h then
      h = {
        cost = 0, leased = 0, due = MAX_EXACT, latest = 0, span = 0, most = 0, duration = 0, yields_until = 0, count = 0,
        -- The value that was read goes into the reply: nothing was held.
        entries = {}, lasts_until = 0, is_reported = true,
      }
      holds[index] = h
    end
    return h
  end

  -- Returns the failures of a hold by limit, or nil if it can succeed.
  function this.check_hold(template, operation, charged_limits)
    local problems
    for l = 1, limits do
      local id, index = template.ids[l], operation[l + 1]
      local problem
      local holding = id ~= 0 and charged_limits[l]
      if holding and not kernels[l].charge then
        problem = UNSUPPORTED
      -- A batch may create an entry and hold in it again, both with the negative id.
      elseif holding and not find(index, math.abs(id)) then
        if id > 0 then
          problem = EXPIRED
        elseif is_full(index, kind_of(-id)) then
          -- A request that is charged once holds in a session, as one without an id does.
          problem = template.record and not template.repeats and TOO_MANY_IDS or FULL
        end
      end
      if problem then
        problems = problems or {}
        problems[l] = problem
      end
    end
    return problems
  end

  -- Holds the costs on all limits in `charged_limits` that have a session, or on none. Returns the failures by limit, or
  -- nil.
  function this.hold(template, operation, charged_limits)
    local problems = this.check_hold(template, operation, charged_limits)
    if problems then
      return problems
    end
    for l = 1, limits do
      local id, index, p = math.abs(template.ids[l]), operation[l + 1], template[l]
      if id ~= 0 and charged_limits[l] then
        local h, entry = with_holds(index), find(index, id)
        if not entry then
          entry = { id, 0, 0, 0, 0 }
          h.entries[#h.entries + 1] = entry
        end
        -- The id of a group is its expiry and a half.
        local lasts = is_group(id) and id - 0.5 - now or template.arg2
        entry[ENTRY.held], entry[ENTRY.expiry] = entry[ENTRY.held] + p.cost, now + lasts
        h.cost, h.span = h.cost + p.cost, max(h.span, lasts)
        refresh(index, p)
      end
    end
  end

  -- Returns the entry of an update, its position, and whether the entry holds what the update says: the update ends or
  -- renames the session. The reply to an update that renames may be lost, and a repeated one may come after further holds.
  local function find_updated(index, ids)
    local id, ends = ids[UPDATE.id], ids[UPDATE.ends]
    local entry, position = find(index, id)
    if not entry and ends > 0 then
      entry, position = find(index, id + 1)
      return entry, position, ends == 1
    elseif ends == 2 then
      entry[ENTRY.id] = id + 1
    end
    return entry, position, ends > 0
  end

  -- Renews or ends a session that holds the costs of requests in flight. Holds again what the entry has lost, as far as
  -- there is room. Returns by how much the held costs have shrunk, and the costs for which there is no room.
  local function update_in_flight(template, index, p)
    local ids = template.ids
    local ends, entry, position, is_exact = ids[UPDATE.ends] == 1, find_updated(index, ids)
    if not entry and (ends or is_full(index, OPERATION.hold)) then
      return EXPIRED, 0
    end
    local before, h, added, missing = entry and entry[ENTRY.held] or 0, with_holds(index), 0, 0
    entry = entry or { ids[UPDATE.id] + math.floor(ids[UPDATE.ends] / 2), 0, ids[UPDATE.released], 0, 0 }
    local held = max(0, before - max(0, ids[UPDATE.released] - entry[ENTRY.released]))
    if is_exact then held = math.min(held, ids[UPDATE.held]) end
    h.cost = h.cost - before + held
    if not ends and ids[UPDATE.released] >= entry[ENTRY.released] then
      missing = max(0, ids[UPDATE.held] - held)
      added = math.min(missing, max(0, kernel_of_key[index].room(h.cost, p)))
    end
    entry[ENTRY.held], entry[ENTRY.expiry] = held + added, now + template.arg1
    entry[ENTRY.released] = max(entry[ENTRY.released], ids[UPDATE.released])
    h.cost, h.span = h.cost + added, max(h.span, template.arg1)
    if ends then
      table.remove(h.entries, position)
    elseif not position and added > 0 then
      h.entries[#h.entries + 1] = entry
    end
    refresh(index, p)
    return before - entry[ENTRY.held], missing - added
  end

  -- Applies a session's sums, and renews or ends it. Returns the newly released and charged costs.
  function this.update(template, index, p)
    if kernel_of_key[index].held_until_end then
      return update_in_flight(template, index, p)
    end
    local ids = template.ids
    local entry, position, is_exact = find_updated(index, ids)
    if not entry then
      return EXPIRED, 0
    end
    local h = holds[index]
    local released = max(0, ids[UPDATE.released] - entry[ENTRY.released])
    local charged = max(0, ids[UPDATE.charged] - entry[ENTRY.charged])
    if is_exact then released = max(released, entry[ENTRY.held] - ids[UPDATE.held]) end
    released = math.min(released, entry[ENTRY.held])
    entry[ENTRY.held] = entry[ENTRY.held] - released
    entry[ENTRY.released] = max(entry[ENTRY.released], ids[UPDATE.released])
    entry[ENTRY.charged] = max(entry[ENTRY.charged], ids[UPDATE.charged])
    entry[ENTRY.expiry], h.cost, h.span = now + template.arg1, h.cost - released, max(h.span, template.arg1)
    if ids[UPDATE.ends] == 1 then
      table.remove(h.entries, position)
    end
    if charged > 0 then
      kernel_of_key[index].charge(states[index], now, charged, p)
    end
    refresh(index, p)
    return released, charged
  end

  -- Packs the held costs: the words behind the key's expiry and its block, and the entries.
  function this.pack(index)
    local h = holds[index]
    local entries, parts, words = h.entries, {}, { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
    words[HELD.cost], words[HELD.leased], words[HELD.due], words[HELD.latest] = h.cost, h.leased, h.due, h.latest
    words[HELD.span], words[HELD.most], words[HELD.duration] = h.span, h.most, h.duration
    words[HELD.yields_until], words[HELD.count] = h.yields_until, h.count
    parts[1] = pack(format(HELD.LENGTH - HELD.block), table_unpack(words, HELD.cost, HELD.LENGTH))
    if not entries then
      -- Not decoded, so unchanged.
      parts[2] = h.packed
    else
      for i = 1, #entries do
        parts[i + 1] = pack(format(ENTRY.LENGTH), table_unpack(entries[i], 1, ENTRY.LENGTH))
      end
    end
    return table.concat(parts)
  end

  -- For reservations.lua and lease.lua.
  this.copy, this.find, this.is_full, this.with_holds = copy, find, is_full, with_holds
  this.refresh, this.entries_of = refresh, entries_of

  return this
end
