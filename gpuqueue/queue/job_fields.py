"""The fields of a job's hash (``j:<id>``, see keys.py): name in the code, name in the store, meaning.

The store has short names, because it holds them for each of a million jobs. Python uses the constants of this table.
Lua writes ``F.priority``, which :mod:`gpuqueue.queue.scripts` replaces by the name in the store when it reads a file.
Fields that end in ``_ms`` are milliseconds on the store's clock, those that end in ``_s`` are seconds.
"""

from __future__ import annotations

# ---- the request ----
#: The user who submitted the job.
USER = "u"
#: The priority, 0..3; aging may have raised it.
PRIORITY = "pr"
#: The shape: memory, time limit, devices, pool, device kind and device filter.
SHAPE = "sh"
#: The requested memory on each device, in bytes.
MEM_BYTES = "mem"
#: 1 if the job may run again after a loss.
REQUEUE = "rq"
#: The dedupe key.
DEDUPE_KEY = "dk"
#: The tags, comma-separated, if they differ from those of the spec.
TAGS = "tg"
#: The note.
NOTE = "nt"

# ---- the state ----
#: The state (see gpuqueue.model.job.JobState).
STATE = "st"
#: The wait reason, or why the job is held.
REASON = "why"
#: Why the job was cancelled, why its array is held, or why no host can start it.
BECAUSE = "bc"
#: How many runs were claimed so far.
ATTEMPTS = "at"
#: How many runs were lost.
LOSSES = "ls"
#: When the job was submitted.
SUBMITTED_MS = "ts"
#: When the job was claimed.
CLAIMED_MS = "tc"
#: When the run started; of an array, when its first member was claimed.
STARTED_MS = "tr"
#: When the job ended.
ENDED_MS = "te"
#: The outbox id of the event that ended the job.
END_EVENT = "ev"

# ---- waiting ----
#: The job does not start before.
NOT_BEFORE_MS = "nb"
#: Why it does not: begin, retry or requeue.
NOT_BEFORE_REASON = "nw"
#: Since when the job may start, if it had to wait before.
READY_SINCE_MS = "since"
#: The jobs that it still waits for: ``job:ok|any|fail|corr``, comma-separated.
AFTER = "af"
#: Its number among the jobs that were moved to the front.
FRONT = "fr"
#: How often aging raised the priority.
PROMOTIONS = "lf"
#: The hosts that could not start the job: JSON, host -> why. Their names are in the shape too.
EXCLUDED = "xh"
#: Since when the job is left to a better device.
LEFT_SINCE_MS = "pl"
#: The devices that are reserved for the job, comma-separated.
RESERVED = "rv"
#: Since when they are reserved.
RESERVED_SINCE_MS = "rs"
#: When the last reservation for the job was dropped because it had lasted too long.
DROPPED_MS = "rk"
#: 1 if the reservation waits for preempted runs.
BY_PREEMPTION = "pb"

# ---- the run ----
#: The token of the run.
TOKEN = "tok"  # noqa: S105 - the name of a field
#: The worker of the run.
WORKER = "w"
#: The host of the run.
HOST = "host"
#: The devices of the run, comma-separated.
DEVICES = "devs"
#: What the worker reported at the start, as JSON for the history.
START_REPORT = "rep"
#: How the run came to its start: immediate, backfill or reserved.
START_KIND = "how"
#: The seconds of usage that the claim charged in advance.
DEPOSIT_S = "dep"
#: The usage of the run per second.
RATE = "rate"
#: How long the user's runs usually took at the time of the claim; empty if unknown.
USUAL_S = "usu"
#: When the job was claimed, on the clock of usage decay.
CLAIMED_FAIR_MS = "tf"
#: The claim time of a run that a job waited for in vain; no reservation waits for this run again.
IN_VAIN_MS = "iw"
#: The time limit of the run. Only if it was extended while the job ran.
TIME_LIMIT_MS = "tl"
#: The job that preempted this run.
PREEMPTED_BY = "pre"
#: When the preempted run must have ended.
PREEMPT_UNTIL_MS = "pd"
#: How often the job was preempted.
PREEMPTIONS = "pn"
#: The marks of the run, also those that are over: JSON, kind -> ``since`` and ``until`` (ms), ``stage``, ``what``. With
#: ``low`` its priority counts as low. Only if there were any.
MARKS = "mk"

# ---- running again ----
#: The retries that the job may have.
RETRIES_ALLOWED = "rt"
#: The endings that allow a retry, comma-separated.
RETRY_ON = "ro"
#: The retries so far.
RETRIES = "rn"
#: The attempt after which the last retry was granted. If the job has made no attempt since, that retry is pending.
RETRY_AFTER = "ra"
#: How often the runs of the job asked to be requeued.
REQUEUES = "qn"
#: How often the job was queued again after a lack of device memory. Only if it was.
MEM_RETRIES = "mn"
#: The token of the last run that ended with the job queued again.
PREVIOUS_TOKEN = "pt"  # noqa: S105 - the name of a field
#: The outbox id of the end of that run.
PREVIOUS_EVENT = "pe"

# ---- arrays and their members ----
#: The indexes that wait to be claimed, as ranges: ``3-99,105-110:5``.
LEFT = "rm"
#: The held indexes, as ranges.
HELD = "hd"
#: The indexes, as ranges, whose member of the array that this one follows has not succeeded. Only if there are any.
PENDING = "pg"
#: The number of members.
MEMBERS = "n"
#: The maximum number of members that may be jobs of their own at once.
AT_ONCE = "cap"
#: The number of failed members after which the rest is held, if none has succeeded. Only if there is such a number.
MAX_FAILURES = "mf"
#: The number of members that had failed or were lost when the array was last released.
FAILURES_BEFORE = "fb"
#: When the last member was claimed; of a member, when it was claimed. Time before that is no waiting time.
MEMBER_CLAIMED_MS = "tw"
#: The number of members that succeeded.
SUCCEEDED = "es"
#: The number of members that failed.
FAILED = "ef"
#: The number of members that were cancelled.
CANCELLED = "ec"
#: The number of members that were lost.
LOST = "el"
#: 1 after the whole array was cancelled.
ALL_CANCELLED = "cx"
#: 1 while the progress of the array is unknown, in a store that lost its data: no index is left or held.
PROGRESS_UNKNOWN = "un"
#: The array of a member.
ARRAY = "ar"
#: The index of a member.
INDEX = "ix"

#: All fields: name in the code -> name in the store.
FIELDS: dict[str, str] = {name.lower(): value for name, value in globals().items() if name.isupper()}
