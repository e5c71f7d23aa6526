-- Take the id of a job that is about to be submitted, and those of its members: the service signs a job with its id.
-- The submit must follow within a minute. Ids that are taken and not used are never used again.
-- ARGV: how many ids its members take (0: it is no array)
-- returns id
local wrong = expect {'count'}
if wrong then return wrong end
local members, MOST_MEMBERS = tonumber(ARGV[1]), 1000000
if members > MOST_MEMBERS then return redis.error_reply('BADARGS argument 1 is more than an array has') end
local id = whole(call('INCRBY', P .. 'seq', 1 + members) - members)
call('SET', key2('taken', id), whole(members), 'EX', 60)
return id
