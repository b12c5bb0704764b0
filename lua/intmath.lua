-- Integer arithmetic. A Lua number is a double. Integers are exact up to 2^53, and so are a % b and
-- (a - a % b) / b of such integers. Mirrors core/counter/intmath.go.

-- mul_div returns the quotient and the remainder of a * b / c, for 0 <= a <= 2^53 and b, c < 2^42.
-- A product beyond 2^53 is computed in digits of 10 bits from the top, so that no step exceeds
-- 2^53. A quotient above 2^53 is rounded, but remains above 2^53.
local function mul_div(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local rest = product % c
    return (product - rest) / c, rest
  end
  local quotient, rest, weight = 0, 0, 1125899906842624 -- 2^50
  while weight >= 1 do
    local digit = (a - a % weight) / weight
    a = a - digit * weight
    local x = rest * 1024 + digit * b
    rest = x % c
    quotient = quotient * 1024 + (x - rest) / c
    weight = weight / 1024
  end
  return quotient, rest
end
