"""What we hold ourselves to: each row with the best of others, the aim, and the figures that decide.

The anchors are the best figures of others that are known, whoever measured them, on two cores; the ones in the peers'
table are of the same run. A row that misses its aim needs a sentence: ``--write`` refuses one that has none.
"""

from __future__ import annotations

from benchmarks.measure.figure import Report
from benchmarks.page.row import Aim, Row


def rows(report: Report) -> tuple[Row, ...]:
    """Return the rows for *report*; where it had fewer jobs than are asked for, the row says how many."""
    return (*_CORRIDOR, _claim(report), *_AROUND, _history(report), *_SCALE, _KILLS)


def _claim(report: Report) -> Row:
    """Return the row of the largest queue that was measured, with the case of it that was worst."""
    claims = [each for each in report.figures if each.name.startswith("claim.")]
    size = max((int(each.name.split(".")[1]) for each in claims), default=1_000_000)
    scans = {each.name: each.value for each in claims if each.name.startswith(f"claim.{size}.") and "p99" in each.name}
    return Row(
        what=f"claim, in the server, {_spaced(size)} waiting: typical p50, then the worst case's p99",
        anchor="none is known",
        aim="≤ 150 us, ≤ 1 ms",
        aims=(
            Aim(figure=f"claim.{size}.typical.p50", bound=150),
            Aim(figure=max(scans, key=lambda name: scans[name], default=f"claim.{size}.worst.p99"), bound=1000),
        ),
        why_not="It takes the server as many instructions whether a thousand jobs wait or a million, 0.8 to 1.2 "
        "million by the users' shapes that could fit; but their data come from further away: the misses of a "
        "cache as large as a core's double from a thousand waiting jobs to twenty thousand (cachegrind), and "
        "on a machine whose outer cache others use as well, that is most of the time. Among a thousand it is "
        "well within (`claim.1000` in the JSON). It would take a claim that reads less: what fits, kept "
        "between claims and mended by each submit and each end.",
    )


def _history(report: Report) -> Row:
    jobs = report.get("history.sqlite.jobs")
    return Row(
        what=f"`gpuqueue history` on {_spaced(int(jobs.value) if jobs else 1_000_000)} jobs, whole process",
        anchor="none is known",
        aim='≤ 15 times `python -c "import click"`',
        aims=(Aim(figure="history.sqlite.process", bound=15, of_ratio=True),),
        why_not="Most of it is SQLAlchemy's import and not the question, which takes milliseconds (`history.…` in the "
        "JSON). It would take a reader of its own for the table's first page.",
    )


def _spaced(count: int) -> str:
    return f"{count:_}".replace("_", " ")


_CORRIDOR = (
    Row(
        what="`gpuqueue submit`, whole process",
        anchor="sbatch 5 ms and task-spooler 2 ms (C), gflow 20 ms (Rust); of the Python ones RQ 188 ms",
        aim='≤ 60 ms, ≤ 2 times `python -c "import click"`',
        aims=(
            Aim(figure="command.submit.process", bound=60),
            Aim(figure="command.submit.process", bound=2, of_ratio=True),
        ),
        best=Aim(figure="command.submit.process", bound=5),
        why_not="What the floor takes, Python and click, loads before a word of ours runs; the rest is our own modules "
        "and one question to the store. The clients in C and Rust stay ahead: it would take one that is no Python.",
    ),
    Row(
        what="submit → the worker may start it",
        anchor="Celery 4 to 5 ms (not durable), HyperQueue 12 ms, Slurm 970 to 2970 ms",
        aim="p50 ≤ 10 ms",
        aims=(Aim(figure="latency.idle.granted.p50", bound=10),),
        best=Aim(figure="latency.idle.granted.p50", bound=5),
        why_not="The store has submit and claim on the disk before it answers, and in between the worker hears the "
        "bell, makes its run directory and looks at the card. To go below would take a claim that is also the start, "
        "without the last look.",
    ),
    Row(
        what="submit → first instruction of the job",
        anchor="task-spooler 2 ms (nothing on the disk), HyperQueue 12 ms, RQ 19 ms, gflow 64 ms",
        aim="p50 ≤ 30 ms",
        aims=(Aim(figure="latency.idle.start.p50", bound=30),),
        best=Aim(figure="latency.idle.start.p50", bound=2),
        why_not="Each job has a shim of its own, so that it outlives its worker: it is forked, and writes down whose "
        "it is before it starts anything. It would take a shim in C, or one that was forked before its job came.",
    ),
    Row(
        what="submit → first instruction, under load",
        anchor="none is known",
        aim="p99 ≤ 1 s",
        aims=(
            Aim(figure="latency.load.start.p50", bound=1000),
            Aim(figure="latency.load.start.p99", bound=1000),
        ),
        why_not="Every core has a busy process beside worker, store and shim, all of them of the same priority: the "
        "kernel gives each its turn. It would take a higher priority for the worker, which is the site's to give.",
    ),
    Row(
        what="a run directory that is ready → first instruction, behind a shim",
        anchor="none is known",
        aim="≤ 2 times a plain spawn",
        aims=(Aim(figure="shim.forked.first", bound=2, of_ratio=True),),
        why_not="An interpreter is forked twice, as the shim and as the job: most of the time the kernel copies pages "
        "of it. It would take a shim in C, or one that was forked before its job came.",
    ),
    Row(
        what="`--warm`: submit → the line after `import torch`",
        anchor="none is known",
        aim="sooner than `python train.py`",
        aims=(Aim(figure="warm.warm.torch", bound=1, of_ratio=True),),
        why_not="The spare has imported torch before; what is left is the way of any job to its start. Where torch is "
        "imported faster than that, `--warm` is not worth it.",
    ),
    Row(
        what="start of the job → in the history",
        anchor="none is known: others write it later, or not at all",
        aim="p50 ≤ 50 ms",
        aims=(Aim(figure="latency.idle.recorded.p50", bound=50), Aim(figure="latency.idle.recorded.p99", bound=500)),
        why_not="The job itself, the shim's word to the worker, one script and one commit: the commit waits for the "
        "disk. It would take a recorder that does not wait for it, and then an end could be told and be gone.",
    ),
    Row(
        what="trivial jobs a second, each through a shim, recorded",
        anchor="Celery 500 to 600, task-spooler 800, RQ 75 to 360, HyperQueue 300 to 500, Slurm 4, gflow 6",
        aim="≥ 100 jobs/s",
        aims=(Aim(figure="throughput.jobs", bound=100),),
        best=Aim(figure="throughput.jobs", bound=800),
        why_not="The processors bound it. Of what a job takes, two fifths are the worker's (directories and files of "
        "the run, one look at the device, three scripts, Celery), a third is the shim's with the job's own process, "
        "mostly pages that two forks of a Python copy, and the rest is the recorder's, the store's and the "
        "submitter's. Those that are ahead run a function in a worker that is there already, and nobody owns the job "
        "when that worker is gone (the table of others). It would take shims that wait for a job, or one in C.",
    ),
    Row(
        what="claim, started, finish, without a process",
        anchor="none is known",
        aim="≥ 400 cycles/s",
        aims=(Aim(figure="cycles", bound=400),),
        why_not="Three scripts, each on the disk before the next: the disk's wait is the floor's too. It would take "
        "`appendfsync everysec`, which a site may choose, or an end and the next claim in one script.",
    ),
)

_AROUND = (
    Row(
        what="array of 10 000, one submit",
        anchor="Slurm 6 ms, HyperQueue 70 ms",
        aim="≤ 50 ms",
        aims=(Aim(figure="submit.array.10000", bound=50),),
        best=Aim(figure="submit.array.10000", bound=6),
        why_not="The record is written to the disk before the reply; the rest is the submit of one job. It would take "
        "`appendfsync everysec`.",
    ),
    Row(
        what="submits a second: one after the other, then pipelined",
        anchor="Celery 600 to 700, RQ 900, Huey 1500 (one after the other, not durable)",
        aim="≤ 3 times and ≤ 5 times a durable SET",
        aims=(
            Aim(figure="submit.single", bound=3, of_ratio=True),
            Aim(figure="submit.pipelined", bound=5, of_ratio=True),
        ),
        best=Aim(figure="submit.single", bound=1500),
        why_not="A submit judges the job against every limit and device and queues it in several orders, where the "
        "floor writes one text, and each one waits for the disk. Those that are ahead do not; it would take "
        "`appendfsync everysec`, or many submits in one wait: an array.",
    ),
    Row(
        what="recording, in batches of 500: SQLite, PostgreSQL",
        anchor="none is known",
        aim="≥ 5 000, ≥ 3 000 jobs/s",
        aims=(
            Aim(figure="recording.sqlite.batch500", bound=5000),
            Aim(figure="recording.postgresql.batch500", bound=3000),
        ),
        why_not="A job is seven rows in four tables with keys and checks, and the floor has neither; and what was told "
        "of it is read field by field, since anybody may have told it. No site starts as many jobs a second: the "
        "recorder is never what one waits for.",
    ),
    Row(
        what="idle worker: memory, share of a core",
        anchor="Celery's own worker takes as much: it is one",
        aim="≤ 70 MiB, ≤ 0.5 %",
        aims=(Aim(figure="worker.idle.memory", bound=70), Aim(figure="worker.idle.cpu", bound=0.5)),
        why_not="Most of the memory is Celery's (the floor has nothing but it imported); `gpuqueue-worker run --plain` "
        "does without.",
    ),
    Row(
        what="memory of the store for a waiting job",
        anchor="none is known",
        aim="≤ 4 times the text of its spec",
        aims=(Aim(figure="store.pending", bound=4, of_ratio=True),),
        why_not="Most is the environment of the submitter, kept twice: in the spec and in the outbox until the history "
        "has it.",
    ),
)

_SCALE = (
    Row(
        what="a claim at the end of a simulated week with a full queue: p50, beside that of the first day",
        anchor="none is known",
        aim="≤ 1.3 times the first day's",
        aims=(Aim(figure="scale.last.claim.p50", bound=1.3, of_ratio=True),),
        why_not="A claim reads nothing of what has ended. What can change in a week is which users and shapes wait: a "
        "claim looks at each shape that could fit.",
    ),
    Row(
        what="recording and a first page of the history at the end of that week, beside the first day",
        anchor="none is known",
        aim="≤ 1.5 times the first day's",
        aims=(
            Aim(figure="scale.last.recorded", bound=1.5, of_ratio=True),
            Aim(figure="scale.last.page", bound=1.5, of_ratio=True),
        ),
        why_not="The indexes of the history are deeper, and no longer all in memory. It would take a PostgreSQL with "
        "memory for them, or a history that is pruned.",
    ),
    Row(
        what="keys that the store keeps of a job that has ended, once it is recorded",
        anchor="none is known",
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
