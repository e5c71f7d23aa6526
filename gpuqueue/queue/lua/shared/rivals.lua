-- The jobs ahead of a waiting job, and which of them may take its room. Goes after limit_forecast.lua, before why.lua.
--
-- `ahead` lists the jobs ahead by queue: {shape, user, queue, from, below, count}, where `from` and `below` bound their
-- places. `served` has the planning records (`planning_record` in capacity.lua) of all hosts: host -> {record, ...}.
local jobs_ahead, goes_before, count_rivals
do
local MOST_READ = 32 -- jobs of one shape; more than that fill any device

-- Return the jobs ahead of a job: {higher, users_before, theirs, own_before}, as in gpuqueue.queue.explanation, and
-- `ahead`.
function jobs_ahead(job)
  local ahead, found = {}, {higher = 0, users_before = 0, theirs = 0}
  local function waiting(priority, user, below)
    local count = 0
    for _, shape in ipairs(call('ZRANGE', key3('us', priority, user), 0, -1)) do
      local queue = queue_key(priority, user, shape)
      local here = call('ZCOUNT', queue, '-inf', below)
      if here > 0 then ahead[#ahead + 1] = {shape = shape, user = user, queue = queue, below = below, count = here} end
      count = count + here
    end
    return count
  end
  for _, priority in ipairs(PRIORITIES) do
    if priority == job.priority then break end
    for _, user in ipairs(call('ZRANGE', key2('ul', priority), 0, -1)) do
      found.higher = found.higher + waiting(priority, user, '+inf')
    end
  end
  for _, user in ipairs(call('ZRANGE', key2('ul', job.priority), 0, -1)) do
    if user == job.user then break end
    found.users_before, found.theirs = found.users_before + 1, found.theirs + waiting(job.priority, user, '+inf')
  end
  found.own_before = waiting(job.priority, job.user, '(' .. place_of(job.id))
  return found, ahead
end

-- Add a job to `ahead`, or take it out, whatever its place. Only the first call for a job has an effect (`moved`).
function goes_before(ahead, moved, id, is_ahead)
  local other = read_job(id)
  if moved[id] or other.state ~= 'queued' or not queueable(other) then return end
  moved[id] = true
  local queue, place, among = queue_key(other.priority, other.user, other.shape), place_of(id), nil
  for _, each in ipairs(ahead) do
    local below = tonumber((string.gsub(each.below, '^%(', ''))) or math.huge
    if each.queue == queue and tonumber(place) <= below then among = each end
  end
  if among and not is_ahead then among.count = among.count - 1 end
  if is_ahead and not among then
    ahead[#ahead + 1] = {shape = other.shape, user = other.user, queue = queue, from = place, below = place, count = 1}
  end
end

local function has_arrays(each) -- an array counts as one job, and takes the room of many
  if each.count > MOST_READ then return true end
  for _, other in ipairs(call('ZRANGE', each.queue, each.from or '-inf', each.below, 'BYSCORE')) do
    if call('HEXISTS', job_key(other), F.left) == 1 then return true end
  end
  return false
end

-- Return whether enough devices for a job of this queue are served now and large enough. A job without them (drained
-- device, silent worker) competes with no other. `host` nil: any host.
local function can_start(served, each, host)
  local known, case = cache_of('startable'), alike(each.user, each.shape) .. ' ' .. (host or '')
  if known[case] ~= nil then return known[case] end
  known[case] = false
  local asks = asks_of(each.shape, each.user)
  for name, records in pairs(asks and served or {}) do
    local of_kind = {}
    for _, device in ipairs((not host or name == host) and records or {}) do
      if could_host(device, asks) then
        of_kind[device.kind] = (of_kind[device.kind] or 0) + 1
        known[case] = known[case] or of_kind[device.kind] >= asks.n
      end
    end
  end
  return known[case]
end

local function can_never_start(each) -- each of these jobs alone exceeds a limit of its user
  local limit = limits_set() and limit_in_the_way(each.user, each.shape, nil, nil, true)
  return limit and limit.asked > limit.most
end

-- Add to `found` the jobs ahead that may take the room on these devices; none if there is enough for these too.
local function find_on_devices(ahead, asks, devices, served, found)
  local enough, bytes, jobs, these = true, {}, {}, {}
  for _, each in ipairs(ahead) do
    local theirs = asks_of(each.shape, each.user)
    for _, device in ipairs(theirs and each.count > 0 and devices or {}) do
      if not device.is_own and could_host(device, theirs) and can_start(served, each, device.host)
        and not can_never_start(each) then
        these[each] = true
        bytes[device.name] = (bytes[device.name] or 0) + each.count * theirs.mem
        jobs[device.name] = (jobs[device.name] or 0) + each.count
        enough = enough and not theirs.want.alone and not asks.want.alone
      end
    end
    enough = enough and not (these[each] and has_arrays(each))
  end
  for _, device in ipairs(devices) do
    local free, slots = device.capacity, device.slots
    for _, run in ipairs(device.runs) do
      if not within(device.blockers, run.id) then free, slots = free - run.bytes, slots - 1 end
    end
    enough = enough and (bytes[device.name] or 0) + asks.mem <= free and (jobs[device.name] or 0) < slots
  end
  for each in pairs(enough and {} or these) do found[each] = true end
end

-- Add to `found` the jobs ahead that may take the room under a limit of this user, for a run that holds `asked`.
local function find_under_limits(ahead, user, asked, has_ended, served, found)
  for _, limit in ipairs(under_each_limit(user, asked, has_ended)) do
    local left, members, these, arrays = limit.left, {}, {}, false
    for _, name in ipairs(limit.users) do members[name] = true end
    for _, each in ipairs(ahead) do
      local counts = members[each.user] and each.count > 0 and parse_shape(each.shape)
      local takes = counts and asked_for(each.shape)[limit.measure] or 0
      if takes > 0 and can_start(served, each) and not can_never_start(each) then
        left, these[each] = left - takes * each.count, true
        arrays = arrays or has_arrays(each)
      end
    end
    for each in pairs((left < 0 or arrays) and these or {}) do found[each] = true end
  end
end

-- Count the jobs ahead that may take the room of a job: on `devices`, planning records with the `blockers` of the plan,
-- or under its limits. `ended` has the runs that will be gone, `charged` is as in asked_for.
function count_rivals(ahead, job, asks, devices, ended, charged, served)
  local found, count = {}, 0
  find_on_devices(ahead, asks, devices, served, found)
  local asked = asked_for(job.shape, devices[1].kind, charged)
  find_under_limits(ahead, job.user, asked, function(run) return ended[run] end, served, found)
  for each in pairs(found) do count = count + each.count end
  return count
end
end
