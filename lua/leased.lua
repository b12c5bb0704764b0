-- Units out on lease: charged, and used up to an age later. Mirrors core/leased.go, which says why.

-- roll_lease brings leased to the slot's instant: nil if nothing is out any more.
local function roll_lease(s)
  if s.leased <= s.now then
    s.leased = nil
  elseif s.leased > s.now + s.window then
    s.leased = s.now + s.window
  end
end

-- brings returns the parts that refill a token bucket in any span of that length at most.
local function brings(s, span)
  return math.ceil(span / s.tick) * s.refill
end

-- lease_room returns how many units the counter can have at most for a lease.
local function lease_room(s)
  if not s.tick then
    return s.room
  end
  local left = s.burst * s.unit - brings(s, s.age)
  return math.min(s.room, (left - left % s.unit) / s.unit)
end

-- lease makes the counter ready for the charge of a lease.
local function lease(s)
  s.leased = math.max(s.leased or 0, s.now + s.age)
  if s.tick then
    local clip = brings(s, s.age)
    if s.used < clip + s.refill then
      s.at = s.now
    end
    s.used = math.max(s.used, clip)
  end
end

-- lease_left returns how many of n units that come back from a lease of a token bucket are not refilled in the meantime.
local function lease_left(s, receipt, n)
  local meanwhile = math.max(s.now, (s.leased or 0) - s.age) - receipt
  if meanwhile >= math.ceil(s.burst * s.unit / s.refill) * s.tick then
    return 0
  end
  return math.max(0, n - math.ceil(brings(s, math.max(0, meanwhile)) / s.unit))
end
