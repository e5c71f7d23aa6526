-- Keep room for the jobs that have waited too long and fit nowhere: small ones must not pass them for ever. Anybody may
-- run this, as often as they like. A reservation moves only where the job would start sooner by more than a moment.
-- ARGV: after_ms  most (reservations on one host)
-- returns for each reservation that stands: job, devices (comma-separated), start in ms (0: nobody can say)
local wrong = expect {'ms', 'count'}
if wrong then return wrong end
local after_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local MOST_SHAPES, MOMENT_MS, AT_LEAST_MS = 64, 2000, 60000
local now = now_ms()
local rsv = P .. 'rsv'

local hosts, host_of = {}, {} -- host -> {name, devices, held: how many jobs it has reservations for}
local names = call('SMEMBERS', P .. 'hosts')
table.sort(names)
for _, name in ipairs(names) do
  local host, records = {name = name, devices = {}, held = 0}, call('HGETALL', key2('dev', name))
  for i = 1, #records, 2 do
    local device = picture(name, records[i], records[i + 1], now)
    if device then
      host.devices[#host.devices + 1] = device
      host_of[device.name] = host
    end
  end
  hosts[#hosts + 1] = host
end

local holder, standing = {}, {} -- device -> job; job -> {device -> text}
local texts = call('HGETALL', rsv)
for i = 1, #texts, 2 do
  local id = parse_reservation(texts[i + 1])
  if id then
    holder[texts[i]] = id
    standing[id] = standing[id] or {}
    standing[id][texts[i]] = texts[i + 1]
  else
    call('HDEL', rsv, texts[i])
  end
end

local function free_for(id, host, only) -- the devices of a host that nobody else has reserved
  local devices = {}
  for _, device in ipairs(host.devices) do
    if (not holder[device.name] or holder[device.name] == id) and (not only or only[device.name]) then
      devices[#devices + 1] = device
    end
  end
  return devices
end

local function best_for(id, user, shape, old_host)
  local best
  for _, host in ipairs(hosts) do
    if host.held < most or host == old_host then
      local found = plan(free_for(id, host), shape, now, user)
      if found and (not best or sooner(found.start, best.start) or (found.start == best.start and found.free > best.free)) then
        best = found
        best.host = host
      end
    end
  end
  return best
end

-- One that has stood for as long as a job must wait for one comes to nothing soon, and is no reason that the next job
-- has none: it might be for days, and whoever waits for another device of the host would wait with it.
local function counts(id)
  local since = tonumber(call('HGET', job_key(id), 'rs') or '') or now
  return now - since <= math.max(after_ms, AT_LEAST_MS) and 1 or 0
end

local out, changed = {}, false
local function reserve(id, mem, found)
  local chosen = {}
  for _, device in ipairs(found.devices) do
    call('HSET', rsv, device.name, table.concat({id, device.all and string.format('%.0f', device.all) or mem, string.format('%.0f', found.start), device.blockers}, ':'))
    holder[device.name] = id
    chosen[#chosen + 1] = device.name
  end
  call('HSET', job_key(id), 'rv', table.concat(chosen, ','))
  call('HSETNX', job_key(id), 'rs', string.format('%.0f', now))
  found.host.held = found.host.held + counts(id)
  for _, value in ipairs({id, table.concat(chosen, ','), string.format('%.0f', found.start)}) do out[#out + 1] = value end
end

local function forget(id, devices)
  for device in pairs(devices) do
    call('HDEL', rsv, device)
    holder[device] = nil
  end
  call('HDEL', job_key(id), 'rv', 'rs', 'pb')
  changed = true
end

local ids = {}
for id in pairs(standing) do ids[#ids + 1] = id end
table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
for _, id in ipairs(ids) do -- room first for those that have one
  local host = host_of[next(standing[id])]
  if host then host.held = host.held + counts(id) end
end
for _, id in ipairs(ids) do
  local job, devices = read_job(id), standing[id]
  local host = host_of[next(devices)]
  if host then host.held = host.held - counts(id) end -- counted again below
  local here, best
  local wanted = most > 0 or call('HEXISTS', job_key(id), 'pb') == 1 -- others make place for it: see preempt.lua
  if wanted and job.st == 'queued' and job.mem and queueable(job) then
    here = host and plan(free_for(id, host, devices), job.sh, now, job.u)
    if here then here.host = host end
    best = best_for(id, job.u, job.sh, host)
  end
  if here and best and not sooner(best.start == 0 and 0 or best.start + MOMENT_MS, here.start) then best = here end
  if best ~= here then forget(id, devices) end
  if best then reserve(id, job.mem, best) elseif not here then forget(id, devices) end
end

-- Do the limits of a user leave no room for a run of this shape, whichever device it gets?
local function beyond_everywhere(user, shape)
  local _, _, _, _, wish = parse_shape(shape)
  return limit_in_the_way(user, shape, wish == 'any' and 'cpu' or nil) ~= nil
end

local function fill() -- in the order in which jobs are claimed
  local moment = now - after_ms
  local last, judged, tried = last_id_before(moment), {}, 0
  for _, lv in ipairs(LEVELS) do
    for _, user in ipairs(call('ZRANGE', key2('ul', lv), 0, -1)) do
      local heads = call('ZRANGE', key3('us', lv, user), '-inf', string.format('%.0f', last), 'BYSCORE', 'WITHSCORES')
      for i = 1, #heads, 2 do
        local shape = heads[i]
        local id = first_at(heads[i + 1], lv, user, shape)
        local like = limits_set() and user .. ' ' .. shape or shape -- for jobs that are alike in this there is room alike
        if not standing[id] and not judged[like] and parse_shape(shape) and not beyond_everywhere(user, shape) then
          local j = call('HMGET', job_key(id), 'st', 'ts', 'mem', 'since', 'tw')
          if j[1] == 'queued' and j[3] and (tonumber(j[5] or j[4] or j[2] or '') or now) <= moment then
            judged[like], tried = true, tried + 1
            local found = best_for(id, user, shape)
            if found and found.start ~= now then
              reserve(id, j[3], found)
              changed = true
            end
            if tried == MOST_SHAPES then return end
          end
        end
      end
    end
  end
end
local room = false
for _, host in ipairs(hosts) do room = room or host.held < most end
if room then fill() end
if changed then ring('room') end
return out
