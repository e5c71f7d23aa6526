-- The site's settings, and usage that decays. Part of every script, after arguments.lua.
--
-- Forward decay (Cormode et al., "Forward Decay", ICDE 2009): a device-second spent at t weighs 2^((t - T0) /
-- half-life). Dividing all scores by one number never changes their order, so a score only needs additions.
-- Scores are whole numbers: the store keeps small sets as text and parses fractions slowly, for all users at each
-- claim. Weights are at least 2^10, so rounding costs at most a thousandth of a device-second.
local LEAST_EXPONENT = 10
local meta, set_meta
do
local T0_S, HALF_LIFE_S = 1735689600, 7 * 86400
function meta() -- the site's settings
  if cache.meta then return cache.meta end
  local claims, ticked, fair, t0, half_life, order =
    unpack(call('HMGET', P .. 'meta', 'claims', 'reap', 'fair', 't0', 'half_life', 'order'))
  cache.meta = {claims = tonumber(claims or '') or 0, ticked = tonumber(ticked or '') or 0, fair = tonumber(fair or ''),
    t0_s = tonumber(t0 or '') or T0_S,
    half_life_s = tonumber(half_life or '') or HALF_LIFE_S, order = order or ''}
  return cache.meta
end
function set_meta(...)
  call('HSET', P .. 'meta', ...)
  cache.meta = nil
end
end
-- Return whether claims are paused because the store was rebuilt a moment ago (rebuild_finish.lua). The pause lasts
-- until a tick has seen its end: a store that was down in between learns from its next tick that the pause goes on
-- (reap.lua).
local function pausing(now) return meta().claims > math.min(now, meta().ticked) end

local function exponent(ms) return (ms / 1000 - meta().t0_s) / meta().half_life_s end
local function weight(ms) return 2 ^ math.max(-500, math.min(500, exponent(ms))) end -- a clock may jump; a double holds 2^1023

-- Return the time that usage decays by. The reapers' ticks advance it by the time that really passed (reap.lua): usage
-- charged while the clock is a year ahead would otherwise outweigh all usage of that year.
local function fair_ms(now) return meta().fair or now end

local function rounded(usage) return math.floor(usage + 0.5) end

-- Restart the weights at this moment with this half-life, and multiply the usage of each user by factor(user).
-- All scores are read before the first write, so that a damaged entry stops the script before it changes anything: a
-- change that stops half-way would be repeated at each tick. A score that is no finite number becomes 0.
local function rebase(ms, half_life_s, factor)
  local scale = 2 ^ LEAST_EXPONENT / weight(ms)
  local found = call('ZRANGE', P .. 'fair', 0, -1, 'WITHSCORES')
  for i = 1, #PRIORITIES do call('ZCARD', key2('ul', PRIORITIES[i])) end
  for i = 1, #found, 2 do
    local user, usage = found[i], found[i + 1] * scale * factor(found[i])
    usage = math.abs(usage) < math.huge and rounded(usage) or 0
    call('ZADD', P .. 'fair', usage, user)
    for each = 1, #PRIORITIES do call('ZADD', key2('ul', PRIORITIES[each]), 'XX', usage, user) end
  end
  set_meta('t0', string.format('%.3f', ms / 1000 - LEAST_EXPONENT * half_life_s), 'half_life', string.format('%.3f', half_life_s))
end

-- Restart the weights when their exponent leaves the range. After many half-lives scores would exceed what a double
-- counts exactly.
local function limit_exponents(ms)
  local now_at = exponent(ms)
  if now_at < LEAST_EXPONENT - 1 or now_at > 2 * LEAST_EXPONENT then
    rebase(ms, meta().half_life_s, function() return 1 end)
  end
end

-- Return the priorities at which a user waits, highest first. Mostly that is the normal one alone; its queue is not
-- checked.
local function priorities_waited_at()
  local urgent, high, low = exist(P .. 'ul:3', P .. 'ul:2', P .. 'ul:0')
  if not (urgent or high or low) then return {'1'} end
  local found = {}
  if urgent then found[1] = '3' end
  if high then found[#found + 1] = '2' end
  found[#found + 1] = '1'
  if low then found[#found + 1] = '0' end
  return found
end

-- Return the user's share, in thousandths.
local function share_of(user) return tonumber(call('HGET', P .. 'shares', user) or '') or 1000 end

-- Add usage to a user's score, divided by the share: a user with twice the share may use twice as much.
local function charge(user, amount, share, priorities)
  local usage = call('ZINCRBY', P .. 'fair', rounded(amount * 1000 / share), user)
  for i = 1, #priorities do call('ZADD', key2('ul', priorities[i]), 'XX', usage, user) end
end

-- A claim charges a run in advance, so that a user cannot claim every device before the first charge: as many seconds
-- as the user's runs usually take, at most DEPOSIT_S or the time limit. Heartbeats charge what exceeds that
-- (heartbeat.lua). With the same deposit for all runs without a limit, short runs would at times cost their user as
-- much as long ones.
local DEPOSIT_S = 600
