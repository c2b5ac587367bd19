-- Costs held on keys. Made only where there are any.
--
-- Behind a state's words: when the key expires, until when it is blocked, the sum of what is held, the earliest and the latest
-- expiry, the longest time until one (in microseconds), the number of entries; then the entries, one for each session: its id,
-- what it holds now, what it has released and charged since it began, when it expires. A kernel with a head has the last five
-- and the entries in a room of its own behind the head.
--
-- An id is positive. A negative one says to hold that its session begins with this call.

local function make_holds()
  local this = {}

  -- The entries of a key, read when they are needed.
  local function entries_of(index, h)
    local entries = h.entries
    if entries then
      return entries
    end
    entries = {}
    local packed = h.packed
    if h.count > 0 and not packed then
      local kernel, s = kernel_of_key[index], states[index]
      local from = kernel.header_bytes + (HELD_WORDS - 2) * 8
      packed = call('GETRANGE', s.key, from, from + h.count * ENTRY_WORDS * 8 - 1)
    end
    local cost = 0
    for at = 1, h.count * ENTRY_WORDS * 8, ENTRY_WORDS * 8 do
      local entry = #packed >= at + ENTRY_WORDS * 8 - 1 and { unpack('<ddddd', packed, at) }
      if entry and are_numbers(entry, ENTRY_WORDS) then
        entries[#entries + 1] = entry
        cost = cost + entry[2]
      end
    end
    h.entries, h.cost = entries, cost
    return entries
  end

  local function copy(kernel, s)
    return { table_unpack(s, 1, state_words(kernel, s)) }
  end

  -- A state in which what is held is charged at this time. A kernel with a head reckons with it by itself.
  function this.charged(index, at, p)
    local kernel, s, h = kernel_of_key[index], states[index], holds[index]
    if kernel.header_bytes then
      s.held = h.cost > 0 and h.cost or nil
    elseif h.cost > 0 then
      s = copy(kernel, s)
      kernel.charge(s, at, h.cost, p)
    end
    return s
  end

  -- Until when the key is needed: until what is owed and held has drained, if all that is held is charged as late as can be.
  function this.cover(index, p)
    local h = holds[index]
    if h then
      local kernel, lasts_until = kernel_of_key[index], h.latest
      if kernel.header_bytes then
        lasts_until = lasts_until + p[kernel.period_param]
      elseif h.cost > 0 then
        local s = copy(kernel, states[index])
        kernel.charge(s, h.latest, h.cost, p)
        lasts_until = max(lasts_until, s[1])
      end
      h.lasts_until = lasts_until
    end
  end

  -- After a change of entries.
  local function refresh(index, p)
    local h = holds[index]
    local entries = h.entries
    local due, latest = MAX_EXACT, 0
    for i = 1, #entries do
      local expiry = entries[i][5]
      if expiry < due then due = expiry end
      if expiry > latest then latest = expiry end
    end
    h.due, h.latest, h.count = due, latest, #entries
    changed[index] = true
    if #entries == 0 then
      holds[index] = nil
      states[index].held, states[index].is_cleared = nil, true
    else
      this.cover(index, p)
    end
  end

  -- Settle whole what has expired, each as of then.
  local function expire(index, p)
    local kernel, s, h = kernel_of_key[index], states[index], holds[index]
    local entries, latest, kept = entries_of(index, h), now + h.span, {}
    table.sort(entries, function(a, b) return a[5] < b[5] end)
    for i = 1, #entries do
      local entry = entries[i]
      if entry[5] <= now then
        if entry[2] > 0 then
          kernel.charge(s, entry[5], entry[2], p)
          h.cost, expired = h.cost - entry[2], expired + 1
        end
      else
        -- The clock has stepped back.
        if entry[5] > latest then entry[5] = latest end
        kept[#kept + 1] = entry
      end
    end
    h.entries = kept
    refresh(index, p)
  end

  -- What every step on a key begins with.
  function this.touch(index, p)
    local h = holds[index]
    if not h or h.is_told then
      return
    end
    if h.due <= now or h.latest > now + h.span then
      expire(index, p)
    end
    -- The state goes back as it is now, with what is held before it; an odd length tells that.
    h.is_told = true
    local kernel, s = kernel_of_key[index], states[index]
    local packed = ''
    if not kernel.header_bytes then
      local words = state_words(kernel, s)
      packed = pack(format(words), table_unpack(s, 1, words))
    end
    if holds[index] then
      packed = pack('<d', h.cost) .. packed .. '\0'
    end
    values[index] = packed
  end

  local function find(index, id)
    local h = holds[index]
    if h then
      local entries = entries_of(index, h)
      for i = 1, #entries do
        if entries[i][1] == id then
          return entries[i], i
        end
      end
    end
  end

  -- Holds the cost of a shape on all limits that `takes` names, or on none. Returns what keeps it from that, by limit.
  function this.hold(template, operation, takes)
    local problems
    for l = 1, limits do
      local id, index = template.ids[l], operation[l + 1]
      local h, problem = holds[index], nil
      if not kernels[l].charge then
        problem = UNSUPPORTED
      elseif takes[l] and not find(index, math.abs(id)) then
        if id > 0 then
          problem = EXPIRED
        elseif h and h.count >= MAX_ENTRIES then
          problem = FULL
        end
      end
      if problem then
        problems = problems or {}
        problems[l] = problem
      end
    end
    if problems then
      return problems
    end
    for l = 1, limits do
      if takes[l] then
        local id, index = math.abs(template.ids[l]), operation[l + 1]
        local kernel, s, entry = kernels[l], states[index], find(index, id)
        local h = holds[index]
        if not h then
          h = { cost = 0, due = MAX_EXACT, latest = 0, span = 0, count = 0, entries = {}, lasts_until = 0, is_told = true }
          holds[index] = h
          if kernel.header_bytes and s[kernel.held_space_word] == 0 then
            kernel.reserve_held_space(s, (HELD_WORDS - 2 + MAX_ENTRIES * ENTRY_WORDS) * 8)
          end
        end
        if not entry then
          entry = { id, 0, 0, 0, 0 }
          h.entries[#h.entries + 1] = entry
        end
        entry[2], entry[5] = entry[2] + template.arg1, now + template.arg2
        h.cost, h.span = h.cost + template.arg1, max(h.span, template.arg2)
        refresh(index, template[l])
      end
    end
  end

  -- Brings a session up to what it has released and charged since it began, and renews or ends it. Returns what of that is new.
  function this.update(template, index, p)
    local ids = template.ids
    local entry, place = find(index, ids[1])
    if not entry then
      return EXPIRED, 0
    end
    local h = holds[index]
    local released, charged = max(0, ids[2] - entry[3]), max(0, ids[3] - entry[4])
    if released > entry[2] or ids[4] == 1 then
      released = entry[2]
    end
    entry[2], entry[3], entry[4] = entry[2] - released, max(entry[3], ids[2]), max(entry[4], ids[3])
    entry[5], h.cost, h.span = now + template.arg1, h.cost - released, max(h.span, template.arg1)
    if ids[4] == 1 then
      table.remove(h.entries, place)
    end
    if charged > 0 then
      kernel_of_key[index].charge(states[index], now, charged, p)
    end
    refresh(index, p)
    return released, charged
  end

  -- What lies behind a state's words, but for its first two.
  function this.pack(index)
    local h = holds[index]
    local entries, parts = h.entries, {}
    parts[1] = pack('<ddddd', h.cost, h.due, h.latest, h.span, h.count)
    if not entries then
      -- A kernel's room has them already.
      parts[2] = h.packed or ''
    else
      for i = 1, #entries do
        parts[i + 1] = pack('<ddddd', table_unpack(entries[i]))
      end
    end
    return table.concat(parts)
  end

  return this
end
