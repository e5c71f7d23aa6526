-- Open the store once everything in the history is restored. A store that lost its data gets a new epoch, and new ids
-- are above the history's last.
-- ARGV: new epoch  floor (the highest id that may ever have been assigned)  last (id in the history)
--       pause_ms (no claims for so long: a run that no process reports is over by then)
--       hosts that have served a GPU ...
-- returns 1 it is open now | 0 it was open, or another rebuild is under way
local wrong = misfit {'nonce', 'count', 'count', 'ms'}
if wrong then return wrong end
local epoch, floor, last, pause_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if call('EXISTS', P .. 'epoch') == 1 or call('GET', P .. 'rebuilding') ~= epoch then return 0 end
call('HSET', P .. 'meta', 'layout', '1', 'floor', whole(floor), 'last', last,
  'opened', whole(now_ms()), 'claims', whole(pause_ms > 0 and now_ms() + pause_ms or 0))
if tonumber(last) > 0 then call('HSET', P .. 'meta', 'recorded', '0-0') end -- the history has jobs without events
if tonumber(call('GET', P .. 'seq') or 0) < floor then call('SET', P .. 'seq', whole(floor)) end
call('HSETNX', P .. 'meta', 'fair', whole(now_ms())) -- from the first claim on: the clock may jump before a tick
limit_exponents(fair_ms(now_ms()))
for i = 5, #ARGV do -- one that is no name of a host serves nothing
  if not misfit({'host'}, i) then call('SADD', P .. 'gpu_hosts', ARGV[i]) end
end
call('SET', P .. 'epoch', epoch)
call('DEL', P .. 'rebuilding')
wake('work')
return 1
