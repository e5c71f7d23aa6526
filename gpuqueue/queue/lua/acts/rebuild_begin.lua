-- Begin to rebuild a store without data, or join a rebuild that is under way.
-- ARGV: new epoch
-- returns the new epoch, of the process that began; '' if the store is open
local wrong = expect {'nonce'}
if wrong then return wrong end
if call('EXISTS', P .. 'epoch') == 1 then return '' end
call('SET', P .. 'rebuilding', ARGV[1], 'NX')
return call('GET', P .. 'rebuilding')
