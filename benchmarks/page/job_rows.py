"""The rows about one job, from its submit to the history. Those about the queue and its stores are in rows.py."""

from __future__ import annotations

from benchmarks.page.others import Known, Others
from benchmarks.page.row import Aim, Row

SUBMIT = Row(
    what="`gpuqueue submit`, whole process",
    others=Others(
        ours="command.submit.process",
        measured="submit",
        known=(
            Known(name="task-spooler", shown="2 ms (C)", value=2),
            Known(name="slurm", shown="5 ms (C)", value=5),
            Known(name="gflow", shown="20 ms (Rust)", value=20),
            Known(name="rq", shown="188 ms", value=188),
        ),
    ),
    aim='≤ 60 ms, ≤ 2 times `python -c "import click"`',
    aims=(
        Aim(figure="command.submit.process", bound=60),
        Aim(figure="command.submit.process", bound=2, of_ratio=True),
    ),
    why_not="What the floor takes, Python and click, loads before a word of ours runs; the rest is our own modules "
    "and one question to the store. The clients in C and Rust stay ahead: it would take one that is no Python.",
)

CORRIDOR = (
    Row(
        what="submit → first instruction of the job",
        others=Others(
            ours="latency.idle.start.p50",
            measured="start",
            known=(
                Known(name="task-spooler", shown="2 ms (nothing on the disk)", value=2),
                Known(name="HyperQueue", shown="12 ms", value=12),
                Known(name="rq", shown="19 ms", value=19),
                Known(name="gflow", shown="64 ms", value=64),
                Known(name="slurm", shown="970 to 2970 ms", value=970),
            ),
        ),
        aim="p50 ≤ 30 ms",
        aims=(Aim(figure="latency.idle.start.p50", bound=30),),
        why_not="Each job has a shim of its own, so that it outlives its worker: it was forked before, and writes down "
        "whose it is before it starts anything, by a fork. It would take a shim in C.",
    ),
    Row(
        what="submit → first instruction, under load",
        aim="p99 ≤ 1 s",
        aims=(
            Aim(figure="latency.load.start.p50", bound=1000),
            Aim(figure="latency.load.start.p99", bound=1000),
        ),
        why_not="Every core has a busy process beside worker, store and shim, all of them of the same priority: the "
        "kernel gives each its turn. It would take a higher priority for the worker, which is the site's to give.",
    ),
    Row(
        what="a run directory that is ready → first instruction of a Python, behind a shim",
        aim="≤ 2 times a plain spawn",
        aims=(Aim(figure="shim.forked.first", bound=2, of_ratio=True),),
        why_not="The shim, an interpreter, is forked for the job: most of the time the kernel copies pages of it. It "
        "would take a shim in C.",
    ),
    Row(
        what="`--warm`: submit → the line after `import torch`",
        aim="sooner than `python train.py`",
        aims=(Aim(figure="warm.warm.torch", bound=1, of_ratio=True),),
        why_not="The warm interpreter has imported torch before; what is left is the way of any job to its start. "
        "Where torch is imported faster than that, `--warm` is not worth it.",
    ),
    Row(
        what="start of the job → in the history",
        anchor="none is known: others write it later, or not at all",
        aim="p50 ≤ 50 ms",
        aims=(Aim(figure="latency.idle.recorded.p50", bound=50), Aim(figure="latency.idle.recorded.p99", bound=500)),
        why_not="The job itself, the shim's word to the worker, one script and one commit: the commit waits for the "
        "disk. It would take a recorder that does not wait for it, and then a reported end could be lost.",
    ),
    Row(
        what="trivial jobs a second, each through a shim, recorded",
        others=Others(
            ours="throughput.jobs",
            measured="jobs",
            known=(
                Known(name="task-spooler", shown="800", value=800),
                Known(name="celery", shown="500 to 600", value=600),
                Known(name="HyperQueue", shown="300 to 500", value=500),
                Known(name="rq", shown="75 to 360", value=360),
                Known(name="gflow", shown="6", value=6),
                Known(name="slurm", shown="4", value=4),
            ),
        ),
        aim="≥ 100 jobs/s",
        aims=(Aim(figure="throughput.jobs", bound=100),),
        why_not="The processors bound it. Of what a job takes, two fifths are the worker's (directories and files of "
        "the run, one sample of the device, three scripts, Celery), a third is the shim's with the job's own process, "
        "mostly pages that two forks of a Python copy, and the rest is the recorder's, the store's and the "
        "submitter's. Those that are ahead run a function in a worker that is there already, or are in C and keep "
        "nothing on the disk; nobody owns the job when that worker is gone (the table of others). It would take a "
        "shim in C.",
    ),
    Row(
        what="claim, started, finish, without a process",
        aim="≥ 400 cycles/s",
        aims=(Aim(figure="cycles", bound=400),),
        why_not="Three scripts, each on the disk before the next: the disk's wait is the floor's too. It would take "
        "`appendfsync everysec`, which a site may choose, or an end and the next claim in one script.",
    ),
)
