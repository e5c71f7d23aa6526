-- Remove the drains of some origins. A device takes jobs again when no origin drains it.
-- ARGV: n  n origins, then the devices
local wrong = misfit {'count'}
local n = wrong and 0 or tonumber(ARGV[1])
for i = 2, #ARGV do wrong = wrong or misfit({i <= n + 1 and 'word' or 'device'}, i) end
if wrong or #ARGV < n + 1 then return wrong or redis.error_reply('BADARGS there are fewer origins than n') end
for i = n + 2, #ARGV do
  local drains = drains_of(ARGV[i])
  for k = 2, n + 1 do
    drains[ARGV[k]] = nil
    if ARGV[k] == 'deaths' then call('HDEL', P .. 'deaths', ARGV[i]) end -- earlier deaths do not count again
  end
  write_drains(ARGV[i], drains)
end
wake('room')
return 1
