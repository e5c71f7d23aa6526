-- Keys, time, the outbox and the wake-up channel. First part of every script, before state.lua. KEYS[1] is the prefix
-- of all keys (../keys.py lists the keys and their contents).
--
-- Fields of j:<id> (times are milliseconds on the store's clock):
--   st   state
--   u    user
--   lv   priority
--   sh   shape
--   mem  bytes on each device
--   rq   1 if the job may run again
--   at   attempts
--   ls   losses
--   tok  token of the run
--   why  wait reason
--   w, host, devs  worker, host and devices (comma-separated) of the run
--   ts, tc, tr, te  when the job was submitted, claimed, started, ended
--   dep  seconds of usage charged in advance
--   rate  usage per second
--   usu  how long the user's runs usually took at the time of the claim, in seconds ('': unknown)
--   tf   when the job was claimed, on the clock of fair_ms
--   said  what the worker reported at the start (JSON, for the history)
--   how  how the run came to its start: immediate, backfill, reserved
--   pre  the job that this run must free its devices for
--   pd   when the preempted run must have ended (ms)
--   pn   how often the job was preempted
--   pb   1 if its reservation waits for preempted runs
--   ev   outbox id of the event that ended the job
--   lf   how often aging raised the job's priority
--   rv   devices reserved for the job
--   rs   since when (ms)
--   rk   since when the reservation waits for the same runs to end: ms:ids (see reserve.lua)
--   iw   tc of a run that a job waited for in vain; no reservation waits for this run again
--   pl   since when the job is left to a better device (see better_device.lua)
--   fr   its number among the jobs that were moved to the front (see priority_front.lua)
--   tg   its tags, where they differ from those of its spec
--   nt   its note (see set_tags.lua)
local P = KEYS[1]
local call = redis.call
local SEEN_MS = 15000 -- a device that was silent for longer (or the clock was set) is not used
local LEVELS = {'3', '2', '1', '0'} -- highest first

-- Cache of what this call has read. The claim stays loaded in the server between calls (see ../functions.py), so all
-- cached data must be in this table: the next call replaces it with an empty one.
local learned = {}
local function learned_of(what) -- the table of this name in `learned`
  local found = learned[what]
  if not found then
    found = {}
    learned[what] = found
  end
  return found
end

local function key2(a, b) return P .. a .. ':' .. b end
local function key3(a, b, c) return P .. a .. ':' .. b .. ':' .. c end
local function job_key(id) return P .. 'j:' .. id end
local function queue_key(lv, user, shape) return P .. 'q:' .. lv .. ':' .. user .. ':' .. shape end

-- Return whether each of these keys exists. EXISTS counts a key once for each time it is named, so one call answers for
-- two or three keys.
local function there(a, b, c)
  local sum = c and call('EXISTS', a, b, b, c, c, c, c) or call('EXISTS', a, b, b)
  return sum % 2 == 1, sum % 4 >= 2, sum >= 4
end

local function now_ms()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Write an event to the transactional outbox, in the same atomic step as the change that it records.
local function tell(act, id, state, now, attempt, losses, reason, ...)
  return call('XADD', P .. 'ev', '*', 'act', act, 'job', id, 'state', state, 'at', now,
    'attempt', attempt, 'losses', losses, 'reason', reason, ...)
end

local function ring(what) call('PUBLISH', P .. 'bell', what) end

-- Parse a shape text. -> memory, time limit (0: none), devices, pool, device kind, device filter (device_filter.lua).
-- Trailing parts may be missing from the text; they are ''.
local function parse_shape(shape)
  local mem, limit, n, pool, wish, more = string.match(shape, '^(%d+):(%d+):(%d+):([^:]*):?([^:]*):?(.*)$')
  return tonumber(mem), tonumber(limit), tonumber(n), pool, wish, more
end
