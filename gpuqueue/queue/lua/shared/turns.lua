-- The waiting jobs by age. Goes before reserve.lua.
local oldest_first
do
local FEW, MORE = 128, 16 -- jobs of the first step, and how many times as many the next step has

-- Call visit(id, user, shape) for the first job of each user and shape at this priority, oldest first, until it returns
-- true; `last` is a bound on the ids. Mostly a visit soon returns true, so jobs are read and sorted in steps: those that
-- are among the oldest of all live jobs come first. (Jobs that were moved to the front have places below 0, so they are
-- in the first step.)
function oldest_first(priority, last, visit)
  local users, from, rank = call('ZRANGE', key2('ul', priority), 0, -1), '-inf', FEW
  while true do
    local edge = tonumber(call('ZRANGE', P .. 'live', rank - 1, rank - 1)[1] or '')
    local to = edge and math.min(edge, last) or last
    local found = {}
    for _, user in ipairs(users) do
      local heads = call('ZRANGE', key3('us', priority, user), from, whole(to), 'BYSCORE', 'WITHSCORES')
      for i = 1, #heads, 2 do
        local id = first_at(heads[i + 1], priority, user, heads[i])
        found[#found + 1] = {id = id, number = tonumber(id), user = user, shape = heads[i]}
      end
    end
    table.sort(found, function(a, b)
      if a.number ~= b.number then return a.number < b.number end
      return a.shape < b.shape -- a stale entry
    end)
    for _, job in ipairs(found) do
      if visit(job.id, job.user, job.shape) then return end
    end
    if to >= last then return end
    from, rank = '(' .. whole(to), rank * MORE
  end
end
end
