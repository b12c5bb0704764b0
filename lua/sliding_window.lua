-- Sliding window: a fixed window plus its predecessor, aux, weighed by the part of it that lies
-- within the last window's length. Mirrors core's window.go.

local function roll_sliding(s, now)
  roll_window(s, now, true)
  if s.aux > 0 then
    s.room = s.room - mul_div(s.aux, s.window - (s.now - s.at), s.window) -- only the quotient: inside an expression a call yields one value
  end
end
