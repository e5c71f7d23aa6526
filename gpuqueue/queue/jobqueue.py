"""The queue as Python sees it: one method for each script, with the same name."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import redis

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import device_from_plain, device_to_plain, encode_ended, encode_spec, encode_started
from gpuqueue.device import Device
from gpuqueue.errors import Impossible, Unreadable
from gpuqueue.event import Cursor, Event
from gpuqueue.fields import loaded
from gpuqueue.job import Job, JobSpec, JobState, WaitReason
from gpuqueue.queue import keys, replies
from gpuqueue.queue.connect import answering as _answering
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.explanation import Explanation
from gpuqueue.queue.lease import NO_EVIDENCE, Alive, Claim, DeviceStatus, Evidence, Offer, Reservation, Verdicts
from gpuqueue.queue.matching import is_known, kind_word, why_impossible
from gpuqueue.queue.recovery import Recovery
from gpuqueue.run import Ending, RunDevice
from gpuqueue.version import VERSION
from gpuqueue.words import brief, in_one_line, short

log = logging.getLogger(__name__)

#: Longest wait for the next event in one call, in seconds.
MAX_WAIT_S = 10.0
#: Longest word on why a run died at once, in characters; three of them stand in one line.
MAX_WHY = 100


def new_nonce() -> str:
    """Return 48 random bits, as hexadecimal digits."""
    return secrets.token_hex(6)


class JobQueue(Recovery):
    """The store at *url*. Every method raises StoreUnreachable or StoreNotReady when it cannot serve."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._reader: redis.Redis | None = None
        self._seen: dict[str, str] = {}

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()
        if self._reader is not None:
            self._reader.close()

    # ---- a job's way, in order -----------------------------------------------------------------------------------

    @_answering
    def submit(self, spec: JobSpec, *, nonce: str | None = None) -> Job:
        """Queue *spec* and return the job. Sent twice with the same *nonce* it makes one job.

        Where no device is known that it may run on, it waits all the same, and its reason is DEVICE.

        Raises:
            Impossible: no known device could ever run it.

        """
        reply = self._scripts.run(
            "submit",
            spec.account.name,
            int(spec.level),
            spec.mem_bytes,
            str(spec.shape),
            int(spec.requeue),
            encode_spec(spec),
            nonce or new_nonce(),
        )
        verdict, *rest = reply
        if verdict == "impossible":
            why, figure = rest
            raise Impossible(why_impossible(spec, why, int(figure)))
        job_id, submitted_ms, reason = rest
        return Job(
            id=int(job_id),
            spec=spec,
            state=JobState.QUEUED,
            submitted_at=from_epoch_ms(int(submitted_ms)),
            reason=WaitReason(reason or WaitReason.MEMORY),
        )

    @_answering
    def claim(self, offer: Offer, *, worker: str, lease_s: float, nonce: str, gpus_here: bool = False) -> Claim | None:
        """Claim the job that should run next on the device of *offer*, or None.

        The same *nonce* again gets the same answer. *gpus_here* is whether the host serves GPUs, be they announced
        yet or not: then its CPU leaves them the jobs that do not say.

        Raises:
            BrokenClaim: a job was claimed whose request cannot be read.

        """
        pairs = [figure for pair in offer.observed.items() for figure in pair]
        device = offer.device.uuid
        reply = self._scripts.run(
            "claim",
            offer.host,
            device,
            worker,
            _ms(lease_s),
            offer.counted_bytes,
            nonce,
            int(gpus_here),
            *pairs,
        )
        return replies.claim(reply) if reply else None

    @_answering
    def started(
        self, job_id: int, token: str, *, lease_s: float, log_path: str, devices: tuple[RunDevice, ...]
    ) -> JobState | None:
        """Ask whether the claimed job may start: RUNNING yes, CANCELLING it was cancelled, None the claim is stale."""
        payload = encode_started(log_path=log_path, devices=devices)
        reply = self._scripts.run("started", job_id, token, _ms(lease_s), payload)
        return {1: JobState.RUNNING, -1: JobState.CANCELLING}.get(int(reply))

    @_answering
    def beat(self, offer: Offer, alive: Sequence[Alive], *, lease_s: float) -> Verdicts:
        """Tell that a device and its runs are alive; renew the leases and hear what became of each run."""
        args: list[str | int] = [
            offer.host,
            offer.device.uuid,
            offer.device.total_bytes,
            offer.headroom_bytes,
            offer.counted_bytes,
            offer.slots,
            offer.pool,
            kind_word(offer.device),
            _ms(lease_s),
        ]
        for run in alive:
            args += [run.job_id, run.token, len(run.observed)]
            for device, observed in run.observed.items():
                args += [device, observed]
        verdicts = replies.verdicts(alive, self._scripts.run("beat", *args))
        self._tell_seen(offer)
        return verdicts

    def _tell_seen(self, offer: Offer) -> None:
        """Tell who else is on the device and what is wrong with it, when that has changed."""
        strangers = [asdict(each) for each in offer.strangers]
        blind = offer.foreign_bytes is None
        seen = json.dumps({"trouble": offer.trouble, "blind": blind, "strangers": strangers})
        if self._seen.get(offer.device.uuid) != seen:
            self._redis.hset(keys.SEEN, offer.device.uuid, seen)
            self._seen[offer.device.uuid] = seen

    @_answering
    def note(self, job_id: int, token: str, detail: str) -> bool:
        """Keep *detail* in the story of a live run; False if it was stale."""
        return bool(self._scripts.run("note", job_id, token, in_one_line(detail)))

    @_answering
    def giveback(self, job_id: int, token: str, detail: str) -> bool:
        """Return a claim that did not become a run; False if it was stale."""
        return bool(self._scripts.run("giveback", job_id, token, in_one_line(detail)))

    @_answering
    def finish(
        self,
        job_id: int,
        token: str,
        *,
        state: JobState,
        ending: Ending,
        duration_s: float | None,
        devices: tuple[RunDevice, ...],
        peak_at_once_bytes: int | None = None,
        evidence: Evidence = NO_EVIDENCE,
    ) -> bool:
        """End a job in *state* after its run ended with *ending*; False if the run was stale.

        What the end says of the devices is counted in the same step, and so once for each run.
        """
        payload = encode_ended(
            ending=ending, duration_s=duration_s, devices=devices, peak_at_once_bytes=peak_at_once_bytes
        )
        return bool(self._scripts.run("finish", job_id, token, state.value, payload, *_words(evidence)))

    @_answering
    def lose(
        self, job_id: int, token: str, *, loss_limit: int, detail: str, evidence: Evidence = NO_EVIDENCE
    ) -> JobState | None:
        """Say that a run is over and nobody knows how; return the job's state after, None if the run was stale."""
        reply = self._scripts.run("lose", job_id, token, loss_limit, in_one_line(detail), *_words(evidence))
        return JobState(reply) if reply else None

    @_answering
    def reap(
        self, *, loss_limit: int, lease_s: float, tick_s: float, passed_s: float | None = None, most: int = 100
    ) -> dict[int, JobState]:
        """Take back expired leases; return the jobs and their states after.

        *passed_s* went by since the caller last did so, on its own monotonic clock: the store's may have been set.
        """
        passed_ms = "" if passed_s is None else _ms(passed_s)
        reply = self._scripts.run("reap", loss_limit, _ms(lease_s), _ms(tick_s), most, passed_ms)
        return {int(job_id): JobState(state) for job_id, state in zip(reply[::2], reply[1::2], strict=True)}

    @_answering
    def reserve(self, *, after_s: float, most: int) -> list[Reservation]:
        """Keep room for jobs that waited *after_s* and fit nowhere, for *most* on each host; return what stands."""
        reply = self._scripts.run("reserve", _ms(after_s), most)
        return replies.reservations(reply)

    @_answering
    def age(self, *, after_s: float, most: int = 200) -> int:
        """Lift jobs by a level for each *after_s* that they have waited, at most *most* now; return how many."""
        return int(self._scripts.run("age", _ms(after_s), most))

    @_answering
    def set_policy(self, *, half_life_s: float, urgent: Collection[str] | None, shares: Mapping[str, float]) -> bool:
        """Count usage so from now on; return whether that is new. *urgent*: who may use that level, None anybody."""
        others = {user: share for user, share in shares.items() if share != 1}
        pairs = [word for user, share in sorted(others.items()) for word in (user, max(1, round(share * 1000)))]
        who = "*" if urgent is None else ",".join(sorted(urgent))
        return bool(self._scripts.run("policy", _ms(half_life_s), who, *pairs))

    # ---- change of mind ------------------------------------------------------------------------------------------

    @_answering
    def cancel(self, job_id: int) -> JobState | None:
        """End a job; return its state after, None if it is unknown here."""
        return _state(self._scripts.run("cancel", job_id))

    @_answering
    def hold(self, job_id: int) -> JobState | None:
        """Keep a queued job from being claimed; return its state after, None if it is unknown here."""
        return _state(self._scripts.run("hold", job_id))

    @_answering
    def release(self, job_id: int) -> JobState | None:
        """Let a held job be claimed again; return its state after, None if it is unknown here."""
        return _state(self._scripts.run("release", job_id))

    # ---- looking -------------------------------------------------------------------------------------------------

    @_answering
    def get(self, job_id: int) -> Job | None:
        """Return the job as it stands, or None if the queue does not know it (any more).

        Raises:
            Unreadable: the store knows it, but its entry makes no sense.

        """
        fields, spec = next(self._entries([job_id]))
        return self._with_reasons([replies.job(job_id, fields, spec)])[0] if fields else None

    @_answering
    def why(self, job_id: int) -> Explanation | None:
        """Return why a job does not run, by the rules and figures of a claim; None if the queue does not know it."""
        reply = self._scripts.run("why", job_id)
        return replies.explanation(job_id, reply) if reply else None

    @_answering
    def live(self, *, limit: int = 1000, after: int = 0) -> list[Job]:
        """Return at most *limit* jobs that the book has not taken over, oldest first, from above the id *after*.

        A job whose entry makes no sense does not hide the others; it is told in the log.
        """
        return self.page(limit=limit, after=after)[0]

    @_answering
    def page(self, *, limit: int = 1000, after: int = 0) -> tuple[list[Job], int | None]:
        """Return what :meth:`live` returns, and the id to go on *after*, None where there are no more."""
        ids = self._live_ids(after, limit)
        found = []
        for job_id, (fields, spec) in zip(ids, self._entries(ids), strict=True):
            try:
                if fields:
                    found.append(replies.job(int(job_id), fields, spec))
            except Unreadable as error:
                log.warning("%s", error)
        return self._with_reasons(found), int(ids[-1]) if ids else None

    def _with_reasons(self, jobs: list[Job]) -> list[Job]:
        """Return *jobs*; of those that wait, say which wait for a device that nobody announced, or for the pause."""
        if all(job.reason is not WaitReason.MEMORY for job in jobs):
            return jobs
        devices, others = self._known(), WaitReason.PAUSE if self.pause_left_s() else WaitReason.MEMORY
        return [
            replace(job, reason=others if is_known(job.spec, devices) else WaitReason.DEVICE)
            if job.reason is WaitReason.MEMORY
            else job
            for job in jobs
        ]

    def _known(self) -> list[tuple[Device, str]]:
        """Return every device that was announced and not withdrawn, with its pool; one that makes no sense is none."""
        found = []
        for text in cast("list[str]", self._redis.hvals(keys.FACTS)):
            with contextlib.suppress(Unreadable):
                plain = loaded(text, "a device")
                found.append((plain.text("host"), device_from_plain(plain.plain("device"))))
        pipe = self._redis.pipeline(transaction=False)
        for host, device in found:
            pipe.hget(keys.host_devices(host), device.uuid)
        records = zip(found, pipe.execute(), strict=True)
        return [(device, replies.pool(record)) for (_, device), record in records if record]

    @_answering
    def counts(self) -> tuple[int, int]:
        """Return how many jobs wait (queued or held), and how many hold a device."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.zcard(keys.LIVE)
        pipe.zcard(keys.LEASES)
        pipe.zcard(keys.ENDED)
        live, active, ended = pipe.execute()
        return live - active - ended, active

    @_answering
    def anybody(self) -> bool:
        """Return whether any worker ever announced a device that was not withdrawn."""
        return bool(self._redis.hlen(keys.FACTS))

    # ---- devices -------------------------------------------------------------------------------------------------

    @_answering
    def announce(self, offer: Offer, *, worker: str, pid: int, boot_id: str) -> None:
        """Tell what *offer*'s device is and which worker serves it from now on, of which version and by which clock."""
        facts = {"device": device_to_plain(offer.device), "host": offer.host, "worker": worker, "pid": pid}
        clock_ahead_s = round(time.time() - self.now_ms() / 1000, 3)
        more = {"boot_id": boot_id, "version": VERSION, "clock_ahead_s": clock_ahead_s}
        self._redis.hset(keys.FACTS, offer.device.uuid, json.dumps({**facts, **more}))
        self._seen.pop(offer.device.uuid, None)  # a store that must be told who we are knows nothing of that either

    @_answering
    def devices(self, host: str | None = None) -> list[DeviceStatus]:
        """Return every device that workers announced (on *host*), by host and index."""
        now = self.now_ms()
        facts = cast("dict[str, str]", self._redis.hgetall(keys.FACTS))
        drained = cast("dict[str, str]", self._redis.hgetall(keys.DRAINED))
        seen = cast("dict[str, str]", self._redis.hgetall(keys.SEEN))
        found = []
        for uuid, text in facts.items():
            try:
                where = loaded(text, f"what the worker of {uuid} told of it").text("host")
                if host is not None and where != host:
                    continue
                record = cast("str | None", self._redis.hget(keys.host_devices(where), uuid))
                leases = cast("dict[str, str]", self._redis.hgetall(keys.device_leases(uuid)))
                if record:
                    found.append(replies.device_status(text, record, leases, now, drained.get(uuid), seen.get(uuid)))
            except Unreadable as error:
                log.warning("device %s is not shown: %s", uuid, error)
        return sorted(found, key=lambda each: (each.host, each.device.index))

    @_answering
    def withdraw(self, host: str, uuid: str) -> None:
        """Forget a device that is served no more; impossible requests are judged without it from now on.

        What people said against it stays: a card that comes back is drained as it was.
        """
        self.resume([uuid], origins=[DrainOrigin.DOWN])
        pipe = self._redis.pipeline(transaction=True)
        pipe.hdel(keys.host_devices(host), uuid)
        pipe.hdel(keys.FACTS, uuid)
        pipe.hdel(keys.DEATHS, uuid)
        pipe.hdel(keys.SEEN, uuid)
        pipe.execute()

    @_answering
    def drain(self, uuids: Iterable[str], *, origin: DrainOrigin, why: str, by: str) -> None:
        """Let no device in *uuids* take another job, until *origin* says otherwise."""
        self._scripts.run("drain", origin.value, why, by, *uuids)

    @_answering
    def resume(self, uuids: Iterable[str], *, origins: Collection[DrainOrigin]) -> None:
        """Take back what *origins* said against new jobs on the devices in *uuids*."""
        self._scripts.run("resume", len(origins), *(origin.value for origin in origins), *uuids)

    # ---- the outbox ----------------------------------------------------------------------------------------------

    @_answering
    def events(self, after: str, *, most: int = 500, wait_s: float = 0.0) -> list[Event]:
        """Return at most *most* events behind the id *after*, waiting up to *wait_s* for the first."""
        if self._reader is None:
            self._reader = connect(self.url, wait_s=MAX_WAIT_S)
        block = max(1, _ms(min(wait_s, MAX_WAIT_S))) if wait_s > 0 else None
        reply = cast("list[Any]", self._reader.xread({keys.OUTBOX: after}, count=most, block=block))
        entries = reply[0][1] if reply else []
        return [replies.event(entry_id, fields) for entry_id, fields in entries]

    @_answering
    def backlog(self) -> tuple[int, float | None]:
        """Return how many events wait for the book, and for how long the first of them has, in seconds."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.time()
        pipe.xlen(keys.OUTBOX)
        pipe.xrange(keys.OUTBOX, count=1)
        (now_s, _), length, first = pipe.execute()
        if not first:
            return 0, None
        return int(length), max(0.0, int(now_s) - int(first[0][0].partition("-")[0]) / 1000)

    @_answering
    def settle(self, cursor: Cursor) -> int:
        """Forget what the book has up to *cursor*; return how many jobs were forgotten."""
        ms, n = cursor.last_id.split("-")
        return int(self._scripts.run("settle", ms, n))


def _ms(duration_s: float) -> int:
    return round(duration_s * 1000)


def _words(evidence: Evidence) -> tuple[int, str, str]:
    return int(evidence.well), ",".join(evidence.against), short(evidence.why, MAX_WHY)


def _state(reply: str) -> JobState | None:
    try:
        return JobState(reply) if reply else None
    except ValueError:
        raise Unreadable(f"the job is {brief(reply)} in the store, which this version does not know") from None
