"""The aims of gpuqueue: each row with the best of other queues, the aim, and the figures that decide.

Other queues are compared by the figures of the same run, for the same operation. Constants replace figures that the run
did not measure, and the row then says so: they were measured elsewhere, at another time. A row that misses its aim or
is behind needs a reason: ``--write`` refuses a row without one.
"""

from __future__ import annotations

from benchmarks.measure.figure import Report
from benchmarks.measure.run_watch import GRANTED
from benchmarks.page.job_rows import CORRIDOR, SUBMIT
from benchmarks.page.memory import IDLE, how_counted
from benchmarks.page.others import Known, Others
from benchmarks.page.row import Aim, Row


def rows(report: Report) -> tuple[Row, ...]:
    """Return the rows for *report*; a row says how many jobs it had if they are fewer than the aim's."""
    return (
        SUBMIT,
        _granted(report),
        *CORRIDOR,
        _claim(report),
        *_AROUND,
        _idle(report),
        _STORE,
        _history(report),
        *_SCALE,
        _KILLS,
    )


def _claim(report: Report) -> Row:
    """Return the row of the largest measured queue, with its slowest case."""
    claims = [each for each in report.figures if each.name.startswith("claim.")]
    size = max((int(each.name.split(".")[1]) for each in claims), default=1_000_000)
    ours, libc = f"claim.{size}", f"claim-libc.{size}"
    return Row(
        what=f"claim, in the server, {_spaced(size)} waiting: typical p50, then the highest p99 of all cases",
        aim="≤ 150 us, ≤ 1 ms",
        aims=(
            Aim(figure=f"{ours}.typical.p50", bound=150, called="typical p50"),
            Aim(figure=_slowest(report, ours), bound=1000, called="highest p99"),
            Aim(figure=f"{libc}.typical.p50", bound=None, called="typical p50, the C library's allocator"),
            Aim(figure=_slowest(report, libc), bound=None, called="highest p99, the C library's allocator"),
        ),
        why_not="It takes the server as many instructions whether a thousand jobs wait or a million, 0.6 to 0.75 "
        "million by the users' shapes that could fit. Among many jobs, to make their values and to reach them all over "
        "its memory is most of the time with the C library's allocator: "
        + (
            "the better one that the store has loaded here takes a third of it away"
            if any(each.name.startswith("claim-libc.") for each in report.figures)
            else "jemalloc takes a third of it away, and this machine had none for the store to load"
        )
        + " ([the store's allocator](#the-stores-allocator)). What remains with it are those instructions, more than "
        "half of them in some 30 commands, and the misses of a cache that is smaller than the queue; and for `p99` the "
        "garbage that the server collects within every fiftieth call. How fast the machine was shows the floor of the "
        "same run: from 18 to 43 us on one machine on different days; of that floor the typical p50 is 5 to 6.5 "
        "times. It would take fewer commands, as one order of the users for all priorities instead of one for each.",
    )


def _slowest(report: Report, group: str) -> str:
    """Return the name of the highest p99 of a *group* of claims."""
    found = (each for each in report.figures if each.name.startswith(f"{group}.") and each.name.endswith(".p99"))
    highest = max(found, key=lambda each: each.value, default=None)
    return highest.name if highest else f"{group}.worst.p99"


def _history(report: Report) -> Row:
    jobs = report.get("history.sqlite.jobs")
    return Row(
        what=f"`gpuqueue history` on {_spaced(int(jobs.value) if jobs else 1_000_000)} jobs, whole process",
        aim='≤ 15 times `python -c "import click"`',
        aims=(Aim(figure="history.sqlite.process", bound=15, of_ratio=True),),
        why_not="Most of it is SQLAlchemy's import and not the question, which takes milliseconds (`history.…` in the "
        "JSON). It would take a reader of its own for the table's first page.",
    )


def _granted(report: Report) -> Row:
    figure = report.get("latency.idle.granted.p50")
    of_the_store = figure is not None and figure.floor is not None and not figure.floor.name.startswith(GRANTED)
    seen = (
        "the store has stamped the start (a write to the disk before the worker has its answer)"
        if of_the_store
        else "the worker knows that it may start it"
    )
    return Row(
        what=f"submit → {seen}",
        others=Others(
            ours="latency.idle.granted.p50",
            known=(Known(name="celery", shown="4 to 5 ms (not durable)", value=4),),
        ),
        aim="p50 ≤ 10 ms",
        aims=(Aim(figure="latency.idle.granted.p50", bound=10),),
        why_not="The store has submit and claim on the disk before it answers, and meanwhile the worker gets the "
        "message, makes its run directory and samples the card. A faster way: a claim that is also the start, without "
        "the last sample.",
    )


def _idle(report: Report) -> Row:
    return Row(
        what=f"{IDLE[how_counted(report)]}, share of a core",
        anchor="Celery's own worker takes as much: it is one",
        aim="≤ 70 MiB, ≤ 0.5 %",
        aims=(Aim(figure="worker.idle.memory", bound=70), Aim(figure="worker.idle.cpu", bound=0.5)),
        why_not="Most of the memory is Celery's (the floor has nothing but it imported); `gpuqueue-worker run --plain` "
        "does without. The rest is our own modules and the process that forks the shims, an interpreter of its own. "
        "The workers of a host share the modules.",
    )


def _spaced(count: int) -> str:
    return f"{count:_}".replace("_", " ")


_AROUND = (
    Row(
        what="array of 10 000, one submit: `gpuqueue submit --array 0-9999`, whole process",
        others=Others(
            ours="submit.array.10000.process",
            known=(
                Known(name="slurm", shown="6 ms (C)", value=6),
                Known(name="HyperQueue", shown="70 ms (Rust)", value=70),
            ),
        ),
        aim="≤ 50 ms",
        aims=(
            Aim(figure="submit.array.10000.process", bound=50, called="whole process"),
            Aim(figure="submit.one.process", bound=None, called="`gpuqueue submit` of one job"),
            Aim(figure="submit.array.10000", bound=None, called="within a process, the call `queue.requests.submit`"),
        ),
        why_not="An array costs what a single submit costs: it is one record, and its members are made when they are "
        "claimed. The rest is the start of Python and click, then our own modules, as for any command. It would take a "
        "client that is no Python program.",
    ),
    Row(
        what="submits a second, one after the other: `Client.submit`, what a Python program calls",
        others=Others(
            ours="submit.client",
            measured="submits",
            known=(
                Known(name="huey", shown="1500 (not durable)", value=1500),
                Known(name="rq", shown="900 (not durable)", value=900),
                Known(name="celery", shown="600 to 700 (not durable)", value=700),
            ),
        ),
        aim="≤ 3 times a durable SET; pipelined ≤ 5 times",
        aims=(
            Aim(figure="submit.client", bound=3, of_ratio=True, called="`Client.submit`"),
            Aim(
                figure="submit.queue",
                bound=3,
                of_ratio=True,
                called="`queue.requests.submit` by redis-py, with a ready spec",
            ),
            Aim(figure="submit.pipelined", bound=5, of_ratio=True, called="its script, pipelined"),
            Aim(
                figure="submit.client.repository",
                bound=None,
                called="`Client.submit` in a git repository, where it takes its revision along",
            ),
        ),
        why_not="A submit checks what is asked for, takes the environment along, judges the job against every limit "
        "and device and queues it in several orders, where the floor writes one text; and each one waits for the disk, "
        "which is the lesser part. Those that are ahead queue a message, and judge nothing. It would take many in one "
        "submit, an array, or a client that is no Python program.",
    ),
    Row(
        what="recording, in batches of 500 events (125 jobs) into an empty history: SQLite, PostgreSQL",
        aim="≥ 5 000, ≥ 3 000 jobs/s",
        aims=(
            Aim(figure="recording.sqlite.batch500", bound=5000),
            Aim(figure="recording.postgresql.batch500", bound=3000),
        ),
        why_not="A job is seven rows in four tables with keys and checks, and the floor has neither; and its events "
        "are read field by field, since they may be damaged. No site starts as many jobs a second: the "
        "recorder is never what one waits for.",
    ),
)

_STORE = Row(
    what="memory of the store for a waiting job",
    aim="≤ 4 times the text of its spec",
    aims=(Aim(figure="store.pending", bound=4, of_ratio=True),),
    why_not="Most is the environment of the submitter, kept twice: in the spec and in the outbox until the history "
    "has it.",
)

_SCALE = (
    Row(
        what="a claim at the end of a simulated week with a full queue (one hour of each day, 4 % of its jobs, passes "
        "through the store): p50, beside that of the first day",
        aim="≤ 1.3 times the first day's",
        aims=(Aim(figure="scale.last.claim.p50", bound=1.3, of_ratio=True),),
        why_not="A claim reads nothing of what has ended. What can change in a week is which users and shapes wait: a "
        "claim looks at each shape that could fit.",
    ),
    Row(
        what="recording and a first page of the history at the end of that week, beside the first day",
        aim="≤ 1.5 times the first day's",
        aims=(
            Aim(figure="scale.last.recorded", bound=1.5, of_ratio=True, called="from the outbox, 500 events at once"),
            Aim(figure="scale.last.page", bound=1.5, of_ratio=True, called="a first page"),
        ),
        why_not="The indexes of the history are deeper, and no longer all in memory. It would take a PostgreSQL with "
        "memory for them, or a history that is pruned.",
    ),
    Row(
        what="`gpuqueue stats` of that week, by user: for each job that it sums up, beside the first day (a seventh of "
        "them)",
        aim="≤ 1.5 times the first day's",
        aims=(
            Aim(figure="scale.last.stats-each", bound=1.5, of_ratio=True, called="for each job"),
            Aim(figure="scale.last.stats", bound=None, called="all of them"),
        ),
        why_not="It reads every run of the week, which no longer fit into the database's memory. It would take sums "
        "beside the runs, which are not kept (ADR 30).",
    ),
    Row(
        what="keys that the store keeps of a job that has ended, once it is recorded; of those that passed through it",
        aim="0",
        aims=(Aim(figure="scale.last.keys", bound=0),),
        why_not="Something in the store outlives its job: that is a mistake of ours, and is to be mended.",
    ),
)

_KILLS = Row(
    what="workers killed (SIGKILL): lost, doubled, orphaned",
    anchor="every Python queue: orphans in 10 of 10; [side by side](reliability.md#side-by-side)",
    aim="0, 0, 0",
    aims=tuple(Aim(figure=f"kills.{fault}", bound=0) for fault in ("lost", "doubled", "orphaned")),
)
