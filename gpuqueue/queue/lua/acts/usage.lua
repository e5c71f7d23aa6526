-- Return what each user has running and waiting. Changes nothing.
-- returns JSON, for each user with either: user, running_jobs, running_gpus, running_mem (bytes, a string), queued_jobs,
-- open_jobs, array_members, and open_bytes (a string) unless that needs too many reads
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
local specs_left = 20000 -- to read: about 50 ms, in which the store does nothing else
for _, user in ipairs(names) do
  local held = held_by({user}, true)
  local queued, jobs, waiting = waiting_of(user)
  held.user, held.running_mem, held.queued_jobs, held.array_members = user, whole(held.running_mem), queued, waiting
  held.open_jobs = jobs + call('HLEN', key2('run', user))
  specs_left = specs_left - held.open_jobs
  if specs_left >= 0 then held.open_bytes = whole(open_bytes_of(user)) end
  out[#out + 1] = held
end
return cjson.encode(out)
