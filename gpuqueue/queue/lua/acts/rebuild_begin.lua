-- Begin to rebuild a store that knows nothing, or join whoever is at it.
-- ARGV: the epoch to come
-- returns the epoch to come, of whoever began; '' if the store is open
local wrong = expect {'nonce'}
if wrong then return wrong end
if call('EXISTS', P .. 'epoch') == 1 then return '' end
call('SET', P .. 'rebuilding', ARGV[1], 'NX')
return call('GET', P .. 'rebuilding')
