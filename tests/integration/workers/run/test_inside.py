"""Tests of the hook inside a job's Python, observed from outside, in real processes under a real shim."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from inside_job import CUDA, TORCH, Ran
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.text.units import GIB
from workers.run.environment import INSIDE


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """Return a directory with a package that looks like torch to the hook."""
    package = tmp_path / "stand-in" / "torch"
    (package / "cuda").mkdir(parents=True)
    (package / "__init__.py").write_text(TORCH)
    (package / "cuda" / "__init__.py").write_text(CUDA)
    return package.parent


def test_without_torch_nothing_is_left_behind(tmp_path: Path) -> None:
    """Without torch the hook leaves no report, no torch and no entry on `sys.path`.

    PYTHONPATH keeps the hook's directory, so child processes load it as well.
    """
    show = "import sys, os; print('torch' in sys.modules, sys.path, os.environ['PYTHONPATH'])"

    ran = Ran(tmp_path, sys.executable, "-c", show)

    plain = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.path)"],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"False {plain.stdout.strip()} {INSIDE}\n" == ran.log
    assert (None, []) == (ran.report, list(ran.directory.path.glob("reports")))


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("import sys; print('mine', sys.path[1:2])", "done mine"),
        ("raise ValueError('my own fault')", "done"),
        ("raise ImportError('no such thing', name='thing')", "done"),
        ("import missing_thing", "done"),
    ],
)
def test_the_users_own_sitecustomize_behaves_as_without_us(tmp_path: Path, code: str, output: str) -> None:
    """The user's own sitecustomize runs as it would without the hook.

    `import sitecustomize` returns the user's module, and its errors read the same.
    """
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(f"{code}\nNAME = 'mine'\n")
    job = "import sys; print('done', getattr(sys.modules.get('sitecustomize'), 'NAME', ''))"

    ran = Ran(tmp_path, sys.executable, "-c", job, path=own)

    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(own), "PYTHONUNBUFFERED": "1"}
    plain = subprocess.run(
        [sys.executable, "-c", job],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert plain.stdout == ran.log
    assert output in ran.log


def test_a_process_that_used_torch_reports_its_peaks(tmp_path: Path, stand_in: Path) -> None:
    """A process that used torch reports its peaks by device UUID, and its allocation failures."""
    ran = Ran(tmp_path, sys.executable, "-c", "import torch; torch.cuda.init()", path=stand_in)

    (reported,) = ran.reported()
    assert ("2.9.1", False) == (reported["torch"], reported["out_of_memory"])
    assert reported["began_s"] < reported["ended_s"]
    assert [
        {
            "index": 0,
            "uuid": "GPU-0",
            "allocated_bytes": 3 * GIB,
            "reserved_bytes": 4 * GIB,
            "ooms": 1,
            "alloc_retries": 2,
        }
    ] == reported["devices"]
    assert ran.report is not None
    assert 4 * GIB == ran.report.reserved("GPU-0", 0)


def test_torch_without_cuda_reports_nothing(tmp_path: Path, stand_in: Path) -> None:
    """A process that imports torch but never starts CUDA writes no report."""
    assert [] == Ran(tmp_path, sys.executable, "-c", "import torch", path=stand_in).reported()


CHILDREN = """
import multiprocessing, os, sys
import torch
def work():
    torch.cuda.init()
    print("child", os.getpid(), flush=True)
if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_report_their_peaks(tmp_path: Path, stand_in: Path, method: str) -> None:
    """Children of multiprocessing, which end without atexit, write their reports.

    Their parent, which did not start CUDA, writes none.
    """
    script = tmp_path / "job.py"
    script.write_text(CHILDREN)

    ran = Ran(tmp_path, sys.executable, str(script), method, path=stand_in)

    assert 0 == ran.code, ran.log
    assert [int(ran.log.split()[1])] == [reported["pid"] for reported in ran.reported()]


def test_a_parent_and_its_forks_report_separately(tmp_path: Path, stand_in: Path) -> None:
    """A fork of a process that had started CUDA cannot use CUDA, and writes no report."""
    job = "import os, torch; torch.cuda.init(); pid = os.fork(); print(os.getpid()); pid and os.wait()"

    ran = Ran(tmp_path, sys.executable, "-c", job, path=stand_in)

    (reported,) = ran.reported()
    assert str(reported["pid"]) in ran.log.split()


@pytest.mark.parametrize(
    ("code", "died"),
    [
        ("raise torch.OutOfMemoryError('full')", True),
        ("sys.excepthook = lambda *what: None\nraise torch.OutOfMemoryError('full')", True),
        (
            "try: raise torch.OutOfMemoryError('full')\nexcept RuntimeError as full: raise ValueError(3) from full",
            True,
        ),
        (
            "try: raise torch.OutOfMemoryError('full')\nexcept RuntimeError: pass\nraise ValueError('other')",
            False,
        ),
        ("raise ValueError('other')", False),
    ],
)
def test_an_uncaught_out_of_memory_error_is_reported(tmp_path: Path, stand_in: Path, code: str, died: bool) -> None:  # noqa: FBT001
    """An uncaught OutOfMemoryError is reported, unless the job survived it.

    It is also reported with an excepthook of the job's own, and if another error was raised from it.
    """
    ran = Ran(tmp_path, sys.executable, "-c", f"import sys, torch\ntorch.cuda.init()\n{code}", path=stand_in)

    assert 1 == ran.code
    assert ran.report is not None
    assert (died, "full" if died else "") == (ran.report.out_of_memory, ran.report.message)


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_an_isolated_python_is_not_affected(tmp_path: Path, stand_in: Path, flag: str) -> None:
    """A Python with ``-I``, ``-S`` or ``-E`` runs without the hook and without a message."""
    code = f"import sys; sys.path.insert(0, {str(stand_in)!r}); import torch; torch.cuda.init(); print('ran')"

    ran = Ran(tmp_path, sys.executable, flag, "-c", code)

    assert (0, "ran\n", None) == (ran.code, ran.log, ran.report)


def test_a_report_that_cannot_be_written_costs_nothing(tmp_path: Path, stand_in: Path) -> None:
    """A report that cannot be written causes no message and no other exit code.

    A full disk is not the job's fault.
    """
    job = "import os, torch; open(os.environ['GPUQUEUE_RUN_DIR'] + '/inside', 'w'); torch.cuda.init()"

    ran = Ran(tmp_path, sys.executable, "-c", job, path=stand_in)

    assert (0, "") == (ran.code, ran.log)


def test_an_older_torch_is_capped_when_cuda_starts(tmp_path: Path, stand_in: Path) -> None:
    """The hook caps an older torch when CUDA starts, before the first allocation, unless the cap is off."""
    job = (
        "import torch, inspect; torch.cuda.init();"
        " print(torch.cuda.fractions, 'def init' in inspect.getsource(torch.cuda))"
    )

    capped = Ran(tmp_path / "capped", sys.executable, "-c", job, path=stand_in)
    free = Ran(tmp_path / "free", sys.executable, "-c", job, path=stand_in, cap=False)

    assert ("{0: 0.225586} True\n", "{} True\n") == (capped.log, free.log)


@pytest.mark.full
def test_the_real_torch_bears_it(tmp_path: Path) -> None:
    """The real torch imports with the hook and queues the cap for the start of CUDA.

    On a machine without a GPU there is no report.
    """
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed here")
    job = (
        "import os, torch; print(torch.zeros(2).sum().item(), os.environ['PYTORCH_ALLOC_CONF'],"
        " sum('_gpuqueue_cap' in call[0].__module__ for call in torch.cuda._queued_calls))"
    )

    ran = Ran(tmp_path, sys.executable, "-c", job, env={"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.25"})
    ours = Ran(tmp_path / "ours", sys.executable, "-c", job)

    assert "0.0 per_process_memory_fraction:0.25 0\n" == ran.log
    assert "0.0 per_process_memory_fraction:0.225586 1\n" == ours.log
    assert (None, None) == (ran.report, ours.report)


def test_a_job_that_submits_jobs_does_not_pass_our_changes_on(tmp_path: Path) -> None:
    """A job that submits a job does not pass on the variables that gpuqueue set.

    The next job may ask for another size. Variables that the job's own script set are passed on.
    """
    job = (
        "import os; from gpuqueue.system.environment import travelling; os.environ['CUPY_GPU_MEMORY_LIMIT'] = 'mine';"
        " env = travelling(os.environ); print({name: value for name, value in env.items() if name not in"
        " ('PATH', 'HOME', 'LC_CTYPE', 'PYTHONUNBUFFERED')})"
    )
    root = Path(__file__).parents[4]

    ran = Ran(tmp_path, sys.executable, "-c", job, path=root, env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"})

    expected = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512",
        "PYTHONPATH": str(root),
        "CUPY_GPU_MEMORY_LIMIT": "mine",
    }
    assert expected == eval(ran.log), ran.log  # noqa: S307 - what our own job printed


def test_a_settled_run_keeps_no_report(tmp_path: Path, stand_in: Path) -> None:
    """A settled run keeps only its log."""
    ran = Ran(tmp_path, sys.executable, "-c", "import torch; torch.cuda.init()", path=stand_in)

    ran.directory.settle()

    assert ["log"] == [entry.name for entry in ran.directory.path.iterdir()]


@pytest.mark.full
def test_a_job_out_of_memory_is_recorded_as_that(site: Site) -> None:
    """A job that runs out of memory is recorded as such, with what it asked for."""
    site.start_recorder()
    site.start_worker()
    script = "echo step 1; echo 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1"

    job = int(site.cli("submit", "--mem-retries", "0", "--mem", "1G", "--", "sh", "-c", script).stdout)

    record = site.until_recorded(job)
    assert record.last_run is not None
    assert record.last_run.ending is not None
    assert (JobState.FAILED, EndingKind.OUT_OF_MEMORY) == (record.job.state, record.last_run.ending.kind)
    assert record.last_run.ending.detail.startswith("asked 1G")
    assert "out of memory: asked 1G" in site.cli("show", str(job)).stdout
