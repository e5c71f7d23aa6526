-- Replace how usage is counted at this site. Usage until now stays as it is; a new half-life or share applies from now
-- on. Any process may call this, as often as it likes.
-- ARGV: half_life_ms  users who may use the highest priority ('*' all, else comma-separated)  device order for jobs on
--   one device (s spread, p pack, l least busy; '': the device that claims first)  users who may change the jobs of
--   others ('' none, else as before)  how many ms owners may add to the limit of a running job ('': any)  1 if the site
--   borrows devices from an engine, then for each user with a share other than 1: user  share in thousandths
-- returns 1 if anything changed, else 0
local wrong = misfit {'size', 'users', 'reason', 'users', 'passed', 'flag'}
for i = 7, #ARGV, 2 do wrong = wrong or misfit({'user', 'size'}, i) end
if wrong then return wrong end
local now = now_ms()
local shares, changed = {}, false
for i = 7, #ARGV, 2 do shares[ARGV[i]] = ARGV[i + 1] end
local known = call('HGETALL', P .. 'shares')
local before = {}
for i = 1, #known, 2 do
  before[known[i]] = known[i + 1]
  if shares[known[i]] ~= known[i + 1] then changed = true end
end
for user in pairs(shares) do changed = changed or not before[user] end
local half_life = string.format('%.3f', ARGV[1] / 1000)
changed = changed or (call('HGET', P .. 'meta', 'half_life') or '') ~= half_life
call('HSET', P .. 'meta', 'urgent', ARGV[2], 'order', string.sub(ARGV[3], 1, 1), 'admins', ARGV[4], 'extend_ms', ARGV[5],
  'borrows', ARGV[6])
if not changed then return 0 end
rebase(fair_ms(now), ARGV[1] / 1000, function(user) return (before[user] or 1000) / (shares[user] or 1000) end)
call('DEL', P .. 'shares')
for user, share in pairs(shares) do call('HSET', P .. 'shares', user, share) end
return 1
