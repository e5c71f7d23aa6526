-- Assign the next job to a device and allocate the memory, in one step.
-- Order: priority, then the least-served user, then that user's jobs by position. A job that does not fit is passed
-- over.
-- How a run came to its start: `immediate` no job that might run there was ahead, `backfill` it fitted where the jobs
-- ahead did not, `reserved` the device was reserved for it.
-- A job may be left to a better device for a moment (see better_device.lua).
-- A calendar reservation of the device is an end for the jobs of others (see device_end.lua). What only its users may
-- start there is claimed after that.
-- arrow: queued -> starting
-- ARGV: host  device  worker  lease_ms  external (bytes of external processes)  nonce  1 if the host serves GPUs, then
--   for each of the worker's runs: id  observed bytes here
-- returns {} | {ms until the next claim, because a job was left} | {id, token, spec, attempt, mem, devices
--   (comma-separated), claimed ms, and of a member of an array: its array, whose spec that is, and its index}
--
-- Its parts are claim_room.lua, claim_take.lua and claim_search.lua.

-- Check in one call for what most sites rarely have. Mostly only the epoch exists; it is counted more often than the
-- rest together. -> {any due, any drained, any reserved} | nil, why the store cannot serve
local function check_site()
  local epoch, rest = P .. 'epoch', 5
  local found = call('EXISTS', epoch, epoch, epoch, epoch, epoch, epoch,
    P .. 'timers', P .. 'drained', P .. 'rsv', P .. 'limits', P .. 'shares')
  if found <= rest then return nil, refusal() end
  local due, drained, reserved, more = false, false, false, found - (rest + 1)
  if more > 0 then
    due, drained, reserved = exist(P .. 'timers', P .. 'drained', P .. 'rsv')
    more = more - (due and 1 or 0) - (drained and 1 or 0) - (reserved and 1 or 0)
  end
  if more == 0 then cache.limits_set, cache.any_shares = false, false end
  return {due, drained, reserved}
end

return function()
  cache = {}
  local site, why = check_site()
  if why then return why end
  local any_due, any_drained, any_reserved = unpack(site)
  local wrong = misfit {'host', 'device', 'worker', 'ms', 'bytes', 'nonce', 'flag'}
  for i = 8, #ARGV, 2 do wrong = wrong or misfit({'id', 'bytes'}, i) end
  if wrong then return wrong end
  local gpus_here
  host, device, worker, lease_ms, external, nonce, gpus_here = unpack(ARGV, 1, 7)
  if gpus_here == '1' then cache.gpus_known = true end -- even before the workers of these GPUs are up
  now = now_ms()
  stamp = string.format('%.0f', now)

  local leases = call('HGETALL', key2('dl', device))
  leases_here = leases
  local again = answer_again(leases)
  if again then return again end
  local first_due = any_due and call('ZRANGE', P .. 'timers', 0, 0, 'WITHSCORES')[2]
  if first_due and tonumber(first_due) <= now then -- a begin time has come, or a dependency has ended
    queue_due(now)
  end
  drained_from, calendar, viewer = nil, nil, nil
  if any_drained then
    cache.any_drained = true
    drained_from, calendar = closing_of(call('HGET', P .. 'drained', device), now)
  end
  judge_for(nil)
  if drained_from and drained_from <= now then return {} end
  if pausing(now) or not store_sample(leases) then return {} end
  read_reservation(any_reserved and call('HGET', P .. 'rsv', device), leases)

  -- Mostly no waiting job is small enough.
  priorities = priorities_waited_at()
  local first_priority, so_many = 1, small_enough(priorities[1])
  while so_many == 0 and first_priority < #priorities do
    first_priority = first_priority + 1
    so_many = small_enough(priorities[first_priority])
  end
  if so_many == 0 and not r_job then return {} end

  choosy = is_cpu(kind) and gpus_known()
  cache.kinds, cache.here, cache.only_this = {}, {}, {device}
  local taken = r_job and take_reserved()
  if viewer then judge_for(nil) end
  if not taken and (not device_end or device_end > now) then taken = take_in_turn(first_priority, so_many) end
  if not taken and calendar then taken = take_for_holders(first_priority) end
  return taken or (cache.left and {LEAVE_MS}) or {}
end
