-- Take back what some origins said against new jobs. A device takes jobs again when nobody has a say left.
-- ARGV: n  n origins, then the devices
local n = tonumber(ARGV[1])
for i = n + 2, #ARGV do
  local drains = drains_of(ARGV[i])
  for k = 2, n + 1 do
    drains[ARGV[k]] = nil
    if ARGV[k] == 'deaths' then call('HDEL', P .. 'deaths', ARGV[i]) end -- it starts with a clean slate
  end
  keep_drains(ARGV[i], drains)
end
ring('room')
return 1
