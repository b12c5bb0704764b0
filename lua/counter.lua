-- A counter of any algorithm but the sliding log is one string of decimals, so that GET shows it: AT USED AUX, the
-- core.State of core/decide.go, and LEASED if units may be out on lease; of a token bucket whose charges may come back also
-- (LEASED is 0 if none are) AT MISSING of each dip. The tables that the functions here and in the algorithms' files pass
-- around are core.Slot and core.Limit in one: key, cost, need, count, window, ttl (milliseconds), now (the effective
-- instant), at, used, aux, leased (nil: nothing is), rest (the dips as they are stored, nil: none), unit (parts per unit),
-- room (units available), write, text (the counter as it was), age (nil: the check is of no lease).

local call, format, match = redis.call, string.format, string.match

-- corrupt ends the call before anything is written: a counter that cannot be read refuses and admits nobody. Errors are
-- logged, so it names the rule, which is what stands before the brace, and not the client.
local function corrupt(key, why)
  local rule = string.gsub(match(key, '^(.-){') or '', '[%c\128-\255]', '?')
  error(redis.error_reply('CORRUPT counter of "' .. rule .. '": ' .. why), 0)
end

-- read_counter fills in at, used, aux, leased and rest, and text, which is what the caller is told: of dips only if it gives
-- back. No counter is a fresh one.
local function read_counter(s)
  local text = call('GET', s.key)
  if not text then
    s.text, s.at, s.used, s.aux = '0 0 0', 0, 0, 0
    return
  end
  local at, used, aux = match(text, '^(%d+) (%d+) (%d+)$')
  if not at then
    local leased, rest
    at, used, aux, leased, rest = match(text, '^(%d+) (%d+) (%d+) (%d+)(.*)$')
    if not at or rest ~= '' and s.algorithm ~= 4 then -- a token bucket; it reads them
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
      if s.op == 3 then -- gives back
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

-- write_counter stores it for ttl milliseconds.
local function write_counter(s, ttl)
  local text = format('%d %d %d', s.at, s.used, s.aux)
  if s.leased or s.rest then
    text = format('%s %d%s', text, s.leased or 0, s.rest or '')
  end
  call('SET', s.key, text, 'PX', format('%d', ttl))
end
