-- Checks of a script's arguments. Part of every script, after core.lua.
--
-- Arguments are checked before the first write, because writes are not undone when a script fails half-way. Each script
-- lists the kinds of its arguments in order. Error messages do not repeat the argument: it may contain anything.
local misfit, expect
do
local NUMBER, WORD, MOST = '^%d+$', '^[%w_.@+-]+$', '9007199254740992' -- 2^53: a double holds every integer up to here
local KINDS = {
  priorities = '^[0-3]+$', id = '^[1-9]%d*$', ['id?'] = '^%d*$', size = '^[1-9]%d*$', bytes = NUMBER, ms = NUMBER, count = NUMBER,
  priority = '^[0-3]$', stage = '^[0-3]$', ['priority?'] = '^[0-3]?$', flag = '^[01]$',
  token = '^%d+%.%w+$', nonce = '^%w+$', user = WORD, by = '^[%w_.@+-]*$', host = WORD, pool = '^[%w_.@+-]*$', worker = '^[^%c]+$',
  device = '^[!-+%-.-9;-~]+$', shape = '^%d+:%d+:[1-9]%d?:[%w_.@+:,/-]*$', word = WORD,
  devices = '^[!-+%-.-9;-~,]*$', -- a device has no comma or colon
  gang = '^[!-+%-.-9;-~,]+$', -- the devices of a run: at least one
  passed = '^%d*$', -- empty if unknown
  later = '^%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d$', -- ms; at most thirty years
  users = '^[%w_.@+*,-]*$', tags = '^[%w_.@+,-]*$', -- comma-separated
  indexes = '^[%d,-]*$', ranges = '^[%d,:-]*$', -- of an array; ranges may have steps
  limit = '^%a+:[%w_.@+*-]+$', figures = '^[%w_.@+=!, -]*$', -- see limits.lua
  reason = '^[%a_]*$', rate = '^%d?%d?%d?%d%.%d+$',
}
-- Longest argument, in characters. `ranges` come from the queue itself and may list a million indexes, of six digits
-- and a comma each: code that reads them must be linear (count_in in array.lua).
local LONGEST, LONGEST_RANGES = 4096, 7 * 1000000
local NUMBERS = {id = true, size = true, bytes = true, ms = true, count = true, passed = true, later = true}

-- Check arguments. -> the error reply, or nil. `from` is the first argument that is checked, 1 by default.
function misfit(kinds, from)
  for i = 1, #kinds do
    local kind, text = kinds[i], ARGV[(from or 1) + i - 1]
    local good = text and (kind == 'text' or (#text <= (kind == 'ranges' and LONGEST_RANGES or LONGEST) and string.find(text, KINDS[kind])))
    if good and kind == 'gang' then good = not string.find(',' .. text .. ',', ',,', 1, true) end
    if good and NUMBERS[kind] then good = #text < #MOST or (#text == #MOST and text <= MOST) end
    if not good then return redis.error_reply('BADARGS argument ' .. (from or 1) + i - 1 .. ' is no ' .. kind) end
  end
end

-- Check arguments like misfit, and also that there are no more of them.
function expect(kinds)
  if #ARGV > #kinds then return redis.error_reply('BADARGS there are ' .. #ARGV .. ' arguments, not ' .. #kinds) end
  return misfit(kinds)
end
end
