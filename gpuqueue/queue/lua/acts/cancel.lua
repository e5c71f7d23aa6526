-- Cancel a job: at once if it waits, else through its worker.
-- arrow: queued -> cancelled
-- arrow: held -> cancelled
-- arrow: starting -> cancelling
-- arrow: running -> cancelling
-- ARGV: id  caller ('': the queue itself)
-- returns the state after; the state before if the job had ended, with 'unchanged ' in front if that is cancelled; '' if
--   unknown;
--       | 'array' if it is an array (see edit_members.lua)
--       | 'of ' and the owner: the caller may not cancel it (see authorize.lua)
local wrong = expect {'id', 'by'}
if wrong then return wrong end
local id = ARGV[1]
local job = read_job(id)
if not job.state then return '' end
local owner = theirs(ARGV[2], job.user)
if owner then return 'of ' .. owner end
if job.left then return 'array' end
local now = now_ms()
if job.state == 'queued' or job.state == 'held' then
  leave(id, job, true)
  close(id, 'cancelled', now, record_event('cancel', id, 'cancelled', now, job.attempts, job.losses, ''))
  queue_due_if_any(now)
  return 'cancelled'
elseif job.state == 'starting' or job.state == 'running' then
  call('HSET', job_key(id), F.state, 'cancelling')
  record_event('cancel', id, 'cancelling', now, job.attempts, job.losses, '')
  call('PUBLISH', P .. 'ctl', 'cancel:' .. id .. ':' .. job.token)
  return 'cancelling'
end
return (job.state == 'cancelled' and 'unchanged ' or '') .. job.state
