-- Keep the room under a limit for who has waited too long for it: small jobs of the same user or group must not pass
-- them for ever. Goes before reserve.lua, after placement.lua.
--
-- What is kept for a job (lk, see limits.lua) is what it asks for, of all measures, under one limit at a time for one
-- job. As with devices (reserve.lua): who is gone before the job can start may start; and where nobody can say when that
-- is, the room is kept for as long as the job had waited, then it is let go.
local keep_rooms
do
local MEASURES = {'running_jobs', 'running_gpus', 'running_mem'}
local MOST_TRIED = 16 -- shapes of one user on one level

-- What runs under this limit, in the order in which it will end: by their time limits, those without one as they came.
local function runs_under(users)
  local found = {}
  for _, user in ipairs(users) do
    local held = call('HGETALL', key2('run', user))
    for i = 1, #held, 2 do
      local gpus, bytes = string.match(held[i + 1], '^(%d+):(%d+)$')
      local j = call('HMGET', job_key(held[i]), 'tc', 'devs', 'iw')
      local device = string.match(j[2] or '', '^[^,]+')
      local ends = device and string.match(call('HGET', key2('dl', device), held[i]) or '', '^%d+:%d+:(%d+)')
      if gpus then
        found[#found + 1] = {id = held[i], since = tonumber(j[1] or '') or 0, ends = tonumber(ends or '') or 0,
          claimed = j[1] or '', lasts = j[3] and j[3] == j[1],
          running_jobs = 1, running_gpus = tonumber(gpus), running_mem = tonumber(bytes)}
      end
    end
  end
  table.sort(found, function(a, b)
    if (a.ends > 0) ~= (b.ends > 0) then return a.ends > 0 end
    if a.ends ~= b.ends then return a.ends < b.ends end
    if a.since ~= b.since then return a.since < b.since end
    return tonumber(a.id) < tonumber(b.id)
  end)
  return found
end

-- When does a limit leave room for a job? -> the time (now; later; 0: nobody can say), and of the runs that must end
-- first those without a time limit: {id -> run}; nil: never, as nothing is kept behind a run that lasts. `waits_for` as
-- `keeping` in placement.lua.
local function room_under(bound, asked, now, waits_for)
  local lacking, start, without = {}, now, {}
  local held = held_by(bound.users, true)
  for _, measure in ipairs(MEASURES) do
    local limit = bound.figures[measure]
    lacking[measure] = limit and asked[measure] > 0 and held[measure] + asked[measure] - limit.most or 0
  end
  local function lacks() return math.max(lacking.running_jobs, lacking.running_gpus, lacking.running_mem) > 0 end
  for _, run in ipairs(lacks() and runs_under(bound.users) or {}) do
    if not lacks() then break end
    if not run.lasts or waits_for[run.id] then
      for _, measure in ipairs(MEASURES) do lacking[measure] = lacking[measure] - run[measure] end
      if run.ends == 0 then without[run.id] = run end
      start = (run.ends == 0 or start == 0) and 0 or math.max(start, run.ends)
    end
  end
  if lacks() then return nil end
  return start, without
end

-- Would anybody else under the limit take what is kept, as far as limits tell?
local function is_missed_under(bound, kept)
  for _, user in ipairs(bound.users) do
    for _, lv in ipairs(LEVELS) do
      for _, shape in ipairs(call('ZRANGE', key3('us', lv, user), 0, 15)) do
        local is_own = user == kept.user and shape == kept.shape
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

-- What is kept goes on being kept, or is let go. `patient_until(id, since)`, as for devices.
local function look_again(whose, kept, now, patient_until)
  local j = call('HMGET', job_key(kept.id), 'st', 'u', 'sh', 'lv', 'rv')
  local bound = j[1] == 'queued' and j[2] == kept.user and j[3] == kept.shape and j[4]
    and call('ZSCORE', queue_key(j[4], kept.user, kept.shape), kept.id) and bound_of(kept.user, whose)
  local start, without = nil, nil
  if bound then start, without = room_under(bound, kept, now, kept.waits_for) end
  if not start then
    keep_room(whose, nil)
    return
  end
  for id in pairs(kept.waits_for) do
    if not call('ZSCORE', P .. 'leases', id) then kept.since, kept.waits_for = now, without end
  end
  kept.start = start == now and 0 or start
  local is_over = (start == 0 or start == now) and not j[5] and now >= patient_until(kept.id, kept.since)
  if is_over and is_missed_under(bound, kept) then
    for id, run in pairs(without) do
      if run.claimed ~= '' then call('HSET', job_key(id), 'iw', run.claimed) end -- not of a damaged entry
    end
    kept = nil
  end
  keep_room(whose, kept)
end

-- Is room kept for others under another limit of the user's? Of two that have room under one limit each, and need it
-- under both, neither would ever start.
local function is_behind(user, shape, whose)
  for _, bound in ipairs(bounds_of(user)) do
    local kept = bound.whose ~= whose and rooms_kept()[bound.whose]
    if kept and not (kept.user == user and kept.shape == shape) then return true end
  end
  return false
end

-- What is left to a user under the limits for which nothing is kept yet, by measure; nil where there is no such limit.
local function left_to(user)
  local left
  for _, bound in ipairs(bounds_of(user)) do
    if not rooms_kept()[bound.whose] then
      if not bound.held then bound.held = held_by(bound.users, false) end
      left = left or {running_jobs = math.huge, running_gpus = math.huge, running_mem = math.huge}
      for _, measure in ipairs(MEASURES) do
        local limit = bound.figures[measure]
        if limit then left[measure] = math.min(left[measure], limit.most - bound.held[measure]) end
      end
    end
  end
  return left
end

-- Could a job of this shape be beyond what is left? Most are not, and there are many: so without parse_shape.
local function might_be_beyond(shape, left)
  local mem, n, more = string.match(shape, '^(%d+):%d+:(%d+):[^:]*:?[^:]*:?(.*)$')
  if not mem then return false end
  return left.running_jobs < 1 or tonumber(n) > left.running_gpus or n * mem > left.running_mem or more ~= ''
end

-- Keep room for a user's first job of a shape, if a limit is in its way, and nothing else is.
local function keep_for(id, user, shape, now)
  local _, _, _, _, wish = parse_shape(shape)
  local kind = wish == 'any' and 'cpu' or nil
  local beyond = limit_in_the_way(user, shape, kind, nil, true)
  if not beyond or beyond.asked > beyond.most or rooms_kept()[beyond.whose] or is_behind(user, shape, beyond.whose) then
    return
  end
  local kept = asked_for(shape, kind)
  local start, without = room_under(bound_of(user, beyond.whose), kept, now, {})
  if start then
    kept.id, kept.user, kept.shape, kept.since = id, user, shape, now
    kept.start, kept.waits_for = start == now and 0 or start, without
    keep_room(beyond.whose, kept)
  end
end

-- Look at all limits, in the order in which jobs are claimed. `heads_of(lv, user)` gives the shapes of a user with the
-- places of their first jobs; `has_waited(id)`: for too long?
function keep_rooms(now, patient_until, heads_of, has_waited)
  for whose, kept in pairs(rooms_kept()) do look_again(whose, kept, now, patient_until) end
  for _, lv in ipairs(LEVELS) do
    for _, user in ipairs(call('ZRANGE', key2('ul', lv), 0, -1)) do
      local left, tried = left_to(user), 0
      local heads = left and heads_of(lv, user) or {}
      for i = 1, #heads, 2 do
        if left and tried < MOST_TRIED and might_be_beyond(heads[i], left) then
          local id = first_at(heads[i + 1], lv, user, heads[i])
          tried = tried + 1
          if has_waited(id) then
            keep_for(id, user, heads[i], now)
            left = left_to(user)
          end
        end
      end
    end
  end
end
end
