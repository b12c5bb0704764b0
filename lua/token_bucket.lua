-- Token bucket: at is the last refill, used what is missing from a full bucket, in parts of a token, aux how many parts
-- a token had when that was written. Mirrors core/bucket.go.

-- convert restates what is missing in this limit's parts, rounding against the client, and keeps a debt within one
-- window.
local function convert(s)
  local deepest = (s.burst + s.count) * s.unit
  if s.aux ~= s.unit then
    if s.aux < 1 or s.aux >= 4398046511104 then -- 2^42
      corrupt(s.key, 'the parts of a token are out of bounds')
    end
    local quotient, rest = mul_div(s.used, s.unit, s.aux)
    if rest > 0 then
      quotient = quotient + 1
    end
    s.used, s.aux = quotient, s.unit
  end
  s.used = math.min(s.used, deepest)
end

local function roll_bucket(s, now)
  read_counter(s)
  if s.at == 0 then
    s.at, s.used, s.aux = now, 0, s.unit
  else
    convert(s)
    if s.at > now + s.window then -- the clock went back further than a window
      s.at, s.write = now, true
    else
      if s.at > now then
        s.now = s.at
      end
      local elapsed = s.now - s.at
      elapsed = (elapsed - elapsed % s.tick) / s.tick
      if elapsed >= math.ceil(s.used / s.refill) then
        s.at, s.used = s.now, 0
      else
        s.at = s.at + elapsed * s.tick
        s.used = s.used - elapsed * s.refill
      end
    end
  end
  local left = s.burst * s.unit - s.used
  s.room = (left - left % s.unit) / s.unit -- rounded down, in debt too
end

-- refund gives tokens back, unless the charge is so old that the bucket has filled since, and returns how many.
local function refund(s, receipt, n)
  if s.now - receipt >= math.ceil(s.burst * s.unit / s.refill) * s.tick then
    return 0
  end
  n = math.min(n, math.ceil(s.used / s.unit))
  s.used = math.max(0, s.used - n * s.unit)
  return n
end

-- write_bucket stores it for twice the time to fill; a bucket in debt until it is full, and one time to fill more.
local function write_bucket(s, ttl)
  if s.used > s.burst * s.unit then
    local to_full = math.ceil(s.used / s.refill) * s.tick
    local fill = math.ceil(s.burst * s.unit / s.refill) * s.tick
    ttl = math.max(ttl, ttl - s.ttl + math.ceil((to_full + fill) / 1000))
  end
  write_counter(s, ttl)
end
