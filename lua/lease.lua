-- Leased units are charged at once, and are used within the age of the lease. Mirrors
-- core/counter/lease.go, which explains the rules.
--
-- leasing() returns the functions below in a table, so that a call without leases does
-- not pay for creating them.
local function leasing()
  local lease = {}

  -- The function brings returns the greatest number of parts that a token bucket refills in a span
  -- of the given length.
  local function brings(s, span)
    return math.ceil(span / s.tick) * s.refill
  end

  -- The function roll sets s.leased to nil if it has passed, and limits it to one window from now.
  function lease.roll(s)
    if s.leased <= s.now then
      s.leased = nil
    elseif s.leased > s.now + s.window then
      s.leased = s.now + s.window
    end
  end

  -- The function room returns the greatest number of units that the counter can lease. Only a token
  -- bucket has a tick.
  function lease.room(s)
    if not s.tick then
      return s.room
    end
    local left = s.burst * s.unit - brings(s, s.age)
    return math.min(s.room, (left - left % s.unit) / s.unit)
  end

  -- The function grant prepares the counter for the charge of a lease. It returns the parts that a
  -- token bucket must lack until the lease has ended.
  function lease.grant(s)
    s.leased = math.max(s.leased or 0, s.now + s.age)
    if not s.tick then
      return 0
    end
    local clip = brings(s, s.age)
    if s.used < clip + s.refill then
      s.at = s.now
    end
    s.used = math.max(s.used, clip)
    return clip
  end

  -- The function left returns how many of the units refunded to a token bucket have not been
  -- refilled in the meantime.
  function lease.left(s)
    local meanwhile = math.max(s.now, (s.leased or 0) - s.age) - s.receipt
    if meanwhile >= math.ceil(s.burst * s.unit / s.refill) * s.tick then
      return 0
    end
    return math.max(0, s.cost - math.ceil(brings(s, math.max(0, meanwhile)) / s.unit))
  end

  return lease
end
