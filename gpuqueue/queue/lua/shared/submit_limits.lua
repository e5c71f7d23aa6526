-- Limits of each user that only a submit meets. Goes after limits.lua, before submit.lua.
--
-- submit_limits (hash): submit:<name>, submit:* (users without an entry of their own) -> measure=most. Most sites have
-- them, so they are not in `limits`, which each claim reads. A requeued job meets none of them.
local beyond_a_submit_limit
do
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
  -- The jobs of all users are counted at once: mostly there are fewer than one user may have.
  local many = figures.open_jobs and call('ZCARD', P .. 'live') >= figures.open_jobs
  if not many and not (members and figures.array_members) then return nil end
  local _, jobs, waiting = waiting_of(user)
  return many and refusal_of('open_jobs', jobs + call('HLEN', key2('run', user)), 1)
    or members and refusal_of('array_members', waiting, members) or nil
end
end
