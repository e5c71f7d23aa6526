-- Reserves room under a limit for jobs that have waited too long for it: small jobs of the same user or group must not
-- overtake them for ever. Goes before reserve.lua, after capacity.lua.
--
-- The reserved room (lk, see limits.lua) is what the job asks for, in all measures, under one limit at a time. As with
-- devices (reserve.lua), a run that ends before the job can start may use the room; and if the start is unknown, the
-- room is reserved for as long as the job had waited, then dropped.
--
-- No room is reserved for a job that lacks devices and not room: its devices must be free by the time at which the
-- limit has room, or within as long as the job has waited. The second case is for a job that lacks both: no device is
-- reserved for a job at its limit, so other jobs take one or the other again and again. For the same reason a run that
-- got its devices after the reservation counts as a run without a time limit. So over time the condition can only
-- become true: a reservation is dropped where a run ended early or a device was withdrawn, and does not flip back and
-- forth.
local reserve_rooms
do
local MOST_TRIED, MOST_ASKED = 16, 1000 -- shapes of one user at one priority

-- Find when a limit leaves room for a job. -> the time (now; later; 0: unknown), and {id -> run} of the runs without a
-- time limit that must end first; nil: never, as no room is reserved behind a run that was waited for in vain.
-- `waits_for` as `awaited` in capacity.lua.
local function room_under(bound, asked, now, waits_for)
  local lacking, start, without = {}, now, {}
  for measure, held in pairs(held_by(bound.users, true)) do
    local limit = bound.figures[measure]
    lacking[measure] = limit and asked[measure] > 0 and held + asked[measure] - limit.most or 0
  end
  local function lacks() return math.max(lacking.running_jobs, lacking.running_gpus, lacking.running_mem) > 0 end
  for _, run in ipairs(lacks() and runs_under(bound.users, now) or {}) do
    if not lacks() then break end
    local helps = false -- a run that holds nothing of the lacking measures does not help
    for measure, more in pairs(lacking) do helps = helps or (more > 0 and run[measure] > 0) end
    if helps and (not run.lasts or waits_for[run.id]) then
      for measure, more in pairs(lacking) do lacking[measure] = more - run[measure] end
      if run.ends == 0 then without[run.id] = run end
      start = (run.ends == 0 or start == 0) and 0 or math.max(start, run.ends)
    end
  end
  if lacks() then return nil end
  return start, without
end

-- Return whether another job under the limit would take the reserved room, as far as limits show.
local function is_missed_under(bound, entry)
  for _, user in ipairs(bound.users) do
    for _, priority in ipairs(PRIORITIES) do
      for _, shape in ipairs(call('ZRANGE', key3('us', priority, user), 0, MOST_ASKED - 1)) do
        local is_own = user == entry.user and shape == entry.shape
        if not is_own and parse_shape(shape) and not limit_in_the_way(user, shape, nil, nil, true) then return true end
      end
    end
  end
  return false
end

local function bound_of(user, whose)
  for _, bound in ipairs(bounds_of(user)) do
    if bound.whose == whose then return bound end
  end
end

-- Return the most bytes that the limits of the user allow on a device of an exclusive job.
local function most_alone_under(entry)
  local most = math.huge
  for _, bound in ipairs(wants_alone(entry.shape) and bounds_of(entry.user) or {}) do
    most = math.min(most, bound.figures.running_mem and bound.figures.running_mem.most or most)
  end
  return most
end

-- Find when a job can start, as far as one limit and the devices show. -> the time (now; later; 0: unknown), the latest
-- start (0: unknown), and the runs with unknown end that it waits for, under the limit and on devices: {id -> run}, {id
-- -> run}; nil: reserve no room. `awaited` as in capacity.lua; `at` are functions of reserve.lua, see reserve_rooms.
local function start_of(id, bound, entry, now, at, awaited)
  local room, without = room_under(bound, entry, now, awaited)
  if not room then return nil end
  local devices, latest, on_devices = at.devices_of(entry, most_alone_under(entry), awaited)
  if not devices or devices > math.max(room, at.patient_until(id, now)) then return nil end
  local function later(time) return (room == 0 or time == 0) and 0 or math.max(room, time) end
  return later(devices), later(latest), without, on_devices
end

-- Keep or drop a reservation of room.
local function check_reservation(whose, entry, now, at)
  local j = call('HMGET', job_key(entry.id), F.state, F.user, F.shape, F.priority, F.reserved_since_ms)
  local bound = j[1] == 'queued' and j[2] == entry.user and j[3] == entry.shape and j[4]
    and call('ZSCORE', queue_key(j[4], entry.user, entry.shape), entry.id) and bound_of(entry.user, whose)
  local reserved, awaited = at.hold_of(entry.id)
  for id in pairs(entry.waits_for) do awaited[id] = true end
  local start, latest, without, on_devices = nil, nil, nil, nil
  if bound then start, latest, without, on_devices = start_of(entry.id, bound, entry, now, at, awaited) end
  if not start then
    reserve_room(whose, nil)
    return
  end
  for id in pairs(entry.waits_for) do
    if not call('ZSCORE', P .. 'leases', id) then entry.since, entry.waits_for = now, without end
  end
  entry.start = latest == now and 0 or latest
  -- Once there is room, devices are reserved, and the ends of the runs there bring the job closer to its start.
  local since = next(without) and entry.since or math.max(entry.since, reserved or 0, tonumber(j[5] or '') or 0)
  local is_over = (start == 0 or start == now) and now >= at.patient_until(entry.id, since)
  if is_over and is_missed_under(bound, entry) then
    for id, run in pairs(next(without) and without or on_devices) do
      local is_endless = run.ends == 0 and run.claimed ~= '' -- a damaged entry has no claim time
      if is_endless then call('HSET', job_key(id), F.in_vain_ms, run.claimed) end
    end
    entry = nil
  end
  reserve_room(whose, entry)
end

-- Return whether room is reserved for another job under another limit of this user. Two jobs that each have room under
-- one of two limits, and need it under both, would never start.
local function is_behind(user, shape, whose)
  for _, bound in ipairs(bounds_of(user)) do
    local entry = bound.whose ~= whose and reserved_rooms()[bound.whose]
    if entry and not (entry.user == user and entry.shape == shape) then return true end
  end
  return false
end

-- Return what is left to a user, by measure, under the limits without reserved room; nil if there is no such limit.
local function left_to(user)
  local left
  for _, bound in ipairs(bounds_of(user)) do
    if not reserved_rooms()[bound.whose] then
      if not bound.held then bound.held = held_by(bound.users, false) end
      left = left or {running_jobs = math.huge, running_gpus = math.huge, running_mem = math.huge}
      for measure, held in pairs(bound.held) do
        local limit = bound.figures[measure]
        if limit then left[measure] = math.min(left[measure], limit.most - held) end
      end
    end
  end
  return left
end

-- Return whether a job of this shape could exceed what is left. Most cannot, and there are many, so this avoids
-- parse_shape. The shape does not contain what an exclusive job is charged.
local function might_be_beyond(shape, left)
  local mem, n, more = string.match(shape, '^(%d+):%d+:(%d+):[^:]*:?[^:]*:?(.*)$')
  if not mem then return false end
  return left.running_jobs < 1 or tonumber(n) > left.running_gpus or n * mem > left.running_mem
    or string.find(more, '^%a*x') ~= nil
end

-- Reserve room for a user's first job of a shape, if a limit blocks it and nothing else does. -> whether a limit
-- blocked it
local function reserve_for(id, user, shape, now, at)
  local kind = least_kind(shape)
  local beyond = limit_in_the_way(user, shape, kind, nil, true)
  if not beyond or beyond.asked > beyond.most or reserved_rooms()[beyond.whose] or is_behind(user, shape, beyond.whose) then
    return false
  end
  local entry = asked_for(shape, kind)
  entry.id, entry.user, entry.shape, entry.since, entry.waits_for = id, user, shape, now, {}
  local start, latest, without = start_of(id, bound_of(user, beyond.whose), entry, now, at, {})
  if start then
    entry.start, entry.waits_for = latest == now and 0 or latest, without
    reserve_room(beyond.whose, entry)
  end
  return true
end

-- Check all limits, in the order in which jobs are claimed. `at` has the functions of reserve.lua:
--   heads_of(priority, user): the user's shapes with the positions of their first jobs
--   has_waited(id): whether the job has waited too long
--   patient_until(id, since): until when a reservation lasts, as for devices
--   hold_of(id): since when, and for which runs, the devices reserved for the job wait
--   devices_of(entry, most_bytes, awaited): when the job could have devices that give at most so much, ignoring its
--     limits; the latest start; the runs with unknown end that it waits for
function reserve_rooms(now, at)
  for whose, entry in pairs(reserved_rooms()) do check_reservation(whose, entry, now, at) end
  for _, priority in ipairs(PRIORITIES) do
    for _, user in ipairs(call('ZRANGE', key2('ul', priority), 0, -1)) do
      local left, tried = left_to(user), 0
      local heads = left and at.heads_of(priority, user) or {}
      for i = 1, #heads, 2 do
        if left and tried < MOST_TRIED and might_be_beyond(heads[i], left) then
          local id = first_at(heads[i + 1], priority, user, heads[i])
          if at.has_waited(id) and reserve_for(id, user, heads[i], now, at) then
            tried = tried + 1
            left = left_to(user)
          end
        end
      end
    end
  end
end
end
