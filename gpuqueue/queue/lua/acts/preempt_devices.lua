-- Preempt all runs on some devices, for no other job: the time of their host is over. A run that has not started yet is
-- preempted once it has, by a later call. A job that must not run twice ends with its run.
-- ARGV: grace_ms, then the devices
-- returns {id, state, ...} of the jobs that have a run there
local wrong = misfit {'ms'}
for i = 2, #ARGV do wrong = wrong or misfit({'device'}, i) end
if wrong then return wrong end
local now, grace_ms, out, seen = now_ms(), tonumber(ARGV[1]), {}, {}
for i = 2, #ARGV do
  for _, id in ipairs(call('HKEYS', key2('dl', ARGV[i]))) do
    local job = not seen[id] and read_job(id)
    seen[id] = true
    if job and ACTIVE[job.state] then
      if job.state == 'running' and not job.preempted_by then preempt_run(id, job, '0', now, grace_ms) end
      out[#out + 1], out[#out + 2] = id, job.state
    end
  end
end
return out
