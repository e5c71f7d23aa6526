"""Tests that bound the CPU instructions of each command, relative to ``import click``, independent of the load."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from factories import make_offer, make_spec, must_claim, serve
from guard.bounds import Bound
from guard.one_life import uncovered
from own_store import OwnStore

from gpuqueue.codec.request import encode_spec
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.account import current_account
from gpuqueue.text.units import GIB
from workers.services.recorder import Recorder

VALGRIND = shutil.which("valgrind")
pytestmark = [
    pytest.mark.skipif(VALGRIND is None, reason="no valgrind here to count instructions: apt install valgrind"),
    pytest.mark.timeout(400),
]
#: Instructions of a whole process, divided by those of ``python -c "import click"``, measured on each of PYTHONS; the
#: aim is two. They are spent on value classes, patterns and modules: ``python -X importtime`` names the modules. LIVE
#: is a job that waits, ENDED one that only the history still has. SCRIPT has 100 earlier runs in the history, of which
#: a submit reads 50, to say what the script needed.
RATIOS = {
    ("submit", "--mem", "1M", "--", "true"): (1.83, 1.87, 1.86, 1.85),
    ("submit", "--mem", "12G", "SCRIPT"): (2.13, 2.17, 2.16, 2.15),  # the text of the script is judged
    ("queue",): (1.86, 1.91, 1.88, 1.89),
    ("cancel", "LIVE"): (1.58, 1.63, 1.61, 1.61),  # why a store does not answer
    ("logs", "ENDED"): (1.81, 1.86, 1.84, 1.84),
    ("wait", "ENDED"): (1.81, 1.86, 1.83, 1.83),  # it reads the notes of the last run as well
    ("show", "ENDED"): (1.90, 1.96, 1.93, 1.93),  # limits of a run, files that did not travel, failed members
}
PYTHONS = ((3, 10), (3, 11), (3, 12), (3, 13))
#: The lowest ratio, what the ratio may exceed the measured one by, and that for a Python that was not measured. Six
#: small modules of the standard library take 0.07. With a spare of 0.1, six larger ones went unnoticed. The same
#: command takes up to 0.03 more on a loaded machine, where answers arrive in more parts. The same tree took 0.04 more
#: on one processor than on another, whose libc has other routines: these are the larger figures.
LEAST, SPARE, MORE = 1.2, 0.05, 0.2
GPUQUEUE = "from gpuqueue.cli.main import main; main()"
COUNT = (str(VALGRIND), "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def ended(queue: JobQueue, store: OwnStore) -> list[str]:
    """Run two jobs until they are in the history, and return their ids."""
    device = RunDevice(uuid=make_offer().device.uuid, lease_bytes=GIB)
    for _ in range(2):
        queue.requests.submit(make_spec())
        run = must_claim(queue)
        log = store.settings.state_dir / str(run.job_id) / run.token / "log"
        log.parent.mkdir(parents=True)
        log.write_text("one line\n")
        queue.runs.started(run.job_id, run.token, lease_s=300, log_path=str(log), devices=(device,))
        ending = Ending.from_status(0)
        state = JobState.SUCCEEDED
        queue.runs.finish(run.job_id, run.token, state=state, ending=ending, duration_s=1.0, devices=(device,))
    with closing(HistoryDatabase(store.settings.database_url)) as database:
        recorder = Recorder(store.settings, queue, database)
        recorder.mend()
        while recorder.record(0):
            pass
    assert (None, None) == (queue.jobs.get(1), queue.jobs.get(2))
    return ["1", "2"]


def remembered(store: OwnStore, script: Path) -> str:
    """Add 100 runs of *script* to the history, and return its path."""
    script.touch()
    account = current_account("nodeA")
    with closing(sqlite3.connect(store.settings.state_dir / "history.db")) as connection, connection:
        for job_id in range(1000, 1100):
            command = f"/py {script} --seed {job_id} --batch 8 --data /data/set --epochs 10"
            payload = encode_spec(make_spec(argv=tuple(command.split(" ")), account=account, cwd=str(script.parent)))
            connection.execute(
                "INSERT INTO jobs (id, name, user_name, user_uid, submit_host, state, priority, command, script,"
                " interpreter, cwd, mem_bytes, gpus, pool, attempt, losses, submitted_at, ended_at, spec, ending,"
                " exit_code, program) VALUES (?, 'job', ?, 1, 'h', 'succeeded', 1, ?, ?, '/py', ?, 1, 1, '', 1, 0,"
                " '2026-11-01', '2026-11-01', ?, 'exited', 0, ?)",
                (job_id, account.name, command, str(script), str(script.parent), payload, str(script)),
            )
            connection.execute(
                "INSERT INTO runs (job_id, attempt, token, host, worker, claimed_at, ended_at, ending, exit_code)"
                " VALUES (?, 1, '1.a', 'h', 'w', '2026-11-01', '2026-11-01', 'exited', 0)",
                (job_id,),
            )
            connection.execute(
                "INSERT INTO run_devices (job_id, attempt, device_uuid, device_index, kind, lease_bytes, peak_bytes,"
                " peak_source, samples, na_samples) VALUES (?, 1, 'GPU-0', 0, 'gpu', ?, ?, 'nvml_sampled', 50, 0)",
                (job_id, 12 * GIB, 5 * GIB),
            )
    return str(script)


@pytest.mark.full
def test_a_command_takes_as_many_instructions_as_agreed(
    own_store: OwnStore, migrated_sqlite: Path, tmp_path: Path
) -> None:
    """A command takes no more instructions than agreed.

    Each command first runs with one job, so that all modules are compiled, and is counted with another.
    """
    shutil.copy(migrated_sqlite, own_store.settings.state_dir / "history.db")
    queue = JobQueue(own_store.url)
    queue.recovery.open(0)
    serve(queue, make_offer())
    jobs = {"ENDED": ended(queue, own_store), "LIVE": [str(queue.requests.submit(make_spec()).id) for _ in range(2)]}
    queue.close()
    jobs["SCRIPT"] = [remembered(own_store, tmp_path / "train.py")] * 2
    environ = {
        **{name: value for name, value in uncovered().items() if name != "PYTHONDONTWRITEBYTECODE"},
        "GPUQUEUE_STATE_DIR": str(own_store.settings.state_dir),
        "GPUQUEUE_HOST": make_offer().host,
        "PYTHONHASHSEED": "0",
        "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"),
    }

    def instructions(code: str, words: Sequence[str] = ()) -> int:
        turns = [[jobs[word][turn] if word in jobs else word for word in words] for turn in range(2)]
        commands = [[sys.executable, "-c", code, *turn] for turn in turns]
        subprocess.run(commands[0], env=environ, cwd=tmp_path, capture_output=True, check=True)
        done = subprocess.run(
            [*COUNT, *commands[1]], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
        assert found is not None, done.stderr
        return int(found[1].replace(",", ""))

    floor = instructions("import click")
    for words, ratios in RATIOS.items():
        measured = sys.version_info[:2] in PYTHONS
        most = ratios[PYTHONS.index(sys.version_info[:2])] + SPARE if measured else max(ratios) + MORE
        Bound(LEAST, most).hold(instructions(GPUQUEUE, words) / floor, f"instructions of {' '.join(words)}")
