-- Checks who may change a job. Goes before every act by which a user changes a job.
--
-- `by` is the caller's account, as the client reports it; '' is the queue itself, or root on the machine of a store
-- behind a unix socket (see gpuqueue/client/connection.py). This protects users from changing
-- each other's jobs by mistake. It does not stop a user who writes to the store directly: see
-- docs/explanation/identity.md.
local is_admin, theirs
do
function is_admin(by)
  local admins = call('HGET', P .. 'meta', 'admins') or ''
  return by == '' or admins == '*' or string.find(',' .. admins .. ',', ',' .. by .. ',', 1, true) ~= nil
end

-- Return nil if `by` may change a job of this owner: the owner, or an admin of this site. Else return the owner.
function theirs(by, owner)
  if not owner or by == owner or is_admin(by) then return nil end
  return owner
end
end
