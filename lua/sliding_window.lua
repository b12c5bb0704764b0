-- Sliding window: a fixed window plus its predecessor (aux), weighted by the part of it that lies
-- within one window's length of now. Mirrors core/counter/sliding_window.go.

local function roll_sliding(s, now)
  roll_window(s, now, true)
  if s.aux > 0 then
    s.room = s.room - mul_div(s.aux, s.window - (s.now - s.at), s.window) -- only the quotient: inside an expression a call yields one value
  end
end
