-- The fast path for a limiter with one limit on requests in flight: all of it is in fast_holds.lua.

-- The state, and the expiry. A template.
local VALUE_LENGTH, TEMPLATE_LENGTH = 16, 52

