-- Restore how often jobs were preempted, while a store is rebuilt: the history counted it in their runs.
-- ARGV: new epoch, then for each: id  times
-- returns 1 done | -1 this rebuild is over
local wrong = misfit {'nonce'}
for i = 2, #ARGV, 2 do wrong = wrong or misfit({'id', 'count'}, i) end
if wrong then return wrong end
if call('EXISTS', P .. 'epoch') == 1 or call('GET', P .. 'rebuilding') ~= ARGV[1] then return -1 end
for i = 2, #ARGV, 2 do
  if call('EXISTS', job_key(ARGV[i])) == 1 then call('HSET', job_key(ARGV[i]), F.preemptions, ARGV[i + 1]) end
end
return 1
