-- A counter of any algorithm but the sliding log is one string of decimal numbers, so that GET
-- shows it: AT USED AUX, as in counter.State. LEASED follows if units might be leased. If charges
-- of a token bucket might be refunded, LEASED (0 if no unit is leased) and the pair AT MISSING of
-- each dip follow.
--
-- The functions of all files pass tables that combine counter.Slot and counter.Limit. Their fields:
-- key, cost, need, count, window, ttl (milliseconds), now (the effective instant), at, used, aux,
-- leased (nil if no units are leased), rest (the dips as stored, nil if there are none), unit
-- (parts per unit), room (units available), write, text (the counter before the call), age (nil:
-- the check is not for a lease).

local call, try, format, match = redis.call, redis.pcall, string.format, string.match

-- A Redis whose memory is full (maxmemory with noeviction) rejects the first write of a script if
-- that write may need memory. After a first write that needs none, it accepts all others. So
-- invented names could fill the memory, and then nothing would be counted. A call whose counters
-- all exist is therefore executed even then: its first write is repeated after one that needs no
-- memory. A call that charges a new counter fails, and its error names that counter. The memory
-- grows no further, apart from a few bytes for longer numbers.
local new_counters = 0 -- counters that the call might charge and that do not exist
local full = false     -- the memory is full, new_counters is 0, and a counter was written

-- The function note_new records that a counter does not exist, if the call might charge it.
local function note_new(s)
  if s.op == 1 or s.cost > 0 and (s.op == 0 or s.op == 4) then
    s.new, new_counters = true, new_counters + 1
  end
end

-- The function set stores a text for ttl milliseconds. If the memory is full and the call has new
-- counters, it writes nothing and returns true.
local function set(key, text, ttl)
  ttl = format('%d', ttl)
  if not full then
    local failed = try('SET', key, text, 'PX', ttl).err
    if not failed then
      return false
    end
    if new_counters > 0 and string.find(failed, 'OOM ', 1, true) then
      return true
    end
    if new_counters == 0 then
      call('PEXPIRE', key, ttl)
      full = true
    end
  end
  call('SET', key, text, 'PX', ttl)
  return false
end

-- The function no_memory returns the error that names the new counters by their indices in KEYS.
local function no_memory(slots)
  local indices = {}
  for _, s in ipairs(slots) do
    for i = 1, #KEYS do
      if s.new and KEYS[i] == s.key then
        indices[#indices + 1] = i
      end
    end
  end
  return redis.error_reply('OOM new counters ' .. table.concat(indices, ','))
end

-- corrupt ends the call before anything is written, because a counter that cannot be read neither
-- admits nor denies a request. Errors are logged, so the message names the rule, which precedes the
-- brace, but not the client.
local function corrupt(key, why)
  local rule = string.gsub(match(key, '^(.-){') or '', '[%c\128-\255]', '?')
  error(redis.error_reply('CORRUPT counter of "' .. rule .. '": ' .. why), 0)
end

-- read_counter reads at, used, aux, leased, rest and text. The field text is part of the reply, and
-- includes the dips only for a refund. A counter that does not exist is read as a new one.
local function read_counter(s)
  local text = call('GET', s.key)
  if not text then
    note_new(s)
    s.text, s.at, s.used, s.aux = '0 0 0', 0, 0, 0
    return
  end
  local at, used, aux = match(text, '^(%d+) (%d+) (%d+)$')
  if not at then
    local leased, rest
    at, used, aux, leased, rest = match(text, '^(%d+) (%d+) (%d+) (%d+)(.*)$')
    if not at or rest ~= '' and s.algorithm ~= 4 then -- only a token bucket parses the rest
      corrupt(s.key, 'want three or four decimals')
    end
    text, s.leased = format('%s %s %s,%s', at, used, aux, leased), leased + 0
    if s.leased > 9007199254740992 then
      corrupt(s.key, 'a number is beyond 2^53')
    elseif s.leased == 0 then
      s.leased = nil
    end
    if rest ~= '' then
      s.rest = rest
      if s.op == 3 then -- a refund
        text = text .. string.gsub(rest, ' ', ',')
      end
    end
  end
  at, used, aux = at + 0, used + 0, aux + 0
  if at > 9007199254740992 or used > 9007199254740992 or aux > 9007199254740992 then
    corrupt(s.key, 'a number is beyond 2^53')
  end
  s.text, s.at, s.used, s.aux = text, at, used, aux
end

-- write_counter stores the counter for ttl milliseconds. It returns the result of set.
local function write_counter(s, ttl)
  local text = format('%d %d %d', s.at, s.used, s.aux)
  if s.leased or s.rest then
    text = format('%s %d%s', text, s.leased or 0, s.rest or '')
  end
  return set(s.key, text, ttl)
end
