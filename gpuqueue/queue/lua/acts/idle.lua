-- idle
-- Mark a live run that does not use its devices, or remove the mark. The job's state does not change. An event is
-- for its owner. A mark that is further along than the report stays, so that a worker that adopts the run repeats nothing.
-- ARGV: id  token  stage (0: in use, 1: marked, 2: warned, 3: the action of the site is due)  unused_ms  low (0|1: its
--   priority counts as low)  detail
-- returns 1 done | 0 unchanged, or stale
local wrong = expect {'id', 'token', 'stage', 'ms', 'flag', 'text'}
if wrong then return wrong end
local id, token, stage, unused_ms, low, detail = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) then return 0 end
local since, known = string.match(job.idle or '', '^(%d+):(%d+)')
if tonumber(stage) > 0 and tonumber(stage) <= (tonumber(known) or 0) then return 0 end
if stage == '0' and not job.idle then return 0 end
local now = now_ms()
if stage == '0' then
  call('HDEL', job_key(id), F.idle)
else
  since = since or whole(math.max(0, now - unused_ms))
  call('HSET', job_key(id), F.idle, since .. ':' .. stage .. (low == '1' and ':low' or ''))
end
record_event('idle', id, job.state, now, job.attempts, job.losses, '', 'token', token, 'stage', stage,
  'since', since or '', 'detail', detail)
return 1
