-- Restore the progress of an array in a store being rebuilt; its members are restored before.
-- ARGV: new epoch  id  left  held (indexes)  cancelled (1 if the whole array was)
--       members that succeeded, failed, were lost; all other missing members were cancelled
--       when its first member was claimed (ms; 0: unknown)
--   or: new epoch  id: the progress is unknown, so the array is held, and none of it can be released
-- returns 1 done | 0 no such array was restored | -1 this rebuild is over
local UNKNOWN = 'the store lost its data, and how far it had come cannot be read'
local nobody_knows = #ARGV == 2
local wrong = expect(nobody_knows and {'nonce', 'id'}
  or {'nonce', 'id', 'ranges', 'ranges', 'flag', 'count', 'count', 'count', 'ms'})
local left, held
if not wrong and not nobody_knows then
  left, held = count_in(ARGV[3]), count_in(ARGV[4])
  if not (left and held) then wrong = redis.error_reply('BADARGS arguments 3 and 4 are no indexes') end
end
if wrong then return wrong end
local epoch, id, _, _, cancelled, es, ef, el, began = unpack(ARGV)
if call('EXISTS', P .. 'epoch') == 1 or call('GET', P .. 'rebuilding') ~= epoch then return -1 end
local total = call('HGET', job_key(id), F.members)
if not total then return 0 end
local now = now_ms()
if nobody_knows then -- counts as begun: its request is fixed now
  call('HSET', job_key(id), F.left, '', F.held, '', F.progress_unknown, 1, F.member_claimed_ms, whole(now),
    F.because, UNKNOWN)
  update_array(id, now, 'array', 'because', UNKNOWN) -- the history keeps its state, so that a user can inspect it
  return 1
end
local begun = es + ef + el + call('SCARD', key2('am', id))
local ec = total - begun - left - held
if ec < 0 then return redis.error_reply('BADARGS the array has fewer members') end
call('HSET', job_key(id), F.left, ARGV[3], F.held, ARGV[4], F.succeeded, es, F.failed, ef, F.cancelled, ec, F.lost, el)
-- Whether it was released after its failures is lost with the store: only later ones count.
if call('HEXISTS', job_key(id), F.max_failures) == 1 then call('HSET', job_key(id), F.failures_before, whole(ef + el)) end
call('HDEL', job_key(id), F.progress_unknown, F.member_claimed_ms, F.because)
if cancelled == '1' then call('HSET', job_key(id), F.all_cancelled, 1) end
if begun > 0 then
  call('HSET', job_key(id), F.member_claimed_ms, whole(now), F.started_ms, began ~= '0' and began or call('HGET', job_key(id), F.submitted_ms) or '0')
end
update_array(id, now, 'array', 'left', ARGV[3], 'held', ARGV[4])
return 1
