"""The whole store as values, and the invariants that hold after any sequence of calls."""

from __future__ import annotations

import re
from typing import Any

import redis

from gpuqueue.model.array import Indexes
from gpuqueue.model.job import ENDS, JobState
from gpuqueue.queue import keys
from gpuqueue.queue.job_fields import FIELDS

Dump = dict[str, Any]

#: Patterns for the placeholders in the key table of gpuqueue/queue/keys.py.
_PARTS = {
    "<id>": r"\d+",
    "<pr>": "[0-3]",
    "<user>": r"[\w.@+-]+",
    "<shape>": r"\d+:\d+:\d+:[\w.@+:,/-]*",
    "<host>": r"[\w.@+-]+",
    "<device>": r"[^:,\s]+",
    "<nonce>": r"\w+",
}


#: One round trip instead of a hundred: a test compares the store before and after thousands of calls. The order of the
#: members of a hash or a set means nothing, and changes when the server restores it.
_DIGEST = """
local function content(key)
  local kind = redis.call('TYPE', key).ok
  local items = {}
  if kind == 'hash' then
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do items[#items + 1] = #all[i] .. ':' .. all[i] .. all[i + 1] end
  elseif kind == 'set' then
    items = redis.call('SMEMBERS', key)
  elseif kind == 'zset' then
    return table.concat(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), ',')
  else
    return redis.call('DUMP', key)
  end
  table.sort(items)
  return table.concat(items, ',')
end
local keys = redis.call('KEYS', '*')
table.sort(keys)
local all = {}
for i = 1, #keys do all[i] = keys[i] .. content(keys[i]) end
return redis.sha1hex(table.concat(all, '|'))
"""


def digest(client: redis.Redis) -> str:
    """Return a digest of every key and its content."""
    return str(client.eval(_DIGEST, 0))


#: Every key in the server's own format: name, contents, remaining milliseconds.
_KEEP = """
local kept = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  for _, word in ipairs({key, redis.call('DUMP', key), redis.call('PTTL', key)}) do kept[#kept + 1] = word end
end
return cmsgpack.pack(kept)
"""
_PUT_BACK = """
redis.call('FLUSHALL')
local kept = cmsgpack.unpack(ARGV[1])
for i = 1, #kept, 3 do redis.call('RESTORE', kept[i], math.max(0, kept[i + 2]), kept[i + 1]) end
"""


class Snapshot:
    """The whole content of a store, to restore it later."""

    def __init__(self, client: redis.Redis) -> None:
        arguments = dict(client.connection_pool.connection_kwargs) | {"decode_responses": False}
        pool = redis.ConnectionPool(connection_class=client.connection_pool.connection_class, **arguments)
        self._client = redis.Redis(connection_pool=pool)
        self._kept = self._client.eval(_KEEP, 0)

    def put_back(self) -> None:
        """Restore the content, and delete everything else."""
        self._client.eval(_PUT_BACK, 0, self._kept)

    def close(self) -> None:
        """Close the connection."""
        self._client.connection_pool.disconnect()


def dump(client: redis.Redis) -> Dump:
    """Return every key with its content."""
    names = client.keys("*")
    ask = client.pipeline(transaction=False)
    for key in names:
        ask.type(key)
    kinds = ask.execute()
    for key, kind in zip(names, kinds, strict=True):
        if kind == "hash":
            ask.hgetall(key)
        elif kind == "zset":
            ask.zrange(key, 0, -1, withscores=True)
        elif kind == "set":
            ask.smembers(key)
        elif kind == "stream":
            ask.xrange(key)
        else:
            ask.get(key)
    return dict(zip(names, ask.execute(), strict=True))


def _names() -> re.Pattern[str]:
    """Return the pattern of valid key names: the first column of the table, with its placeholders replaced."""
    row = r"^([a-z]+(?::?<?[\w<>:]+)?) {2,}(?:string|int|zset|hash|set|stream) "
    names = re.findall(row, keys.__doc__ or "", re.MULTILINE)
    patterns = []
    for name in names:
        pattern = re.escape(name)
        for part, its in _PARTS.items():
            pattern = pattern.replace(re.escape(part), its)
        patterns.append(pattern)
    return re.compile(re.escape(keys.PREFIX) + f"(?:{'|'.join(patterns)})", re.ASCII)


NAMES = _names()


def faults(store: Dump) -> list[str]:
    """Return in words what is wrong with a store: unknown keys, and indexes that do not match the jobs."""
    found = [f"unknown key {key!r}" for key in store if not NAMES.fullmatch(key)]
    jobs = {key.rpartition(":")[2]: held for key, held in store.items() if re.fullmatch(r".*\}:j:\d+", key)}
    found += [
        f"job {job_id} has an unknown field {name!r}"
        for job_id, job in jobs.items()
        for name in sorted(set(job) - set(FIELDS.values()))
    ]
    specless = (job_id for job_id in jobs if keys.spec(job_id) not in store)
    found += [f"job {each} has no spec" for each in specless if keys.spec(jobs[each].get("ar", 0)) not in store]
    found += _compare("live", set(_members(store, "live")), set(jobs))
    ended = {job_id for job_id, job in jobs.items() if JobState(job["st"]) in ENDS}
    found += _compare("ended", set(_members(store, "ended")), ended)
    active = {job_id for job_id, job in jobs.items() if JobState(job["st"]).is_active and "rm" not in job}
    found += _compare("leases", set(_members(store, "leases")), active)
    allocated = {(uuid, job_id) for job_id in active for uuid in jobs[job_id]["devs"].split(",")}
    leased = {(key.partition(":dl:")[2], job_id) for key, held in store.items() if ":dl:" in key for job_id in held}
    found += _compare("leases on devices", leased, allocated)
    used = {(jobs[job_id]["u"], job_id) for job_id in active if "u" in jobs[job_id]}
    counted = {(key.partition(":run:")[2], job_id) for key, held in store.items() if ":run:" in key for job_id in held}
    found += _compare("what counts against limits", counted, used)
    kept = {(device, text.split(":")[0]) for device, text in store.get(keys.PREFIX + "rsv", {}).items()}
    wanted = {(device, job_id) for job_id, job in jobs.items() for device in job.get("rv", "").split(",") if device}
    found += _compare("reservations", kept, wanted)
    found += [f"job {job_id} keeps {device} and does not wait" for device, job_id in wanted if job_id in active | ended]
    queued = {job_id: job for job_id, job in jobs.items() if job["st"] == "queued"}
    aside = {job_id for job_id, job in queued.items() if job.get("why")}  # these jobs may not start yet
    held = {job_id: job for job_id, job in jobs.items() if job["st"] == "held"}
    awaits = {
        (parent.partition(":")[0], job_id)
        for job_id, job in {**queued, **held}.items()
        for parent in job.get("af", "").split(",")
        if parent
    }
    follow = {(parent, job_id) for parent, job_id in awaits if f"{parent}:corr" in jobs[job_id]["af"].split(",")}
    followers = {
        (key.partition(":corr:")[2], each[0]) for key, held in store.items() if ":corr:" in key for each in held
    }
    found += _compare("followers", followers, follow)
    startable = {
        job_id
        for _, job_id in follow
        if {*Indexes.parse(jobs[job_id]["rm"])} - {*Indexes.parse(jobs[job_id].get("pg", ""))}
    }
    heard = {(key.partition(":dep:")[2], each[0]) for key, held in store.items() if ":dep:" in key for each in held}
    found += _compare("dependants", heard, awaits)
    dependent = {job_id for job_id in aside if queued[job_id].get("why") == "dependency"}
    found += _compare("reasons", dependent, {job_id for _, job_id in awaits if job_id not in startable} & set(queued))
    timers = {each for each in _members(store, "timers") if not each.startswith(("c:", "d:"))}
    found += _compare("timers", timers, {each for each in aside - dependent if queued[each]["why"] != "array_limit"})
    found += _compare("who waits and stands in no queue", *_out_of_sight(store, jobs, aside | set(held)))
    keyed = set(store.get(keys.PREFIX + "keys", {}).values())
    found += [f"the dedupe key of job {job_id} is left" for job_id in keyed - set(jobs)]
    found += _array_faults(store, jobs)
    return found + _queue_faults(store, {job_id: job for job_id, job in queued.items() if job_id not in aside})


def _out_of_sight(store: Dump, jobs: dict[str, dict[str, str]], aside: set[str]) -> tuple[set[Any], set[Any]]:
    """Return the jobs that the store counts as waiting outside its queues, and those that it should count.

    See gpuqueue/queue/lua/shared/limits.lua.
    """
    there = {
        (key.partition(":aside:")[2], *each) for key, listed in store.items() if ":aside:" in key for each in listed
    }
    there |= {(user,) for user in store.get(keys.PREFIX + "asiders", ())}
    arrays = {job_id for job_id, job in jobs.items() if "rm" in job and JobState(job["st"]) not in ENDS}
    wanted: set[Any] = {(jobs[each].get("u"), each, float(each in arrays)) for each in aside | arrays}
    return there, wanted | {(user,) for user, *_ in wanted}


def _array_faults(store: Dump, jobs: dict[str, dict[str, str]]) -> list[str]:
    """Return what is wrong with the arrays: each member is in one place, and the counts add up."""
    found = []
    for array_id, array in ((job_id, job) for job_id, job in jobs.items() if "rm" in job):
        members = {job_id: job for job_id, job in jobs.items() if job.get("ar") == array_id}
        alive = {job_id for job_id, job in members.items() if JobState(job["st"]) not in ENDS}
        found += _compare(f"members of {array_id}", set(_members(store, f"am:{array_id}")), alive)
        left, held = Indexes.parse(array["rm"]), Indexes.parse(array["hd"])
        places = [*left, *held, *(int(each["ix"]) for each in members.values())]
        if len(places) != len(set(places)):
            found.append(f"a member of {array_id} is in two places: {places}")
        if any(int(array_id) + 1 + int(each["ix"]) != int(job_id) for job_id, each in members.items()):
            found.append(f"a member of {array_id} has the id of another one")
        ended = sum(int(array.get(name, 0)) for name in ("es", "ef", "ec", "el"))
        if array.get("un") == "1" and JobState(array["st"]) not in ENDS:
            found += (
                [f"nobody knows how far {array_id} had come, and {left or held} may be taken"] if left or held else []
            )
            continue
        if ended + len(alive) + len(left) + len(held) != int(array["n"]):
            found.append(f"{array_id} has {array['n']} members, and not all are counted: {array}")
        if (JobState(array["st"]) in ENDS) != (ended == int(array["n"])):
            found.append(f"{array_id} is {array['st']}, and {ended} of its members have ended")
        if "cap" in array and len(alive) > int(array["cap"]):
            found.append(f"{len(alive)} members of {array_id} are at it at once")
    return found


def _place(job_id: str, jobs: dict[str, dict[str, str]]) -> int:
    """Return the position of a job among its user's jobs."""
    front = jobs[job_id].get("fr")
    return int(job_id) if front is None else -int(front)


def _queue_faults(store: Dump, waiting: dict[str, dict[str, str]]) -> list[str]:
    """Return what is wrong with the five indexes of the waiting jobs."""
    places: dict[str, set[str]] = {}
    for job_id, job in waiting.items():
        places.setdefault(f"q:{job['pr']}:{job['u']}:{job['sh']}", set()).add(job_id)
        places.setdefault(f"us:{job['pr']}:{job['u']}", set()).add(job["sh"])
        places.setdefault(f"ul:{job['pr']}", set()).add(job["u"])
        places.setdefault(f"sh:{job['pr']}", set()).add(job["sh"])
        places.setdefault(f"su:{job['pr']}:{job['sh']}", set()).add(job["u"])
    there = {
        key.removeprefix(keys.PREFIX) for key in store if re.match(re.escape(keys.PREFIX) + "(q|us|ul|sh|su):", key)
    }
    found = _compare("queues", there, set(places))
    lines = {key.removeprefix(keys.PREFIX + "ub:") for key in store if key.startswith(keys.PREFIX + "ub:")}
    found += [f"ub:{line} is left behind" for line in lines if f"us:{line}" not in places]
    for name, wanted in places.items():
        found += _compare(name, set(_members(store, name)), wanted)
    for name in there & set(places):
        if name.startswith("us:"):
            _, pr, user = name.split(":")
            heads = {
                shape: min(_place(each, waiting) for each in places[f"q:{pr}:{user}:{shape}"]) for shape in places[name]
            }
            found += _compare(f"heads of {name}", set(store[keys.PREFIX + name]), set(heads.items()))
            found += _passed_too_early(store.get(f"{keys.PREFIX}ub:{pr}:{user}", {}), heads)
        if name.startswith("q:"):
            wanted_places = {(each, _place(each, waiting)) for each in places[name]}
            found += _compare(f"places in {name}", set(store[keys.PREFIX + name]), wanted_places)
    return found


def _passed_too_early(noted: dict[str, str], heads: dict[str, int]) -> list[str]:
    """Return the shapes that a claim would skip though they may fit; *heads* are shapes with their places."""
    found = []
    for device, note in noted.items():
        bound, _, kept, begin = note.split(":")
        first = int(begin.lstrip("(")) + begin.startswith("(")
        found += [
            f"{shape} at {place} is passed over on {device}: {note}"
            for shape, place in heads.items()
            if place < first and not kept and int(shape.split(":")[0]) <= int(bound)
        ]
    return found


def _members(store: Dump, name: str) -> list[str]:
    return [each[0] if isinstance(each, (tuple, list)) else each for each in store.get(keys.PREFIX + name, [])]


def _compare(what: str, there: set[Any], wanted: set[Any]) -> list[str]:
    return [] if there == wanted else [f"{what}: {there - wanted} too many, {wanted - there} missing"]
