-- Which machine a host name belongs to. Two machines with one name would take each other's jobs and devices. SHARED in
-- ../scripts.py lists the scripts that use this part.
--
-- A name stays with its machine, also while that is down. Another machine gets it once the first one has no device in
-- the queue any more: `down` withdraws those without a job. It also gets the name if each device has been silent for a
-- lease and holds no run: the machine was reinstalled, or is gone. `gpuqueue lost` frees the name at once.
local taken_by, has_served_gpus

local function is_gpu(kind) return kind == 'gpu' or kind == 'mig' end -- a simulated device is lost by nobody

do
local function forget(host, device)
  call('HDEL', key2('dev', host), device)
  for _, about in ipairs({'facts', 'deaths', 'seen'}) do call('HDEL', P .. about, device) end
end

-- Give the name `host` to this machine (its id; '': unknown, not checked) if it is free. -> nil | the other machine's id
function taken_by(host, machine, lease_ms, now)
  local owner = machine ~= '' and call('HGET', P .. 'machines', host)
  if machine == '' or owner == machine then return nil end
  local records = owner and call('HGETALL', key2('dev', host)) or {}
  for i = 1, #records, 2 do
    local _, _, _, seen = parse_record(records[i + 1])
    if math.abs(now - (tonumber(seen) or now)) <= tonumber(lease_ms) or call('EXISTS', key2('dl', records[i])) == 1 then
      return owner
    end
  end
  for i = 1, #records, 2 do forget(host, records[i]) end -- devices of the machine that is gone
  call('HSET', P .. 'machines', host, machine)
  return nil
end

-- Return whether this host, which finds no GPU now, has served GPUs. Those that are silent and hold no run are withdrawn:
-- no job waits for their worker any more.
function has_served_gpus(host, now)
  local records = call('HGETALL', key2('dev', host))
  for i = 1, #records, 2 do
    local _, _, _, seen, _, _, kind = parse_record(records[i + 1])
    if is_gpu(kind) then
      call('SADD', P .. 'gpu_hosts', host)
      if math.abs(now - tonumber(seen)) > SEEN_MS and call('EXISTS', key2('dl', records[i])) == 0 then
        forget(host, records[i])
      end
    end
  end
  return call('SISMEMBER', P .. 'gpu_hosts', host) == 1
end
end
