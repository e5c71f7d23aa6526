-- When runs are likely to end, and whether a job is likely to start soon enough for a reservation. Goes before
-- reserve.lua, after capacity.lua.
local foresee, latest_start, judged_at, has_prospects
do
local USUAL_MS = 600000 -- taken for a run of a user without any ended run, as for usage (fair_share.lua)
local STEP_MS = 300000 -- prospects change in such steps, so that a replay need not judge them all the time
local NEVER_MS = 365 * 86400000 -- a run that has outlived its time limit hangs

-- Turn `ends` of each run on these devices into when it is likely to end: after as long as its user's runs usually take,
-- else as long again as it has lasted, and not after its time limit. `latest` is when it must have ended (0: unknown).
-- (Durations have a heavy tail: what has lasted long is likely to last long. "As long again" is the median of what is
-- left for a Pareto distribution with an infinite mean, the worst case.)
function foresee(devices, now)
  local judged = judged_at(now)
  for _, device in ipairs(devices) do
    for _, run in ipairs(device.runs) do
      run.latest = run.ends
      local likely = math.max(now + 1, run.since + math.max(run.usual_ms or USUAL_MS, 2 * (judged - run.since)))
      run.ends = run.overdue and now + NEVER_MS or run.latest > 0 and math.min(likely, run.latest) or likely
    end
    table.sort(device.runs, function(a, b)
      if a.ends ~= b.ends then return a.ends < b.ends end
      return tonumber(a.id) < tonumber(b.id)
    end)
  end
end

-- Return the latest start of a job on these devices of a plan; 0 if a run in its way has no time limit.
function latest_start(found, runs, now)
  local latest = now
  for _, device in ipairs(found.devices) do
    for id in string.gmatch(device.blockers, '%d+') do
      if runs[id].latest == 0 then return 0 end
      latest = math.max(latest, runs[id].latest)
    end
  end
  return latest
end

function judged_at(now) return now - now % STEP_MS end

-- Return whether a job is likely to start within half of the time for which devices may be reserved for it, or within a
-- quarter of an hour; if not, when to ask again.
function has_prospects(start, patience_ms, now)
  local judged = judged_at(now)
  return start - judged <= math.max(patience_ms / 2, USUAL_MS + STEP_MS), judged + STEP_MS
end
end
