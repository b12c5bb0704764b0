-- This script replaces the state of the regions: see internal/region/writeoff.
--
-- KEYS[1]   the state
-- ARGV[1]   the former state, "" for none
-- ARGV[2]   the new state
-- ARGV[3]   the second of Redis's clock after which the state is not written, 0 for never
-- reply 1 if the state was written, 0 if the former state is a different one, -1 if it is too late

local last = tonumber(ARGV[3])
if last > 0 and tonumber(redis.call('TIME')[1]) > last then
  return -1
end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
