"""A month of ended jobs for the tests of the page: three users, three devices, and each way in which a run can end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from factories import BOB, make_spec
from page_scene import EVE, HOSTILE, ME, alive, fill
from service_fixtures import ServedSite, serving

from gpuqueue.codec.request import encode_ended, encode_spec, encode_started
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import Ending, EndingKind, RunDevice, state_after
from gpuqueue.text.units import GIB

#: The id of the first job; the queue of a test does not get so far.
FIRST = 1000
JOBS = 120
#: How the runs end, in turn. Most succeed.
ENDINGS = (
    *(Ending.from_status(0),) * 7,
    Ending.from_status(1),
    Ending.stopped(EndingKind.OUT_OF_MEMORY, 1, "CUDA out of memory"),
    Ending.from_status(0),
    Ending.from_status(-9),
    Ending.stopped(EndingKind.TIMED_OUT, -15),
    Ending.stopped(EndingKind.CANCELLED, -15),
)
#: User, requested memory in GiB, share of the request that a run uses.
PEOPLE = ((ME, 8, 0.85), (EVE, 20, 0.2), (BOB, 12, 0.5))


def spec_of(number: int) -> JobSpec:
    """Return the request of a job."""
    account, gib, _ = PEOPLE[number % 3]
    name = HOSTILE if number == JOBS - 2 else f"train-{number % 9}.py"
    return make_spec(
        account=account,
        name=name,
        argv=("python3", "train.py", "--lr", f"1e-{number % 5 + 1}"),
        script="train.py",
        interpreter="python3",
        mem_bytes=gib * GIB,
        tags=("paper",) if number % 10 == 0 else (),
    )


def _run_events(
    number: int, claimed: datetime, ended: datetime
) -> list[tuple[datetime, Act, JobState, dict[str, Any]]]:
    _, gib, share = PEOPLE[number % 3]
    uuid, ending, token = f"GPU-nodeA-{number % 4}", ENDINGS[number % len(ENDINGS)], f"1.{number}"
    peak = Peak(bytes=int(gib * GIB * share), source=PeakSource.NVML_SAMPLED, samples=9, interval_s=0.5, shared=False)

    def facts(of: Peak) -> tuple[RunDevice, ...]:
        return (
            RunDevice(
                uuid=uuid,
                lease_bytes=gib * GIB,
                index=number % 4,
                name="NVIDIA RTX A5000",
                kind=DeviceKind.GPU,
                total_bytes=24 * GIB,
                peak=of,
            ),
        )

    lease = {"token": token, "host": "nodeA", "worker": "w0", "devices": uuid, "lease": str(gib * GIB)}
    started = encode_started(log_path="/log", devices=facts(Peak.unknown()))
    done = encode_ended(ending=ending, duration_s=(ended - claimed).total_seconds(), devices=facts(peak))
    return [
        (claimed, Act.CLAIM, JobState.STARTING, lease),
        (claimed, Act.STARTED, JobState.RUNNING, {"token": token, "started": started}),
        (ended, Act.FINISH, state_after(ending), {"token": token, "ended": done}),
    ]


def fill_history(database: HistoryDatabase, now: datetime) -> None:
    """Record the jobs. The last one ended an hour before *now*."""
    events: list[Event] = []
    for number in range(JOBS):
        submitted = now - timedelta(hours=6 * (JOBS - number))
        claimed = submitted + timedelta(minutes=2 + number * 7 % 40)
        ended = claimed + timedelta(minutes=20 + number * 37 % 240)
        steps = [
            (submitted, Act.SUBMIT, JobState.QUEUED, {"spec": encode_spec(spec_of(number))}),
            *_run_events(number, claimed, ended),
        ]
        for at, act, state, fields in steps:
            attempt = 0 if act is Act.SUBMIT else 1
            events.append(
                Event(
                    id=f"1700-{len(events) + 1}", at=at, job_id=FIRST + number, attempt=attempt, act=act, state=state,
                    fields=fields,
                )
            )  # fmt: skip
    assert database.apply(events, expected=None, epoch="e1")


@contextmanager
def site_with_a_past() -> Iterator[ServedSite]:
    """Run a site with a month of ended jobs, and with jobs that run and wait."""
    with serving(GPUQUEUE_HEARTBEAT="10s") as site:
        with closing(HistoryDatabase(site.settings.database_url)) as database:
            fill_history(database, datetime.now(timezone.utc))
        runs = fill(site.queue, site.settings.runs_dir, waiting=6)
        with alive(site.queue, runs):
            yield site
