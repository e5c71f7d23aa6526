-- Return what a list of jobs shows beside their entries: why queued jobs wait for a device, and the memory of runs.
-- Changes nothing.
--
-- Jobs of one user and one shape wait for the same reason, so they are judged together. MOST bounds the time of one
-- call: with many different jobs or devices, the last jobs get no answer, and the caller asks again.
-- ARGV: ids ...
-- returns for each job: why it waits | the bytes that its run used in the last sample, on all its devices | '' for any
--   other job | nil for no answer
local MOST_JOBS, MOST = 500, 2000 -- MOST: devices judged in one call
if #ARGV > MOST_JOBS then return redis.error_reply('BADARGS there are more than ' .. MOST_JOBS .. ' jobs') end
local kinds = {}
for i = 1, #ARGV do kinds[i] = 'id' end
local wrong = misfit(kinds)
if wrong then return wrong end
local now, reasons = now_ms(), {}
local site, site_size, judged = nil, 1, 0

local function reason_of(job, has_reservation)
  if not site then
    site = read_site(now)
    for _, on_host in ipairs(site) do site_size = site_size + #on_host.devices end
  end
  local like = job.user .. ' ' .. job.shape .. ' ' .. (has_reservation and job.id or '')
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
  return sum and whole(sum) or ''
end

local function answer(id)
  local state, reason, user, shape, priority, devices, reserved = unpack(call('HMGET', job_key(id), F.state, F.reason,
    F.user, F.shape, F.priority, F.devices, F.reserved))
  if ACTIVE[state] then return used_by(id, devices) end
  local job = {id = id, state = state, reason = reason, user = user, shape = shape, priority = priority}
  if state ~= 'queued' or (reason or '') ~= '' or not queueable(job) then return '' end
  return reason_of(job, reserved)
end

local found, is_full = {}, false
for i = 1, #ARGV do
  found[i] = not is_full and answer(ARGV[i])
  is_full = not found[i]
end
return found
