return redis.error_reply("ERR not yet")
