-- This script returns counters that have changed, for the one agent of the region that tells.
--
-- KEYS      the set of gossip_mark.lua, the key that an agent keeps while it tells, the key of a
--           random word, which changes when Redis has lost its data, and the key of the greatest
--           instant that was read
-- ARGV[1]   the agent's ID, and for how many milliseconds no other agent tells
-- ARGV[3]   the instant after which the counters changed, and how many to return at most
-- ARGV[5]   the age in microseconds from which changes that were read are forgotten, and a random
--           word
-- reply     the random word and the present instant, then for each counter its name and the instant
--           of its change; empty if another agent tells

local teller = redis.call('GET', KEYS[2])
if teller and teller ~= ARGV[1] then
  return {}
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local read, after = tonumber(redis.call('GET', KEYS[4]) or 0), tonumber(ARGV[3])
if after > read or not redis.call('GET', KEYS[3]) then
  redis.call('SET', KEYS[3], ARGV[6]) -- Redis has lost what the agent has read
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', math.min(now - ARGV[5], math.max(read, after))))
local reply = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
local last = math.max(after, tonumber(reply[#reply] or 0))
if last > read then
  redis.call('SET', KEYS[4], string.format('%d', last))
end
table.insert(reply, 1, string.format('%d', now))
table.insert(reply, 1, redis.call('GET', KEYS[3]))
return reply
