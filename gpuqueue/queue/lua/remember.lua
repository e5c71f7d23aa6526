-- Put back what people said of jobs that are back, while a store is rebuilt.
-- ARGV: epoch to come, then for each: id  front (see front.lua; '' if it was not moved)
-- returns 1 done | -1 this rebuild is over
local wrong = misfit {'nonce'}
for i = 2, #ARGV, 2 do wrong = wrong or misfit({'id', 'passed'}, i) end
if wrong then return wrong end
if call('EXISTS', P .. 'epoch') == 1 or call('GET', P .. 'rebuilding') ~= ARGV[1] then return -1 end
for i = 2, #ARGV, 2 do
  local id, front = ARGV[i], ARGV[i + 1]
  local job = read_job(id)
  if job.st and queueable(job) and front ~= '' then
    move_to(id, job, front)
    if (tonumber(call('HGET', P .. 'meta', 'front') or '') or 0) < tonumber(front) then call('HSET', P .. 'meta', 'front', front) end
  end
end
return 1
