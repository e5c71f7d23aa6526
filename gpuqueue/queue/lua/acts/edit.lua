-- Change the request of a waiting job and what it waits for: all of it or nothing. The job keeps its position.
-- ARGV: id  digest (SHA-1 of its spec, as the caller knows it; with its memory behind, if it got that after a lack of it)
--       priority ('': unchanged)  mem  shape  spec
--       1 if the dependencies change  1 if the begin time changes  1 if a time limit was given, also to have none
--       1 if the request changes in more than the concurrency limit of an array
--       how it waits (see dependencies.lua)  caller ('': the queue itself)
-- returns {state} | {'unchanged', state}: the job does not wait | {'changed'}: its spec has changed meanwhile | {} unknown
--       | {'of', the owner}: the caller may not change it (see authorize.lua)
--       | {'begun'}: it is a member of an array, or an array with a claimed member; of the latter only the concurrency
--         limit can be changed
--       | {'granted', n}: it was granted n retries and the last is still to come; fewer cannot be set
--       | {'circle', id}: that job waits for this one | {'tangled'}: too many jobs wait for each other
--       | as submit.lua; 'default' if the job moves to another pool
local wrong = expect {'id', 'nonce', 'priority?', 'size', 'shape', 'text', 'flag', 'flag', 'flag', 'flag', 'text', 'by'}
local waits
if not wrong then waits, wrong = waits_of(11) end
if wrong then return wrong end
local id, digest, priority, mem, shape, spec, new_after, new_begin, new_time, other = unpack(ARGV, 1, 10)
local need, _, _, pool, wanted_kind = parse_shape(shape)
if not WANTED_KINDS[wanted_kind] or tonumber(mem) > need then return redis.error_reply('BADARGS argument 5 is not the shape of the job') end
local job = read_job(id)
if not job.state then return {} end
local owner = theirs(ARGV[12], job.user)
if owner then return {'of', owner} end
local of = call('HMGET', job_key(id), F.array, F.member_claimed_ms, F.retry_after, F.mem_retries)
local known = call('GET', key2('s', id)) or ''
local begun = of[2] and not of[1]
-- Dependencies and priority may differ where the spec is equal: the current ones may stem from aging or finished jobs.
local more = other == '1' or new_after == '1' or new_begin == '1' or priority ~= ''
if of[1] or (begun and more) then -- the request belongs to the array, or to its members
  return {'begun'}
end
local waits_yet = (job.state == 'queued' or job.state == 'held') and queueable(job)
if not waits_yet and not (begun and ACTIVE[job.state]) then return {'unchanged', job.state} end
if redis.sha1hex(known .. (of[4] and job.mem_bytes or '')) ~= digest then return {'changed'} end
local retry_to_come = of[3] and to_count(of[3]) == job.attempts -- not a requeue by exit code 75
if retry_to_come and to_count(waits.times) < math.min(to_count(job.retries_allowed), to_count(job.retries)) then return {'granted', job.retries} end

local function store_spec() -- and the concurrency limit of an array
  call('SET', key2('s', id), spec)
  local text, _, cap = array_of(spec)
  if text then call('HDEL', job_key(id), F.at_once) end
  if cap then call('HSET', job_key(id), F.at_once, cap) end
end
if begun then
  store_spec()
  local state = update_array(id, now_ms(), 'edit', 'spec', spec, 'begin', job.not_before_ms or '')
  wake('work')
  return {state}
end

-- Find a dependency cycle. Ids only grow, so only an edit can create one.
local function circle(wanted)
  local MOST, open, seen, count = 1000, {}, {}, 0
  for _, each in ipairs(wanted) do open[#open + 1] = {each.id, each.id} end
  while #open > 0 do
    local each, first = unpack(table.remove(open))
    if each == id then return {'circle', first} end
    if not seen[each] then
      seen[each], count = true, count + 1
      if count > MOST then return {'tangled'} end
      for _, next_one in ipairs(dependencies(call('HGET', job_key(each), F.after))) do
        open[#open + 1] = {next_one.id, first}
      end
    end
  end
end

local verdict, why, figure = judge(job.user, priority == '' and job.priority or priority, shape)
-- The user did not ask for a priority that comes from aging.
if verdict == 'impossible' and not (why == 'urgent' and priority == '') then return {verdict, why, figure} end
local time_ms, _, _, _, old_pool = time_of(spec), parse_shape(job.shape)
local moves = pool ~= old_pool -- the limits of the new pool apply in full
local default_ms = moves and new_time == '0' and not time_ms and default_time_ms(pool)
if default_ms then return {'default', default_ms} end
if not moves and new_time == '0' and time_ms == time_of(known) then time_ms = 0 end -- an unchanged time limit is not checked
local beyond = beyond_a_limit(job.user, shape, mem, time_ms, true)
if beyond then return beyond end
local wanted, followed, trouble
if new_after == '1' then
  wanted, trouble = ends_of(waits.after)
  trouble = trouble or circle(wanted)
  if not trouble then followed, trouble = follow(wanted, waits, spec) end
  if trouble then return trouble end
end

local meant_fields
shape, meant_fields = meant(shape, wanted_kind)
local now = now_ms()
local same = shape == job.shape
leave(id, job, false, same)
job.shape = shape
call('HSET', job_key(id), F.shape, shape, F.mem_bytes, mem) -- a request excludes no host
call('HDEL', job_key(id), F.excluded, F.time_limit_ms)
if priority ~= '' then
  job.priority = priority
  call('HSET', job_key(id), F.priority, priority, F.promotions, 0)
end
store_spec()
local nb, nw = job.not_before_ms, job.not_before_reason
waits.key = job.dedupe_key
waits.retries, waits.requeues = to_count(job.retries) > 0 and job.retries or nil, to_count(job.requeues) > 0 and job.requeues or nil
if new_begin == '0' then waits.begin = nb end
store_waits(id, job, waits)
if job.not_before_ms then
  job.not_before_reason = new_begin == '0' and nw or 'begin'
  call('HSET', job_key(id), F.not_before_reason, job.not_before_reason or 'begin')
end
if wanted then
  drop_dependencies(id, job)
  set_dependencies(id, job, wanted)
  if followed then begin_follow(id, spec, followed.good) end
end
local reason = job.reason or ''
if job.state == 'queued' then
  reason = queue_if_ready(id, job, now)
  call('HSET', job_key(id), F.reason, reason)
end
if same and reason ~= '' then unreserve(id) end -- not in a queue now: it cannot use the device
record_event('edit', id, job.state, now, job.attempts, job.losses, reason, 'spec', spec, 'begin', job.not_before_ms or '', unpack(meant_fields))
if followed then members_known(id, followed.parent, 'fail', join('', followed.bad), now) end
wake('work')
return {call('HGET', job_key(id), F.state)}
