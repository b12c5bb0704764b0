-- Token bucket: at is the last refill, used is the number of parts that the bucket lacks, and aux
-- is the number of parts per token when used was written. Mirrors core/counter/token_bucket.go.

-- The function convert returns the value of used in parts of this limit, rounded up, against the
-- client. It limits a debt to one window's tokens.
local function convert(s)
  local used, deepest = s.used, (s.burst + s.count) * s.unit
  if s.aux ~= s.unit then
    if s.aux < 1 or s.aux >= 4398046511104 then -- 2^42
      corrupt(s.key, 'the parts of a token are out of bounds')
    end
    local rest
    used, rest = mul_div(used, s.unit, s.aux)
    if rest > 0 then
      used = used + 1
    end
    if s.dips then
      refunds().convert(s, deepest)
    end
  end
  s.beyond = used > deepest
  return s.beyond and deepest or used
end

local function roll_bucket(s, now)
  read_counter(s)
  local at, used, unit = s.at, 0, s.unit
  if at == 0 then
    at = now
  else
    if s.rest then
      refunds().parse(s)
    end
    used = convert(s)
    if at > now + s.window then -- the clock went back by more than a window
      at, s.write = now, true
      if s.dips then
        refunds().rewind(s, now)
      end
    else
      if at > now then
        now = at
        s.now = at
      end
      local tick, refill = s.tick, s.refill
      local elapsed = now - at
      elapsed = (elapsed - elapsed % tick) / tick
      if elapsed >= used / refill then -- used / refill needs no ceiling here: elapsed is whole
        at, used, s.dips = now, 0, nil
      else
        at = at + elapsed * tick
        used = used - elapsed * refill
      end
    end
  end
  s.at, s.used, s.aux = at, used, unit
  local left = s.burst * unit - used
  s.room = (left - left % unit) / unit -- rounded down, even in debt
end

-- The function drain takes n tokens out. If the bucket lacks less than a tick's refill, the part of
-- the tick that has passed is forfeited. The argument beyond is the number of parts that are
-- missing because of a lease.
local function drain(s, n, beyond)
  if s.used < s.refill then
    s.at = s.now
  end
  if s.refundable or s.dips then
    refunds().dip(s, beyond)
  end
  s.used = s.used + n * s.unit
end

-- The function refund restores tokens to the bucket and returns their number. If the bucket has
-- been full since the charge, it restores none.
local function refund(s, receipt, n)
  if s.now - receipt >= math.ceil(s.burst * s.unit / s.refill) * s.tick then
    return 0
  end
  if s.refundable and not s.age then
    return refunds().give(s, receipt, n)
  end
  n = math.min(n, math.ceil(s.used / s.unit))
  s.used = math.max(0, s.used - n * s.unit)
  return n
end

-- write_bucket stores the bucket for twice its time to fill; a bucket in debt is stored until it is
-- full, plus one time to fill. It returns the result of set.
local function write_bucket(s, ttl)
  if s.used > s.burst * s.unit then
    local to_full = math.ceil(s.used / s.refill) * s.tick
    local fill = math.ceil(s.burst * s.unit / s.refill) * s.tick
    ttl = math.max(ttl, ttl - s.ttl + math.ceil((to_full + fill) / 1000))
  end
  s.rest = s.dips and refunds().text(s.dips)
  return write_counter(s, ttl)
end
