-- Take a host name for a machine, or say which machine has it (see machines.lua).
-- ARGV: host  machine  lease_ms
-- returns '' | the id of the other machine
local wrong = expect {'host', 'nonce', 'ms'}
if wrong then return wrong end
return taken_by(ARGV[1], ARGV[2], ARGV[3], now_ms()) or ''
