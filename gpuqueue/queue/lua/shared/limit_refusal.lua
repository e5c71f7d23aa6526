-- Requests that limits refuse. Goes after limits.lua, before submit.lua and edit.lua.
local time_of, beyond_a_limit, default_time_ms
do
-- Return the first limit that refuses a job it has no room for, or that a run of this shape exceeds on its own: such a
-- job would wait in vain, whatever else blocks it.
local function refusing(user, shape)
  local asked = asked_for(shape, least_kind(shape))
  local found = passed_alone(user, asked)
  for _, bound in ipairs(found and {} or bounds_of(user)) do
    for _, measure in ipairs(RUNNING) do
      local limit = bound.figures[measure]
      if limit and limit.refuses then found = found or beyond(bound, measure, asked[measure]) end
    end
  end
  return found
end

-- Return a job's exact time limit in ms (the shape's is rounded up, see claim_take.lua); nil without one.
function time_of(spec)
  local seconds = tonumber(string.match(spec, '"time_limit_s":([%d.]+)') or '')
  return seconds and seconds * 1000
end

-- Return the limit that refuses a job, or nil. -> {whose, measure or figure, used, most, asked}. A job that `waits`
-- already takes no further slot; an array takes one for each of its `members`.
local function refused_by_limit(user, shape, mem, time_ms, waits, members)
  if not limits_set() then return nil end
  local _, _, n, pool = parse_shape(shape)
  local figures = figures_of_pool(pool)
  local asked = {max_mem = wants_alone(shape) and select(2, charge_of(shape)) or tonumber(mem), max_time = time_ms, max_gpus = n}
  for _, name in ipairs({'max_mem', 'max_time', 'max_gpus'}) do
    local limit = figures[name]
    if limit and asked[name] > limit.most then
      return {whose = 'pool', measure = name, used = 0, most = limit.most, asked = asked[name]}
    end
  end
  for _, bound in ipairs(bounds_of(user)) do
    local limit, waiting = not waits and bound.figures.queued_jobs, 0
    for _, name in ipairs(limit and bound.users or {}) do waiting = waiting + waiting_of(name) end
    if limit and waiting + members > limit.most then
      return {whose = bound.whose, measure = 'queued_jobs', used = waiting, most = limit.most, asked = members}
    end
  end
  return refusing(user, shape)
end

-- Return the reply to a request that a limit refuses, or nil.
function beyond_a_limit(user, shape, mem, time_ms, waits, members)
  local beyond = refused_by_limit(user, shape, mem, time_ms or math.huge, waits, members or 1)
  if not beyond then return nil end
  for _, name in ipairs({'used', 'most', 'asked'}) do
    beyond[name] = whole(beyond[name] == math.huge and 0 or beyond[name])
  end
  return {'limited', cjson.encode(beyond)}
end

-- Return the time limit in ms that a job of this pool gets if it has none; nil without a default.
function default_time_ms(pool)
  if not limits_set() then return nil end
  local figure = figures_of_pool(pool).default_time
  return figure and figure.most
end
end
