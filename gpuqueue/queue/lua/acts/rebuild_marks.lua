-- Restore users' marks of restored jobs (position, tags, note), while a store is rebuilt.
-- ARGV: new epoch, then for each: id  front (see priority_front.lua; '' if the job was not moved)  1 if its tags differ
--   from its spec's  tags  note
-- returns 1 done | -1 this rebuild is over
local wrong = misfit {'nonce'}
for i = 2, #ARGV, 5 do wrong = wrong or misfit({'id', 'passed', 'flag', 'tags', 'text'}, i) end
if wrong then return wrong end
if call('EXISTS', P .. 'epoch') == 1 or call('GET', P .. 'rebuilding') ~= ARGV[1] then return -1 end
for i = 2, #ARGV, 5 do
  local id, front, tagged, tags, note = unpack(ARGV, i, i + 4)
  local job = read_job(id)
  if job.state then
    if tagged == '1' then call('HSET', job_key(id), F.tags, tags) end
    if note ~= '' then call('HSET', job_key(id), F.note, note) end
  end
  if job.state and queueable(job) and front ~= '' then
    move_to(id, job, front)
    local last = tonumber(call('HGET', P .. 'meta', 'front') or '') or 0
    if last < tonumber(front) then call('HSET', P .. 'meta', 'front', front) end
  end
end
return 1
