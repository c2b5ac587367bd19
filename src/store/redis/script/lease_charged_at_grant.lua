-- The control of the tests of leases: a protocol that charges units when it grants them, and not when they are spent.
-- Granted units then drain while a process keeps them, so more is admitted than the algorithm allows. The tests must
-- find that.

local make_holds_with_leases = make_holds

function make_holds()
  local this = make_holds_with_leases()
  local renew = this.renew

  function this.renew(template, index, p)
    -- All spent units were charged with their grant.
    local ids = template.ids
    template.ids = { ids[1], ids[2], 0, 0, ids[5], ids[6], ids[7] }
    local held, expiry, _, total = renew(template, index, p)
    template.ids = ids
    local h, entry = holds[index], this.find(index, ids[1])
    if not entry or held < 0 then
      return held, expiry, 0, total
    end
    -- The entry stays, for its number and its expiry, but counts for nothing.
    local granted = max(0, entry[2] - ids[5])
    h.cost, entry[2] = h.cost - entry[2], 0
    kernel_of_key[index].charge(states[index], now, granted, p)
    this.refresh(index, p)
    return held, expiry, granted, h.cost
  end

  return this
end
