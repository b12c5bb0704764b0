-- Penalty: a sorted set with one member for each violation of a client, with score AT and member
-- "AT-UNTIL-ID". The numbers have 16 digits, so that members of one instant are ordered by UNTIL. A
-- second key, "KEY:until", holds the end of the penalty in force; an admitted call reads nothing
-- else. Mirrors core/counter/penalty.go.
--
-- The function penalties returns the functions that every call with penalties needs. Creating
-- functions costs as much as reading a counter, so penalty_records creates the other functions only
-- for a call that is denied, or that has checks with operations other than take.

local function penalty_records()
  local most = 1000 -- counter.ViolationsMax
  -- These are repeated from take.lua, because passing them would slow down every call.
  local SLIDING_WINDOW, SLIDING_LOG, TOKEN_BUCKET = 2, 3, 4
  local TAKE, UP_TO, RESET = 0, 1, 5

  local function parse(s, member)
    local at, until_at, id = match(member, '^(%d+)%-(%d+)%-(%d+)$')
    if not at then
      corrupt(s.key, 'want members AT-UNTIL-ID')
    end
    at, until_at, id = at + 0, until_at + 0, id + 0
    if at > 9007199254740992 or until_at > 9007199254740992 or id > 9007199254740992 or until_at < at then
      corrupt(s.key, 'a number of a violation is out of bounds')
    end
    return at, until_at, id
  end

  local function member(at, until_at, id)
    return format('%016d-%016d-%016d', at, until_at, id)
  end

  -- The function gather moves future violations to now, and drops expired ones.
  local function gather(s, now)
    local members, known = {}, {}
    for _, text in ipairs(call('ZRANGE', s.key, 0, -1)) do
      local at, until_at, id = parse(s, text)
      if at > now then
        at, until_at = now, now + (until_at - at)
      end
      text = member(at, until_at, id)
      if at > now - s.window and not known[text] then
        known[text] = true
        members[#members + 1] = text
      end
    end
    table.sort(members)
    s.members = members
  end

  -- The function remember counts the violations that have not expired.
  local function remember(s, now)
    local newest = call('ZRANGE', s.key, -1, -1)[1]
    if not newest then
      return
    end
    s.newest_at = parse(s, newest)
    if s.newest_at > now + s.window then -- the clock went back by more than a window
      s.newest_at = now
      gather(s, now)
      s.violations = #s.members
    else
      s.violations = call('ZCOUNT', s.key, format('(%d', now - s.window), '+inf')
    end
  end

  -- The function chunk returns the members from the rank first to the rank last; rank 0 is the
  -- newest. The newest member comes last.
  local function chunk(s, first, last)
    if not s.members then
      return call('ZRANGE', s.key, -1 - last, -1 - first)
    end
    local part, n = {}, #s.members
    for i = math.max(1, n - last), n - first do
      part[#part + 1] = s.members[i]
    end
    return part
  end

  -- The function suppress removes those violations from the table fresh that are already stored and
  -- whose wait has not ended. The table is indexed by ID, and pending is its number of entries. The
  -- function starts with the newest, where the violations of a client that is denied repeatedly
  -- are.
  local function suppress(s, now, fresh, pending)
    local first, size, horizon = 0, 4, now - s.window
    while pending > 0 do
      local members = chunk(s, first, first + size - 1)
      for i = #members, 1, -1 do
        local at, until_at, id = parse(s, members[i])
        if at <= horizon then
          return
        end
        if fresh[id] and until_at > now then
          fresh[id], pending = nil, pending - 1
          if pending == 0 then
            return
          end
        end
      end
      if #members < size then
        return
      end
      first, size = first + size, math.min(size * 4, 256)
    end
  end

  -- The function fades returns the first instant, in the window that begins at start, at which the
  -- weighted previous window is at most room; nil if there is none.
  local function fades(s, start, previous, room)
    if room < 0 then
      return nil
    end
    if previous <= room then
      return start
    end
    local left, rest = mul_div(room + 1, s.window, previous)
    if rest == 0 then
      left = left - 1
    end
    return left > 0 and start + s.window - left or nil
  end

  -- passes_at returns the instant at which a denied check would be admitted; nil if never.
  local function passes_at(s)
    if s.need > (s.burst or s.count) then
      return nil
    elseif s.algorithm == TOKEN_BUCKET then
      return s.at + math.ceil((s.used - (s.burst - s.need) * s.unit) / s.refill) * s.tick
    elseif s.algorithm == SLIDING_LOG then
      return s.passes_at
    elseif s.algorithm == SLIDING_WINDOW then
      return fades(s, s.at, s.aux, s.count - s.need - s.used) or fades(s, s.at + s.window, s.used, s.count - s.need) or
        s.at + 2 * s.window
    end
    return s.ends or s.at + s.window
  end

  -- The function record stores the violations of a denied call, and imposes a penalty if they reach
  -- the threshold.
  local function record(p, number, slots, now)
    local fresh, order, longest = {}, {}, 0
    for _, s in ipairs(slots) do
      local passes = s.guard == number and s.refused and not s.shadow and s.op <= UP_TO and passes_at(s)
      if passes then
        longest = math.max(longest, passes - now)
        if not fresh[s.violation] then
          fresh[s.violation], order[#order + 1] = passes, s.violation
        end
      end
    end
    suppress(p, now, fresh, #order)
    p.added = {}
    for _, id in ipairs(order) do
      if fresh[id] then
        p.added[#p.added + 1] = member(now, fresh[id], id)
      end
    end
    p.over = p.violations + #p.added - most
    p.violations = math.min(p.violations + #p.added, most)
    if #p.added > 0 and p.violations >= p.count then
      local step = math.min(p.violations - p.count, p.steps - 1)
      local multiplier = struct.unpack('<d', ARGV[1], p.steps_at + 8 * step)
      p.until_at = now + math.min(longest * multiplier, p.longest)
      p.refused, p.until_write = true, true
    end
  end

  -- The function judge reads the violations that the call's penalties need. The function runs after
  -- the call was admitted, denied by its checks, or denied by a penalty (penalized).
  local function judge(slots, now, admitted, penalized)
    for number, p in ipairs(slots) do
      if p.steps and not (admitted and p.op == TAKE) then
        remember(p, now)
        if p.op == TAKE and not penalized and not p.refused then
          record(p, number, slots, now)
        end
      end
    end
  end

  local function add(s, members)
    for _, text in ipairs(members) do
      call('ZADD', s.key, match(text, '^0*(%d+)'), text)
    end
  end

  -- is_full reports whether the memory of Redis is full. Violations are not recorded then, and the
  -- denial stands. The write changes nothing.
  local function is_full(s)
    local reply = try('SET', s.until_key, s.until_text or '0', 'XX', 'KEEPTTL')
    return reply and reply.err
  end

  local function store(s, now, grace)
    if s.op == RESET then
      call('DEL', s.key, s.until_key)
      return
    end
    local added = s.added or {}
    if full or (s.until_write or #added > 0 or s.members) and is_full(s) then
      return
    end
    if s.until_write then
      call('SET', s.until_key, format('%d', s.until_at), 'PX', format('%d', math.ceil((s.until_at - now) / 1000) + grace))
    end
    if s.members then
      call('DEL', s.key)
      add(s, s.members)
    elseif #added > 0 or s.until_write and s.newest_at then
      call('ZREMRANGEBYSCORE', s.key, '-inf', format('%d', now - s.window))
    end
    if #added == 0 and not s.members then
      return
    end
    if s.until_over and not s.until_write then
      call('DEL', s.until_key)
    end
    add(s, added)
    if #added > 0 and s.over > 0 then
      call('ZREMRANGEBYRANK', s.key, 0, s.over - 1)
    end
    local newest = math.max(now, s.newest_at or now)
    call('PEXPIRE', s.key, format('%d', math.ceil((newest + s.window - now) / 1000) + grace))
  end

  return judge, function(s, now, grace)
    store(s, now, grace)
    if s.op == RESET then
      return format('0 0 %d', s.violations)
    end
    return format('%d %d 0', s.refused and s.until_at or 0, s.violations)
  end
end

local function penalties()
  local penalty = {}
  local plain = true -- the call has only takes, and no penalty is in force

  -- The function enforce determines whether a penalty is in force. The function also shortens a
  -- penalty that is longer than the policy allows. The next write deletes a penalty that has ended,
  -- so that it does not return if the clock goes back.
  function penalty.enforce(s, now)
    local text = call('GET', s.until_key)
    s.until_at, s.violations = 0, 0
    if s.op ~= 0 then
      plain = false
    end
    if not text then
      return
    end
    if not string.find(text, '^%d+$') or text + 0 > 9007199254740992 then
      corrupt(s.until_key, 'want a decimal')
    end
    s.until_text = text
    s.until_at = text + 0
    local latest = now + s.longest
    if s.until_at > latest then
      s.until_at, s.until_write = latest, true
    end
    s.refused = s.until_at > now
    s.until_over = not s.refused
    plain = plain and not s.refused
  end

  -- The function judge updates the penalties after the call was admitted or denied. It returns a
  -- function that writes one penalty and returns its part of the reply.
  function penalty.judge(slots, now, admitted, penalized)
    if admitted and plain then
      return function(s)
        return '0 0 0'
      end
    end
    local judge, finish = penalty_records()
    judge(slots, now, admitted, penalized)
    return finish
  end

  return penalty
end
