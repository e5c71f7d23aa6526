-- Set the tags and the note of a job. Its state does not change. If the store has forgotten the job, only the history
-- gets the change, and the caller passes the job's state.
-- ARGV: id  tags to add  tags to remove (comma-separated)  1 if the note changes  note ('': none)  caller, and of a job
--   that may be forgotten: state  attempt  losses  owner (all '' if the caller does not know)
-- returns {'done'} | {} unknown | {'many'}: it would have too many tags
--       | {'of', the owner}: the caller may not change it (see authorize.lua)
local MOST_TAGS, MOST_BYTES = 32, 4000
local ENDED = {succeeded = true, failed = true, cancelled = true, lost = true}
local wrong = expect {'id', 'tags', 'tags', 'flag', 'text', 'by', 'reason', 'passed', 'passed', 'by'}
if not wrong and #ARGV[5] > MOST_BYTES then wrong = redis.error_reply('BADARGS argument 5 is too long') end
if wrong then return wrong end
local id, add, remove, noted, note, by, state, attempt, losses, owner = unpack(ARGV)
local changes = {}
if add ~= '' then changes[#changes + 1], changes[#changes + 2] = 'add', add end
if remove ~= '' then changes[#changes + 1], changes[#changes + 2] = 'remove', remove end
if noted == '1' then changes[#changes + 1], changes[#changes + 2] = 'note', note end

local job = read_job(id)
if not job.state then
  if not ENDED[state] then return {} end
  local whose = theirs(by, owner)
  if whose then return {'of', whose} end
  record_event('mark', id, state, now_ms(), to_count(attempt), to_count(losses), '', unpack(changes))
  return {'done'}
end
local whose = theirs(by, job.user)
if whose then return {'of', whose} end

local function tags_now()
  local stored = call('HGET', job_key(id), F.tags)
  if stored then return stored end
  local array = call('HGET', job_key(id), F.array)
  local spec = call('GET', key2('s', id)) or (array and call('GET', key2('s', array))) or ''
  return string.match(spec, '"tags":%[([^%]]*)%]') or '' -- quotes in strings are escaped
end
if add ~= '' or remove ~= '' then
  local tags, there, gone = {}, {}, {}
  for tag in string.gmatch(remove, '[^,]+') do gone[tag] = true end
  for tag in string.gmatch(tags_now() .. ',' .. add, '[%w_.@+-]+') do
    if not there[tag] and not gone[tag] then tags[#tags + 1], there[tag] = tag, true end
  end
  if #tags > MOST_TAGS then return {'many'} end
  call('HSET', job_key(id), F.tags, table.concat(tags, ','))
end
if noted == '1' and note ~= '' then call('HSET', job_key(id), F.note, note)
elseif noted == '1' then call('HDEL', job_key(id), F.note) end
record_event('mark', id, job.state, now_ms(), job.attempts, job.losses, job.reason or '', unpack(changes))
return {'done'}
