"""All keys of the store and their contents.

All keys share one prefix with a hash tag, so they are in one cluster slot and each script may use any of them.
The scripts build the key names from the prefix. The table lists all keys; the constants below it are the names that
Python uses without a script. ``<pr>`` is a priority 0..3, ``<shape>`` the text of a
:class:`gpuqueue.model.placement.Shape`, times are milliseconds on the store's clock.

=====================  ======  ==================================================================================
key                    type    holds
=====================  ======  ==================================================================================
epoch                  string  random id, set when the store is open; a new id means that the store lost its data
rebuilding             string  the coming epoch, while the jobs of the history are restored to an empty store
seq                    int     the last job id assigned, or reserved for the members of an array; restored from the
                               history when the epoch is new
live                   zset    job id -> job id: every job that is not settled yet (see ``lua/acts/settle.lua``)
j:<id>                 hash    the state of a job (fields: see job_fields.py)
s:<id>                 string  the job's spec (see gpuqueue.codec), separate because it is large; members share the
                               spec of their array
am:<id>                set     the claimed members of an array that have not ended
q:<pr>:<user>:<shape>  zset    job id -> its place: one user's waiting jobs of one shape; the place is the id, or
                               negative if the job was moved to the front (see ``lua/shared/priority_front.lua``)
us:<pr>:<user>         zset    shape -> place of its first job: one user's shapes, in the order of these jobs
ub:<pr>:<user>         hash    device -> ``bytes:beside:reserved:from``: a claim for the device starts its search at the
                               shape at place ``from``. Earlier shapes have no room as long as the device has no more
                               than ``bytes`` free, and no more than ``beside`` free beside the job that the device is
                               reserved for (``reserved``; see ``lua/shared/claim_search.lua``)
ul:<pr>                zset    user -> usage: the users with waiting jobs of this priority, the least served first
sh:<pr>                zset    shape -> memory: the shapes of waiting jobs of this priority
su:<pr>:<shape>        set     users with waiting jobs of this shape
aside:<user>           zset    job id -> 0: one user's waiting jobs that are in no queue, because they are held or may
                               not start yet; array -> 1, until it has ended
asiders                set     the users with entries in ``aside:<user>``
fair                   zset    user -> decayed usage in device-seconds divided by the user's share, an integer
                               (see ``lua/shared/fair_share.lua``)
usual                  hash    user -> usual duration of the user's runs in seconds, which a claim charges in advance
shares                 hash    user -> share in thousandths, if it is not 1000
limits                 hash    user, group or pool -> its limits (see ``lua/shared/limits.lua``); absent without limits
submit_limits          hash    user -> the limits that a submit meets (see ``lua/shared/submit_limits.lua``)
open_bytes             hash    user -> bytes of the specs of the user's open jobs, or more
lk                     hash    user, or @ and group -> the room under its limits that is reserved for a job that has
                               waited too long (see ``lua/shared/limits.lua``)
run:<user>             hash    job id -> ``GPUs:bytes`` of its run on all its devices; exists as long as its leases
hosts                  set     hosts that have ever announced a device
machines               hash    host -> the id of the machine that has this name (see ``lua/shared/machines.lua``)
gpu_hosts              set     hosts that have served a GPU of a driver: one that finds none there later is lost
dev:<host>             hash    device -> ``total:headroom:external:seen:slots:pool:kind``: bytes, the time of the last
                               heartbeat, and the number of slots
facts                  hash    device -> JSON of the device, its host, its worker with version and clock offset, and
                               its distance to the other devices of the host
drained                hash    device -> JSON of its drains: origin -> why, by, at, and from when one holds that is for
                               later (see drains.py); ``calendar`` -> its calendar reservations: id, users, from,
                               until, why, by, at, and the grace of what others run there at the start
deaths                 hash    device -> JSON of the consecutive jobs that died quickly on it, and why; three drain it;
                               ``host:<host>`` -> JSON: how many jobs in a row it could not start, the last one, and why
seen                   hash    device -> JSON of its external processes and its trouble, from the last sample
senders                hash    host -> JSON of the capabilities of its notification sender: target names, URL schemes,
                               and the time of the announcement
bursting:<engine>      string  the service that applies the rule of this engine, for some turns (see
                               ``gpuqueue/service/bursting.py``)
timers                 zset    job id -> when it may start: the job has the state queued, but is in no queue before;
                               ``d:<id>:ok`` or ``d:<id>:fail`` -> 0: that job has ended, and some of the jobs that
                               depend on it are not updated yet; ``c:<id>:ok|fail:<last>:<indexes>`` -> 0: the same of
                               members of that array, for the arrays after <last> that follow it
dep:<id>               zset    job id -> job id: the waiting jobs that depend on the end of the job
corr:<id>              zset    job id -> job id: those of them that are arrays and follow the array member by member
keys                   hash    user and dedupe key -> the last job that was submitted with this key
dl:<device>            hash    job id -> ``lease:observed:end:alone:busy:nonce``: the leases on a device: allocated and
                               used bytes, the latest end of the run, x if the run is exclusive, its expected
                               utilisation in percent (with the colon behind it missing if it is unknown), and the nonce
                               of the claim, so that a repeated claim gets the same answer
leases                 zset    job id -> when the lease expires without a heartbeat
rsv                    hash    device -> ``job:need:start:blockers:likely``: the reservation for a job that has waited
                               too long, or for which others were preempted (see ``lua/shared/capacity.lua``)
taken:<id>             string  how many ids of members go with an id that the service has taken to sign a job, for a
                               minute (see ``lua/acts/take_ids.lua``)
idem:<nonce>           string  ``id:time`` of the job, for ten minutes, so that a repeated submit makes one job
ev                     stream  the outbox: one event for each step of each job
late                   set     jobs unknown to this store that the workers of their runs have restored
ended                  zset    job id -> when it ended: deleted after the history has recorded the event
meta                   hash    the version of the layout; the last tick and the grace period of the reaper; the clock,
                               the start and the half-life of usage decay; the users that may use the highest priority,
                               and those that may change the jobs of others; the placement of jobs on one device; the
                               last recorded event; from the opening: the last id in the history, the floor of new ids,
                               and when claims begin; how often a job was moved to the front; when devices may be
                               reserved again (``reserve_at``);
                               whether the site borrows GPUs from an engine (``borrows``);
                               how long devices were idle because they were reserved (see
                               ``lua/shared/reserved_idle.lua``)
=====================  ======  ==================================================================================

Channels: ``wake`` (work or room is available; ``for:<device>``: a job was left to that device), ``ctl``
(``cancel:<id>:<token>``, ``preempt:<id>:<token>:<by>:<ms left>``), ``end`` (a job's id).
"""

from __future__ import annotations

PREFIX = "{gq}:"

EPOCH = PREFIX + "epoch"
REBUILDING = PREFIX + "rebuilding"
SEQ = PREFIX + "seq"
META = PREFIX + "meta"
FAIR = PREFIX + "fair"
LIVE = PREFIX + "live"
HOSTS = PREFIX + "hosts"
MACHINES = PREFIX + "machines"
GPU_HOSTS = PREFIX + "gpu_hosts"
FACTS = PREFIX + "facts"
DRAINED = PREFIX + "drained"
RESERVED = PREFIX + "rsv"
DEATHS = PREFIX + "deaths"
SEEN = PREFIX + "seen"
SENDERS = PREFIX + "senders"
BURSTING = PREFIX + "bursting"
LEASES = PREFIX + "leases"
OUTBOX = PREFIX + "ev"
ENDED = PREFIX + "ended"

#: The version of this layout. rebuild_finish.lua writes it.
LAYOUT = "1"

WAKEUP_CHANNEL = PREFIX + "wake"
CONTROL = PREFIX + "ctl"
END = PREFIX + "end"
LIMITS = PREFIX + "limits"
SUBMIT_LIMITS = PREFIX + "submit_limits"
RESERVED_ROOM = PREFIX + "lk"
ASIDERS = PREFIX + "asiders"


def job(job_id: int | str) -> str:
    """Return the key of a job's hash."""
    return f"{PREFIX}j:{job_id}"


def members(array_id: int | str) -> str:
    """Return the key of the claimed members of an array."""
    return f"{PREFIX}am:{array_id}"


def dependents(job_id: int | str) -> str:
    """Return the key of the waiting jobs that depend on the end of a job."""
    return f"{PREFIX}dep:{job_id}"


def aside(user: str) -> str:
    """Return the key of a user's waiting jobs that are in no queue, and of the user's arrays."""
    return f"{PREFIX}aside:{user}"


def spec(job_id: int | str) -> str:
    """Return the key of a job's spec."""
    return f"{PREFIX}s:{job_id}"


def host_devices(host: str) -> str:
    """Return the key of the records of a host's devices."""
    return f"{PREFIX}dev:{host}"


def device_leases(uuid: str) -> str:
    """Return the key of the leases on a device."""
    return f"{PREFIX}dl:{uuid}"
