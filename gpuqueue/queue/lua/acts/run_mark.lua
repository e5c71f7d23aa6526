-- run_mark
-- Mark a live run that looks wrong, or end the mark. The job's state does not change. An event is for its owner and the
-- history. A mark that is further along than the report stays, so that a worker that adopts the run repeats nothing.
-- ARGV: id  token  kind  stage (0: over, 1: marked; of an idle run also 2: warned, 3: the action of the site is due)
--   for_ms (how long it has looked so)  low (0|1: its priority counts as low)  what (what the mark names)  detail
-- returns 1 done | 0 unchanged, or stale
local wrong = expect {'id', 'token', 'word', 'stage', 'ms', 'flag', 'text', 'text'}
if wrong then return wrong end
local id, token, kind, stage, for_ms, low, what, detail = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) then return 0 end
local readable, marks = pcall(cjson.decode, job.marks or '{}')
if not readable or type(marks) ~= 'table' then marks = {} end
local before = type(marks[kind]) == 'table' and marks[kind] or nil
local is_on = before and not before['until']
if stage == '0' and not is_on then return 0 end
if stage ~= '0' and is_on and tonumber(stage) <= to_count(before.stage) then return 0 end
local now = now_ms()
if stage == '0' then
  before['until'], before.stage, before.low = whole(now), nil, nil
else
  marks[kind] = {since = is_on and before.since or whole(math.max(0, now - for_ms)), stage = stage,
    low = low == '1' or nil, what = what ~= '' and what or nil}
end
local text = cjson.encode(marks)
call('HSET', job_key(id), F.marks, text)
record_event('run_mark', id, job.state, now, job.attempts, job.losses, '', 'token', token, 'kind', kind, 'stage', stage,
  'marks', text, 'detail', detail)
return 1
