-- Which of a host's devices belong together: the best connected set for a job on several. Goes before claim.lua.
--
-- The worker of a device told how far it is to the others (`near` of its facts, in NVML's steps: 0 an NVLink, 10 one PCIe
-- switch, 20 several, 30 one host bridge, 40 one NUMA node, 50 the system); what nobody told is as far as can be.
-- A set is as good as the sum over its pairs is small. From each device a set grows by the one that is nearest to all in
-- it; the best of these, and the best with the device that asks, is then mended by swapping one member as long as that
-- brings it nearer. No proof of the best, but the test compares it with all sets of the usual boxes. For p devices and n
-- of them it takes at most p * n * p steps, and n * n * n * (p - n) for the mending: six thousand for eight of sixteen.
local UNTOLD = 50

-- names: the devices that fit, the one that asks first -> the best set with it first, and where there is a better one
-- without it, a device of that.
local function best_together(names, n)
  if #names == n then return names, nil end

  local facts = facts_of(names)
  local function near_of(device)
    local near = facts[device].near
    return type(near) == 'table' and near or {}
  end

  local function distance(a, b) return tonumber(near_of(a)[b]) or tonumber(near_of(b)[a]) or UNTOLD end

  -- The set that grows from the device at `start`, as places in `apart`; of equally near ones it takes the first.
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

  local function sum_to(apart, set, place, without) -- from one place to the members of a set
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

  -- Swap a member of the set for a better one, as long as there is one; the device at `fixed` stays.
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

  local apart, told = {}, false
  for i = 1, #names do
    apart[i] = {}
    for k = 1, #names do
      apart[i][k] = i == k and 0 or distance(names[i], names[k])
      told = told or apart[i][k] < UNTOLD and i ~= k
    end
  end
  if not told then return {unpack(names, 1, n)}, nil end
  local best, best_sum
  for i = 1, #names do
    local set = grow(apart, i, n)
    local sum = sum_of(apart, set)
    if not best or sum < best_sum then best, best_sum = set, sum end
  end
  best, best_sum = mend(apart, best)
  local own, own_sum = mend(apart, grow(apart, 1, n), 1)
  for i = 1, n do
    if best[i] == 1 and best_sum < own_sum then -- it is among the best, and leads them
      table.remove(best, i)
      table.insert(best, 1, 1)
      own, own_sum = best, best_sum
    end
  end
  local devices = {}
  for i = 1, n do devices[i] = names[own[i]] end
  return devices, best_sum < own_sum and names[best[1]] or nil
end
