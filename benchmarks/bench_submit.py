"""The speed of submits: one by one, pipelined, and 10 000 as one array; and the store's memory for each.

python -m benchmarks.bench_submit [--jobs 2000]

The store writes to the disk before each reply, as ``gpuqueue up`` starts it. ``submit.client`` is the call of a Python
program, ``Client.submit``, outside any git repository. ``submit.client.repository`` is the same within one, where it
asks git what is checked out and whether it was changed. ``submit.many`` is a list of 100, and its floor the same
number of such calls in a row. ``submit.queue`` is the part that talks to the store, and
``submit.pipelined`` many of these at once. Their floors write the same bytes to the same store with SET, in the same
way. An array is measured as the whole process that a user starts, compared with that of a single job and ``import
click``, and as the call within a process, whose floor is the call for one job. ``cycles`` are claim, started and finish
by one client, without a process; their floor is three scripts with one SET each.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import redis

from benchmarks.measure.command import CLICK, IMPORT_CLICK
from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.options import how_many
from benchmarks.measure.place import GPUQUEUE, Store, private_store, quiet
from benchmarks.measure.repository import small_repository
from benchmarks.measure.rounds import alternate_timed, medians, timed
from benchmarks.measure.table import report
from gpuqueue.client import Client
from gpuqueue.codec.request import encode_spec
from gpuqueue.model.array import Array
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.job import JobState
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.run import Ending
from gpuqueue.queue.lease import Claim, Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.queue.scripts import Scripts
from gpuqueue.text.units import GIB

JOBS, QUICK_JOBS = 2_000, 300
MEMBERS = 10_000
#: Rounds of single submits, of pipelined ones, and of whole processes.
SINGLE_ROUNDS, PIPED_ROUNDS = 5, 3
PROCESS_ROUNDS, QUICK_PROCESS_ROUNDS = 15, 3
PIPE, MANY = 500, 100
#: ``Client.submit`` in a repository, where it records the commit.
IN_REPOSITORY = "client.repository"
SPEC = JobSpec(
    argv=("python", "train.py", "--seed", "{index}"),
    cwd="/home",
    account=Account(name="ada", uid=1000, host="laptop"),
    mem_bytes=GIB,
    name="train",
    env={f"VARIABLE_{number}": "x" * 60 for number in range(80)},  # as large as a usual shell's
)
OFFER = Offer(
    device=Device(uuid="GPU-0", index=0, name="Bench", kind=DeviceKind.GPU, total_bytes=64 * GIB),
    host="bench",
    headroom_bytes=0,
    external_bytes=0,
    slots=8,
)
Words = list[str | float]


def figures(*, quick: bool = False, jobs: int | None = None) -> Measured:
    """Yield the rates, the time of the array and the memory of one waiting job."""
    jobs = jobs or (QUICK_JOBS if quick else JOBS)
    with private_store() as store:
        serve(store)
        yield from _singles(store, jobs // SINGLE_ROUNDS)
        yield _pipelined(store, jobs)
        yield _array(store)
        yield _cycles(store, jobs)
    with private_store() as store:
        serve(store)
        yield from _processes(store, QUICK_PROCESS_ROUNDS if quick else PROCESS_ROUNDS)
    with private_store() as store:
        yield _memory(store, jobs)


def serve(store: Store) -> None:
    """Announce the device, and run one job, so that each script is compiled."""
    store.queue.devices.announce(OFFER, worker="w", pid=1, boot_id="b")
    store.queue.devices.heartbeat(OFFER, [], lease_s=3600)
    store.queue.requests.submit(SPEC)
    end(store, must_claim(store))


def must_claim(store: Store) -> Claim:
    """Claim a job, and fail if there is none."""
    claimed = store.queue.runs.claim(OFFER, worker="w", lease_s=3600, nonce=new_nonce())
    if claimed is None:
        raise SystemExit("nothing was claimed")
    return claimed


def end(store: Store, claimed: Claim) -> None:
    """Report that a run has started, and has succeeded."""
    store.queue.runs.started(claimed.job_id, claimed.token, lease_s=3600, log_path="/l", devices=())
    store.queue.runs.finish(
        claimed.job_id,
        claimed.token,
        state=JobState.SUCCEEDED,
        ending=Ending.from_status(0),
        duration_s=1.0,
        devices=(),
    )


def submit_pipelined(client: redis.Redis, count: int) -> None:
    """Submit *count* single jobs as fast as they can be sent."""
    scripts, text, shape = Scripts(client), encode_spec(SPEC), str(SPEC.shape)
    for start in range(0, count, PIPE):
        some = range(start, min(start + PIPE, count))
        words: list[Words] = [["ada", 1, SPEC.mem_bytes, shape, 1, text, new_nonce(), "", ""] for _ in some]
        for reply in scripts.run_each("submit", words):
            if isinstance(reply, Exception):
                raise reply


def _set_pipelined(client: redis.Redis, count: int) -> None:
    text = encode_spec(SPEC)
    for start in range(0, count, PIPE):
        pipe = client.pipeline(transaction=False)
        for number in range(start, min(start + PIPE, count)):
            pipe.set(f"bench:{number}", text)
        pipe.execute()


def _singles(store: Store, jobs: int) -> Measured:
    """Yield the rates over all rounds, and not of the median submit, so that rare slow writes count."""
    repository = store.settings.state_dir / "repository"
    without = small_repository(repository)
    if without is not None:
        yield Absent(name=f"submit.{IN_REPOSITORY}", why=without)
    with Client(store.settings) as client:
        submit = partial(client.jobs.submit, SPEC.argv, mem=SPEC.mem_bytes, env=SPEC.env)
        outside = partial(submit, cwd=store.settings.state_dir)  # the run's home hides any repository around it
        spec = outside().spec
        text = encode_spec(spec)
        acts: dict[str, Callable[[], object]] = {
            "client": outside,
            "queue": lambda: store.queue.requests.submit(spec),
            "floor": lambda: store.client.set("bench:0", text),
        }
        if without is None:
            acts[IN_REPOSITORY] = partial(submit, cwd=repository)
        found = alternate_timed(SINGLE_ROUNDS, {name: partial(_times, jobs, act) for name, act in acts.items()})
        yield _many(client, str(store.settings.state_dir), jobs)
    rate = {name: SINGLE_ROUNDS * jobs / sum(took_s) for name, took_s in found.items()}
    floor = Floor(name="SET of the spec, durable", value=rate.pop("floor"))
    for name, value in rate.items():
        yield Figure(name=f"submit.{name}", value=value, unit="submits/s", floor=floor, rounds=SINGLE_ROUNDS, of=jobs)


def _many(client: Client, cwd: str, jobs: int) -> Figure:
    """Return the rate of lists of jobs, beside calls for one job each."""
    request = JobRequest(SPEC.argv, mem=SPEC.mem_bytes, env=SPEC.env, cwd=cwd)
    acts: dict[str, Callable[[], object]] = {
        "ours": partial(client.jobs.submit_many, [request] * MANY),
        "floor": partial(_times, MANY, partial(client.jobs.submit_request, request)),
    }
    rounds = max(3, jobs // MANY)
    found = medians(alternate_timed(rounds, acts))
    floor = Floor(name="Client.submit in a row", value=MANY / found["floor"])
    return Figure(name="submit.many", value=MANY / found["ours"], unit="submits/s", floor=floor, rounds=rounds, of=MANY)


def _times(count: int, act: Callable[[], object]) -> None:
    for _ in range(count):
        act()


def _pipelined(store: Store, jobs: int) -> Figure:
    acts: dict[str, Callable[[], object]] = {
        "ours": partial(submit_pipelined, store.client, jobs),
        "floor": partial(_set_pipelined, store.client, jobs),
    }
    found = medians(alternate_timed(PIPED_ROUNDS, acts))
    floor = Floor(name="pipelined SETs of the spec", value=jobs / found["floor"])
    value = jobs / found["ours"]
    return Figure(name="submit.pipelined", value=value, unit="submits/s", floor=floor, rounds=PIPED_ROUNDS, of=jobs)


def _array(store: Store) -> Figure:
    spec = replace(SPEC, array=Array.parse(f"0-{MEMBERS - 1}"))
    acts: dict[str, Callable[[], object]] = {
        "ours": lambda: store.queue.requests.submit(spec),
        "floor": lambda: store.queue.requests.submit(SPEC),
    }
    found = medians(alternate_timed(15, acts))
    floor = Floor(name="one single submit", value=found["floor"] * 1e3)
    return Figure(name=f"submit.array.{MEMBERS}", value=found["ours"] * 1e3, unit="ms", floor=floor, rounds=15)


def _processes(store: Store, rounds: int) -> Iterator[Figure]:
    """Yield how long a user waits for a submit of one job, and for that of an array."""
    run = partial(quiet, environ=environ_of(store))
    job = ["--mem", "1M", "--", "true"]
    acts: dict[str, Callable[[], object]] = {
        "one": partial(run, [GPUQUEUE, "submit", *job]),
        f"array.{MEMBERS}": partial(run, [GPUQUEUE, "submit", "--array", f"0-{MEMBERS - 1}", *job]),
        CLICK: partial(run, IMPORT_CLICK),
    }
    alternate_timed(1, acts)  # to warm up
    found = medians(alternate_timed(rounds, acts))
    floor = Floor(name=CLICK, value=found.pop(CLICK) * 1e3)
    for name, took_s in found.items():
        yield Figure(name=f"submit.{name}.process", value=took_s * 1e3, unit="ms", floor=floor, rounds=rounds)


def environ_of(store: Store) -> dict[str, str]:
    """Return the environment of a user of *store*."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GPUQUEUE_")}
    environ |= {"GPUQUEUE_STATE_DIR": str(store.settings.state_dir), "GPUQUEUE_CONFIG": os.devnull}
    if environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # installed packages are compiled already
        environ["PYTHONPYCACHEPREFIX"] = f"{store.settings.state_dir}/compiled"
    return environ


def _cycles(store: Store, count: int) -> Figure:
    submit_pipelined(store.client, count)
    empty: Any = store.client.register_script("return redis.call('set', KEYS[1], ARGV[1])")

    def floor() -> None:
        for _ in range(3):
            empty(keys=["bench:cycle"], args=["x"])

    acts: dict[str, Callable[[], object]] = {"ours": lambda: end(store, must_claim(store)), "floor": floor}
    found = medians(alternate_timed(count, acts))
    low = Floor(name="three scripts with a SET", value=1 / found["floor"])
    return Figure(name="cycles", value=1 / found["ours"], unit="cycles/s", floor=low, rounds=count)


def _memory(store: Store, jobs: int) -> Figure:
    before = used_bytes(store.client)
    submit_pipelined(store.client, jobs)
    each = (used_bytes(store.client) - before) / jobs
    floor = Floor(name="the spec's own text", value=float(len(encode_spec(SPEC))))
    return Figure(name="store.pending", value=each, unit="bytes", floor=floor, of=jobs)


def used_bytes(client: redis.Redis) -> int:
    """Return the memory that the store uses, in bytes."""
    used: dict[str, Any] = client.info("memory")
    return int(used["used_memory"])


def median_s(rounds: int, act: Callable[[], object]) -> tuple[float, float]:
    """Return the median and the largest duration of *act*, in seconds."""
    took = [timed(act) for _ in range(rounds)]
    return statistics.median(took), max(took)


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=how_many, default=JOBS)
    report(figures(jobs=parser.parse_args().jobs))


if __name__ == "__main__":
    main()
