-- Hosts that could not start a job: its directory or program is missing there. They are a part of the job's shape
-- (device_filter.lua), so a claim reads nothing more; the reasons are in the job's entry. Releasing or editing the job
-- gives these hosts another try. SHARED in ../scripts.py lists the scripts that use this part.
local has_exclusions, exclude_host, drop_exclusions, reasons_of, why_nowhere, count_refusal
do
-- -> the shape without its filter, device kind, flags:models:devices, excluded hosts
local function parts_of(shape)
  local head, wanted_kind, more = string.match(shape, '^(%d+:%d+:%d+:[^:]*):?([^:]*):?(.*)$')
  local flags, models, devices, hosts = string.match(more, '^(%w*):?([^:]*):?([^:]*):?(.*)$')
  return head, wanted_kind, flags .. ':' .. models .. ':' .. devices, hosts
end

local function shape_of(head, wanted_kind, filter, hosts) -- the text as gpuqueue.model.placement.Shape writes it
  local rest = string.gsub(table.concat({wanted_kind, filter, hosts}, ':'), ':+$', '')
  return rest == '' and head or head .. ':' .. rest
end

function has_exclusions(shape)
  local _, _, _, hosts = parts_of(shape)
  return hosts ~= ''
end

-- Return why each excluded host could not start the job: host -> words.
function reasons_of(id)
  local ok, reasons = pcall(cjson.decode, call('HGET', job_key(id), F.excluded) or '{}')
  return ok and type(reasons) == 'table' and reasons or {}
end

-- Exclude a host for a job that is in no queue. -> whether it was not excluded before
function exclude_host(id, job, host, why)
  local head, wanted_kind, filter, hosts = parts_of(job.shape)
  if string.find(',' .. hosts .. ',', ',' .. host .. ',', 1, true) then return false end
  local names = {host}
  for name in string.gmatch(hosts, '[^,]+') do names[#names + 1] = name end
  table.sort(names) -- jobs with equal exclusions have one shape
  job.shape = shape_of(head, wanted_kind, filter, table.concat(names, ','))
  local reasons = reasons_of(id)
  reasons[host] = why
  call('HSET', job_key(id), F.shape, job.shape, F.excluded, cjson.encode(reasons))
  return true
end

-- Give all hosts another try at a job that is in no queue.
function drop_exclusions(id, job)
  local head, wanted_kind, filter, hosts = parts_of(job.shape)
  if hosts == '' then return end
  job.shape = shape_of(head, wanted_kind, filter, '')
  call('HSET', job_key(id), F.shape, job.shape)
  call('HDEL', job_key(id), F.excluded)
end

-- Return in words why no host can start the job.
function why_nowhere(id)
  local reasons, words = reasons_of(id), {}
  for host, why in pairs(reasons) do words[#words + 1] = host .. ': ' .. why end
  table.sort(words)
  return 'no host can start it: ' .. table.concat(words, '; ')
end

-- Count a job that this host could not start. A run that succeeds there ends the count (count_deaths in drains.lua).
function count_refusal(id, host, why)
  local ok, row = pcall(cjson.decode, call('HGET', P .. 'deaths', 'host:' .. host) or '{}')
  row = ok and type(row) == 'table' and row or {}
  local count = (tonumber(row.count) or 0) + (row.job == id and 0 or 1)
  call('HSET', P .. 'deaths', 'host:' .. host, cjson.encode({count = count, job = id, why = why}))
end
end
