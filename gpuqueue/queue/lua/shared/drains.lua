-- Drains of devices, and the quick deaths that cause them. SHARED in ../scripts.py lists the scripts that use it.
local drains_of, write_drains, drain, count_deaths
do
-- Return the drains of a device: origin -> {why, by, at, from}. Each origin is independent (see ../drains.py).
-- An unreadable text counts as a drain by `down`.
function drains_of(device)
  local text = call('HGET', P .. 'drained', device)
  if not text then return {} end
  local ok, drains = pcall(cjson.decode, text)
  if ok and string.sub(text, 1, 1) == '{' then return drains end
  return {down = {why = text}}
end

function write_drains(device, drains)
  if next(drains) then call('HSET', P .. 'drained', device, cjson.encode(drains))
  else call('HDEL', P .. 'drained', device) end
end

-- Drain a device from a time in ms on (nil: at once). A drain of this origin that holds is not put off.
function drain(device, origin, why, by, now, from)
  local drains = drains_of(device)
  local known = drains[origin]
  if from and known and (tonumber(known.from) or 0) <= now then return end
  drains[origin] = {why = why, by = by, at = whole(now), from = from and whole(from)}
  write_drains(device, drains)
end

-- Record what the end of a run says about its devices: `well` clears all of them, `against` lists devices on which the
-- run died at once. Three different jobs that die so in a row drain the device, in this same step. Only called for the
-- owner of the run, right before the token becomes stale, so each run counts once.
local DEATHS = 3
function count_deaths(id, job, now, well, against, why)
  if well == '1' then
    local host = 'host:' .. (string.match(job.worker or '', '^[^/]+') or '') -- see count_refusal in exclusions.lua
    for device in string.gmatch(job.devices or '', '[^,]+') do call('HDEL', P .. 'deaths', device, host) end
  end
  for device in string.gmatch(against, '[^,]+') do
    local row = cjson.decode(call('HGET', P .. 'deaths', device) or '[]')
    local known = drains_of(device).deaths ~= nil
    for i = 1, #row do known = known or row[i].job == id end -- one job counts once; a job that keeps dying is held later
    if not known then row[#row + 1] = {job = id, why = why} end
    if #row < DEATHS then
      if not known then call('HSET', P .. 'deaths', device, cjson.encode(row)) end
    else
      local jobs = {}
      for i = 1, #row do jobs[i] = 'job ' .. row[i].job .. ' (' .. row[i].why .. ')' end
      drain(device, 'deaths', 'runs died one after the other right after their start, probably not by their own fault: '
        .. table.concat(jobs, ', ') .. '; look at their logs and at nvidia-smi, then: gpuqueue resume '
        .. device, 'gpuqueue', now)
      call('HDEL', P .. 'deaths', device)
    end
  end
end
end
