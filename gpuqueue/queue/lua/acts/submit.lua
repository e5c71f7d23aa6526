-- Submit a job, unless no device could ever run it.
-- arrow: none -> queued
-- arrow: none -> held
-- ARGV: user  priority  mem  shape  requeue (0|1)  spec  nonce  how it waits (see dependencies.lua)
--       id that take_ids.lua has returned ('': none)
-- returns {'queued', id, ms, why it is not in a queue, else 'limit' if a limit leaves no room now, else as `judge` in
--   feasibility.lua}
--       | {'found', id}: a waiting or running job of this user has this dedupe key
--       | {'unknown', ids of dependencies that the store does not know, ...}
--       | {'member', id of a dependency that is a member of an array, id of its array}
--       | {'never', id of a dependency that ended other than required}
--       | {'unequal', id of an array that this one follows member by member, its indexes ('': it is none)}
--       | {'impossible', 'memory', largest bytes of one device} | {'impossible', 'devices', most of one kind on a host}
--       | {'impossible', 'mig', 0} | {'impossible', 'pool', 0} | {'impossible', 'urgent', 0}
--       | {'impossible', 'model', 0} | {'impossible', 'named', 0}
--       | {'limited', JSON: whose ('pool', a user, or @ and a group), measure, and as strings used, most, asked}
--       | {'default', ms}: it has no time limit and must be submitted again with this one
--       | {'expired'}: the id was taken too long ago, or in a store that has lost its data
local wrong = expect {'user', 'priority', 'size', 'shape', 'flag', 'text', 'nonce', 'text', 'id?'}
local waits
if not wrong then waits, wrong = waits_of(8) end
if wrong then return wrong end
local user, priority, mem, shape, requeue, spec, nonce = unpack(ARGV, 1, 7)
local id = ARGV[9]
if array_of(spec) == false then return redis.error_reply('BADARGS argument 6 describes no array') end
local need, _, _, pool, wanted_kind = parse_shape(shape)
if not WANTED_KINDS[wanted_kind] or tonumber(mem) > need then return redis.error_reply('BADARGS argument 4 is not the shape of the job') end

local verdict, why, figure = judge(user, priority, shape)

local time_ms = time_of(spec)
local default_ms = not time_ms and default_time_ms(pool)
if default_ms then return {'default', default_ms} end

local known_id, known_ts = string.match(call('GET', key2('idem', nonce)) or '', '^(%d+):(%d+)$')
if known_id then
  local aside = call('HGET', job_key(known_id), F.reason) or ''
  return {'queued', known_id, known_ts, aside ~= '' and aside or verdict == 'queued' and why or ''}
end
local twin = waits.key and job_with_key(user, waits.key)
if twin then return {'found', twin} end
if verdict == 'impossible' then return {verdict, why, figure} end
local text, members = array_of(spec)
if id ~= '' and call('GET', key2('taken', id)) ~= (text and whole(members[#members][2] + 1) or '0') then return {'expired'} end
local beyond = beyond_a_limit(user, shape, mem, time_ms, false, members and count_of(members))
beyond = beyond or beyond_a_submit_limit(user, spec, members and count_of(members))
if beyond then return beyond end
local wanted, trouble = ends_of(waits.after)
if trouble then return trouble end
local followed
followed, trouble = follow(wanted, waits, spec)
if trouble then return trouble end
if (why == '' or why == 'cpu') and limit_in_the_way(user, shape, least_kind(shape)) then why = 'limit' end

local meant_fields
shape, meant_fields = meant(shape, wanted_kind)

local is_taken = id ~= ''
if is_taken then call('DEL', key2('taken', id)) else id = whole(call('INCR', P .. 'seq')) end
local now = now_ms()
local stamp = whole(now)
call('SET', key2('idem', nonce), id .. ':' .. stamp, 'EX', 600)
local state = waits.hold and 'held' or 'queued'
call('HSET', job_key(id), F.state, state, F.user, user, F.priority, priority, F.shape, shape, F.mem_bytes, mem, F.requeue, requeue,
  F.attempts, 0, F.losses, 0, F.submitted_ms, stamp)
call('SET', key2('s', id), spec)
add_open_bytes(user)
local job = {user = user, priority = priority, shape = shape}
begin_array(id, spec, waits.hold, job, is_taken)
call('ZADD', P .. 'live', id, id)
store_waits(id, job, waits)
set_dependencies(id, job, wanted)
if followed then begin_follow(id, spec, followed.good) end
if waits.hold then record_unqueued(id, job) end
local aside = waits.hold and 'held' or queue_if_ready(id, job, now)
if aside ~= '' then call('HSET', job_key(id), F.reason, aside) end
record_event('submit', id, state, now, 0, 0, aside, 'spec', spec, 'begin', job.not_before_ms or '', unpack(meant_fields))
if followed then members_known(id, followed.parent, 'fail', join('', followed.bad), now) end
if aside == '' then wake('work') end
return {verdict, id, stamp, aside ~= '' and aside or why}
