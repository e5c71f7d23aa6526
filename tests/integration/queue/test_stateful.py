"""Stateful test: the guarantees of the queue hold after each step of any sequence of acts.

The sequences are the same in every run; ``STATEFUL_EXAMPLES=5000`` searches for others (long_search.py). Convergence of
shares takes longer than one sequence: see test_shares_converge.py.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from factories import ADA, BOB, make_device, make_offer, make_spec, serve
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from long_search import search
from store_dump import dump, faults

from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import BadRequest, Impossible, Refused
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.model.dependencies import Condition, Dependency, Waits
from gpuqueue.model.job import ENDS, JobState, WaitReason
from gpuqueue.model.job_spec import JobSpec, Priority
from gpuqueue.model.limits import Limits
from gpuqueue.model.measures import Measure, Use
from gpuqueue.model.placement import ANYWHERE, Placement, Preference, fits_model
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.changes import Mark
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import BY_PEOPLE, DrainOrigin
from gpuqueue.queue.explanation import Obstacle
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Again, Alive, Claim, Later, Offer, Reservation
from gpuqueue.queue.requests import Found, new_nonce
from gpuqueue.recovery import open_queue
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB
from workers.services.recorder import Recorder

#: Thousands of acts: on a busy machine they exceed the default timeout.
pytestmark = pytest.mark.timeout(600)

DEVICES = {"GPU-0": "nodeA", "GPU-1": "nodeA", "GPU-2": "nodeA", "GPU-3": "nodeB"}
MODELS = {"GPU-0": "Test A100", "GPU-1": "Test A100", "GPU-2": "Test H100", "GPU-3": "Test H100"}
#: Headroom of each device; it makes one of them small.
HEADROOM_BYTES = {"GPU-0": 0, "GPU-1": 0, "GPU-2": 10 * GIB, "GPU-3": 0}
SLOTS = 3
#: Placements of jobs; most jobs have none.
PLACEMENTS = (
    *([ANYWHERE] * 6),
    Placement(exclusive=True),
    Placement(exclusive=True, whole=True),
    Placement(models=("H100",), preference=Preference.SPREAD),
    Placement(preference=Preference.PACK),
    Placement(devices=("GPU-0", "GPU-1", "GPU-3")),
    Placement(exclusive=True, models=("A100",)),
)
PREEMPT = {Priority.URGENT: (Priority.LOW, Priority.NORMAL, Priority.HIGH), Priority.HIGH: (Priority.LOW,)}
#: Limits that may be set meanwhile; some of them are empty.
LIMITS = [
    "",
    "",
    "ada: running_jobs=2",
    "*: running_mem=30G",
    "ada: running_mem=20G",
    "@lab: running_gpus=3 running_mem=45G queued_jobs=8",
]
POOL_LIMITS = ["", "", "*: max_mem=16G"]
GROUPS = {"lab": ("ada", "bob")}

filters = st.one_of(
    st.none(), st.tuples(st.sampled_from(["ok", "any", "fail", "begin", "hold", "dedupe"]), st.integers(0, 1000))
)

jobs = st.fixed_dictionaries(
    {
        "mem_bytes": st.sampled_from([1, 4, 8, 12, 16, 20, 23]).map(lambda size: size * GIB),
        "gpus": st.sampled_from([1, 1, 1, 2, 3]),
        "placement": st.sampled_from(PLACEMENTS),
        "account": st.sampled_from([ADA, BOB]),
        "priority": st.sampled_from(Priority),
        "time_limit_s": st.sampled_from([None, 60.0, 7200.0]),
        "expected_duration_s": st.sampled_from([None, 90.0, 4000.0]),
        "requeue": st.booleans(),
        "retries": st.sampled_from([Retries(), Retries(times=1, on=(RetryOn.ANY,))]),
        "waits": filters,
        "array": st.sampled_from([None, None, None, *map(Array.parse, ("0-4%2", "1-3", "0-4:2"))]),
    }
)


orders = st.permutations(sorted(DEVICES))


class Site(RuleBasedStateMachine):
    """Submitters, workers, reapers and users in turn, one act at a time: every script is atomic."""

    url = ""
    #: An empty history database, and the directory for each site's copy of it.
    empty_history, home = Path(), Path()

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.client = connect(self.url)
        self.client.flushall()
        self.queue = JobQueue(self.url)
        self.acknowledged: set[int] = set()
        self.ended: dict[int, JobState] = {}
        self.attempts: dict[int, int] = {}
        #: For each job the tokens of its claims in order, including released and lost claims.
        self.tokens: dict[int, list[str]] = {}
        self.recorded: set[int] = set()
        #: For each job that the end of a run queued again: the attempt and the exit code.
        self.again: dict[int, tuple[int, int]] = {}
        self.limited = ("", "")
        #: Ids of calendar reservations.
        self.calendar: list[int] = []
        self.settings = Settings.load({})
        path = self.home / f"{secrets.token_hex(4)}.db"
        shutil.copy(self.empty_history, path)
        self.database = HistoryDatabase(f"sqlite:///{path}")
        self.recorder = Recorder(self.settings, self.queue, self.database)

    @initialize(target=claims, batch=st.lists(jobs, min_size=6, max_size=12), order=orders)
    def open(self, batch: list[dict[str, Any]], order: list[str]) -> Any:
        """Open a site of two hosts with four cards, and submit and claim a first batch."""
        self.queue.recovery.open(0)
        self.queue.rules.set_limits(Limits.parse("", "", GROUPS))  # as a worker does when it starts
        self.queue.rules.set_policy(half_life_s=86400, urgent=None, shares={}, placement=Preference.SPREAD)
        serve(self.queue, *(self.offer(uuid) for uuid in DEVICES))
        self._submit(batch)
        return multiple(*self._claims([*order, *order], again=False))

    def teardown(self) -> None:
        """Close the connections."""
        self.database.close()
        self.queue.close()
        self.client.close()

    def offer(self, uuid: str) -> Offer:
        """Return the offer of a device's worker."""
        device = make_device(uuid, name=MODELS[uuid])
        return make_offer(uuid, host=DEVICES[uuid], slots=SLOTS, device=device, headroom_bytes=HEADROOM_BYTES[uuid])

    # ---- acts ----------------------------------------------------------------------------------------------------

    @rule(batch=st.lists(jobs, min_size=1, max_size=6))
    def submit(self, batch: list[dict[str, Any]]) -> None:
        """Submit a batch of jobs."""
        self._submit(batch)

    def _submit(self, batch: list[dict[str, Any]]) -> None:
        ends = self._recorded_ends()
        for changes in batch:
            wanted = {**changes, "waits": self._waits(changes["waits"])}
            if not changes["requeue"]:
                wanted["retries"] = Retries()
            with contextlib.suppress(Impossible, Refused, Found):  # no host fits, a limit, or the dedupe key is taken
                job_id = self.queue.requests.submit(make_spec(**wanted), ends=ends).id
                assert job_id not in self.acknowledged, "an id was given out twice"
                self.acknowledged.add(job_id)
                for bound in self.queue.rules.limits().bounds(self.queue.rules.uses()):
                    if bound.measure is Measure.QUEUED_JOBS and bound.used is not None:
                        assert bound.used <= bound.limit.most, "more wait than may"

    def _recorded_ends(self) -> dict[int, bool]:
        """Return how jobs ended that only the history knows: whether they succeeded."""
        return {each: self.ended[each] is JobState.SUCCEEDED for each in self.recorded}

    def _waits(self, device_filter: tuple[str, int] | None) -> Waits:
        """Return waits for a job: on other known jobs, a begin time, a hold or a dedupe key."""
        if device_filter is None:
            return Waits()
        kind, pick = device_filter
        known = sorted(self.acknowledged)
        if kind in {"ok", "any", "fail"}:
            chosen = dict.fromkeys(known[(pick + step) % len(known)] for step in (0, 3)) if known else ()
            return Waits(after=tuple(Dependency(each, Condition(kind)) for each in chosen))
        if kind == "begin":
            return Waits(begin_at=datetime.now(timezone.utc) + timedelta(hours=1))
        return Waits(hold=True) if kind == "hold" else Waits(dedupe=f"k{pick % 2}")

    @rule(target=claims, order=orders, again=st.booleans())
    def claim(self, order: list[str], again: bool) -> Any:  # noqa: FBT001 - Hypothesis hands it in by name
        """Let every worker claim, in any order; with *again*, repeat each claim, because the reply may get lost."""
        return multiple(*self._claims(order, again=again))

    def _claims(self, order: list[str], *, again: bool) -> list[Claim]:
        return [won for device in order if (won := self._claim(device, again=again)) is not None]

    def _claim(self, device: str, *, again: bool) -> Claim | None:
        nonce = new_nonce()
        waiting = [job.id for job in self.queue.jobs.live() if job.reason is not WaitReason.ARRAY_LIMIT]
        fits = {job_id for job_id in waiting if self._fits(job_id, device)}
        reserved = self.client.hgetall(keys.RESERVED)
        claimed = self._sought(device, nonce, fits)
        if again and claimed is not None:
            assert claimed == self.queue.runs.claim(self.offer(device), worker=device, lease_s=300, nonce=nonce)
        if claimed is None:
            assert not fits, f"nothing was claimed, and why says that {fits} fit"
            return None
        assert fits & {claimed.job_id, claimed.member and claimed.member.array_id}, (
            "it was claimed where why says that it does not fit"
        )
        for bound in self.queue.rules.limits().bounds(self.queue.rules.uses()):
            if bound.measure is Measure.QUEUED_JOBS:
                continue  # a later limit does not remove jobs that wait already
            if bound.whose in {claimed.spec.account.name, "@lab"} and bound.used is not None:
                assert bound.used <= bound.limit.most, "a claim went over a limit"
        self.attempts[claimed.job_id] = self.attempts.get(claimed.job_id, 0) + 1
        assert claimed.attempt == self.attempts[claimed.job_id]
        self._remember(claimed)
        self._check_ends(claimed)
        self._check_reserved(claimed, reserved)
        wanted = claimed.spec.placement
        assert not wanted.devices or set(claimed.devices) <= set(wanted.devices)
        names = [MODELS[each] for each in claimed.devices]
        assert all(any(fits_model(model, name) for model in wanted.models or (name,)) for name in names)
        return claimed

    def _check_ends(self, claimed: Claim) -> None:
        """Check that the job is over before the end of each of its devices, as far as its duration is known."""
        spec = claimed.spec
        lasts_s = spec.expected_duration_s if spec.time_limit_s is None else spec.time_limit_s
        for device in self.queue.devices.all():
            if device.device.uuid in claimed.devices:
                assert not device.drains
                assert device.ends_at is None or lasts_s is not None or spec.requeue, (
                    "it cannot be preempted at the end"
                )
                over_at = from_epoch_ms(claimed.claimed_ms) + timedelta(seconds=lasts_s or 0)
                assert device.ends_at is None or over_at < device.ends_at, "it goes on after the end of its device"
                others = [each.begins_at for each in device.calendar if spec.account.name not in each.users]
                assert not others or lasts_s is not None or spec.requeue, "it cannot be preempted at a reservation"
                assert not others or over_at < min(others), "it goes on into a reservation of others"

    def _check_reserved(self, claimed: Claim, before: dict[str, str]) -> None:
        """Check that a run delays no other job for which its devices are reserved, as far as durations are known."""
        spec, after = claimed.spec, self.client.hgetall(keys.RESERVED)
        for device in claimed.devices:
            if device not in before or before[device] != after.get(device):
                continue  # its own, or in vain
            _, need, start, blockers, likely = before[device].split(":")
            most = ((spec.time_limit_s, max(int(start), int(likely))), (spec.expected_duration_s, int(likely)))
            if any(lasts_s is not None and claimed.claimed_ms + lasts_s * 1000 < by_ms for lasts_s, by_ms in most):
                continue
            leases = self.client.hgetall(f"{{gq}}:dl:{device}")
            stay = [text.split(":") for job_id, text in leases.items() if job_id not in blockers.split(",")]
            used = sum(max(int(lease), int(observed)) for lease, observed, *_ in stay)
            assert used + int(need) <= 24 * GIB - HEADROOM_BYTES[device], "it delays the job with the reservation"

    def _remember(self, claimed: Claim) -> None:
        """Check a claim's token: it is unique, even after data loss, and names the attempt of the claim."""
        assert claimed.token.partition(".")[0] == str(claimed.attempt)
        assert claimed.token not in {each for all_of in self.tokens.values() for each in all_of}, "a token came twice"
        self.tokens.setdefault(claimed.job_id, []).append(claimed.token)

    def _sought(self, device: str, nonce: str, fits: set[int]) -> Claim | None:
        """Seek as a worker does. A job that is left to a better device is free for all once its moment is over."""
        found = self.queue.runs.seek(self.offer(device), worker=device, lease_s=300, nonce=nonce)
        if isinstance(found, Later):
            left = {job_id for job_id in fits if self.client.hexists(keys.job(job_id), stored.LEFT_SINCE_MS)}
            assert left, "nothing was left, or something that does not fit"
            for job_id in left:
                self.client.hincrby(keys.job(job_id), stored.LEFT_SINCE_MS, -1000)
            found = self.queue.runs.seek(self.offer(device), worker=device, lease_s=300, nonce=nonce)
            assert isinstance(found, Claim), "it waits for the sake of its place"
        return found

    def _fits(self, job_id: int, device: str) -> bool:
        found = self.queue.jobs.why(job_id)
        if found is None or found.state is not JobState.QUEUED:
            return False
        return any(each.device == device and each.obstacle is Obstacle.FITS for each in found.devices)

    @rule(claim=claims)
    def start(self, claim: Claim) -> None:
        """Report the start of a claim, possibly a stale one."""
        self.queue.runs.started(claim.job_id, claim.token, lease_s=300, log_path="/l", devices=())

    @rule(claim=claims)
    def heartbeat(self, claim: Claim) -> None:
        """Send a heartbeat for a claim. A stale one, whose job has another run by now, must not renew the lease."""
        alive = Alive(job_id=claim.job_id, token=claim.token, observed=dict.fromkeys(claim.devices, 0))
        before = self.client.zscore("{gq}:leases", claim.job_id)
        verdicts = self.queue.devices.heartbeat(self.offer(claim.devices[0]), [alive], lease_s=900)
        if claim.token in verdicts.stale:
            assert before == self.client.zscore("{gq}:leases", claim.job_id)

    @rule(claim=claims, code=st.sampled_from([0, 1, 75]))
    def finish(self, claim: Claim, code: int) -> None:
        """Finish a run, possibly more than once. Only the owner's first report counts."""
        ending = Ending.from_status(code)
        state = JobState.FAILED if code else JobState.SUCCEEDED
        done = self.queue.runs.finish(claim.job_id, claim.token, state=state, ending=ending, duration_s=1.0, devices=())
        if done is not None and done.is_end:
            assert claim.job_id not in self.ended, "it ended twice"
        elif done is not None:
            self.again[claim.job_id] = claim.attempt, code

    @rule(claim=claims, later_s=st.sampled_from([0.0, 3600.0]))
    def run_again(self, claim: Claim, later_s: float) -> None:
        """End a run and queue its job again, unless the job was cancelled meanwhile or must not run twice."""
        again, ending = Again(reason=WaitReason.RETRY, later_s=later_s), Ending.from_status(1)
        queued = JobState.QUEUED
        after = self.queue.runs.finish(
            claim.job_id, claim.token, state=queued, ending=ending, duration_s=1.0, devices=(), again=again
        )
        assert after in {None, queued, JobState.CANCELLED, JobState.FAILED}

    @rule()
    def time_goes_by(self) -> None:
        """Make every begin time be over: the waiting jobs may start."""
        waiting = [each for each in self.client.zrange("{gq}:timers", 0, -1) if not each.startswith(("c:", "d:"))]
        for job_id in waiting:
            self.client.zadd("{gq}:timers", {job_id: 1})
            self.client.hset(f"{{gq}}:j:{job_id}", stored.NOT_BEFORE_MS, 1)
        self.queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=1000)
        left = set(self.client.zrange("{gq}:timers", 0, -1))
        assert not left & set(waiting)

    @rule(claim=claims)
    def lose(self, claim: Claim) -> None:
        """Report a run as lost, as a worker does that comes back and finds no process."""
        self.queue.runs.lose(claim.job_id, claim.token, loss_limit=3, detail="gone")

    @rule(claim=claims)
    def give_back(self, claim: Claim) -> None:
        """Release a claim, possibly a stale one. A released claim is no attempt."""
        if self.queue.runs.release_claim(claim.job_id, claim.token, "full"):
            assert claim.token == self.tokens[claim.job_id][-1], "a claim was given back by an older one"
            self.attempts[claim.job_id] -= 1

    @rule(pick=st.integers(0, 1000), act=st.sampled_from(["cancel", "hold", "release"]))
    def change(self, pick: int, act: str) -> None:
        """Cancel, hold or release a job."""
        if self.acknowledged:
            getattr(self.queue.jobs, act)(sorted(self.acknowledged)[pick % len(self.acknowledged)])

    @rule(pick=st.integers(0, 1000), front=st.booleans(), tag=st.sampled_from(["a", "b"]))
    def move_and_mark(self, pick: int, tag: str, *, front: bool) -> None:
        """Move a job to the front or back, and change its tags and note, whatever its state."""
        if not self.acknowledged:
            return
        job_id = sorted(self.acknowledged)[pick % len(self.acknowledged)]
        mark = Mark(add=(tag,)) if front else Mark(remove=(tag,), note=tag)
        ended = None if (record := self.database.get(job_id)) is None or not record.job.state.is_end else record.job
        self.queue.jobs.mark(job_id, mark, ended=ended)
        try:
            assert self.queue.jobs.move(job_id, front=front) in {None, JobState.QUEUED, JobState.HELD}
        except Refused:
            assert JobState.QUEUED is not self._state_of(job_id)

    def _state_of(self, job_id: int) -> JobState | None:
        job = self.queue.jobs.get(job_id)
        return None if job is None else job.state

    @rule(pick=st.integers(0, 1000), act=st.sampled_from(["cancel", "hold", "release"]), first=st.integers(0, 4))
    def change_a_part(self, pick: int, act: str, first: int) -> None:
        """Cancel, hold or release some members of an array, whether they were claimed or not."""
        if self.acknowledged:
            part = Indexes.parse(f"{first}-{first + 1}")
            self.queue.jobs.part(sorted(self.acknowledged)[pick % len(self.acknowledged)], act, part)

    @rule(
        pick=st.integers(0, 1000),
        mem=st.sampled_from([2, 8, 40]),
        priority=st.sampled_from([None, *Priority]),
        device_filter=filters,
    )
    def edit(self, pick: int, mem: int, priority: Priority | None, device_filter: tuple[str, int] | None) -> None:
        """Edit a job's request. The edit is complete or has no effect.

        It is refused if the job waits no more or would depend on itself.
        """
        if not self.acknowledged:
            return
        job_id = sorted(self.acknowledged)[pick % len(self.acknowledged)]
        waits = self._waits(device_filter)
        reported = {"priority": priority is not None, "after": bool(waits.after), "begin": waits.begin_at is not None}

        def change(spec: JobSpec) -> JobSpec:
            reserved = replace(waits, hold=False, dedupe=spec.waits.dedupe)
            return replace(
                spec, mem_bytes=mem * GIB, priority=spec.priority if priority is None else priority, waits=reserved
            )

        with contextlib.suppress(BadRequest, Impossible, Refused):
            self.queue.requests.edit(job_id, change, **reported, ends=self._recorded_ends())

    @rule(pick=st.integers(0, 1000), times=st.sampled_from([0, 1, 3]))
    def edit_retries(self, pick: int, times: int) -> None:
        """Edit the number of retries. A pending retry cannot be removed, and a requeue by exit code 75 is no retry."""
        if not self.acknowledged:
            return
        job = self.queue.jobs.get(sorted(self.acknowledged)[pick % len(self.acknowledged)])
        if job is None or job.state not in {JobState.QUEUED, JobState.HELD} or job.tally or not job.spec.requeue:
            return
        attempt, code = self.again.get(job.id, (0, 0))
        retries = Retries(times=times, on=(RetryOn.ANY,)) if times else Retries()
        is_less = times < min(job.retries, job.spec.retries.times)
        try:
            self.queue.requests.edit(job.id, lambda spec: replace(spec, retries=retries))
        except (BadRequest, Refused) as error:  # may also concern the rest of the request, if it is impossible by now
            if "waits for its retry" in str(error):
                assert is_less
                assert (attempt, code) != (job.attempt, 75)
        else:
            assert not is_less or (attempt, code) != (job.attempt, 1), "a retry that is to come was taken back"

    @rule(placement=st.sampled_from([*Preference, None]))
    def place(self, placement: Preference | None) -> None:
        """Set the site's default placement."""
        self.queue.rules.set_policy(half_life_s=86400, urgent=None, shares={}, placement=placement)

    @rule(
        uuids=st.lists(st.sampled_from(sorted(DEVICES)), min_size=1, max_size=3, unique=True),
        user=st.sampled_from(["ada", "bob", "ada,bob", "eve"]),
        begins_s=st.sampled_from([-1.0, -1.0, 60.0, 1000.0, 6000.0]),
    )
    def reserve_by_calendar(self, uuids: list[str], user: str, begins_s: float) -> None:
        """Reserve devices for users, unless one is reserved at that time."""
        now = from_epoch_ms(self.queue.now_ms())
        begins_at, ends_at = (now + timedelta(seconds=begins_s + more_s) for more_s in (0, 20000))
        users = tuple(user.split(","))
        wanted = CalendarReservation(
            id=0, users=users, begins_at=begins_at, ends_at=ends_at, by="eve", devices=tuple(uuids)
        )
        with contextlib.suppress(Refused):
            self.calendar.append(self.queue.devices.reserve(wanted, grace_s=60))

    @rule(pick=st.integers(0, 1000))
    def cancel_in_calendar(self, pick: int) -> None:
        """Cancel a reservation, possibly one that is gone."""
        if self.calendar:
            self.queue.devices.cancel_reservation(self.calendar[pick % len(self.calendar)], user=None)

    @rule(uuid=st.sampled_from(sorted(DEVICES)), in_s=st.sampled_from([None, None, -1.0, 60.0, 1000.0, 6000.0]))
    def end_device(self, uuid: str, in_s: float | None) -> None:
        """Give a device an end, or remove it. Each is far from any duration: no time passes in between that matters."""
        if in_s is None:
            self.queue.devices.resume([uuid], origins=BY_PEOPLE)
            return
        begins_at = from_epoch_ms(self.queue.now_ms()) + timedelta(seconds=in_s)
        self.queue.devices.drain([uuid], origin=DrainOrigin.PERSON, why="", by="ada", begins_at=begins_at)

    @rule()
    def wait_for_a_day(self) -> None:
        """Let every job have waited for one more day, so that devices may be reserved for hours."""
        for job_id in self.client.zrange(keys.LIVE, 0, -1):
            self.client.hincrby(keys.job(job_id), stored.SUBMITTED_MS, -86_400_000)

    @rule(most=st.sampled_from([1, 2, 0]))
    def reserve(self, most: int) -> None:
        """Run the tick that reserves devices."""
        reservations = self.queue.maintenance.reserve(after_s=0, most=most)
        held = [device for each in reservations for device in each.devices]
        assert len(held) == len(set(held)), "a device is reserved for two jobs"
        assert not any(self._is_beyond(each) for each in reservations), "a device is reserved in vain"
        jobs = {job.id: job for job in self.queue.jobs.live()}
        users = [jobs[each.job_id].spec.account.name for each in reservations if each.until_ms is not None]
        assert len(users) == len(set(users)), "devices are reserved for two jobs of one user"
        ended = {each.device.uuid for each in self.queue.devices.all() if each.drains}
        assert not ended & set(held), "a device is reserved after its end"

    def _is_beyond(self, reserved: Reservation) -> bool:
        """Return whether a limit stops a job from using its reservation."""
        job, limits = self.queue.jobs.get(reserved.job_id), self.queue.rules.limits()
        assert job is not None
        spec, count = job.spec, len(reserved.devices)
        gives = [24 * GIB - HEADROOM_BYTES[each] for each in reserved.devices]
        each_bytes = min(gives) if spec.placement.exclusive else spec.shape.mem_bytes
        asked = Use(running_jobs=1, running_gpus=count, running_mem=count * each_bytes)
        most = limits.of_pool(spec.pool).max_mem_bytes
        is_too_large = spec.placement.exclusive and most is not None and max(gives) > most
        return is_too_large or limits.over(spec.account.name, asked, self.queue.rules.uses()) is not None

    @rule()
    def be_kept_in_vain(self) -> None:
        """Make every reservation old enough that the next tick may drop it."""
        for job_id in self.client.zrange(keys.LIVE, 0, -1):
            if self.client.hexists(keys.job(job_id), stored.RESERVED_SINCE_MS):
                self.client.hset(keys.job(job_id), stored.RESERVED_SINCE_MS, 1)
        self.client.hdel(keys.META, "reserve_at")
        for whose, reserved in self.client.hgetall(keys.RESERVED_ROOM).items():
            *before, _, runs, shape = reserved.split(":", 7)
            self.client.hset(keys.RESERVED_ROOM, whose, ":".join((*before, "1", runs, shape)))

    @rule(target=claims)
    def reserve_room_and_check(self) -> Any:
        """Reserve devices and claim on them at once.

        No claim may drop a reservation that the next tick would make again.
        """
        for each in self.queue.maintenance.reserve(after_s=0, most=1):
            for device in each.devices:
                claimed = self._claim(device, again=False)
                if claimed is not None:
                    return claimed  # after this claim the reservation may be obsolete
                reserved_for = (self.client.hget(keys.RESERVED, device) or "").partition(":")[0]
                assert str(each.job_id) == reserved_for, "what was reserved is given back"
        return multiple()

    @rule(after_s=st.sampled_from([0.0, 0.0, 3600.0]))
    def preempt(self, after_s: float) -> None:
        """Run the preemption tick.

        Only lower priorities are preempted, and their devices are reserved for the waiting job.
        """
        jobs, before = {job.id: job for job in self.queue.jobs.live()}, self._reserved()
        for victim, by in self.queue.maintenance.preempt(PREEMPT, after_s=after_s, grace_s=60.0, most=2).items():
            assert not after_s, "a fresh run was asked to go"
            assert JobState.RUNNING is jobs[victim].state
            assert jobs[victim].spec.requeue
            assert jobs[by].spec.priority > jobs[victim].spec.priority
            assert self.client.hget(f"{{gq}}:j:{by}", stored.RESERVED), "nothing is reserved for the job"
        after = self._reserved()
        for job_id in {*before, *after}:
            reported = self.client.hget(keys.job(job_id), stored.RESERVED) or ""
            assert after.get(job_id, set()) == {*filter(None, reported.split(","))}, "it lost a part of it"

    def _reserved(self) -> dict[int, set[str]]:
        """Return the reserved devices of each job."""
        reserved: dict[int, set[str]] = {}
        for device, text in self.client.hgetall(keys.RESERVED).items():
            reserved.setdefault(int(text.partition(":")[0]), set()).add(device)
        return reserved

    @rule(claim=claims)
    def end_preempted_run(self, claim: Claim) -> None:
        """Report that a run was preempted, even if no preemption was requested or the claim is stale."""
        ending = Ending.stopped(EndingKind.PREEMPTED, -15)
        again = Again(reason=WaitReason.RETRY)
        self.queue.runs.finish(
            claim.job_id, claim.token, state=JobState.QUEUED, ending=ending, duration_s=1.0, devices=(), again=again
        )

    @rule(written=st.sampled_from(LIMITS), of_pools=st.sampled_from(POOL_LIMITS))
    def limit(self, written: str, of_pools: str) -> None:
        """Change the site's limits. Running jobs continue."""
        self.limited = written, of_pools
        self.queue.rules.set_limits(Limits.parse(written, of_pools, GROUPS))

    @rule(most=st.integers(1, 3))
    def age(self, most: int) -> None:
        """Run the aging tick."""
        self.queue.maintenance.promote(after_s=0, most=most)

    @rule(claim=claims)
    def let_it_expire(self, claim: Claim) -> None:
        """Let a lease expire and run the reaper."""
        if self.client.zscore("{gq}:leases", claim.job_id) is None:
            return
        self.client.zadd("{gq}:leases", {str(claim.job_id): 1})
        self.client.hset("{gq}:meta", mapping={"reap": self.queue.now_ms(), "grace": 0})
        self.queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=1000)

    @rule()
    def record(self) -> None:
        """Record the outbox in the history, after which the store drops ended jobs."""
        self.ended.update({job.id: job.state for job in self.queue.jobs.live() if job.state in ENDS})
        while self.recorder.record(0):
            pass
        live = {job.id for job in self.queue.jobs.live()}
        self.recorded |= set(self.ended) - live
        assert {each: self.ended[each] for each in self.recorded} == self.database.states(self.recorded)

    @rule()
    def lose_the_store(self) -> None:
        """Lose the store's data and rebuild it from the history.

        All jobs come back in their recorded state, and every run keeps its token.
        """
        self.record()
        before, limits, waiting = self._states(), self.queue.rules.limits(), self._waiting()
        self.client.flushall()
        written, of_pools = self.limited
        site = replace(self.settings, limits=written, pool_limits=of_pools, groups="lab: ada bob")
        assert open_queue(self.queue, self.database, lease_s=300, settings=site) is not None
        after = self._states()
        assert (limits, waiting) == (self.queue.rules.limits(), self._waiting())
        wrong = [
            (each, before.get(each), after.get(each)) for each in before | after if before.get(each) != after.get(each)
        ]
        assert not wrong, wrong
        self.client.hset(keys.PREFIX + "meta", "claims", 0)  # as if the lease were over
        serve(self.queue, *(self.offer(uuid) for uuid in DEVICES))

    def _waiting(self) -> dict[str, int]:
        """Return how many jobs of each user count towards `queued_jobs`."""
        return {user: use.queued_jobs for user, use in self.queue.rules.uses().items() if use.queued_jobs}

    def _states(self) -> dict[int, tuple[Any, ...]]:
        """Return the state of each job, as far as the old and the rebuilt store must agree on it."""
        return {
            job.id: (
                *(job.state, job.attempt, job.losses, job.retries, job.requeues),
                *(job.front, sorted(job.tags), job.note),
            )
            for job in self.queue.jobs.live()
        }

    # ---- invariants ----------------------------------------------------------------------------------------------

    @invariant()
    def indexes_fit_the_jobs(self) -> None:
        """No key is left over and none is missing. Each run has leases on its devices, and no other job has."""
        assert [] == faults(dump(self.client))

    @invariant()
    def tokens_grow(self) -> None:
        """A job's run belongs to its last claim.

        No older token becomes valid again, and no attempt is counted twice.
        """
        for job in self.queue.jobs.live():
            state, token, attempt = self.client.hmget(keys.job(job.id), stored.STATE, stored.TOKEN, stored.ATTEMPTS)
            if state in {"starting", "running", "cancelling"} and not job.tally:  # an array has no run of its own
                assert token == self.tokens[job.id][-1], "an older claim has the job again"
            assert int(attempt or 0) == self.attempts.get(job.id, 0), "its next claim would not be above its last"

    @invariant()
    def no_device_is_promised_twice(self) -> None:
        """No device has more memory or slots allocated than it has."""
        for device in self.queue.devices.all():
            assert device.allocated_bytes <= device.device.total_bytes
            assert len(device.jobs) <= SLOTS

    @invariant()
    def who_wants_a_device_alone_is_alone(self) -> None:
        """An exclusive job is alone on its device, and the device status says so."""
        alone = {job.id for job in self.queue.jobs.live() if job.spec.placement.exclusive}
        for device in self.queue.devices.all():
            assert device.exclusive == bool(alone.intersection(device.jobs))
            assert not device.exclusive or len(device.jobs) == 1

    @invariant()
    def nothing_that_was_acknowledged_is_gone(self) -> None:
        """No acknowledged job disappears, and an ended job keeps its final state."""
        live = self.queue.jobs.live()
        states = {job.id: job.state for job in live}
        assert self.acknowledged - self.recorded == {job.id for job in live if job.member is None}
        for job_id, state in self.ended.items():
            assert job_id in self.recorded or state is states[job_id]
        self.ended.update({job_id: state for job_id, state in states.items() if state in ENDS})


@pytest.mark.full
def test_no_order_of_acts_breaks_a_promise(store_url: str, migrated_sqlite: Path, tmp_path: Path) -> None:
    # It would report the shortest one.
    Site.url, Site.empty_history, Site.home = store_url, migrated_sqlite, tmp_path
    run_state_machine_as_test(Site, settings=search(30))
