-- Park a run: its host leaves it to the shim for a long time. No other worker may take the run meanwhile, not even
-- after the store lost its data, so the history must learn of it. The next worker's offer (adopt.lua) ends it.
-- ARGV: id  token  lease_ms
-- returns 1 done | 0 stale, or cancelled
local wrong = expect {'id', 'token', 'ms'}
if wrong then return wrong end
local id, token, lease_ms = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) or job.state == 'cancelling' then return 0 end
local now = now_ms()
local expires = whole(now + lease_ms)
call('ZADD', P .. 'leases', expires, id)
record_event('park', id, job.state, now, job.attempts, job.losses, '', 'token', token, 'until', expires)
return 1
