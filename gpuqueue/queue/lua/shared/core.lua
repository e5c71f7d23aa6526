-- Keys, time, the outbox and the wake-up channel. First part of every script. KEYS[1] is the prefix
-- of all keys (../keys.py lists the keys and their contents).
--
-- F.state is the stored name of the field `state` of a job's hash, as a constant. F{state, user} is two tables: the
-- stored names, and the names themselves. ../../job_fields.py lists all fields; ../../scripts.py replaces both forms.
local P = KEYS[1]
local call = redis.call
local SEEN_MS = 15000 -- a device that was silent for longer (or the clock was set) is not used
local PRIORITIES = {'3', '2', '1', '0'} -- highest first

-- Cache of what this call has read. The claim stays loaded in the server between calls (see ../functions.py), so all
-- cached data must be in this table: the next call replaces it with an empty one.
local cache = {}
local function cache_of(what) -- the table of this name in `cache`
  local found = cache[what]
  if not found then
    found = {}
    cache[what] = found
  end
  return found
end

local function whole(number) return string.format('%.0f', number) end -- not in scientific notation
local function key2(a, b) return P .. a .. ':' .. b end
local function key3(a, b, c) return P .. a .. ':' .. b .. ':' .. c end
local function job_key(id) return P .. 'j:' .. id end
local function queue_key(priority, user, shape) return P .. 'q:' .. priority .. ':' .. user .. ':' .. shape end

-- Return whether each of these keys exists. EXISTS counts a key once for each time it is named, so one call answers for
-- two or three keys.
local function exist(a, b, c)
  local sum = c and call('EXISTS', a, b, b, c, c, c, c) or call('EXISTS', a, b, b)
  return sum % 2 == 1, sum % 4 >= 2, sum >= 4
end

local function now_ms()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Write an event to the transactional outbox, in the same atomic step as the change that it records.
local function record_event(act, id, state, now, attempt, losses, reason, ...)
  return call('XADD', P .. 'ev', '*', 'act', act, 'job', id, 'state', state, 'at', now,
    'attempt', attempt, 'losses', losses, 'reason', reason, ...)
end

local function wake(what) call('PUBLISH', P .. 'wake', what) end

-- Parse a shape text. -> memory, time limit (0: none), devices, pool, device kind, device filter (device_filter.lua).
-- Trailing parts may be missing from the text; they are ''.
local function parse_shape(shape)
  local mem, limit, n, pool, wanted_kind, more = string.match(shape, '^(%d+):(%d+):(%d+):([^:]*):?([^:]*):?(.*)$')
  return tonumber(mem), tonumber(limit), tonumber(n), pool, wanted_kind, more
end
