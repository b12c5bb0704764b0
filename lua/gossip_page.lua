-- This script returns counters that have changed, for the one agent of the region that tells.
--
-- KEYS      the set of gossip_mark.lua, the key that an agent keeps while it tells, and the key of
--           a random word, which changes when Redis has lost its data
-- ARGV[1]   the agent's ID, and for how many milliseconds no other agent tells
-- ARGV[3]   the instant after which the counters changed, and how many to return at most
-- ARGV[5]   the age in microseconds from which changes are forgotten, and a random word
-- reply     the random word, then for each counter its name and the instant of its change; empty
--           if another agent tells

local teller = redis.call('GET', KEYS[2])
if teller and teller ~= ARGV[1] then
  return {}
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', time[1] * 1000000 + time[2] - ARGV[5]))
if not redis.call('GET', KEYS[3]) then
  redis.call('SET', KEYS[3], ARGV[6])
end
local reply = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
table.insert(reply, 1, redis.call('GET', KEYS[3]))
return reply
