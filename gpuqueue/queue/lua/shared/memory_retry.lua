-- Another run for a job that died for lack of device memory. It asks for more, up to what its devices can give; or for
-- the same where others had taken memory that was allocated to it. The worker reports facts, and this decides. Goes
-- after limits.lua and array.lua, before finish.lua.
local memory_retry
do
local TIMES = 2 -- as MEM_TIMES in gpuqueue/model/retries.py
local MIB, STEP, MOST = 2 ^ 20, 2 ^ 26, 2 ^ 50 -- requests are whole steps, where the devices allow it

-- Return the external memory of a device that no process holds: it is the driver's own, and does not go away. The
-- worker's last sample has it. `external` is newer, so the processes of that sample cannot be subtracted from it. A
-- worker of an older version does not report it; then no external memory goes away.
local function of_driver(device, external)
  local ok, sample = pcall(cjson.decode, call('HGET', P .. 'seen', device) or '')
  return ok and type(sample) == 'table' and tonumber(sample.driver_bytes) or external
end

-- Return the most memory that all devices of a job of this shape can give once no other job and no external process is
-- there, however much it asks for; 0 without devices. A CPU has no device memory. `most_for` in
-- gpuqueue/client/memory.py has the same rule.
local function most_for(shape)
  local _, _, n, pool, wanted_kind, more = parse_shape(shape)
  local want, by_host, most = constraints(more), {}, 0 -- all devices of a job are on one host and of one kind
  any_device(function(device, host, total, headroom, external, _, _, its_pool, kind)
    if is_cpu(kind) or is_engine(kind) or (n > 1 and kind == 'mig') or not belongs(pool, wanted_kind, want, host, device, its_pool, kind) then
      return false
    end
    local row = by_host[host .. ' ' .. kind] or {}
    by_host[host .. ' ' .. kind] = row
    row[#row + 1] = total - headroom - of_driver(device, tonumber(external))
  end)
  for _, row in pairs(by_host) do
    table.sort(row, function(a, b) return a > b end)
    most = math.max(most, row[n] or 0)
  end
  return most - most % STEP -- which leaves something for external memory that grows
end

local function shape_with(shape, mem) return (string.gsub(shape, '^%d+', whole(mem))) end

-- Return the most memory that limits let the job ask for, at most `mem`; 0 if they let it have no device. Only limits
-- that it exceeds on its own count: it waits for room under the others, as any job that is queued again.
local function most_by_limits(job, mem)
  if not limits_set() then return mem end
  local _, _, n, pool = parse_shape(job.shape)
  local of_pool, of_users = max_mem_of(pool) or math.huge, math.huge
  for _, bound in ipairs(bounds_of(job.user)) do
    local limit = bound.figures.running_mem -- of all devices together
    if limit then of_users = math.min(of_users, math.floor(limit.most / n)) end
  end
  mem = math.min(mem, of_pool, of_users)
  mem = mem - mem % MIB
  local least, most = charge_of(shape_with(job.shape, mem)) -- an exclusive job is charged for whole devices
  return (most > of_pool or least > of_users) and 0 or mem
end

local function bytes_in(fact)
  local bytes = tonumber(fact) -- null in JSON is no number
  return bytes and bytes >= 0 and bytes < MOST and bytes or 0
end

-- Give the job another run if it may have one, and count it. `had` is what the run was allocated on each device, nil if
-- unknown; `facts` are those of gpuqueue.model.mem_source.Shortage. -> whether it runs again, fields of the event
function memory_retry(id, job, had, facts)
  local times, array = unpack(call('HMGET', job_key(id), F.mem_retries, F.array))
  local spec = spec_of(id, array) or ''
  times = to_count(times)
  local allowed = to_count(string.match(spec, '"mem_times":(%d+)') or whole(TIMES))
  if allowed == 0 or job.requeue ~= '1' or not queueable(job) then return false, {} end
  local counted = {'mem_retries', times + 1, 'mem_allowed', allowed}
  local asked = tonumber(job.mem_bytes or '') or (parse_shape(job.shape))
  if times >= allowed then return false, {'mem_refused', 'times', 'mem_retries', times} end
  local blamed = type(facts.blamed) == 'string' and string.sub(facts.blamed, 1, 500) or ''
  if blamed ~= '' then
    call('HSET', job_key(id), F.mem_retries, times + 1)
    return true, {'mem', whole(asked), 'blamed', blamed, unpack(counted)}
  end
  had = math.max(had or 0, asked)
  local wanted = math.max(2 * had, bytes_in(facts.peak_bytes) + bytes_in(facts.tried_bytes))
  local most = most_for(job.shape)
  local mem = math.min(math.ceil(wanted / STEP) * STEP, most)
  if mem <= had then return false, {'mem_refused', 'devices', 'mem_most', whole(most)} end
  mem = most_by_limits(job, mem)
  if mem <= had then return false, {'mem_refused', 'limit'} end
  job.shape, job.mem_bytes = shape_with(job.shape, mem), whole(mem)
  call('HSET', job_key(id), F.mem_retries, times + 1, F.mem_bytes, job.mem_bytes, F.shape, job.shape)
  return true, {'mem', job.mem_bytes, unpack(counted)}
end
end
