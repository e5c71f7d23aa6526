-- Raise the time limit of a job that has started: its run goes on for longer.
-- ARGV: id  digest (SHA-1 of its spec, as the caller knows it)  the new limit in ms  its step in a shape, in seconds (0:
--   beyond the last)  spec  what was added so far, with this extension, in ms  caller ('': the queue itself)
-- returns {state} | {'unchanged', state}: it waits or ends | {'changed'}: its spec has changed meanwhile | {} unknown
--       | {'of', the owner}: the caller may not change it (see authorize.lua)
--       | {'much', ms}: its owner may add no more than that in all; an admin may
--       | {'limited', JSON}: as submit.lua, with the limit max_time of its pool, which does not bind an admin
local wrong = expect {'id', 'nonce', 'ms', 'count', 'text', 'ms', 'by'}
if wrong then return wrong end
local id, digest, limit_ms, step, spec, added_ms, by = unpack(ARGV)
local job = read_job(id)
if not job.state then return {} end
local owner = theirs(by, job.user)
if owner then return {'of', owner} end
if not ((job.state == 'starting' or job.state == 'running') and queueable(job)) then return {'unchanged', job.state} end
if redis.sha1hex(call('GET', key2('s', id)) or '') ~= digest then return {'changed'} end
local _, _, _, pool = parse_shape(job.shape)
local most, longest = call('HGET', P .. 'meta', 'extend_ms') or '', limits_set() and figures_of_pool(pool).max_time
if not is_admin(by) then
  if longest and tonumber(limit_ms) > longest.most then
    return {'limited', cjson.encode({whose = 'pool', measure = 'max_time', used = '0', most = whole(longest.most), asked = limit_ms})}
  end
  if most ~= '' and tonumber(added_ms) > tonumber(most) then return {'much', most} end
end

call('SET', key2('s', id), spec)
call('HSET', job_key(id), F.time_limit_ms, limit_ms, F.shape, (string.gsub(job.shape, '^(%d+):%d+:', '%1:' .. step .. ':')))
local ends = step ~= '0' and job.claimed_ms and whole(job.claimed_ms + limit_ms) or '0'
for device in string.gmatch(job.preempted_by and '' or job.devices or '', '[^,]+') do -- a preempted run ends by its deadline
  local lease, rest = string.match(call('HGET', key2('dl', device), id) or '', '^(%d+:%d+):%d+(:.*)$')
  if lease then call('HSET', key2('dl', device), id, lease .. ':' .. ends .. rest) end
end
record_event('edit', id, job.state, now_ms(), job.attempts, job.losses, job.reason or '', 'spec', spec, 'limit', limit_ms, 'by', by)
call('PUBLISH', P .. 'ctl', table.concat({'extend', id, job.token, limit_ms}, ':'))
return {job.state}
