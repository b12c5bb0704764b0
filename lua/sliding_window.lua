-- Sliding window: a fixed window whose predecessor, aux, weighs in by the part of it that the last window's span still
-- covers. Mirrors core/window.go.

local function roll_sliding(s, now)
  roll_window(s, now, true)
  if s.aux > 0 then
    s.room = s.room - mul_div(s.aux, s.window - (s.now - s.at), s.window) -- only the quotient: a call amid an expression
  end
end
