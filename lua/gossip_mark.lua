-- This script adds counters that have changed to a sorted set, in the order of their changes. The
-- agents of the region read from it which counters to tell other regions about. A counter's score
-- is the instant of its first change that no agent has read yet, or later, so that no two scores
-- are equal. If it were the instant of the last change, an agent that cannot keep up would never
-- read a counter that changes all the time.
--
-- KEYS      the set, the key that an agent keeps while it tells, and the key of the greatest
--           instant that was read
-- ARGV[1]   how many counters the set may have, while an agent tells and otherwise
-- ARGV[3…]  the counters
-- reply     how many counters, of those that changed first, were removed, and whether an agent
--           tells (1 or 0)

local time = redis.call('TIME')
local at, teller = time[1] * 1000000 + time[2], redis.call('GET', KEYS[2])
local read = tonumber(redis.call('GET', KEYS[3]) or 0)
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
at = math.max(at, read + 1, tonumber(last[2] or 0) + 1)
for i = 3, #ARGV do
  -- This reads the score: the user has the right to ZADD, but not to ZSCORE. It changes nothing.
  local before = redis.call('ZADD', KEYS[1], 'XX', 'INCR', 0, ARGV[i])
  if not before or tonumber(before) <= read then
    redis.call('ZADD', KEYS[1], string.format('%d', at), ARGV[i])
    at = at + 1
  end
end
local beyond = redis.call('ZCOUNT', KEYS[1], '-inf', '+inf') - tonumber(ARGV[teller and 1 or 2])
if beyond > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, beyond - 1)
end
return { math.max(0, beyond), teller and 1 or 0 }
