-- Takes a job off the queue and starts its run. Part of claim.lua, after claim_room.lua.

local function spec_for(id, array)
  if not array then return call('GET', key2('s', id)) end
  return spec_of(id, array)
end

-- Answer a claim that was sent twice because the reply was lost, unless another run has the job by now. The device's
-- leases (from HGETALL) have the nonce of their claim.
local function answer_again(leases)
  local mark, id = ':' .. nonce, nil
  for i = 2, #leases, 2 do
    if string.sub(leases[i], -#mark) == mark then id = leases[i - 1] end
  end
  if not id then return nil end
  local j = call('HMGET', job_key(id), F.state, F.token, F.attempts, F.mem_bytes, F.devices, F.claimed_ms, F.array,
    F.index, F.shape)
  if j[1] ~= 'starting' or j[2] ~= (j[3] or '') .. '.' .. nonce then return {} end
  local mem = j[4]
  if wants_alone(j[9] or '') and j[5] then mem = string.format('%.0f', allocated_to(id, j[5]) or 0) end
  return {id, j[2], spec_for(id, j[7]), j[3], mem, j[5], j[6], j[7] or nil, j[8] or nil}
end

local function take(id, priority, user, shape, devices, how)
  local j = call('HMGET', job_key(id), F.state, F.mem_bytes, F.attempts, F.losses, F.started_ms, F.left, F.array,
    F.index, F.left_since_ms, F.reserved)
  local array, index, left = j[7] or nil, j[8] or nil, nil
  if j[10] then unreserve(id) end
  if j[1] == 'queued' and j[6] then -- the rest of the array stays in the queue
    if j[9] then call('HDEL', job_key(id), F.left_since_ms) end
    array = id
    id, index, left = split(array, j[6], now)
    if not id then return nil end
  else
    leave_queue(id, priority, user, shape)
    if j[1] ~= 'queued' then return nil end -- a stale entry, removed above
  end
  local asks = asked_by(shape)
  local limit_s, n, alone = asks.limit_s, asks.n, asks.want.alone
  -- Fields lost from a damaged entry come from the shape, or start over: nothing below may fail half-way.
  local mem = string.match(j[2] or '', '^%d+$') or string.match(shape, '^%d+')
  local attempt, losses = to_count(j[3]) + 1, to_count(j[4])
  local token = attempt .. '.' .. nonce
  local names = table.concat(devices, ',')
  local spec = spec_for(id, array)
  if limit_s > 0 then -- the shape's limit is rounded up; quotes in strings of a spec are escaped
    local _, at = string.find(spec or '', '"time_limit_s":', 1, true)
    limit_s = math.min(limit_s, at and tonumber(string.match(spec, '^[%d.]+', at + 1)) or limit_s)
  end
  local usual_s = call('HGET', P .. 'usual', user) or ''
  local deposit_s = math.min(tonumber(usual_s) or DEPOSIT_S, DEPOSIT_S)
  if limit_s > 0 then deposit_s = math.min(deposit_s, limit_s) end
  local rate, held = n * math.max(tonumber(mem) / total, 1 / all_slots), mem
  local busy = (asks.want.order or meta().order) == 'l' and busy_in(spec) or nil
  if alone then -- exclusive: everything each device can allocate; reported is the smallest
    rate, mem = n, string.format('%.0f', charged_on(devices, asks.want))
  end
  if j[5] or j[9] then call('HDEL', job_key(id), F.started_ms, F.start_report, F.left_since_ms, F.preempted_by,
    F.preempt_until_ms) end
  if cache.limits_set then drop_reserved_room(user, shape) end
  call('HSET', job_key(id), F.state, 'starting', F.attempts, attempt, F.token, token, F.worker, worker,
    F.host, host, F.devices, names,
    F.claimed_ms, stamp, F.claimed_fair_ms, fair_ms(now), F.deposit_s, deposit_s, F.usual_s, usual_s,
    F.rate, rate, F.start_kind, how, F.reason, '')
  local ends = limit_s > 0 and string.format('%.0f', now + limit_s * 1000) or '0'
  for i = 1, #devices do
    if alone then held = string.format('%.0f', free_on(devices[i])) end
    call('HSET', key2('dl', devices[i]), id, lease_of(held, ends, alone, busy, nonce))
  end
  call('ZADD', P .. 'leases', now + lease_ms, id)
  count_run(id, user, mem, names)
  charge(user, deposit_s * rate * weight(fair_ms(now)), cache.any_shares == false and 1000 or share_of(user), priorities)
  record_event('claim', id, 'starting', now, attempt, losses, '', 'token', token, 'host', host,
    'worker', worker, 'devices', names, 'lease', mem, 'start', how, unpack(left and {'of', array, 'index', index, 'left', left} or {}))
  return {id, token, spec, tostring(attempt), mem, names, stamp, array, index and tostring(index)}
end

-- Claim the job that this device is reserved for, before all others. -> the claim | nil
local function take_reserved()
  local j = call('HMGET', job_key(r_job), F.state, F.priority, F.user, F.shape)
  if j[1] ~= 'queued' then
    call('HDEL', P .. 'rsv', device)
    r_job = nil
    return nil
  end
  local user, shape, devices, beyond = j[3], j[4], nil, nil
  local asks = asked_by(shape or '')
  if cache.any_drained then judge_for(user) end
  local ready = asks.mem <= available and most_here(asks) and over_in_time(asks, now, device_end)
  for _, only_reserved in ipairs(ready and {false, true} or {}) do -- the reserved devices may pass a limit that others exceed
    devices = gang(asks, r_job, only_reserved)
    beyond = devices and asks.want.alone and are_limited() and limit_in_the_way(user, shape, kind, charged_on(devices, asks.want))
    if not beyond then break end
  end
  if beyond then -- a smaller device might do; this reservation is in vain
    unreserve(r_job)
    r_job = nil
    return nil
  end
  if not devices then return nil end
  local taken = take(r_job, j[2], user, shape, devices, 'reserved')
  if not taken then r_job = nil end -- the job had nothing left to claim; its reservation is gone
  return taken
end

local function might_run(shape) -- ever on this device
  local here = cache.here
  if here[shape] == nil then
    local asks = asked_by(shape)
    here[shape] = asks.mem <= total and belongs(asks.pool, asks.wanted_kind, asks.want, host, device, pool, kind)
  end
  return here[shape]
end

local FEW = 4 -- the match is mostly among the first shapes
local function any_belongs(shapes_key, most)
  local from, to = 0, math.min(most, FEW)
  repeat
    local shapes = call('ZRANGE', shapes_key, from, to - 1)
    for i = 1, #shapes do
      if might_run(shapes[i]) then return true end
    end
    from, to = to, most
  until from == most or #shapes < FEW
  return false
end

-- Return how a job came to its start: did it pass a job ahead that might run here? `rank` is the user's, from 0.
-- `place` is the rank of the shape among the user's shapes, nil if unknown.
local function how_it_came(priority, user, shape, rank, place)
  for _, above in ipairs(priorities) do
    if above == priority then break end
    if any_belongs(key2('sh', above), 100) then return 'backfill' end
  end
  local before = math.min(rank, 64) -- users checked at most
  for _, other in ipairs(before > 0 and call('ZRANGE', key2('ul', priority), 0, before - 1) or {}) do
    if any_belongs(key3('us', priority, other), 100) then return 'backfill' end
  end
  place = place or call('ZRANK', key3('us', priority, user), shape)
  return place > 0 and any_belongs(key3('us', priority, user), place) and 'backfill' or 'immediate'
end

