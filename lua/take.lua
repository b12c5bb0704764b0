-- This script decides many checks of many counters in one step: it charges all of them or none.
-- Mirrors core/counter/decide.go.
--
--  KEYS     for each check its key. A sliding log has two: the log and its sum. A penalty has two:
--           its violations and its end. A denial by another server has none.
-- ARGV[1]  the plan, packed: the instant to decide at, or 0 for Redis' own clock, then for each
-- check
--           BB      algorithm, operation (+ 8 if its denial does not deny the call, + 16 if its
--                   denial may be a violation, + 32 if it is for a lease, + 64 if its charge may be
--                   refunded)
--           dddd    cost, count, window in microseconds, time to live in milliseconds;
--                   for a penalty 0, the threshold, the window and the longest penalty in
--                   microseconds; for a denial by another server 0, its wait in microseconds, 0, 0
--           dd      violation: the index of its penalty's check in this call, from 1; its ID
--           d       lease: its age in microseconds
--           dddd    token bucket: burst, parts per token, parts per tick, tick in microseconds
--           dddd    calendar window: its boundaries
--           d, d…   penalty: the number of multipliers, and each of them
--           ddd     up to n: min, max, share in thousandths
--           d       refund: the receipt
--  reply    decimals: now, whether the call is admitted (1 or 0), then for each check
--           the counter before the call, AT USED AUX; with ,LEASED if units were leased, and then
--           with the ,AT,MISSING of dips for a refund;
--           for a sliding log the effective instant, units granted, units in the log, its oldest
--           instant (0 if it is empty), and the instant at which the check would be admitted (0 if
--           it is now, or never can be);
--           for a penalty the instant at which it ends (0 if none is in force), the number of
--           violations stored, and how many a reset deleted;
--           for a denial by another server 0.
--	An error that begins with STALE means that now is outside a calendar's boundaries. The error OOM
--	new counters I,J means that the memory is full, and that keys I and J (from 1) do not exist.
--
-- The script reads everything before it writes anything, so a call that fails has changed nothing.

local FIXED_WINDOW, SLIDING_WINDOW, SLIDING_LOG, TOKEN_BUCKET, CALENDAR, PENALTY, ELSEWHERE = 1, 2, 3, 4, 5, 6, 7
local TAKE, UP_TO, LOOK, GIVE_BACK, FORCE, RESET, SHADOW, GUARDED, LEASED, REFUNDABLE = 0, 1, 2, 3, 4, 5, 8, 16, 32,
  64

local unpack_plan = struct.unpack
local plan = ARGV[1]
local now, position = unpack_plan('<d', plan)
local grace = 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  grace = 86400000 -- only tests pass an instant, and their counters must not expire by the real clock
end

local slots, admitted, next_key = {}, true, 1
local log, lease, penalty, penalized

-- Decide.
while position <= #plan do
  local algorithm, op, cost, count, window, ttl
  algorithm, op, cost, count, window, ttl, position = unpack_plan('<BBdddd', plan, position)
  local s = {
    key = KEYS[next_key], algorithm = algorithm, op = op, cost = cost, need = 0, count = count, window = window, ttl = ttl,
    now = now, at = 0, used = 0, aux = 0, unit = 1, room = 0, text = false, write = false, refused = false, shadow = false,
  }
  next_key = next_key + 1
  slots[#slots + 1] = s
  if op >= SHADOW then
    if op >= REFUNDABLE then
      op, s.refundable = op - REFUNDABLE, true
    end
    local leased = op >= LEASED
    if leased then
      op = op - LEASED
    end
    if op >= GUARDED then
      op = op - GUARDED
      s.guard, s.violation, position = unpack_plan('<dd', plan, position)
    end
    if op >= SHADOW then
      op, s.shadow = op - SHADOW, true
    end
    if leased then
      s.age, position = unpack_plan('<d', plan, position)
      lease = lease or leasing()
    end
    s.op = op
  end
  if algorithm == TOKEN_BUCKET then
    s.burst, s.unit, s.refill, s.tick, position = unpack_plan('<dddd', plan, position)
  elseif algorithm == CALENDAR then
    s.bounds = { unpack_plan('<dddd', plan, position) }
    position = table.remove(s.bounds)
  elseif algorithm == PENALTY then
    s.longest = ttl
    s.steps, s.steps_at = unpack_plan('<d', plan, position)
    position = s.steps_at + 8 * s.steps
  end
  if op == UP_TO then
    s.need, s.most, s.share, position = unpack_plan('<ddd', plan, position)
  elseif op == GIVE_BACK then
    s.receipt, position = unpack_plan('<d', plan, position)
  elseif op < FORCE then
    s.need = cost > 0 and cost or 1
  end

  if algorithm == TOKEN_BUCKET then
    roll_bucket(s, now)
  elseif algorithm == SLIDING_WINDOW then
    roll_sliding(s, now)
  elseif algorithm == FIXED_WINDOW then
    roll_window(s, now, false)
  elseif algorithm == CALENDAR then
    if roll_calendar(s, now) then
      return redis.error_reply('STALE calendar boundaries') -- Redis before 7 cannot raise an error that begins like this
    end
  elseif algorithm == PENALTY then
    penalty = penalty or penalties()
    s.until_key = KEYS[next_key]
    next_key = next_key + 1
    penalty.enforce(s, now)
    if s.refused and op == TAKE and not s.shadow then
      admitted, penalized = false, true
    end
  elseif algorithm == ELSEWHERE then
    next_key = next_key - 1
    s.ends, s.refused, s.text, admitted = now + count, true, '0', false
  else
    log = log or sliding_log()
    s.sum_key = KEYS[next_key]
    next_key = next_key + 1
    log.roll(s, now)
    if op == GIVE_BACK then
      log.find(s, s.receipt)
    end
  end

  if s.leased then
    lease = lease or leasing()
    lease.roll(s)
  end
  if s.need > 0 and s.room < s.need and (cost > 0 or op == UP_TO) then
    s.refused = true
    if not s.shadow and op ~= LOOK then
      admitted = false
    end
  end
end

if penalty then
  penalty = penalty.judge(slots, now, admitted, penalized)
end

-- Charge, refund and write.
local reply = { format(admitted and '%d 1' or '%d 0', now) }
for i = 1, #slots do
  local s = slots[i]
  local op, algorithm, amount, granted, beyond = s.op, s.algorithm, 0, 0, 0
  if op == GIVE_BACK then
    if s.receipt > 0 and not s.beyond then -- the refund would restore units that another limit charged
      if algorithm == TOKEN_BUCKET then
        granted = refund(s, s.receipt, s.age and lease.left(s) or s.cost)
      elseif algorithm == SLIDING_LOG then
        granted = log.unmark(s, s.cost)
      else
        granted = uncount(s, s.receipt, s.cost, algorithm == SLIDING_WINDOW)
      end
    end
  elseif op == FORCE then
    amount = s.beyond and 0 or math.min(s.cost, math.max(0, s.room + s.count))
  elseif admitted and not s.refused then
    if op == TAKE then
      amount = s.cost
    elseif op == UP_TO and s.room >= s.need then -- the units needed, and a share of the rest
      amount = math.min(s.room, s.cost)
      local spare = (s.age and lease.room(s) or s.room) - amount
      if spare > 0 then
        amount = amount + math.min(s.most - amount, math.floor(spare * s.share / 1000))
      end
      if s.age and amount > s.cost then
        beyond = lease.grant(s)
      end
    end
  end
  if amount > 0 then
    granted = amount
    if algorithm == SLIDING_LOG then
      log.mark(s, amount)
    elseif algorithm == TOKEN_BUCKET then
      drain(s, amount, beyond)
    else
      s.used = s.used + amount
    end
  end
  if algorithm == PENALTY then
    s.text = penalty(s, now, grace)
  elseif op == RESET then
    if algorithm == SLIDING_LOG then
      s.text = log.forget(s, now)
    else
      call('DEL', s.key)
    end
  elseif granted > 0 or s.write then
    local ttl = s.ttl + grace
    if s.now > now then
      ttl = ttl + math.ceil((s.now - now) / 1000)
    end
    local unwritten
    if algorithm == TOKEN_BUCKET then
      unwritten = write_bucket(s, ttl)
    elseif algorithm == SLIDING_LOG then
      unwritten = log.store(s, ttl)
    else
      unwritten = write_counter(s, ttl)
    end
    if unwritten and granted > 0 then -- without a charge or a refund, the write is not necessary
      return no_memory(slots)
    end
  end
  reply[i + 1] = s.text or log.reply(s, granted)
end
return table.concat(reply, ' ')
