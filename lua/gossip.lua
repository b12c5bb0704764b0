-- The units that other regions report for a counter are charged to it, so that it has the units of
-- all regions. A second key holds what was charged for each region: START, the start of the window,
-- then REGION USED PREVIOUS for each region. The rest of the counter's units is the region's own.

-- The function counter_of reads and advances the counter of a call, as take.lua does. ARGV[1] to
-- ARGV[4] are the instant (0 for Redis' own clock), the algorithm, the window in microseconds,
-- and the boundaries of a calendar window. It returns nil if the instant is outside the
-- boundaries.
local function counter_of(op)
  local now, grace = tonumber(ARGV[1]), 86400000 -- only tests pass an instant
  if now == 0 then
    local time = call('TIME')
    now, grace = time[1] * 1000000 + time[2], 0
  end
  local s = {
    key = KEYS[1], algorithm = tonumber(ARGV[2]), op = op, cost = 1, count = 0, window = tonumber(ARGV[3]),
    now = now, clock = now, grace = grace,
  }
  s.sliding = s.algorithm == 2
  if s.algorithm ~= 5 then
    roll_window(s, now, s.sliding)
    return s
  end
  s.bounds = {}
  for word in string.gmatch(ARGV[4], '%d+') do
    s.bounds[#s.bounds + 1] = tonumber(word)
  end
  if roll_calendar(s, now) then
    return nil
  end
  return s
end

-- The function same_window reports whether units that were charged in the window that began at
-- start are still among s.used.
local function same_window(s, start)
  if start >= s.at or s.write then -- a clock that went back moves the window, but not its units
    return true
  end
  return s.ends ~= nil and 2 * (s.at - start) < s.ends - s.at -- another time zone
end

-- The function read_known reads what was charged for the other regions. It also sets own and
-- own_before, the region's own units in the window and in the window before it.
local function read_known(s)
  local known, text = {}, call('GET', KEYS[2])
  local before = s.sliding and s.aux or 0
  s.own, s.own_before = s.used, before
  if not text or s.text == '0 0 0' then
    return known
  end
  local start, rest = match(text, '^(%d+)(.*)$')
  start = tonumber(start)
  for region, used, before in string.gmatch(rest or '', ' (%S+) (%d+) (%d+)') do
    local k
    if same_window(s, start) then
      k = { used = used + 0, before = before + 0 }
    elseif s.sliding and start == s.at - s.window then
      k = { used = 0, before = used + 0 }
    end
    if k then
      known[region] = k
      s.own, s.own_before = s.own - k.used, s.own_before - k.before
    end
  end
  if s.own < 0 or s.own_before < 0 then -- the counter was deleted meanwhile
    s.own, s.own_before = s.used, before
    return {}
  end
  return known
end

-- The function known_text returns the text in which the second key holds what was charged.
local function known_text(s, known)
  local parts = { format('%d', s.at) }
  for region, k in pairs(known) do
    parts[#parts + 1] = format('%s %d %d', region, k.used, k.before)
  end
  return table.concat(parts, ' ')
end
