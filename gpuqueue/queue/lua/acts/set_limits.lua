-- Replace all limits of this site: what is not named is no longer limited. Any process may call this, as often as it
-- likes. Live runs continue.
-- ARGV: for each: field  text (see limits.lua and submit_limits.lua)
-- returns 1 if anything changed, else 0
local wrong = #ARGV % 2 == 1 and redis.error_reply('BADARGS argument ' .. #ARGV .. ' has no text') or nil
for i = 1, #ARGV, 2 do wrong = wrong or misfit({'limit', 'figures'}, i) end
if wrong then return wrong end
local limits, fields = {}, 0
for i = 1, #ARGV, 2 do
  if not limits[ARGV[i]] then fields = fields + 1 end
  limits[ARGV[i]] = ARGV[i + 1]
end
local known, more = call('HGETALL', P .. 'limits'), call('HGETALL', P .. 'submit_limits')
for i = 1, #more do known[#known + 1] = more[i] end
local changed = #known ~= 2 * fields
for i = 1, #known, 2 do changed = changed or limits[known[i]] ~= known[i + 1] end
if not changed then return 0 end
call('DEL', P .. 'limits', P .. 'submit_limits', P .. 'open_bytes', P .. 'lk')
for field, text in pairs(limits) do
  local key = string.find(field, '^submit:') and 'submit_limits' or 'limits' -- a claim pays for `limits`
  call('HSET', P .. key, field, text)
end
for _, id in ipairs(call('ZRANGE', P .. 'leases', 0, -1)) do -- claimed by a version without limits
  local j = call('HMGET', job_key(id), F.state, F.user, F.mem_bytes, F.devices)
  local mem = j[4] and allocated_to(id, j[4]) or tonumber(j[3] or '') -- may exceed the request; see claim_take.lua
  if ACTIVE[j[1]] and j[2] and mem and j[4] then count_run(id, j[2], mem, j[4]) end
end
wake('room')
return 1
