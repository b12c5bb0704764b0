-- SPDX-License-Identifier: Apache-2.0
-- Adds the member ARGV[4] to the sorted set KEYS[1] if the set has ARGV[3] members from ARGV[1] to
-- ARGV[2], and returns 1; otherwise 0.
if redis.call('ZLEXCOUNT', KEYS[1], ARGV[1], ARGV[2]) ~= tonumber(ARGV[3]) then
	return 0
end
redis.call('ZADD', KEYS[1], 0, ARGV[4])
return 1
