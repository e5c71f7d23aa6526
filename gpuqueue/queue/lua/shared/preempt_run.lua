-- Asks a run to end so that its job runs again later. SHARED in ../scripts.py lists the scripts that use this part.

-- `by` is the job that the run is preempted for, 0 if it is for none: its time on the device is over.
local function preempt_run(id, job, by, now, grace_ms)
  local deadline = whole(now + grace_ms)
  call('HSET', job_key(id), F.preempted_by, by, F.preempt_until_ms, deadline)
  call('HINCRBY', job_key(id), F.preemptions, 1)
  for device in string.gmatch(job.devices or '', '[^,]+') do -- other scripts see by this when the run will be gone
    local lease, ends, rest = string.match(call('HGET', key2('dl', device), id) or '', '^(%d+:%d+):(%d+)(.*)$')
    if lease and (ends == '0' or tonumber(ends) > now + grace_ms) then
      call('HSET', key2('dl', device), id, lease .. ':' .. deadline .. rest)
    end
  end
  record_event('preempt', id, job.state, now, job.attempts, job.losses, '', 'token', job.token, 'by', by, 'deadline', deadline)
  call('PUBLISH', P .. 'ctl', table.concat({'preempt', id, job.token, by, whole(grace_ms)}, ':'))
end
