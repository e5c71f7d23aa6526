-- Return what a list of jobs shows beside their entries: why queued jobs wait for a device, and the memory of runs.
-- Changes nothing.
--
-- Jobs of one user and one shape wait for the same reason, so they are judged together. MOST bounds the time of one
-- call: with more different jobs or devices, some jobs get no answer, and the caller asks again.
-- ARGV: ids ...
-- returns for each job: why it waits | the bytes that its run used in the last sample, on all its devices | '' for any
--   other job | nil for no answer
local MOST_JOBS, MOST = 1000, 4000 -- MOST: devices judged in one call
if #ARGV > MOST_JOBS then return redis.error_reply('BADARGS there are more than ' .. MOST_JOBS .. ' jobs') end
for i = 1, #ARGV do
  local wrong = misfit({'id'}, i)
  if wrong then return wrong end
end
local now, site, site_size, judged, reasons = now_ms(), nil, 1, 0, {}

local function reason_of(job)
  if not site then
    site = read_site()
    for _, on_host in ipairs(site) do site_size = site_size + #on_host.devices end
  end
  local has_reservation = call('HEXISTS', job_key(job.id), 'rv') == 1
  local like = job.u .. ' ' .. job.sh .. ' ' .. (has_reservation and job.id or '')
  if not reasons[like] and (judged == 0 or judged + site_size <= MOST) then
    judged = judged + site_size
    reasons[like] = wait_reason(site, job, now)
  end
  return reasons[like] or false
end

local function used_by(id, devices)
  local sum
  for device in string.gmatch(devices or '', '[^,]+') do
    local lease = call('HGET', key2('dl', device), id)
    local used = tonumber(string.match(lease or '', '^%d+:(%d+)') or '')
    sum = used and (sum or 0) + used or sum
  end
  return sum and string.format('%.0f', sum) or ''
end

local found = {}
for i, id in ipairs(ARGV) do
  local st, why, u, sh, lv, devices = unpack(call('HMGET', job_key(id), 'st', 'why', 'u', 'sh', 'lv', 'devs'))
  local job = {id = id, st = st, why = why, u = u, sh = sh, lv = lv}
  if ACTIVE[st] then found[i] = used_by(id, devices)
  elseif st == 'queued' and (why or '') == '' and queueable(job) then found[i] = reason_of(job)
  else found[i] = '' end
end
return found
