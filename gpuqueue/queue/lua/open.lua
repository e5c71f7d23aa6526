-- Make the store ready, once. A store that lost its data gets a new epoch, and ids go on above the book's last.
-- ARGV: epoch  floor (the highest id that may ever have been given out)
-- returns {epoch, 1 if it is new}
local wrong = expect {'nonce', 'count'}
if wrong then return wrong end
local epoch, floor = ARGV[1], tonumber(ARGV[2])
local known = call('GET', P .. 'epoch')
if known then return {known, 0} end
call('SET', P .. 'epoch', epoch)
call('HSET', P .. 'meta', 'layout', '1')
if tonumber(call('GET', P .. 'seq') or 0) < floor then call('SET', P .. 'seq', string.format('%.0f', floor)) end
return {epoch, 1}
