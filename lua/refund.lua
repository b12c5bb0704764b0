-- Refundable charges of a token bucket: dips is a list of { at = INSTANT, missing = PARTS } in
-- order of time, or nil if no charge is refundable. Mirrors core/counter/refund.go, which explains
-- the rules.
--
-- refunds() returns a table of the functions below. It creates them when it is called first, so that
-- a call about other counters does not pay for creating them.
local made_refunds

local function refunds()
  if made_refunds then
    return made_refunds
  end
  local refund, dips_max = {}, 8 -- counter.DipsMax
  made_refunds = refund

  -- The function parse reads the pairs AT MISSING, which follow LEASED.
  function refund.parse(s)
    local dips, length, text = {}, 0, s.rest
    for at, missing in string.gmatch(text, ' (%d+) (%d+)') do
      length = length + #at + #missing + 2
      dips[#dips + 1] = { at = at + 0, missing = missing + 0 }
    end
    if length ~= #text or #dips > dips_max then
      corrupt(s.key, 'want pairs of decimals after what is leased')
    end
    for _, d in ipairs(dips) do
      if d.at < 1 or d.at > 9007199254740992 or d.missing > 9007199254740992 then
        corrupt(s.key, 'a number is beyond 2^53')
      end
    end
    s.dips = dips
  end

  -- The function text returns the dips as they are stored.
  function refund.text(dips)
    local parts = {}
    for i, d in ipairs(dips) do
      parts[i] = format(' %d %d', d.at, d.missing)
    end
    return table.concat(parts)
  end

  -- The function convert converts the dips to parts of this limit's unit, rounded against the
  -- client.
  function refund.convert(s, deepest)
    for _, d in ipairs(s.dips) do
      d.missing = math.min(deepest, (mul_div(d.missing, s.unit, s.aux)))
    end
  end

  -- The function rewind moves future dips to now.
  function refund.rewind(s, now)
    for _, d in ipairs(s.dips) do
      d.at = math.min(d.at, now)
    end
  end

  -- The function dip adds a dip with the parts that are missing now. From these it subtracts the
  -- argument beyond: the parts that are missing because of a lease.
  function refund.dip(s, beyond)
    local missing, at, kept = s.used - beyond, s.now, {}
    if s.at ~= s.now then
      missing = missing - s.refill
    end
    if beyond > 0 then
      at = at + 1 -- charges at this instant count as made before the dip
    end
    if not s.dips then -- the bucket was full after every earlier charge, refundable or not
      kept[1] = { at = s.now, missing = 0 }
    end
    local fill = math.ceil(s.burst * s.unit / s.refill) * s.tick
    for _, d in ipairs(s.dips or {}) do
      at = math.max(at, d.at)
      if d.missing < missing and s.now - d.at < fill then
        while #kept > 0 and kept[#kept].missing >= d.missing do -- a refund has lowered this dip
          kept[#kept] = nil
        end
        kept[#kept + 1] = d
      end
    end
    if #kept == 0 or kept[#kept].at ~= at then
      kept[#kept + 1] = { at = at, missing = missing }
    end
    if #kept > dips_max then
      local nearest = 2
      for i = 3, #kept do
        if kept[i].missing - kept[i - 1].missing < kept[nearest].missing - kept[nearest - 1].missing then
          nearest = i
        end
      end
      kept[nearest].missing = kept[nearest - 1].missing
      table.remove(kept, nearest - 1)
    end
    s.dips = kept
  end

  -- The function give refunds the parts that the bucket still lacks because of the charge. It
  -- returns the corresponding number of tokens, rounded up.
  function refund.give(s, receipt, n)
    local parts, known = math.min(n * s.unit, s.used), false
    for _, d in ipairs(s.dips or {}) do
      known = known or d.at >= receipt
      if d.at > receipt then
        parts = math.min(parts, d.missing)
      end
    end
    if not known then -- the bucket has been full since the charge
      return 0
    end
    s.used = s.used - parts
    for _, d in ipairs(s.dips) do
      if d.at > receipt then
        d.missing = d.missing - parts
      end
    end
    return math.ceil(parts / s.unit)
  end

  return refund
end
