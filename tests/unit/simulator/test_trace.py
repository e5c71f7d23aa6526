"""Tests of traces: what is read, which errors are reported, and that a site's own history is a trace."""

from __future__ import annotations

import statistics
from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import groupby

import pytest
from factories import make_spec

from gpuqueue.cli.commands.history import COLUMNS, CSV_COLUMNS, _csv
from gpuqueue.errors import BadRequest
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.run import Ending, Record, Run, RunDevice
from gpuqueue.simulator import trace
from gpuqueue.simulator.shapes import DAY_S, EXAMPLE, LIMITS_S, LOAD, SHAPES, UTILISATION, made, shaped
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB

HEAD = "arrival_s,user,mem_bytes,duration_s"
NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def read(*lines: str) -> trace.Trace:
    """Return the trace in these lines."""
    return trace.read([f"{line}\n" for line in lines], "t.csv")


def test_a_line_says_all_of_a_job() -> None:
    """A line describes a job.

    Sizes and durations are plain or have units, columns have any order, and unknown columns are ignored.
    """
    (job,) = read(
        "name,group,priority,time_limit,gpus,duration,mem,user,arrival_s,colour",
        "sweep,vision,high,1h30m,2,90s,6G,ann,7,red",
    ).requests

    assert job == trace.Request(
        number=0,
        arrival_s=0.0,  # time starts at the first arrival
        user="ann",
        mem_bytes=6 * GIB,
        gpus=2,
        duration_s=90.0,
        time_limit_s=5400.0,
        priority=Priority.HIGH,
        group="vision",
        name="sweep",
    )


def test_what_is_left_empty_has_a_default() -> None:
    """An empty cell has a default: one GPU, no limit, the normal priority."""
    (job,) = read(f"{HEAD},gpus,time_limit_s,priority", "0,ann,1073741825,5,,,").requests

    assert (job.gpus, job.time_limit_s, job.priority) == (1, None, Priority.NORMAL)
    assert job.mem_bytes == GIB + 2**20, "memory is matched by the MiB, rounded up"


def test_jobs_come_in_the_order_of_their_arrival() -> None:
    """Jobs are sorted by arrival. The order of the lines breaks ties."""
    jobs = read(HEAD, "50,c,1G,1", "10,a,1G,1", "50,d,1G,1", "20,b,1G,1").requests

    assert [("a", 0.0, 0), ("b", 10.0, 1), ("c", 40.0, 2), ("d", 40.0, 3)] == [
        (job.user, job.arrival_s, job.number) for job in jobs
    ]


@pytest.mark.parametrize("figure", ["100000", "100000.0", "1e5", "1e+05", "1e05"])
def test_a_figure_is_read_however_a_program_writes_it(figure: str) -> None:
    """A number is read in any usual form. Regression: ``1e5`` was refused, and ``1e+05`` was not."""
    (job,) = read(HEAD, f"0,a,1G,{figure}").requests

    assert 100_000.0 == job.duration_s


def test_a_utilisation_is_a_share_or_percent() -> None:
    """The share of time is read in both forms, and stays unknown if the cell is empty. A written trace has it."""
    jobs = read(f"{HEAD},utilisation", *(f"0,a,1G,5,{text}" for text in ("0.63", "63%", "0", "100%", ""))).requests

    assert [0.63, 0.63, 0.0, 1.0, None] == [job.utilisation for job in jobs]
    assert ["0.63", "0.63", "0.00", "1.00", ""] == [line.split(",")[-1] for line in [*trace.write(jobs)][1:]]
    assert [0.63] == [job.utilisation for job in read(f"{HEAD},own_utilisation", "0,a,1G,5,0.63").requests]


def test_a_limit_ends_a_run() -> None:
    """A run holds its device for the shorter of its duration and its time limit."""
    jobs = read(f"{HEAD},time_limit_s", "0,a,1G,100,60", "0,a,1G,100,600", "0,a,1G,100,").requests

    assert [60.0, 100.0, 100.0] == [job.run_s for job in jobs]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "t.csv has nothing in its first line, which must name the columns: see gpuqueue simulate --example"),
        (["a,b,c", "1,2,3"], "t.csv has no column arrival_s: its first line must name the columns, see gpuqueue"),
        (["arrival_s,user,duration_s"], "t.csv has no column mem: "),
        ([f"{HEAD},user"], "t.csv has the column 'user' twice"),
        ([HEAD], "t.csv has no job below its first line: see gpuqueue simulate --example"),
        (["submitted_at,user,mem_bytes,duration_s", "2026-11-21,a,1,"], "has no job that ran on a GPU: 1 never ran"),
        ([HEAD.replace("_bytes", ""), "1,ann,6Q,5"], "t.csv line 2, column mem: '6Q' is not a size"),
        ([HEAD.replace("_bytes", ""), "1,ann,6,5"], "t.csv line 2, column mem: '6' is not a size: add the unit: 6M"),
        ([HEAD, "1,ann,-6G,5"], "line 2, column mem_bytes: '-6G' is not a size: negative sizes make no sense"),
        ([HEAD, "1,ann,inf,5"], "line 2, column mem_bytes: 'inf' is not a size"),
        (["arrival_s,user,mem,duration", "1,ann,6G,-5"], "column duration: '-5' is not a duration: negative ones make"),
        ([HEAD, "1,ann,1G,5,x,y"], "t.csv line 2 has 6 cells, and the first line names 4 columns"),
        ([f"{HEAD},gpus", "1,ann,1G,5,-1"], "line 2, column gpus: '-1' is no number of GPUs: give one from 1 to 64"),
        ([HEAD, "1,ann,1G,5", "1,ann,6Q,5"], "t.csv line 3, column mem_bytes: '6Q' is not a size"),
        ([HEAD, "1,ann,0,5"], "line 2, column mem_bytes: '0' is not a usable size"),
        ([HEAD, "", "-1,ann,1G,5"], "line 3, column arrival_s: '-1' is not a duration: negative ones make no sense"),
        ([HEAD, "1,a b,1G,5"], "line 2, column user: 'a b' is no usable name"),
        ([HEAD, "1,ann,1G,"], "line 2, column duration_s: it is empty"),
        ([HEAD, "1,ann,1G"], "line 2, column duration_s: it is empty"),
        ([HEAD, "1,ann,1G,nan"], "line 2, column duration_s: 'nan' is not a duration"),
        ([HEAD, "1,ann,1G,9999999999"], "line 2, column duration_s: '9999999999' is longer than ten years"),
        ([f"{HEAD},gpus", "1,ann,1G,5,65"], "line 2, column gpus: '65' is no number of GPUs"),
        ([f"{HEAD},utilisation", "1,ann,1G,5,63"], "column utilisation: '63' is no share of time: write 0.63 or 63%"),
        ([f"{HEAD},utilisation", "1,ann,1G,5,-0.1"], "column utilisation: '-0.1' is no share of time"),
        ([f"{HEAD},utilisation", "1,ann,1G,5,6%%"], "column utilisation: '6%%' is no share of time"),
        ([f"{HEAD},priority", "1,ann,1G,5,top"], "line 2, column priority: 'top' is no priority: write low, normal"),
        (["submitted_at,user,mem,duration", "soon,ann,1G,5"], "line 2, column submitted_at: 'soon' is no time"),
        ([HEAD, '1,"ann,1G,5'], "is no CSV"),
        ([f"{HEAD},time_limit_s", "1,ann,1G,5,0"], "line 2, column time_limit_s: a time limit must be above 0"),
        (["arrival_s,user,mem,mem_bytes,duration_s", "1,ann,1G,2,5"], "has the columns mem and mem_bytes, which mean"),
        (["arrival_s,user,mem,duration_s,duration", "1,ann,1G,2,5"], "has the columns duration_s and duration, which"),
    ],
)
def test_what_makes_no_sense_is_named_by_line_and_column(lines: list[str], words: str) -> None:
    """An error names the line and the column, so that it can be found in a large file."""
    with pytest.raises(BadRequest) as caught:
        read(*lines)

    assert words in str(caught.value)


def a_record(job_id: int, *, at: datetime, took_s: float | None, uuid: str = "GPU-0") -> Record:
    """Return a job of the history that ran for *took_s*, or never ran if *took_s* is None."""
    spec = make_spec(mem_bytes=3 * GIB, gpus=2, time_limit_s=7200.0, priority=Priority.LOW)
    job = Job(id=job_id, spec=spec, state=JobState.SUCCEEDED, submitted_at=at)
    if took_s is None:
        return Record(job=job, runs=())
    run = Run(
        job_id=job_id,
        attempt=1,
        token="1.a",
        host="h",
        worker="w",
        devices=(RunDevice(uuid=uuid, lease_bytes=3 * GIB),),
        claimed_at=at,
        ending=Ending.from_status(0),
        duration_s=took_s,
    )
    return Record(job=job, runs=(run,))


def test_the_history_of_a_site_is_a_trace() -> None:
    """The output of ``gpuqueue history --csv``, newest first, is a trace.

    Jobs that never ran and jobs on a CPU are counted separately.
    """
    records = [
        a_record(4, at=NOON + timedelta(minutes=3), took_s=5.0, uuid="cpu-h"),
        a_record(3, at=NOON + timedelta(minutes=2), took_s=None),
        a_record(2, at=NOON + timedelta(minutes=1), took_s=60.500012345678911),  # every digit of a clock
        a_record(1, at=NOON, took_s=1e-05),
    ]

    found = trace.read(_csv(records, CSV_COLUMNS, COLUMNS).splitlines(keepends=True), "history")

    assert (1, 1) == (found.never_ran, found.on_cpu)
    first, second = found.requests
    assert (0.0, 60.0) == (first.arrival_s, second.arrival_s)
    assert (trace.LEAST_S, 60.5) == (first.duration_s, second.duration_s)
    assert ("ada", 3 * GIB, 2, 7200.0, Priority.LOW) == (
        second.user,
        second.mem_bytes,
        second.gpus,
        second.time_limit_s,
        second.priority,
    )


def test_groups_have_the_form_of_the_setting() -> None:
    """The groups of a trace have the form of the setting, each name once."""
    found = read(f"{HEAD},group", "0,ann,1G,1,vision", "0,bob,1G,1,nlp", "0,ann,1G,1,vision", "0,eve,1G,1,")

    assert found.groups == "vision: ann; nlp: bob"


def test_a_made_trace_is_read_as_it_was_made() -> None:
    """A generated trace survives writing and reading. Only the same seed gives the same trace."""
    jobs = made(300, 7)

    assert read(*trace.write(jobs)).requests == jobs
    assert made(300, 7) == jobs
    assert made(300, 8) != jobs
    assert len(trace.read(EXAMPLE.splitlines(), "example").requests) == 8


def test_a_site_is_described_by_its_cards_and_hosts() -> None:
    """A site text gives the cards, each with its position on its host and its usable memory."""
    site = Site.parse("2x24G, 80G/12G", slots=8, headroom_bytes=GIB)

    assert [("sim-host0-0", 23), ("sim-host0-1", 23), ("sim-host0-2", 79), ("sim-host1-0", 11)] == [
        (card.uuid, card.usable_bytes // GIB) for card in site.cards
    ]
    assert site.hosts == ((0, 1, 2), (3,))
    one, two, four = (read(f"{HEAD},gpus", f"0,a,23G,1,{gpus}").requests[0] for gpus in (1, 3, 4))
    assert [True, True, False] == [site.could_run(job) for job in (one, two, four)], "never across hosts"


@pytest.mark.parametrize("text", ["", "4x", "0x24G", "4x24", "x24G", "24G,,24G", "24G//24G", "2000x24G"])
def test_what_is_no_site_is_refused(text: str) -> None:
    """An invalid site raises `BadRequest`."""
    with pytest.raises(BadRequest):
        Site.parse(text, slots=8)


def test_a_headroom_that_leaves_nothing_is_refused() -> None:
    """A headroom as large as the card is refused."""
    with pytest.raises(BadRequest, match="leaves nothing"):
        Site.parse("1G", slots=8, headroom_bytes=GIB)


# Tests of the synthetic traces: the same seed gives the same jobs, and each has the properties that it is to have.

SITE = Site.parse("8x80G/8x80G", slots=16, headroom_bytes=2**30)


@pytest.fixture(scope="module", params=SHAPES)
def jobs(request: pytest.FixtureRequest) -> tuple[Request, ...]:
    """Return a trace of each shape."""
    return shaped(SHAPES[request.param], SITE, 3000, seed=1)


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_seed_gives_the_same_jobs(name: str) -> None:
    """A trace depends on the seed and on nothing else, and is the same once it was written and read."""
    jobs = shaped(SHAPES[name], SITE, 300, seed=1)

    assert jobs == shaped(SHAPES[name], SITE, 300, seed=1)
    assert jobs != shaped(SHAPES[name], SITE, 300, seed=2)
    read = trace.read((f"{line}\n" for line in trace.write(jobs)), "t.csv").requests
    assert [(each.arrival_s, each.run_s, each.mem_bytes) for each in read] == [
        (each.arrival_s, each.run_s, each.mem_bytes) for each in jobs
    ]


def test_jobs_come_in_order_and_fit_the_site(jobs: tuple[Request, ...]) -> None:
    """Jobs are numbered by arrival from 0 on, and each fits a host of the site."""
    assert [each.number for each in jobs] == list(range(3000))
    assert jobs[0].arrival_s == 0
    assert [each.arrival_s for each in jobs] == sorted(each.arrival_s for each in jobs)
    assert all(map(SITE.could_run, jobs))


def test_the_work_loads_the_site(jobs: tuple[Request, ...]) -> None:
    """All work together is the load times what the site can do until the last arrival."""
    work = sum(each.mem_bytes * each.gpus * each.run_s for each in jobs)

    assert LOAD == pytest.approx(work / SITE.usable_bytes / jobs[-1].arrival_s, rel=0.03)


def test_two_thirds_have_a_limit_that_is_too_long(jobs: tuple[Request, ...]) -> None:
    """Two thirds of the submissions have a round limit. Hardly a run reaches it, and half use less than a half."""
    submissions = [next(each) for _, each in groupby(jobs, lambda job: (job.arrival_s, job.user, job.name))]
    used = [each.duration_s / each.time_limit_s for each in submissions if each.time_limit_s]

    assert 2 / 3 == pytest.approx(len(used) / len(submissions), abs=0.05)
    assert {each.time_limit_s for each in jobs} <= {None, *map(float, LIMITS_S)}
    assert statistics.median(used) < 0.5
    assert max(used) <= 1


def test_durations_have_a_heavy_tail(jobs: tuple[Request, ...]) -> None:
    """The mean duration is more than three times the median, and no run exceeds five days."""
    durations_s = [each.duration_s for each in jobs]

    assert statistics.mean(durations_s) > 3 * statistics.median(durations_s)
    assert min(durations_s) >= 10
    assert max(durations_s) <= 5 * DAY_S


def test_few_users_submit_most(jobs: tuple[Request, ...]) -> None:
    """The three busiest of twenty users submit at least two fifths of the jobs."""
    by_user = Counter(each.user for each in jobs)

    assert 10 < len(by_user) <= 20
    assert sum(count for _, count in by_user.most_common(3)) > 0.4 * 3000


def test_some_days_have_several_times_the_arrivals_of_others(jobs: tuple[Request, ...]) -> None:
    """The busiest tenth of the days has more than a fifth of the arrivals."""
    by_day = Counter(int(each.arrival_s // DAY_S) for each in jobs)
    days = int(jobs[-1].arrival_s // DAY_S) + 1

    assert sum(count for _, count in by_day.most_common(days // 10 + 1)) > 0.2 * 3000


def test_a_job_needs_no_more_devices_than_a_host_has() -> None:
    """On hosts of two cards the largest jobs of all shapes need two."""
    small = Site.parse("2x24G/24G", slots=8)

    assert {1, 2} == {each.gpus for shape in SHAPES.values() for each in shaped(shape, small, 400, seed=0)}


def test_which_shapes_need_eight_cards() -> None:
    """Jobs need up to four cards, and in the shapes `gangs` and `alike` up to eight."""
    most = {name: max(each.gpus for each in shaped(shape, SITE, 1000, seed=0)) for name, shape in SHAPES.items()}

    assert {"shares": 4, "gangs": 8, "alike": 8, "sweeps": 4} == most


def test_jobs_of_a_submission_use_a_card_alike(jobs: tuple[Request, ...]) -> None:
    """The utilisations are evenly distributed, with a mean of 52 %, and equal within a sweep."""
    submissions = [[*each] for _, each in groupby(jobs, lambda job: (job.arrival_s, job.user, job.name, job.mem_bytes))]
    uses = [each[0].utilisation or 0.0 for each in submissions]

    assert statistics.mean(uses) == pytest.approx(0.525, abs=0.03)
    assert (min(uses), max(uses)) == pytest.approx(UTILISATION, abs=0.02)
    sweeps = [{job.utilisation for job in each} for each in submissions if len(each) > 4]
    assert sweeps
    assert sum(len(each) == 1 for each in sweeps) > 0.9 * len(sweeps), "two submissions may come in the same second"


@pytest.mark.parametrize(("name", "is_alike"), [("gangs", False), ("alike", True)])
def test_jobs_of_a_sweep_run_alike_in_one_shape(name: str, *, is_alike: bool) -> None:
    """In `alike` the longest run of most sweeps takes less than four times the shortest; in `gangs` more than that."""
    jobs = shaped(SHAPES[name], SITE, 2000, seed=0)
    sweeps = [[*each] for _, each in groupby(jobs, lambda job: (job.arrival_s, job.user, job.name, job.mem_bytes))]
    ratios = [
        max(job.duration_s for job in each) / min(job.duration_s for job in each) for each in sweeps if len(each) > 4
    ]

    assert len(ratios) > 50
    assert (statistics.median(ratios) < 4) is is_alike
