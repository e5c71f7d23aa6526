-- Forecast of the room under a job's limits, and of whether it is also enough for the jobs ahead. Goes before why.lua,
-- after capacity.lua.
local room_under_limits, under_each_limit
do
local function users_under(user, whose)
  for _, bound in ipairs(bounds_of(user)) do
    if bound.whose == whose then return bound.users end
  end
  return {}
end

-- Return the other job whose reserved room leaves this job no room, where `left` is what remains without it; nil if
-- none.
local function room_reserved_for_another(limit, user, shape, left)
  local room = reserved_rooms()[limit.whose]
  if not room or (room.user == user and room.shape == shape) then return nil end
  return left < room[limit.measure] and room or nil
end

-- Find when there is room under all these limits for a job that has a device from `start` on (0: unknown).
-- -> {at (0: unknown), ids: the runs whose ends make the room, reserved_for: the job with reserved room that must start or
-- leave first, or nil, gone_before: the jobs with reserved room that this job can start before}
function room_under_limits(limits, user, shape, start, now)
  local asks = asks_of(shape, user)
  local at, ids, named, others = now, {}, {}, {}
  for _, limit in ipairs(limits) do
    local left = limit.most - limit.used - limit.asked
    for _, run in ipairs(left < 0 and runs_under(users_under(user, limit.whose), now) or {}) do
      if left < 0 and run[limit.measure] > 0 then
        left = left + run[limit.measure]
        at = (run.ends == 0 or at == 0) and 0 or math.max(at, run.ends)
        if not named[run.id] then ids[#ids + 1] = run.id end
        named[run.id] = true
      end
    end
    if left < 0 then at = 0 end
    others[#others + 1] = room_reserved_for_another(limit, user, shape, left)
  end
  local begins = (at == 0 or start == 0) and 0 or math.max(at, start)
  local gone_before = {}
  for _, room in ipairs(others) do -- a job that ends before the reserved room is needed may use it
    if begins == 0 or not ends_before(asks, room.start, 0, begins) then
      return {at = 0, ids = ids, reserved_for = room.id, gone_before = {}}
    end
    gone_before[#gone_before + 1] = room.id
  end
  return {at = at, ids = ids, gone_before = gone_before}
end

-- Return what is left under each limit of a user for a run that holds so much, once the runs for which has_gone(id) is
-- true have ended: {{users, measure, left}, ...}. Only measures that the run uses.
function under_each_limit(user, asked, has_gone)
  local found = {}
  for _, bound in ipairs(limits_set() and bounds_of(user) or {}) do
    local held = {running_jobs = 0, running_gpus = 0, running_mem = 0}
    for _, run in ipairs(runs_under(bound.users)) do
      for measure, before in pairs(has_gone(run.id) and {} or held) do held[measure] = before + run[measure] end
    end
    for measure, its in pairs(held) do
      local limit = bound.figures[measure]
      if limit and asked[measure] > 0 then
        found[#found + 1] = {users = bound.users, measure = measure, left = limit.most - its - asked[measure]}
      end
    end
  end
  return found
end
end
