-- This script reads a region's own units of a counter.
--
--  KEYS     the counter, and what was charged to it for other regions
--  ARGV     as in counter_of
--  reply    START USED BEFORE: the start of the window, and the region's own units in it and in the
--           window before; empty if there are none, or if the clock is outside a calendar's boundaries

local s = counter_of(2)
if not s then
  return ''
end
read_known(s)
if s.own == 0 and s.own_before == 0 then
  return ''
end
return format('%d %d %d', s.at, s.own, s.own_before)
