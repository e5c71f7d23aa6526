-- Chooses the best connected set of a host's devices for a job on several. Goes before claim.lua.
--
-- A device's worker reports the distance to the other devices (`near` of its facts, in NVML's steps: 0 an NVLink, 10
-- one PCIe switch, 20 several, 30 one host bridge, 40 one NUMA node, 50 the system). An unreported distance counts as
-- the longest. The cost of a set is the sum over its pairs. From each device a set grows by the device nearest to all
-- in it. The best of these sets, and the best set that contains the claiming device, are then improved by swapping one
-- member at a time while that lowers the cost. The result is not proven optimal; a test compares it with all sets of
-- usual hosts. With p devices and sets of n, the growing takes at most p * n * p steps and the swapping n * n * n * (p
-- - n): six thousand for eight of sixteen.
local UNKNOWN = 50

-- Return the best set that contains the first device of `names`, which claims, with that device first; and, if a set
-- without it is better, a device of that set. names: the devices that fit, the claiming one first.
local function best_together(names, n)
  if #names == n then return names, nil end

  local facts = facts_of(names)
  local function near_of(device)
    local near = facts[device].near
    return type(near) == 'table' and near or {}
  end

  local function distance(a, b) return tonumber(near_of(a)[b]) or tonumber(near_of(b)[a]) or UNKNOWN end

  -- Grow a set from the device at `start`, as indexes in `apart`; of equally near devices the first is taken.
  local function grow(apart, start, n)
    local set, inside, to_set = {start}, {[start] = true}, {unpack(apart[start])}
    while #set < n do
      local next
      for i = 1, #apart do
        if not inside[i] and (not next or to_set[i] < to_set[next]) then next = i end
      end
      set[#set + 1], inside[next] = next, true
      for i = 1, #apart do to_set[i] = to_set[i] + apart[next][i] end
    end
    return set
  end

  local function sum_to(apart, set, place, without) -- from one device to the members of a set
    local sum = 0
    for i = 1, #set do
      if set[i] ~= without then sum = sum + apart[place][set[i]] end
    end
    return sum
  end

  local function sum_of(apart, set)
    local sum = 0
    for i = 1, #set do sum = sum + sum_to(apart, set, set[i]) end
    return sum / 2
  end

  -- Swap members of the set for better ones, as long as there are any; the device at `fixed` stays.
  local function mend(apart, set, fixed)
    for _ = 1, #set do
      local inside, at, by, most = {}, nil, nil, 0
      for i = 1, #set do inside[set[i]] = true end
      for i = 1, #set do
        local far = set[i] ~= fixed and sum_to(apart, set, set[i])
        for k = 1, far and #apart or 0 do
          local gain = not inside[k] and far - sum_to(apart, set, k, set[i]) or 0
          if gain > most then at, by, most = i, k, gain end
        end
      end
      if not at then break end
      set[at] = by
    end
    return set, sum_of(apart, set)
  end

  local apart, is_known = {}, false
  for i = 1, #names do
    apart[i] = {}
    for k = 1, #names do
      apart[i][k] = i == k and 0 or distance(names[i], names[k])
      is_known = is_known or apart[i][k] < UNKNOWN and i ~= k
    end
  end
  if not is_known then return {unpack(names, 1, n)}, nil end
  local best, best_sum
  for i = 1, #names do
    local set = grow(apart, i, n)
    local sum = sum_of(apart, set)
    if not best or sum < best_sum then best, best_sum = set, sum end
  end
  best, best_sum = mend(apart, best)
  local own, own_sum = mend(apart, grow(apart, 1, n), 1)
  for i = 1, n do
    if best[i] == 1 and best_sum < own_sum then -- the claiming device is in the best set, and leads it
      table.remove(best, i)
      table.insert(best, 1, 1)
      own, own_sum = best, best_sum
    end
  end
  local devices = {}
  for i = 1, n do devices[i] = names[own[i]] end
  return devices, best_sum < own_sum and names[best[1]] or nil
end
