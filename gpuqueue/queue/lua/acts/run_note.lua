-- Add a note to a live run's history, for its owner. The job's state does not change.
-- ARGV: id  token  detail
-- returns 1 done | 0 stale
local wrong = expect {'id', 'token', 'text'}
if wrong then return wrong end
local id, token, detail = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) then return 0 end
record_event('note', id, job.state, now_ms(), job.attempts, job.losses, '', 'token', token, 'detail', detail)
return 1
