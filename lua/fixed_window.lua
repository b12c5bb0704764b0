-- Fixed window: at is the start of the aligned window, and used is the number of units charged in
-- it. Mirrors core/counter/fixed_window.go.

-- roll_window advances a fixed or sliding window to the instant now.
local function roll_window(s, now, sliding)
  read_counter(s)
  local current = now - now % s.window
  if s.at == 0 then
    s.at, s.used, s.aux = current, 0, 0
  elseif s.at > now + s.window then -- the clock went back by more than a window
    s.at, s.write = current, true
  elseif s.at > now then
    s.now = s.at
  elseif sliding and s.at == current - s.window then
    s.at, s.used, s.aux = current, 0, s.used
  elseif s.at ~= current then
    s.at, s.used, s.aux = current, 0, 0
  end
  s.room = s.count - s.used
end

-- The function uncount refunds units to the window in which they were charged, and returns their
-- number.
local function uncount(s, receipt, n, sliding)
  if receipt == s.at then
    n = math.min(n, s.used)
    s.used = s.used - n
  elseif sliding and receipt == s.at - s.window then
    n = math.min(n, s.aux)
    s.aux = s.aux - n
  else
    n = 0
  end
  return n
end
