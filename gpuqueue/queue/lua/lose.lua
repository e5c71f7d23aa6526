-- A run is over and nobody knows how: its shim is gone, or it fenced itself. Said by the worker of its host.
-- arrow: starting -> queued
-- arrow: starting -> held
-- arrow: starting -> lost
-- arrow: running -> queued
-- arrow: running -> held
-- arrow: running -> lost
-- arrow: cancelling -> cancelled
-- ARGV: id  token  loss_limit  detail
-- returns the state after, or '' if stale
local id, token, loss_limit, detail = unpack(ARGV)
local job = read_job(id)
if not owns(job, token) then return '' end
return lose(id, job, now_ms(), tonumber(loss_limit), detail)
