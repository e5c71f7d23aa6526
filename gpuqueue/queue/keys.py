"""Every key of the store and what it holds.

All keys share one prefix with a hash tag, so they live in one slot and each script may touch any of them.
The scripts build the names themselves from the prefix; this table is the map, and the few names that Python
reads without a script stand below it. ``<lv>`` is a level 0..3, ``<shape>`` the text of a
:class:`gpuqueue.model.job.Shape`, times are milliseconds on the store's clock.

=====================  ======  ==================================================================================
key                    type    holds
=====================  ======  ==================================================================================
epoch                  string  random id, there once the store is open; a new one means that the store lost its data
rebuilding             string  the epoch to come, while the jobs of the book are put back into an empty store
seq                    int     the last job id given out, or kept for the members of an array; restored from the book
                               when the epoch is new
live                   zset    job id -> job id: every job that the book has not taken over yet
j:<id>                 hash    where a job stands (fields: see ``lua/core.lua`` and ``array.lua``); small, so compact
s:<id>                 string  the job's spec (see gpuqueue.codec), apart because it is large; a member's is its array's
am:<id>                set     the members of an array that are jobs of their own and have not ended
q:<lv>:<user>:<shape>  zset    job id -> its place: one user's waiting jobs of one shape; the place is the id, as they
                               arrived, or below 0 where the job was moved to the front (see ``lua/priority_front.lua``)
us:<lv>:<user>         zset    shape -> place of its first job: one user's shapes, in the order of their jobs
ub:<lv>:<user>         hash    device -> ``bytes:beside:kept:from``, from where on a claim there looks at the shapes:
                               for those before there is no room while there are no more bytes than these, nor more
                               beside the job that the device is kept for (see ``lua/claim.lua``)
ul:<lv>                zset    user -> usage: the users who wait on this level, least served first
sh:<lv>                zset    shape -> memory: the shapes that wait on this level
su:<lv>:<shape>        set     users who wait with this shape
aside:<user>           zset    job id -> 0: one user's jobs that wait and stand in no queue, held or not yet to start;
                               array -> 1, as long as it has not ended
asiders                set     the users that have such jobs
fair                   zset    user -> decayed device-seconds used, divided by their share, whole (``lua/state.lua``)
usual                  hash    user -> seconds that their runs usually take: what a claim charges in advance
shares                 hash    user -> share in thousandths, where that is not 1000
limits                 hash    who or what is limited -> the figures (see ``lua/limits.lua``); absent where nothing is
lk                     hash    user, or @ and group -> the room under their limits that is kept for a job which has
                               waited too long for it (see ``lua/limits.lua``)
run:<user>             hash    job id -> GPUs:bytes that its run holds on all its devices; there while its leases are
hosts                  set     hosts that ever announced a device
dev:<host>             hash    device -> total:headroom:foreign:seen:slots:pool:kind, bytes and a time
facts                  hash    device -> JSON of what it is and where, which worker serves it, its version and clock,
                               and how far it is to the other devices of its host
drained                hash    device -> JSON of who keeps it from new jobs: origin -> why, by, at (see drains.py)
deaths                 hash    device -> JSON of the row of jobs that died on it at once, with why; three drain it
seen                   hash    device -> JSON of its strangers, and of the trouble it is in, as its worker last saw them
senders                hash    host -> JSON of what its sender of messages can: the names of its targets, schemes, when
                               it said so
timers                 zset    job id -> when it may start: it is queued, and stands in no queue before; d:<id>:ok or
                               d:<id>:fail -> 0: that job has ended, and some that waited for it have not heard of it
dep:<id>               zset    job id -> job id: the waiting jobs that are to hear of the end of the job
keys                   hash    user and dedupe key -> the last job that was submitted with it
dl:<device>            hash    job id -> ``lease:observed:end:alone:nonce``: the leases on a device, in bytes; when they
                               may end; x where the run has it for itself; and the nonce of the claim, so that a claim
                               sent twice is answered twice
leases                 zset    job id -> when the lease expires unless a beat comes
rsv                    hash    device -> job:need:start:blockers: what is kept for a job that has waited too long
idem:<nonce>           string  id:time of the job, for ten minutes: a submit sent twice makes one job
ev                     stream  the outbox: one event for each step of each job
late                   set     jobs that this store never heard of, brought back by the workers of their runs
ended                  zset    job id -> when it ended: forgotten once the book has the event
meta                   hash    the layout's version; the reaper's last tick and grace; the time that usage decays by,
                               since when it weighs, its half-life; who may use the highest level, and change the
                               jobs of others; where jobs on one device go; the last recorded event; of the opening:
                               the last id that the book knew, the floor of new ids, when claims begin; how often a
                               job was moved to the front
=====================  ======  ==================================================================================

Channels: ``bell`` (there is work, or room; ``for:<device>``: a job was left to that one), ``ctl``
(``cancel:<id>:<token>``, ``preempt:<id>:<token>:<by>:<ms left>``), ``end`` (a job's id).
"""

from __future__ import annotations

PREFIX = "{gq}:"

EPOCH = PREFIX + "epoch"
REBUILDING = PREFIX + "rebuilding"
SEQ = PREFIX + "seq"
META = PREFIX + "meta"
LIVE = PREFIX + "live"
HOSTS = PREFIX + "hosts"
FACTS = PREFIX + "facts"
DRAINED = PREFIX + "drained"
KEPT = PREFIX + "rsv"
DEATHS = PREFIX + "deaths"
SEEN = PREFIX + "seen"
SENDERS = PREFIX + "senders"
LEASES = PREFIX + "leases"
OUTBOX = PREFIX + "ev"
ENDED = PREFIX + "ended"

#: The version of this layout, as rebuild_finish.lua writes it.
LAYOUT = "1"

BELL = PREFIX + "bell"
CONTROL = PREFIX + "ctl"
END = PREFIX + "end"
LIMITS = PREFIX + "limits"
KEPT_ROOM = PREFIX + "lk"
ASIDERS = PREFIX + "asiders"


def job(job_id: int | str) -> str:
    """Return the key of a job's hash."""
    return f"{PREFIX}j:{job_id}"


def members(array_id: int | str) -> str:
    """Return the key of the members of an array that are jobs of their own."""
    return f"{PREFIX}am:{array_id}"


def aside(user: str) -> str:
    """Return the key of a user's jobs that wait and stand in no queue, and of the arrays."""
    return f"{PREFIX}aside:{user}"


def spec(job_id: int | str) -> str:
    """Return the key of a job's spec."""
    return f"{PREFIX}s:{job_id}"


def host_devices(host: str) -> str:
    """Return the key of the readings of a host's devices."""
    return f"{PREFIX}dev:{host}"


def device_leases(uuid: str) -> str:
    """Return the key of the leases on a device."""
    return f"{PREFIX}dl:{uuid}"
