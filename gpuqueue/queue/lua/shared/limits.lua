-- Limits of users, groups and pools. SHARED in ../scripts.py lists the scripts that use them.
--
-- limits (hash): user:<name>, user:* (users without an entry of their own), group:<name> -> measure=most, with a !
-- behind it if jobs beyond the limit are refused at submit; member:<user> -> group; members:<group> -> users,
-- comma-separated; pool:<name>, pool:* (other pools) -> figure=number, times in ms. The usage is the content of
-- run:<user>, which is written and removed together with the leases.
--
-- lk (hash): user, or @ and group -> job:GPUs:bytes:user:start:since:runs:shape. It is the room reserved under their
-- limits for a job that has waited too long, and what its run will hold. `start` is when the job has the room and its
-- devices, 0 if unknown. `since` is when the reservation began, or when a run it waits for last ended. `runs` are the
-- runs without a time limit that it waits for. See limit_reservation.lua.
local held_by, waiting_of, limits_set, limit_in_the_way, limits_in_the_way, max_mem_of, bounds_of, asked_for, least_kind,
  charge_of, figures_of_pool, beyond, passed_alone, reserved_rooms, reserve_room, drop_reserved_room, RUNNING
do
RUNNING = {'running_jobs', 'running_gpus', 'running_mem'} -- in the order of the reports

function limits_set() -- most sites have none and pay for one read
  if cache.limits_set == nil then cache.limits_set = call('EXISTS', P .. 'limits') == 1 end
  return cache.limits_set
end

local function figures_of(text)
  local found = {}
  for name, most, refuses in string.gmatch(text or '', '([%a_]+)=(%d+)(!?)') do
    found[name] = {most = tonumber(most), refuses = refuses == '!'}
  end
  return found
end

local function listed(text)
  local found = {}
  for word in string.gmatch(text or '', '[^,]+') do found[#found + 1] = word end
  return found
end

-- Return what the runs of these users hold, by measure. `surely`: a run without a lease does not count; one exists only
-- if an entry was damaged. `counted`: if given, gets {id, gpus} of each counted run.
function held_by(users, surely, counted)
  local held = {running_jobs = 0, running_gpus = 0, running_mem = 0}
  for _, user in ipairs(users) do
    local runs = call('HGETALL', key2('run', user))
    for i = 1, #runs, 2 do
      local gpus, bytes = string.match(runs[i + 1], '^(%d+):(%d+)$')
      if gpus and (not surely or call('ZSCORE', P .. 'leases', runs[i])) then
        held.running_jobs = held.running_jobs + 1
        held.running_gpus = held.running_gpus + tonumber(gpus)
        held.running_mem = held.running_mem + tonumber(bytes)
        if counted then counted[#counted + 1] = {id = runs[i], gpus = tonumber(gpus)} end
      end
    end
  end
  return held
end

-- Count the waiting jobs of a user, with held jobs and each member of an array. The queues hold most of them, at one
-- call for each shape. A queue lists an array as one job while members may be claimed.
-- -> their number, the number with each array as one, the number of members of arrays
function waiting_of(user)
  local count, jobs, members, aside = 0, 0, 0, key2('aside', user)
  for _, priority in ipairs(PRIORITIES) do
    for _, shape in ipairs(call('ZRANGE', key3('us', priority, user), 0, -1)) do
      count = count + call('ZCARD', queue_key(priority, user, shape))
    end
  end
  count = count + call('ZCOUNT', aside, 0, 0)
  for _, array in ipairs(call('ZRANGE', aside, 1, 1, 'BYSCORE')) do
    local left, held, priority, shape = unpack(call('HMGET', job_key(array), F.left, F.held, F.priority, F.shape))
    members = members + count_of(parse_ranges(left)) + count_of(parse_ranges(held))
    jobs = jobs + 1
    if priority and shape and call('ZSCORE', queue_key(priority, user, shape), array) then count = count - 1 end
  end
  return count + members, count + jobs, members
end

-- Return the least that a run of this shape is charged on each device, and the least that the largest of its devices
-- gives. For a job without exclusive devices both are its memory. For an exclusive job they come from the smallest
-- devices that it could get together; its memory if none are known.
function charge_of(shape)
  local mem, _, n, pool, wanted_kind, more = parse_shape(shape)
  if not wants_alone(shape) then return mem, mem end
  local charges = cache_of('charges')
  if not charges[shape] then
    local want, together, least, most = constraints(more), {}, math.huge, math.huge
    any_device(function(device, host, total, headroom, _, _, _, its_pool, kind)
      local gives = total - headroom
      if gives < mem or (n > 1 and kind == 'mig') or not belongs(pool, wanted_kind, want, host, device, its_pool, kind) then return end
      local on_host = host .. ' ' .. kind -- all devices of a job are on one host and of one kind
      together[on_host] = together[on_host] or {}
      table.insert(together[on_host], gives)
    end)
    for _, each in pairs(together) do
      table.sort(each)
      if each[n] then least, most = math.min(least, each[1]), math.min(most, each[n]) end
    end
    charges[shape] = least < math.huge and {least, most} or {mem, mem}
  end
  return unpack(charges[shape])
end

function figures_of_pool(pool)
  local pools = cache_of('pools')
  if not pools[pool] then
    local texts = call('HMGET', P .. 'limits', 'pool:' .. pool, 'pool:*')
    pools[pool] = figures_of(texts[1] or texts[2])
  end
  return pools[pool]
end

-- Return the most memory that a job of this pool may have on a device; nil without a limit. An exclusive job has what
-- the device gives without external processes. A device that gives more may be newer than the job.
function max_mem_of(pool)
  local limit = limits_set() and figures_of_pool(pool).max_mem
  return limit and limit.most or nil
end

-- Return the limits that a user is under. -> {{whose, figures, users}, ...}
function bounds_of(user)
  local bounds, of_groups = cache_of('bounds'), cache_of('of_groups')
  if bounds[user] then return bounds[user] end
  local found = {}
  local own, others, group = unpack(call('HMGET', P .. 'limits', 'user:' .. user, 'user:*', 'member:' .. user))
  if own or others then found[1] = {whose = user, figures = figures_of(own or others), users = {user}} end
  if group and not of_groups[group] then -- one table for all members, so their usage is read once
    local texts = call('HMGET', P .. 'limits', 'group:' .. group, 'members:' .. group)
    of_groups[group] = {whose = '@' .. group, figures = figures_of(texts[1]), users = listed(texts[2])}
  end
  found[#found + 1] = of_groups[group]
  bounds[user] = found
  return found
end

-- Return the reserved rooms: whose -> {id, ...}.
function reserved_rooms()
  if cache.rooms then return cache.rooms end
  local rooms = cache_of('rooms')
  local texts = call('HGETALL', P .. 'lk')
  for i = 1, #texts, 2 do
    local id, gpus, bytes, user, start, since, runs, shape =
      string.match(texts[i + 1], '^(%d+):(%d+):(%d+):([^:]+):(%d+):(%d+):([%d,]*):(.+)$')
    if id then
      local waits_for = {}
      for run in string.gmatch(runs, '%d+') do waits_for[run] = true end
      rooms[texts[i]] = {id = id, running_jobs = 1, running_gpus = tonumber(gpus), running_mem = tonumber(bytes),
        user = user, start = tonumber(start), since = tonumber(since), waits_for = waits_for, shape = shape}
    end
  end
  return rooms
end

-- Reserve room under the limits of a user or group; nil drops the reservation.
function reserve_room(whose, room)
  reserved_rooms()[whose] = room
  if not room then
    call('HDEL', P .. 'lk', whose)
    return
  end
  local runs = {}
  for id in pairs(room.waits_for) do runs[#runs + 1] = id end
  table.sort(runs)
  call('HSET', P .. 'lk', whose, string.format('%s:%.0f:%.0f:%s:%.0f:%.0f:%s:%s', room.id, room.running_gpus,
    room.running_mem, room.user, room.start, room.since, table.concat(runs, ','), room.shape))
end

-- Drop the rooms reserved for a user's jobs of this shape when one has started.
function drop_reserved_room(user, shape)
  for whose, room in pairs(cache.rooms or {}) do -- if no room was read, these jobs are under no limit
    if room.user == user and room.shape == shape then reserve_room(whose, nil) end
  end
end

-- Return the reserved room that a job of this shape may not use under a limit; nil if there is none, or the job ends
-- before the room is needed. Jobs that are alike share a reservation: the first of them may use it.
local function room_reserved_from(user, shape, whose)
  local room = reserved_rooms()[whose]
  if not room or (room.user == user and room.shape == shape) then return nil end
  local _, limit_s = parse_shape(shape)
  if limit_s > 0 and room.start > 0 and now_ms() + limit_s * 1000 + GONE_MS <= room.start then return nil end
  return room
end

-- Return what a run of this shape will hold, by measure. `kind` is the device's kind, nil if unknown: a CPU counts no
-- GPU. `charged` is the bytes charged on each device, nil if unknown: then it is the least possible.
function asked_for(shape, kind, charged)
  local _, _, n, _, wanted_kind = parse_shape(shape)
  return {running_jobs = 1, running_gpus = (kind and is_cpu(kind) or wanted_kind == 'cpu' or is_engine(wanted_kind)) and 0 or n,
    running_mem = n * (charged or (charge_of(shape)))}
end

-- Return the device kind on which a run of this shape holds least: a limit that blocks it there blocks it everywhere.
-- 'cpu' if a CPU may run a job that also runs on GPUs, else nil: all kinds count the same.
function least_kind(shape)
  local mem, _, n, pool, wanted_kind, more = parse_shape(shape)
  if wanted_kind ~= 'any' or n > 1 then return nil end
  local on_cpus = cache_of('on_cpus') -- shape -> whether there is such a CPU
  if on_cpus[shape] == nil then
    on_cpus[shape] = any_device(function(device, host, total, headroom, _, _, _, its_pool, kind)
      return is_cpu(kind) and total - headroom >= mem and belongs(pool, wanted_kind, constraints(more), host, device, its_pool, kind)
    end)
  end
  return on_cpus[shape] and 'cpu' or nil
end

-- Return a limit that leaves no room for a run that holds so much, beside the reserved room: {whose, measure, used,
-- most, asked, reserved_for: the job that has the room reserved, if that is what blocks it}; nil if there is room.
function beyond(bound, measure, asked, room)
  local limit = bound.figures[measure]
  if not limit or asked <= 0 then return nil end
  if not bound.held then bound.held = held_by(bound.users, false) end
  local least = limit.most - asked - (room and room[measure] or 0)
  if bound.held[measure] > least and not bound.sure then
    bound.held = held_by(bound.users, true)
    bound.sure = true
  end
  if bound.held[measure] <= least then return nil end
  local is_there = bound.held[measure] + asked <= limit.most
  return {whose = bound.whose, measure = measure, used = bound.held[measure], most = limit.most, asked = asked,
    reserved_for = is_there and room.id or nil}
end

-- Return a limit that a run of this user exceeds on its own, so that the end of another run does not help; nil if none.
function passed_alone(user, asked)
  for _, bound in ipairs(bounds_of(user)) do
    for _, measure in ipairs(RUNNING) do
      local limit = bound.figures[measure]
      if limit and asked[measure] > limit.most then return beyond(bound, measure, asked[measure]) end
    end
  end
  return nil
end

-- Return the first limit that leaves a user no room for a run of this shape, as from `beyond`; nil if none. A limit
-- that the run exceeds on its own comes first. `kind` and `charged` as in asked_for. `bare`: ignore reserved room.
function limit_in_the_way(user, shape, kind, charged, bare)
  if not limits_set() then return nil end
  local asked = asked_for(shape, kind, charged)
  local found = passed_alone(user, asked)
  for _, bound in ipairs(found and {} or bounds_of(user)) do
    local room = not bare and room_reserved_from(user, shape, bound.whose)
    for _, measure in ipairs(RUNNING) do
      found = found or beyond(bound, measure, asked[measure], room)
    end
  end
  return found
end

-- Return the ids of the first hundred runs of these users that hold some of each measure: a run on a CPU holds no GPU.
local function ids_by_measure(users)
  local runs, all, with_gpus = {}, {}, {}
  held_by(users, true, runs)
  for _, run in ipairs(runs) do
    if #all < 100 then all[#all + 1] = run.id end
    if #with_gpus < 100 and run.gpus > 0 then with_gpus[#with_gpus + 1] = run.id end
  end
  return {running_jobs = all, running_gpus = with_gpus, running_mem = all}
end

-- Return all limits that leave a user no room for a run of this shape, the result of limit_in_the_way first. Each also
-- has `ids`, the runs that hold some of its measure. When the first limit has room, another may still have none.
function limits_in_the_way(user, shape, kind, charged)
  local found, first = {}, limit_in_the_way(user, shape, kind, charged)
  local asked = first and asked_for(shape, kind, charged)
  for _, bound in ipairs(first and bounds_of(user) or {}) do
    local room, ids = room_reserved_from(user, shape, bound.whose), ids_by_measure(bound.users)
    for _, measure in ipairs(RUNNING) do
      local limit = beyond(bound, measure, asked[measure], room)
      if limit then
        limit.ids = ids[measure]
        local is_first = limit.whose == first.whose and measure == first.measure
        table.insert(found, is_first and 1 or #found + 1, limit)
      end
    end
  end
  return found
end
end
