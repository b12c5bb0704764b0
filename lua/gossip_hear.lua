-- This script charges a counter for those units of another region that exceed the units already
-- charged for that region. So it does not matter how often and in which order they are told.
--
--  KEYS     the counter, and what was charged to it for other regions
--  ARGV     as in counter_of, then the limit's count, the counter's time to live in milliseconds,
--           the other region, the start of its window, and its units in that window and in the one
--           before
--  reply    NOW CHARGED, or NOW early if the window has not begun by this region's clock, or NOW
--           late if the units count in none of the counter's windows

local s = counter_of(4)
if not s then
  return redis.error_reply('STALE calendar boundaries')
end
local count, ttl, region = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local start, used, before = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local reply
if start == s.at then
  reply = '%d %d'
elseif start > s.at then
  reply = '%d early'
  used, before = s.sliding and start == s.at + s.window and before or 0, 0
elseif s.sliding and start == s.at - s.window then
  reply = '%d %d'
  used, before = 0, used
else
  return format('%d late', s.clock)
end
if not s.sliding then
  before = 0
end
local known = read_known(s)
local k = known[region] or { used = 0, before = 0 }
local more = math.max(0, math.min(used, count) - k.used)
local more_before = math.max(0, math.min(before, count) - k.before)
if more + more_before > 0 then
  k.used, k.before = k.used + more, k.before + more_before
  s.used, s.aux = s.used + more, s.aux + more_before
  known[region] = k
  ttl = (s.ends and s.ttl or ttl) + s.grace + math.ceil((s.now - s.clock) / 1000)
  if write_counter(s, ttl) then
    return redis.error_reply('OOM new counters 1')
  end
  set(KEYS[2], known_text(s, known), ttl)
end
return format(reply, s.clock, more + more_before)
