-- What every line of the scripts may use: the first part of every script, before state.lua. KEYS[1] is the prefix of all
-- keys (see ../keys.py for what they hold).
--
-- Fields of j:<id>:
--   st state    u user       lv level     sh shape      mem bytes on each device    rq 1 if it may run again
--   at attempts ls losses    tok token    why reason    w worker    host, devs (comma-separated) of the run
--   ts submitted, tc claimed, tr started, te ended (ms)  dep deposited seconds, rate usage per second
--   usu how long its user's runs usually took when it was claimed, in seconds ('': nobody knew)
--   tf when it was claimed, by the clock of fair_ms    said what the worker said when it started (JSON for the book)
--   how its run came to its start: immediate, backfill, reserved
--   pre the job that its run must make place for, pd until when (ms)    pn how often it made place
--   pb 1 if its reservation is on room that others make
--   ev outbox id of the event that ended it     lf how often it was lifted by a level     rv devices reserved for it
--   rs since when (ms)    rk since when it waits for the same runs to end: ms:ids (see reserve.lua)
--   iw tc of a run that was waited for in vain: nothing is kept behind it
--   pl since when it is left to a better device (see better_device.lua)    fr it was moved to the front as that (see priority_front.lua)
--   tg its tags, if others than its spec's    nt what somebody noted (see set_tags.lua)
local P = KEYS[1]
local call = redis.call
local LEVELS = {'3', '2', '1', '0'} -- high first

-- What this call has looked up by now, so that it asks but once. The claim stays in the server between its calls (see
-- ../functions.py): whatever one call learns stands here and nowhere else, since the next one begins with an empty table.
local learned = {}
local function learned_of(what) -- a table in it
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

-- Are these keys there? EXISTS counts a key as often as it is named, so that one call tells it of two or three.
local function there(a, b, c)
  local sum = c and call('EXISTS', a, b, b, c, c, c, c) or call('EXISTS', a, b, b)
  return sum % 2 == 1, sum % 4 >= 2, sum >= 4
end

local function now_ms()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The transactional outbox: the event is written in the same atomic step as the change that it tells.
local function tell(act, id, state, now, attempt, losses, reason, ...)
  return call('XADD', P .. 'ev', '*', 'act', act, 'job', id, 'state', state, 'at', now,
    'attempt', attempt, 'losses', losses, 'reason', reason, ...)
end

local function ring(what) call('PUBLISH', P .. 'bell', what) end

-- shape text -> memory, time limit (0: none), devices, pool, wish, and what else it says of its devices (device_filter.lua);
-- the text ends where the job says no more: '' is what is not there
local function parse_shape(shape)
  local mem, limit, n, pool, wish, more = string.match(shape, '^(%d+):(%d+):(%d+):([^:]*):?([^:]*):?(.*)$')
  return tonumber(mem), tonumber(limit), tonumber(n), pool, wish, more
end
