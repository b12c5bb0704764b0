-- Calendar window: a fixed window whose four boundaries (bounds) the caller passes in. Mirrors
-- core/counter/calendar.go.

-- roll_calendar advances the window to the instant now. It returns true if now is outside the
-- boundaries.
local function roll_calendar(s, now)
  local b = s.bounds
  if now < b[1] or now >= b[4] then
    return true
  end
  read_counter(s)
  local last = b[4] - b[3] -- later windows are assumed to have the same length
  b[5], b[6] = b[4] + last, b[4] + 2 * last
  local i = now < b[2] and 1 or now < b[3] and 2 or 3
  if 2 * (b[i] - s.at) >= b[i + 1] - b[i] and (b[i] > s.aux or s.aux > now) then
    s.at, s.used, s.aux = b[i], 0, 0
  elseif s.at ~= b[i] then
    local later = i + 1
    while later <= 4 and b[later] ~= s.at do
      later = later + 1
    end
    if later <= 4 then -- a clock ahead of this one has advanced the counter
      i, s.now = later, s.at
    else -- the time zone was different, or a clock was wrong
      if b[i] < s.at and s.at <= now then -- another zone may move the counter forward again
        s.aux = math.max(s.aux, s.at)
      end
      s.at, s.write = b[i], true
    end
  end
  s.ends = b[i + 1]
  s.ttl = math.ceil((b[i + 2] - s.now) / 1000)
  s.room = s.count - s.used
end
