-- merge writes counters of a backup into Redis. If Redis has the counter already, the two are
-- merged, and the greater use wins. take.lua documents what counters hold.
--
--  KEYS     for each record its key; a sliding log has two: the log and its sum
-- ARGV[1]   1 if nothing shall be written
-- ARGV[…]   for each record its kind, the window in microseconds, when the key expires, in
--           milliseconds since 1970 (0: never), and the value
--  reply    for each record 0: Redis's counter was kept, 1: added, 2: raised, 3: the record has
--           expired, 4: Redis's counter cannot be read, and was left alone
--
-- mul_div comes from intmath.lua.

local KEPT, ADDED, RAISED, OVER, UNREADABLE = 0, 1, 2, 3, 4
local call, format, match, gmatch = redis.call, string.format, string.match, string.gmatch
local most = 9007199254740992
local dry = ARGV[1] == '1'
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local now_millis = math.floor(now / 1000)

local function parse(text)
  local at, used, aux = match(text, '^(%d+) (%d+) (%d+)$')
  local leased, rest = '0', ''
  if not at then
    at, used, aux, leased, rest = match(text, '^(%d+) (%d+) (%d+) (%d+)(.*)$')
  end
  if at then
    return { at = at + 0, used = used + 0, aux = aux + 0, leased = leased + 0, rest = rest }
  end
end

-- later returns the greater of ttl and the time that the key has left, both in milliseconds; nil
-- means that the key never expires.
local function later(key, ttl)
  local left = call('PTTL', key)
  if left == -1 then
    return nil
  end
  return ttl and math.max(ttl, left)
end

local function set(key, text, ttl)
  if dry then
    return
  end
  if ttl then
    call('SET', key, text, 'PX', format('%d', ttl))
  else
    call('SET', key, text)
  end
end

local function expire(key, ttl)
  if ttl then
    call('PEXPIRE', key, format('%d', ttl))
  else
    call('PERSIST', key)
  end
end

-- moved returns how many units the state s has in the window that begins at the instant at, and in
-- the window before it.
local function moved(s, at, kind, length)
  if s.at == at then
    return s.used, s.aux
  elseif kind == 's' and s.at == at - length then
    return 0, s.used
  elseif kind == 'c' and 2 * (at - s.at) < length then -- the same period in two time zones
    return s.used, s.aux
  end
  return 0, 0
end

local function merge_windows(old, new, kind, length)
  local at = math.max(old.at, new.at)
  local used, aux = moved(old, at, kind, length)
  local new_used, new_aux = moved(new, at, kind, length)
  return { at = at, used = math.max(used, new_used), aux = math.max(aux, new_aux), leased = math.max(old.leased, new.leased), rest = '' }
end

-- merge_buckets does not know the rate of the bucket. The merged bucket lacks the greater number of
-- units at the later instant, so at no rate is it fuller than either bucket. Charges before that
-- instant can no longer be refunded. The second result, gap, is the number of milliseconds from the
-- backup's instant to that of the merged bucket.
local function merge_buckets(old, new)
  local used = new.used
  if new.aux ~= old.aux then
    local rest
    used, rest = mul_div(used, old.aux, new.aux)
    used = math.min(most, rest > 0 and used + 1 or used)
  end
  local merged = { at = math.max(old.at, new.at), used = math.max(old.used, used), aux = old.aux, leased = math.max(old.leased, new.leased), rest = '' }
  if merged.at == old.at and merged.used == old.used then
    merged.rest = old.rest
  end
  return merged, math.ceil((merged.at - new.at) / 1000)
end

local function merge_text(key, kind, length, ttl, value)
  local text = call('GET', key)
  if not text then
    set(key, value, ttl)
    return ADDED
  end
  local old, new = parse(text), parse(value)
  if not old or old.at > most or old.used > most or old.aux > most or kind == 'b' and (old.aux < 1 or old.aux >= 4398046511104) then
    return UNREADABLE
  end
  local merged, gap
  if kind == 'b' then
    merged, gap = merge_buckets(old, new)
    ttl = ttl and ttl + gap
  else
    merged = merge_windows(old, new, kind, length)
  end
  if merged.at == old.at and merged.used == old.used and merged.aux == old.aux and merged.leased == old.leased then
    return KEPT
  end
  text = format('%d %d %d', merged.at, merged.used, merged.aux)
  if merged.leased > 0 or merged.rest ~= '' then
    text = format('%s %d%s', text, merged.leased, merged.rest)
  end
  set(key, text, later(key, ttl))
  return RAISED
end

-- merge_log adds marks. A mark that Redis has keeps the greater number of units.
local function merge_log(key, sum_key, length, ttl, value)
  local present, sum, more, alive = call('EXISTS', key) == 1, call('GET', sum_key), 0, false
  if present and sum and not match(sum, '^%d+$') then
    return UNREADABLE
  end
  for at, units in gmatch(value, '(%d+):(%d+)') do
    if at + 0 > now - length then
      alive = true
      local mark = call('ZRANGEBYSCORE', key, at, at)[1]
      local known = mark and match(mark, '^%d+:(%d+)$') or '0'
      if units + 0 > known + 0 then
        more = more + units - known
        if not dry then
          call('ZREMRANGEBYSCORE', key, at, at)
          call('ZADD', key, at, at .. ':' .. units)
        end
      end
    end
  end
  if not alive then
    return OVER
  elseif more == 0 then
    return KEPT
  end
  if not dry then
    ttl = present and later(key, ttl) or ttl
    expire(key, ttl)
    if sum or not present then -- a lost sum is computed again
      set(sum_key, format('%d', (present and sum or 0) + more), ttl)
    end
  end
  return present and RAISED or ADDED
end

-- merge_violations adds the violations of a client, and keeps the newest thousand.
local function merge_violations(key, ttl, value)
  local present, added = call('EXISTS', key) == 1, 0
  for member in gmatch(value, '[^ ]+') do
    if not call('ZSCORE', key, member) then
      added = added + 1
      if not dry then
        call('ZADD', key, match(member, '^0*(%d+)'), member)
      end
    end
  end
  if added == 0 then
    return KEPT
  end
  if not dry then
    expire(key, present and later(key, ttl) or ttl)
    call('ZREMRANGEBYRANK', key, 0, -1001)
  end
  return present and RAISED or ADDED
end

local function merge_penalty(key, ttl, value)
  if value + 0 <= now then
    return OVER
  end
  local old = call('GET', key)
  if old and not match(old, '^%d+$') then
    return UNREADABLE
  elseif old and old + 0 >= value + 0 then
    return KEPT
  end
  set(key, value, old and later(key, ttl) or ttl)
  return old and RAISED or ADDED
end

local function merge(key, next_key, kind, length, expires, value)
  local ttl
  if expires > 0 then
    ttl = expires - now_millis
    if ttl <= 0 then
      return OVER
    end
  end
  local there, want = call('TYPE', key).ok, (kind == 'l' or kind == 'v') and 'zset' or 'string'
  if there ~= 'none' and there ~= want then
    return UNREADABLE
  elseif kind == 'l' then
    return merge_log(key, next_key, length, ttl, value)
  elseif kind == 'v' then
    return merge_violations(key, ttl, value)
  elseif kind == 'p' then
    return merge_penalty(key, ttl, value)
  end
  return merge_text(key, kind, length, ttl, value)
end

local reply, next_key = {}, 1
for i = 2, #ARGV, 4 do
  reply[#reply + 1] = merge(KEYS[next_key], KEYS[next_key + 1], ARGV[i], ARGV[i + 1] + 0, ARGV[i + 2] + 0, ARGV[i + 3])
  next_key = next_key + (ARGV[i] == 'l' and 2 or 1)
end
return reply
