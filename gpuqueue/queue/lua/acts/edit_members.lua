-- Cancel, hold or release an array or a part of it: all members that are not claimed yet, in one step. The reply names
-- the claimed members of the part, and the caller handles those itself.
-- The arrows are those of arrays, see array.lua.
-- ARGV: id  action (cancel|hold|release)  indexes (ranges without steps; '': all)  caller ('': the queue itself)
-- returns {} if unknown | {'of', the owner}: the caller may not do this (see authorize.lua) | {the array's state after,
--   the indexes that were moved, id of each claimed member in the part, ...}
local wrong = expect {'id', 'word', 'indexes', 'by'}
local VERBS = {cancel = true, hold = true, release = true}
if not wrong and not VERBS[ARGV[2]] then wrong = redis.error_reply('BADARGS argument 2 is nothing to do with a part') end
if wrong then return wrong end
local id, verb, part, by = unpack(ARGV)
local array = read_array(id)
if not array.state then return {} end
local owner = theirs(by, array.user)
if owner then return {'of', owner} end
if not array.left or COUNTERS[array.state] then return {array.state, ''} end
-- Return how many members to count as cancelled when an array of unknown progress is cancelled: those that are neither
-- jobs nor counted as ended.
local function nowhere_else(id, array)
  call('HDEL', job_key(id), F.progress_unknown)
  local counted_so_far = call('SCARD', key2('am', id))
  for state in pairs(COUNTERS) do counted_so_far = counted_so_far + to_count(array[state]) end
  return to_count(call('HGET', job_key(id), F.members)) - counted_so_far
end

local now = now_ms()
local parts = part == '' and {{0, MOST_INDEX, 1}} or parse_ranges(part)
local moved
local cleared = {} -- field of the event
if verb == 'release' then
  local had_exclusions = has_exclusions(array.shape)
  if had_exclusions then
    leave(id, array) -- update_array queues it again
    drop_exclusions(id, array)
  end
  array.held, moved = cut(array.held, parts)
  array.left = join(array.left, moved)
  if array.max_failures and #moved > 0 then -- only failures after the release count
    call('HSET', job_key(id), F.failures_before, failures_of(array))
  end
  if had_exclusions or (array.max_failures and #moved > 0 and array.held == '') then
    call('HDEL', job_key(id), F.because)
    cleared = {'because', ''}
  end
else
  array.left, moved = cut(array.left, parts)
  if verb == 'hold' then
    array.held = join(array.held, moved)
  else
    local waited
    array.held, waited = cut(array.held, parts)
    for _, range in ipairs(waited) do moved[#moved + 1] = range end
    call('HINCRBY', job_key(id), F.cancelled, array.progress_unknown and part == '' and nowhere_else(id, array) or count_of(moved))
    if part == '' then call('HSET', job_key(id), F.all_cancelled, 1) end
    members_ended(id, 'fail', moved)
    if array.pending then call('HSET', job_key(id), F.pending, (cut(array.pending, parts))) end
  end
end
call('HSET', job_key(id), F.left, array.left, F.held, array.held)
local others = {}
for _, member in ipairs(call('SMEMBERS', key2('am', id))) do
  local index = tonumber(call('HGET', job_key(member), F.index) or '')
  for _, range in ipairs(parts) do
    if index and index >= range[1] and index <= range[2] then
      others[#others + 1] = member
      break
    end
  end
end
local act = (#moved > 0 or (verb == 'cancel' and part == '')) and verb or nil
local state = update_array(id, now, act, 'part', part, 'left', array.left, 'held', array.held, unpack(cleared))
wake('work')
local reply = {state, join('', moved)}
for i = 1, #others do reply[i + 2] = others[i] end -- unpack() passes some thousand values at most
return reply
