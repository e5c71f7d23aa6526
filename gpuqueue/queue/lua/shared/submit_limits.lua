-- Limits of each user that only a submit meets. Goes after limits.lua, before submit.lua and usage.lua.
--
-- submit_limits (hash): submit:<name>, submit:* (users without an entry of their own) -> measure=most. Most sites have
-- them, so they are not in `limits`, which each claim reads. A requeued job meets none of them.
--
-- open_bytes (hash): user -> bytes of the specs of the user's open jobs, or more: a submit adds its spec, and nothing
-- subtracts one. Where it seems to reach the limit, the specs are added up. set_limits.lua deletes it.
local beyond_a_submit_limit, add_open_bytes, open_bytes_of
do
local bound -- of open_bytes, if this submit is accepted
-- Return the bytes of the specs of a user's jobs that have not ended. An array has one, for all its members.
function open_bytes_of(user)
  local seen, sum = {}, 0
  local function add(ids)
    for _, id in ipairs(ids) do
      if not seen[id] then seen[id], sum = true, sum + call('STRLEN', key2('s', id)) end
    end
  end
  add(call('ZRANGE', key2('aside', user), 0, -1))
  add(call('HKEYS', key2('run', user)))
  for _, priority in ipairs(PRIORITIES) do
    for _, shape in ipairs(call('ZRANGE', key3('us', priority, user), 0, -1)) do
      add(call('ZRANGE', queue_key(priority, user, shape), 0, -1))
    end
  end
  return sum
end

-- Add the spec of an accepted submit.
function add_open_bytes(user)
  if bound then call('HSET', P .. 'open_bytes', user, whole(bound)) end
end

-- Return the bytes of a spec's text between two marks. Quotes in its strings are escaped, so no string has a mark.
local function bytes_between(spec, from, to)
  local _, start = string.find(spec, from, 1, true)
  local stop = start and string.find(spec, to, start + 1, true)
  return stop and stop - start - 1 or 0
end

-- Return the reply to a job that one of these limits refuses, or nil. `members`: of an array, else nil.
function beyond_a_submit_limit(user, spec, members)
  local texts = call('HMGET', P .. 'submit_limits', 'submit:' .. user, 'submit:*')
  local figures = {}
  for name, most in string.gmatch(texts[1] or texts[2] or '', '([%a_]+)=(%d+)') do figures[name] = tonumber(most) end
  local function refusal_of(measure, used, asked)
    if not figures[measure] or used + asked <= figures[measure] then return nil end
    return {'limited', cjson.encode({whose = user, measure = measure, used = whole(used), most = whole(figures[measure]),
      asked = whole(asked)})}
  end
  local reply = figures.arguments and refusal_of('arguments', 0, bytes_between(spec, '"argv":[', '],"cwd":"'))
    or figures.environment and refusal_of('environment', 0, bytes_between(spec, '"env":{', '},"account":{'))
  if reply then return reply end
  if figures.open_bytes then
    bound = tonumber(call('HGET', P .. 'open_bytes', user) or 'inf') + #spec
    if bound > figures.open_bytes then
      local sum = open_bytes_of(user)
      reply = refusal_of('open_bytes', sum, #spec)
      if reply then return reply end
      bound = sum + #spec
    end
  end
  -- The jobs of all users are counted at once: mostly there are fewer than one user may have.
  local many = figures.open_jobs and call('ZCARD', P .. 'live') >= figures.open_jobs
  if not many and not (members and figures.array_members) then return nil end
  local _, jobs, waiting = waiting_of(user)
  return many and refusal_of('open_jobs', jobs + call('HLEN', key2('run', user)), 1)
    or members and refusal_of('array_members', waiting, members) or nil
end
end
