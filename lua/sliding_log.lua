-- Sliding log: a sorted set with one member, a mark, for each instant at which units were charged,
-- with score INSTANT and member "INSTANT:UNITS". A second key, "KEY:n", holds the sum of the units.
-- So a decision reads few marks: those that have expired (or those that have not, if these are
-- fewer), and those for whose expiry a denied request must wait. If the sum is lost, it is computed
-- again. Mirrors core/counter/sliding_log.go.
--
-- sliding_log returns its functions in a table, so that a call without logs does not pay for
-- creating them.
local function sliding_log()
  -- The table gets its final size at once, which saves time in every call.
  local log = { find = false, forget = false, mark = false, reply = false, roll = false, store = false, unmark = false }
  local many, wrong_sum = 10, 'it is not the sum of the log'

  local function parse(s, member)
    local at, units = match(member, '^(%d+):(%d+)$')
    if not at or at + 0 > 9007199254740992 or units + 0 > 9007199254740992 or units + 0 < 1 then
      corrupt(s.key, 'want members INSTANT:UNITS')
    end
    return at + 0, units + 0
  end

  -- The function total parses each distinct number of units once, because thousands of marks can
  -- have the same number. Today's instants have 16 digits.
  local function total(s, members)
    local sum, parsed = 0, {}
    for i = 1, #members do
      local text = match(members[i], '^:(%d+)$', 17)
      local units = text and parsed[text]
      if not units then
        local _
        _, units = parse(s, members[i])
        if text then
          parsed[text] = units
        end
      end
      sum = sum + units
    end
    return sum
  end

  -- The function read_sum returns the sum, or nil if it is lost.
  local function read_sum(s)
    local sum = call('GET', s.sum_key)
    if not sum then
      return nil
    end
    if not string.find(sum, '^%d+$') or sum + 0 > 9007199254740992 then
      corrupt(s.sum_key, 'want a decimal')
    end
    return sum + 0
  end

  -- The function expire subtracts many expired marks from the sum, and counts them in gone. It
  -- reads either these marks or those that stay, whichever are fewer. Otherwise each log of which
  -- nearly all marks expire at once would delay the calls of other clients by milliseconds.
  local function expire(s, horizon)
    local text = format('%d', horizon)
    local gone, stay = call('ZCOUNT', s.key, '-inf', text), call('ZCOUNT', s.key, '(' .. text, '+inf')
    if stay < gone then
      local sum = s.used
      s.used = total(s, call('ZRANGE', s.key, gone, -1))
      if sum - s.used < gone - s.gone then
        corrupt(s.sum_key, wrong_sum)
      end
    else
      s.used = s.used - total(s, call('ZRANGE', s.key, s.gone, gone - 1))
    end
    s.gone = gone
  end

  -- The function walk calls visit with each mark from the given rank on, beginning with the oldest
  -- or the newest, until visit returns true. The function walk reads the marks in growing chunks,
  -- because most decisions need one mark, and a long wait needs many.
  local function walk(s, first, newest_first, visit)
    local size = 2
    while true do
      local from, to = first, first + size - 1
      if newest_first then
        from, to = -1 - to, -1 - from
      end
      local members = call('ZRANGE', s.key, from, to)
      for i = 1, #members do
        if visit(parse(s, members[newest_first and #members + 1 - i or i])) then
          return
        end
      end
      if #members < size then
        return
      end
      first, size = first + size, math.min(size * 4, 256)
    end
  end

  -- The function scan subtracts expired marks from the sum and finds the oldest mark that stays.
  -- The variable gone counts the expired marks. The function also computes passes_at, the instant
  -- at which enough of the oldest marks will have expired to admit the cost; 0 if the cost is
  -- admitted now or never. The scan starts at the end of the log from which fewer units must be
  -- read, so that a denial by a limit that was lowered does not read all marks.
  local function scan(s)
    local horizon, lacking, keeps = s.now - s.window, 0, s.count - s.need
    local function visit(at, units)
      if at <= horizon then
        s.used, s.gone = s.used - units, s.gone + 1
        return s.gone == many -- many is the number of marks in walk's first two chunks
      end
      if s.oldest == 0 then
        s.oldest = math.min(at, s.now)
        if s.need > 0 and keeps >= 0 then
          lacking = s.used - keeps
        end
        if lacking > keeps then
          return true
        end
      end
      if lacking > 0 then
        lacking = lacking - units
        if lacking <= 0 then
          s.passes_at = math.min(at, s.now) + s.window
        end
      end
      return lacking <= 0
    end
    walk(s, 0, false, visit)
    if s.gone == many then
      expire(s, horizon)
      walk(s, s.gone, false, visit)
    end
    if lacking > 0 and lacking > keeps then
      walk(s, 0, true, function(at, units)
        keeps = keeps - units
        if keeps < 0 then
          lacking, s.passes_at = 0, math.min(at, s.now) + s.window
        end
        return keeps < 0
      end)
    end
    if lacking > 0 or s.used < 0 or (s.oldest == 0) ~= (s.used == 0) then
      corrupt(s.sum_key, wrong_sum)
    end
  end

  -- The function roll reads everything that the decision can need. The variables newest_at and
  -- newest_units hold the newest mark. If it has expired, so have all others: emptied is then set,
  -- and no other mark is read. If the clock went back by more than a window, gathered is set, and
  -- all future marks count as one mark at now.
  function log.roll(s, now)
    s.used, s.gone, s.oldest, s.passes_at, s.newest_at = 0, 0, 0, 0, 0
    local newest = call('ZRANGE', s.key, -1, -1)[1]
    if newest then
      local sum = read_sum(s)
      s.newest_at, s.newest_units = parse(s, newest)
      if s.newest_at <= now - s.window then
        if sum and sum < s.newest_units then
          corrupt(s.sum_key, wrong_sum)
        end
        s.emptied, s.write, s.room = true, true, s.count
        return
      end
      if not sum then
        sum, s.recounted = total(s, call('ZRANGE', s.key, 0, -1)), true
      end
      s.used = sum
      if s.newest_at > now + s.window then
        s.newest_at, s.gathered = now, true
        s.newest_units = total(s, call('ZRANGEBYSCORE', s.key, format('%d', now), '+inf'))
      elseif s.newest_at > now then
        s.now = s.newest_at
      end
      scan(s)
      s.write = s.gone > 0 or s.gathered or s.recounted
    end
    if not newest then
      note_new(s)
    end
    s.room = s.count - s.used
  end

  -- The function find reads the mark that a receipt names. It must be called before anything is
  -- written.
  function log.find(s, receipt)
    s.found_at, s.found_units = receipt, 0
    if s.oldest == 0 or receipt < s.oldest or receipt > s.newest_at then
      return
    end
    if receipt == s.newest_at then
      s.found_units = s.newest_units
      return
    end
    local text = format('%d', receipt)
    local member = call('ZRANGEBYSCORE', s.key, text, text)[1]
    if member then
      local _, units = parse(s, member)
      s.found_units = units
    end
  end

  -- The function mark charges n units at the slot's instant.
  function log.mark(s, n)
    if s.oldest == 0 then
      s.oldest, s.newest_at = s.now, 0
    end
    if s.newest_at == s.now then
      s.newest_units, s.replaced = s.newest_units + n, true
    else
      s.previous_at, s.previous_units = s.newest_at, s.newest_units
      s.newest_at, s.newest_units = s.now, n
    end
    s.used, s.marked = s.used + n, true
  end

  -- The function unmark refunds units to the mark that find has read, and returns the number of
  -- units.
  function log.unmark(s, n)
    n = math.min(n, s.found_units)
    s.used, s.found_left = s.used - n, s.found_units - n
    return n
  end

  local function add(s, at, units)
    local text = format('%d', at)
    call('ZADD', s.key, text, format('%s:%d', text, units))
  end

  -- join merges the mark before the newest into the newest if the memory is full, so the log does
  -- not grow. The units of the replaced mark then expire later, and can no longer be refunded.
  local function join(s)
    local text = format('%d', s.previous_at)
    call('ZREMRANGEBYSCORE', s.key, text, text)
    s.newest_units = s.newest_units + s.previous_units
    if s.oldest == s.previous_at then
      s.oldest = s.newest_at
    end
  end

  -- The function store writes the sum first, because that write fails if the memory is full. It
  -- returns the result of set.
  function log.store(s, ttl)
    if s.used > 0 and set(s.sum_key, format('%d', s.used), ttl) then
      return true
    end
    if full and s.gone == 0 and not s.gathered and (s.previous_at or 0) > 0 then
      join(s)
    end
    if s.emptied then
      call('DEL', s.key)
    elseif s.gone > 0 then
      call('ZREMRANGEBYRANK', s.key, 0, s.gone - 1)
    end
    if s.gathered or s.replaced then
      call('ZREMRANGEBYSCORE', s.key, format('%d', s.now), '+inf')
    end
    if s.gathered or s.marked then
      add(s, s.newest_at, s.newest_units)
    end
    if s.found_left and s.found_left < s.found_units then
      local text = format('%d', s.found_at)
      call('ZREMRANGEBYSCORE', s.key, text, text)
      if s.found_left > 0 then
        add(s, s.found_at, s.found_left)
      elseif s.found_at == s.oldest then
        s.oldest = (call('ZRANGE', s.key, 0, 0, 'WITHSCORES')[2] or 0) + 0
      end
    end
    if s.used == 0 then
      call('DEL', s.sum_key)
    else
      call('PEXPIRE', s.key, format('%d', ttl))
    end
  end

  -- The function forget deletes the log and returns its reply.
  function log.forget(s, now)
    call('DEL', s.key, s.sum_key)
    return format('%d %d 0 0 0', now, s.used)
  end

  function log.reply(s, granted)
    return format('%d %d %d %d %d', s.now, granted, s.used, s.oldest, s.passes_at)
  end

  return log
end
