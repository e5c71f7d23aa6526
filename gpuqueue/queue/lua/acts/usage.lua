-- Return what each user has running and waiting. Changes nothing.
-- returns JSON, for each user with either: user, running_jobs, running_gpus, running_mem (bytes, a string), queued_jobs
local wrong = expect {}
if wrong then return wrong end
local users = {}
for _, id in ipairs(call('ZRANGE', P .. 'leases', 0, -1)) do
  local user = call('HGET', job_key(id), F.user)
  if user then users[user] = true end
end
for _, priority in ipairs(PRIORITIES) do
  for _, user in ipairs(call('ZRANGE', key2('ul', priority), 0, -1)) do users[user] = true end
end
for _, user in ipairs(call('SMEMBERS', P .. 'asiders')) do users[user] = true end
local names, out = {}, {}
for user in pairs(users) do names[#names + 1] = user end
table.sort(names)
for _, user in ipairs(names) do
  local held = held_by({user}, true)
  held.user, held.running_mem, held.queued_jobs = user, whole(held.running_mem), waiting_of(user)
  out[#out + 1] = held
end
return cjson.encode(out)
