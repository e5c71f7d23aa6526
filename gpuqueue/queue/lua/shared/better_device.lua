-- Is there a better device for the job that this one is about to take? Goes before claim.lua.
--
-- Workers claim by themselves, and the first that looks need not be the one that should have the job. So a device may
-- leave a job to a better one: it rings for that one, and notes at the job (pl) since when it is left. Once that is
-- LEAVE_MS ago anybody takes it: no job waits longer for the sake of its place, whatever became of the better device.
local LEAVE_MS, MOST_LEFT, better_device, leave_to
do
LEAVE_MS, MOST_LEFT = 200, 8 -- so many are left in one claim: each costs three calls
local MOST_LEASES = 32 -- the leases of so many other devices are read at most; this host's come first
local TIE = 1 / 64 -- of this device's memory: nobody is made to wait for less

-- The device of the site that a job of this shape should have in place of `here`, by the order s (spread) or p (pack);
-- nil where none is better by more than a tie. here: {host, device, kind, available, total}
function better_device(here, mem, asks, order, now)
  -- This site's other devices of this kind that take jobs now: {name, host, pool, record, room, available}.
  local function others(host, device, kind, now)
    if learned.site then return learned.site end
    local site = {}
    learned.site = site
    local hosts, drained, kept = call('SMEMBERS', P .. 'hosts'), {}, {}
    table.sort(hosts, function(a, b) return a ~= b and (a == host or (b ~= host and a < b)) end)
    for h = 1, #hosts do
      local records, here = call('HGETALL', key2('dev', hosts[h])), {}
      for i = 1, #records, 2 do
        local total, headroom, foreign, seen, slots, pool, its = parse_record(records[i + 1], records[i])
        if total and records[i] ~= device and its == kind and tonumber(slots) > 0 and math.abs(now - seen) < SEEN_MS then
          here[#here + 1] = {name = records[i], host = hosts[h], pool = pool, record = records[i + 1],
            room = total - headroom - foreign}
        end
      end
      table.sort(here, function(a, b) return a.name < b.name end)
      for i = 1, #here do site[#site + 1] = here[i] end
    end
    if #site == 0 then return site end
    for _, name in ipairs(call('HKEYS', P .. 'drained')) do drained[name] = true end
    for _, name in ipairs(call('HKEYS', P .. 'rsv')) do kept[name] = true end
    local open = {}
    for i = 1, #site do
      if not drained[site[i].name] and not kept[site[i].name] then open[#open + 1] = site[i] end
    end
    learned.site = open
    return open
  end

  local function available_on(other) -- -> bytes, 0 where it has no slot or was not looked at
    if not other.available then
      other.available = 0
      local read = learned.leases_read or 0
      if read < MOST_LEASES then
        learned.leases_read = read + 1
        local free, _, _, slots = promise(other.host, other.name, other.record)
        if slots > 0 then other.available = free end
      end
    end
    return other.available
  end

  local tie, best, most = here.total * TIE, nil, nil
  for _, other in ipairs(others(here.host, here.device, here.kind, now)) do
    local worth = order == 'p' or other.room > here.available + tie -- what it could give at most, before its leases are read
    if worth and other.room >= mem and belongs(asks.pool, asks.wish, asks.want, other.name, other.pool, here.kind) then
      local bytes = available_on(other)
      local gain = order == 'p' and here.available - bytes or bytes - here.available
      if bytes >= mem and gain > tie and (not most or gain > most) then best, most = other.name, gain end
    end
  end
  return best
end

-- Leave a job to another device, if it has not been left for long enough. -> was it left?
function leave_to(device, id, now)
  local left = learned.left or 0 -- how many were, in this claim
  if left == MOST_LEFT then return false end
  local since = tonumber(call('HGET', job_key(id), 'pl') or '')
  if since and (now - since >= LEAVE_MS or now < since) then return false end -- or the clock was set
  if not since then call('HSET', job_key(id), 'pl', string.format('%.0f', now)) end
  ring('for:' .. device)
  learned.left = left + 1
  return true
end
end
