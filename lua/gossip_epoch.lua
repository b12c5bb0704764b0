-- This script returns a random word of a Redis, which changes when Redis has lost its data.
--
-- KEYS[1]   the key of the word
-- ARGV[1]   the word, if there is none

local word = redis.call('GET', KEYS[1])
if not word then
  word = ARGV[1]
  redis.call('SET', KEYS[1], word)
end
return word
