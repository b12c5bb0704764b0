-- SPDX-License-Identifier: Apache-2.0
-- Replaces the value of KEYS[1] by ARGV[2] if it is still ARGV[1], and returns 1; otherwise 0.
-- An empty argument stands for no value.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
	return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
