-- Finds the first job that fits, in the order of claims. Part of claim.lua, after claim_take.lua.

local function leave_elsewhere(id, shape) -- to a better device
  local asks = asked_by(shape)
  if asks.n > 1 then
    local elsewhere = fits(shape).elsewhere
    if not elsewhere then return false end
    return leave_to(elsewhere, id, now)
  end
  local order = asks.want.order or meta().order
  if asks.want.alone or order == '' then return false end
  local this = {host = host, device = device, kind = kind, available = available, total = total,
    usable = capacity + external_bytes, leases = leases_here, user = viewer}
  local better = better_device(this, asks.mem, asks, order, now)
  return better ~= nil and leave_to(better, id, now)
end

-- Return whether the first job of this queue was left to another device.
local function is_left(priority, user, shape)
  return cache.left_lines and cache.left_lines[queue_key(priority, user, shape)]
end
local function take_head(priority, user, shape, head, rank, place, how)
  local id = first_at(head, priority, user, shape)
  if leave_elsewhere(id, shape) then
    cache_of('left_lines')[queue_key(priority, user, shape)] = true
    return nil
  end
  return take(id, priority, user, shape, fits(shape), how or how_it_came(priority, user, shape, rank, place))
end

-- Claim the first job by position among these shapes of the first user. `heads` has each shape with its position, in
-- order. `from` is the first index to check; `ranked` if these are the user's very first shapes.
-- -> the claim | nil, whether the search is over for this user
local function take_one_of(priority, user, heads, from, ranked, how)
  for i = from, #heads, 2 do
    if fits(heads[i]) and not is_left(priority, user, heads[i]) and not over_a_limit(user, heads[i]) then
      local taken = take_head(priority, user, heads[i], heads[i + 1], 0, ranked and (i - 1) / 2, how)
      if taken or not is_left(priority, user, heads[i]) then return taken, true end
    end
  end
end

-- Search beyond the user's first shapes (`before`). Shapes without room stay in the queue and gather ahead of those
-- that fit. So a claim notes the position of the first shape with room, and the next claim starts there until a new job
-- comes before it (see enqueue in state.lua), or the device has more room. -> the claim | nil, whether all shapes of
-- the user were checked
local NEXT, MOST = 8, 124
local function take_beyond(priority, user, before)
  local function has_room(shape) -- that no reservation and no end blocks; other conditions are not checked
    local asks = asked_by(shape)
    return asks.mem <= available and (not device_end or over_in_time(asks, now, device_end))
      and (not r_job or (asks.n == 1 and (asks.mem <= room_beside or ends_before(asks, r_start, r_likely, now))))
  end
  local function first_with_room(heads)
    for i = 1, #heads, 2 do
      if has_room(heads[i]) then return i end
    end
  end
  if first_with_room(before) then return nil, false end

  local shapes, noted = key3('us', priority, user), key3('ub', priority, user)
  local reserved = r_job and string.format('%s.%.0f.%.0f', r_job, r_start, r_likely) or '' -- reserved for which job, and until when
  if device_end then reserved = reserved .. '/' .. whole(device_end) end -- the time left only shrinks
  local bytes, beside, reserved_then, from =
    string.match(call('HGET', noted, device) or '', '^(%d+):(%d+):([^:]*):(%(?%-?%d+)$')
  local known = bytes and tonumber(bytes) >= available and tonumber(beside) >= room_beside and reserved_then == reserved
  local most = NEXT
  if not known then from, most = '(' .. before[#before], MOST end
  local heads = call('ZRANGEBYSCORE', shapes, from, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  local i = first_with_room(heads)
  if not i and most == NEXT and #heads == 2 * NEXT then
    most = MOST
    heads = call('ZRANGEBYSCORE', shapes, '(' .. heads[#heads], '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    i = first_with_room(heads)
    known = false
  end
  local all = #heads < 2 * most
  if heads[1] and not (known and i and i <= NEXT) then -- the noted position is near enough
    local place = i and heads[i + 1] or '(' .. heads[#heads]
    call('HSET', noted, device, string.format('%.0f:%.0f:%s:%s', available, room_beside, reserved, place))
  end
  if not i then return nil, all end
  local taken, in_vain = take_one_of(priority, user, heads, i, false, might_run(before[1]) and 'backfill' or nil)
  return taken, in_vain or all
end

-- Claim the user's first job. It mostly is among the user's first few shapes, or none of these has room. `many` is how
-- many shapes of all users are small enough; if few, `search` checks these.
-- -> the claim | nil, whether all shapes of the user were checked
local function take_in_order(priority, user, many)
  local heads = call('ZRANGE', key3('us', priority, user), 0, FEW - 1, 'WITHSCORES')
  local taken, in_vain = take_one_of(priority, user, heads, 1, true)
  if taken or in_vain or #heads < 2 * FEW then return taken, true end
  if many < NEXT then return nil, false end
  return take_beyond(priority, user, heads)
end

-- Claim the user's first job among the shapes that fit.
local function take_fitting(priority, user, fitting, rank)
  local first, its_shape
  for from = 1, #fitting, 1000 do -- Lua passes some thousand arguments at most
    local to = math.min(#fitting, from + 999)
    local heads = call('ZMSCORE', key3('us', priority, user), unpack(fitting, from, to))
    for i = 1, #heads do
      local place = heads[i] and tonumber(heads[i])
      local shape = fitting[from + i - 1]
      if place and (not first or place < first) and not is_left(priority, user, shape) and not over_a_limit(user, shape) then
        first, its_shape = place, shape
      end
    end
  end
  if not first then return nil end
  local taken = take_head(priority, user, its_shape, first, rank)
  if not taken and is_left(priority, user, its_shape) then return take_fitting(priority, user, fitting, rank) end -- at most MOST_LEFT times
  return taken
end

-- Return whether a CPU should check this shape. A CPU takes only jobs that ask for it, mostly none, so the shapes of
-- GPU jobs are skipped by their text, unparsed. (A pool of such a name is a false match and is checked.)
local function worth_judging(shape)
  return string.find(shape, ':cpu', 1, true) or string.find(shape, ':any', 1, true)
end

local ASKED = 2 -- users checked one by one; mostly one of them has a match
local function who_has(priority, shapes)
  local sets, has = {}, {}
  for i = 1, #shapes do sets[i] = key3('su', priority, shapes[i]) end
  for _, user in ipairs(call('SUNION', unpack(sets))) do has[user] = true end
  return has
end

local function fitting_at(priority)
  local fitting = {}
  for _, shape in ipairs(call('ZRANGEBYSCORE', key2('sh', priority), '-inf', available)) do
    if (not choosy or worth_judging(shape)) and fits(shape) then fitting[#fitting + 1] = shape end
  end
  return fitting
end

-- Find the shapes that fit, then the least-served user who waits with one of them. For few fitting shapes.
local function search(priority, from)
  local fitting = fitting_at(priority)
  local has, asked, most = nil, 0, ASKED
  while #fitting > 0 do
    local users = call('ZRANGE', key2('ul', priority), from, from + most - 1)
    for i = 1, #users do
      -- none of the first users: read at once who has any
      if asked == ASKED and not has and #fitting <= 32 then has = who_has(priority, fitting) end
      if not has or has[users[i]] then
        asked = asked + 1
        local taken = take_fitting(priority, users[i], fitting, from + i - 1)
        if taken then return taken end
      end
    end
    if #users < most then return nil end
    from, most = from + most, 64
  end
end

-- Claim from all priorities, starting with the first that has shapes small enough (`so_many`). -> the claim | nil
local function take_in_turn(first_priority, so_many)
  for i = first_priority, #priorities do
    local priority, many = priorities[i], i == first_priority and so_many or small_enough(priorities[i])
    if many > 0 then
      local passed = 0 -- first users without a match
      if not choosy then
        for _, user in ipairs(call('ZRANGE', key2('ul', priority), 0, 0)) do
          local taken, checked_all = take_in_order(priority, user, many)
          if taken then return taken end
          if checked_all then passed = 1 end
        end
      end
      local taken = search(priority, passed)
      if taken then return taken end
    end
  end
end


-- Claim for the users of the device's first calendar reservation what only they may start there. -> the claim | nil
local function take_for_holders(first_priority)
  for i = first_priority, #priorities do
    local priority, many, waiting = priorities[i], small_enough(priorities[i]), {}
    for user in string.gmatch(many > 0 and calendar[1].users or '', '[^,]+') do
      local rank = call('ZRANK', key2('ul', priority), user)
      if rank then waiting[#waiting + 1] = {name = user, rank = rank} end
    end
    table.sort(waiting, function(a, b) return a.rank < b.rank end)
    for _, user in ipairs(waiting) do
      judge_for(user.name)
      local taken, checked_all
      if not choosy then taken, checked_all = take_in_order(priority, user.name, many) end
      if not checked_all then taken = taken or take_fitting(priority, user.name, fitting_at(priority), user.rank) end
      if taken then return taken end
    end
  end
end
