-- Checks who may change a job. Goes before every act by which a user changes a job.
--
-- `by` is the caller's account, as the client reports it; '' is the queue itself. This protects users from changing
-- each other's jobs by mistake. It does not stop a user who writes to the store directly: see
-- docs/explanation/identity.md.
local theirs
do
-- Return nil if `by` may change a job of this owner: the owner, an admin of this site, or root. Else return the owner.
function theirs(by, owner)
  if by == '' or by == 'root' or not owner or by == owner then return nil end
  local admins = call('HGET', P .. 'meta', 'admins') or ''
  if admins == '*' or string.find(',' .. admins .. ',', ',' .. by .. ',', 1, true) then return nil end
  return owner
end
end
