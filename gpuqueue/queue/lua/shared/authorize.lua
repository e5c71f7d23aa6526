-- Who may change a job. Goes before every act by which a person changes one.
--
-- `by` is the account of whoever asks, as their client tells it; '' is a part of the queue itself. This keeps people from
-- taking each other's jobs for their own. It keeps nobody from anything who writes to the store: docs/explanation/identity.md.
local theirs
do
-- -> nil where `by` may change a job of this owner: it is the owner, an admin of this site, or the superuser
function theirs(by, owner)
  if by == '' or by == 'root' or not owner or by == owner then return nil end
  local admins = call('HGET', P .. 'meta', 'admins') or ''
  if admins == '*' or string.find(',' .. admins .. ',', ',' .. by .. ',', 1, true) then return nil end
  return owner
end
end
