from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from inside_job import CUDA, TORCH
from site_of_one import Site
from warm_runs import WarmRuns

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind, RunDevice
from gpuqueue.text.units import GIB
from workers.run import process_tree
from workers.run.environment import TOKEN
from workers.run.verdict import read_reports
from workers.shim.master_port import candidates

DIE_AT = Path(__file__).parents[3] / "support" / "die_at.py"
#: A script that each test writes anew. Its output shows that it ran.
SCRIPT = "import os, sys\nprint('ran', sys.argv[1:])\n"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., WarmRuns]]:
    """Return a function that makes directories in which scripts run, cold and warm."""
    made: list[WarmRuns] = []

    def make(modules: str = "json", **settings: str) -> WarmRuns:
        made.append(WarmRuns(tmp_path / f"place{len(made)}", modules, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def pid_of(runs: WarmRuns) -> int:
    """Return the pid of the warm interpreter."""
    (warm_interpreter,) = runs.warm_interpreters._interpreters
    (pid,) = process_tree.children(warm_interpreter._shim.pid)
    return pid


# ---- which job a warm interpreter becomes ----------------------------------------------------------------------------


def test_the_first_job_makes_the_interpreter_for_the_next(make: Callable[..., WarmRuns]) -> None:
    """The first job starts a warm interpreter for the next one, and each used interpreter is replaced."""
    runs = make()
    spec = runs.spec(SCRIPT)

    assert "no warm interpreter is ready yet" == runs.refusal(spec)
    assert [("ran []\n", "warm")] * 3 == [(each.log, each.start) for each in (runs.warm(spec) for _ in range(3))]


def test_a_job_unlike_it_learns_what_differs_and_gets_its_own(make: Callable[..., WarmRuns]) -> None:
    """A job that the warm interpreter does not match is refused with the difference, and gets a new one.

    There is room for one warm interpreter, so the one of the latest job stays.
    """
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.prepare(spec)
    other = replace(spec, env={**spec.env, "OMP_NUM_THREADS": "1"})

    assert "OMP_NUM_THREADS differs" == runs.refusal(other)
    assert "warm" == runs.warm(other).start
    assert "OMP_NUM_THREADS differs" == runs.refusal(spec)


def test_modules_that_are_not_there_are_reported(make: Callable[..., WarmRuns]) -> None:
    """A module that cannot be imported is reported, and its import is not tried again.

    Each try would cost the time of an import.
    """
    runs = make("no_such_module")
    spec = runs.spec(SCRIPT)
    runs.refusal(spec)
    until(lambda: runs.warm_interpreters.tidy() or runs.warm_interpreters._unfit, what="it has said so")

    words = "no_such_module cannot be imported: No module named 'no_such_module'"
    assert [words, words] == [runs.refusal(spec), runs.refusal(spec)]
    assert [] == runs.warm_interpreters._interpreters


@pytest.mark.parametrize("last", ['exec "{}" "$@"', '"{}" "$@"'], ids=["replaced", "beside it"])
def test_a_python_that_is_a_wrapper_is_no_interpreter(make: Callable[..., WarmRuns], last: str) -> None:
    """A wrapper script around Python gets no warm interpreter.

    A wrapper chooses the interpreter by a variable or by a file beside the script, so the choice may not hold for
    another job.
    """
    runs = make()
    wrapper = runs.place / "python"
    wrapper.write_text("#!/bin/sh\nexport CHOSEN=$(cat .python-version)\n" + last.format(sys.executable) + "\n")
    wrapper.chmod(0o755)
    (runs.place / ".python-version").write_text("3.x\n")
    spec = runs.spec("import os\nprint('ran in', os.environ['CHOSEN'])\n")
    spec = replace(spec, argv=(str(wrapper), "train.py"))
    runs.refusal(spec)
    until(lambda: runs.warm_interpreters.tidy() or runs.warm_interpreters._unfit, what="it has said so")

    assert f"{wrapper} is a wrapper, which may start another Python for the next job" == runs.refusal(spec)
    assert [] == runs.warm_interpreters._interpreters
    cold = runs.cold(spec)
    assert ("ran in 3.x\n", "exit 0") == (cold.log, cold.ending)


def test_an_interpreter_behind_links_is_no_wrapper(make: Callable[..., WarmRuns]) -> None:
    """An interpreter behind links is accepted; in a virtual environment it is a link to a link."""
    runs = make()
    (runs.place / "python").symlink_to(runs.place / "python3")
    (runs.place / "python3").symlink_to(sys.executable)
    spec = replace(runs.spec(SCRIPT), argv=(str(runs.place / "python"), "train.py"))

    assert "warm" == runs.warm(spec).start


def test_a_site_may_have_none(make: Callable[..., WarmRuns]) -> None:
    """With GPUQUEUE_WARM_INTERPRETERS=0 a site has no warm interpreters."""
    assert "the setting warm_interpreters is 0" == make(GPUQUEUE_WARM_INTERPRETERS="0").refusal(make().spec(SCRIPT))


def test_a_host_without_memory_has_none(make: Callable[..., WarmRuns], monkeypatch: pytest.MonkeyPatch) -> None:
    """A host short of memory has no warm interpreters: the memory is for jobs."""
    monkeypatch.setattr("workers.warm_pool._available_bytes", lambda: 0)
    runs = make()

    assert "the host has too little memory for a warm interpreter" == runs.refusal(runs.spec(SCRIPT))


@pytest.mark.full
def test_an_idle_interpreter_is_ended(make: Callable[..., WarmRuns]) -> None:
    """An idle warm interpreter is ended, because it holds memory."""
    runs = make(GPUQUEUE_WARM_IDLE="1s")
    runs.prepare(runs.spec(SCRIPT))
    pid = pid_of(runs)

    until(lambda: runs.warm_interpreters.tidy() or not runs.warm_interpreters._interpreters, what="it is dropped")

    until(lambda: not Path(f"/proc/{pid}").exists(), what="it is gone")


# ---- what the job finds ----------------------------------------------------------------------------------------------

#: Prints the environment without the variables that differ in each run.
ENVIRONMENT = """
import os
print({name: value for name, value in sorted(os.environ.items()) if name not in ("GPUQUEUE_TOKEN", "GPUQUEUE_ATTEMPT")})
"""


def test_a_warm_job_has_a_port_of_its_own_and_the_limits_of_a_job(make: Callable[..., WarmRuns]) -> None:
    """The interpreter was started before the run had a port, a score and a shim."""
    runs = make()
    address = "os.environ['MASTER_ADDR'], os.environ['MASTER_PORT']"
    spec = runs.spec(f"import os; print({address}, open('/proc/self/oom_score_adj').read())")
    spec = replace(spec, env={name: value for name, value in spec.env.items() if name != "MASTER_PORT"})

    cold, warm = runs.cold(spec), runs.warm(spec)

    assert ("exit 0", "warm") == (warm.ending, warm.start)
    for outcome in (cold, warm):
        address, port, adjustment = outcome.log.split()
        assert ("127.0.0.1", True) == (address, int(port) in candidates())
        assert int(adjustment) >= 300  # an account may not lower what it has inherited


def test_a_job_without_a_locale_has_what_python_makes_of_that(make: Callable[..., WarmRuns]) -> None:
    """A warm job without LANG and LC_ALL has the LC_CTYPE that Python sets.

    Warm jobs, and their child processes, used to lack it.
    """
    runs = make()
    spec = runs.spec(ENVIRONMENT)
    spec = replace(spec, env={name: value for name, value in spec.env.items() if name != "LANG"})

    cold, warm = runs.cold(spec), runs.warm(spec)

    assert "'LC_CTYPE': 'C.UTF-8'" in cold.log
    assert (cold.log, "warm") == (warm.log, warm.start)


def test_what_an_import_changes_is_changed_in_a_warm_job(make: Callable[..., WarmRuns], tmp_path: Path) -> None:
    """Changes that an import makes to the environment hold in a warm job too.

    A variable that the import had removed used to be present again. A variable that the job sets, and the interpreter
    did not have, stays as the job has it.
    """
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").write_text("import os\nos.environ['IMPORTED'] = os.environ.pop('TAKEN')\n")
    runs = make("mine")
    spec = runs.spec("import mine" + ENVIRONMENT)
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(tmp_path / "lib"), "TAKEN": "2"})

    cold, warm = runs.cold(spec), runs.warm(spec)

    assert "'IMPORTED': '2'" in cold.log
    assert (cold.log, "warm") == (warm.log, warm.start)
    runs.prepare(spec)
    own = runs.warm(replace(spec, env={**spec.env, "TAKEN": "3"}))
    assert ("'TAKEN': '3'" in own.log, own.start) == (True, "warm")


@pytest.mark.parametrize("change", ["os.environ['RUN'] = os.getcwd()", "os.environ.pop('SECRET', None)"])
def test_a_python_that_changes_variables_at_its_start_is_unusable(
    make: Callable[..., WarmRuns], tmp_path: Path, change: str
) -> None:
    """A Python whose startup changes environment variables gets no warm interpreter.

    A job used to write into the directory of the previous job, because a sitecustomize had computed it from that job's
    variables.
    """
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text(f"import os\n{change}\n")
    runs = make()
    spec = runs.spec("pass")
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(tmp_path / "lib"), "SECRET": "1"})
    runs.refusal(spec)
    until(lambda: runs.warm_interpreters.tidy() or runs.warm_interpreters._unfit, what="it has said so")

    name = "RUN" if "RUN" in change else "SECRET"
    assert f"{name} is changed when Python starts, by a sitecustomize or a .pth file" == runs.refusal(spec)


# ---- what keeps a warm interpreter from becoming a job ---------------------------------------------------------------


def test_a_module_beside_the_script_comes_before_what_is_loaded(make: Callable[..., WarmRuns]) -> None:
    """A job starts cold if a module beside its script has the name of a loaded module.

    A cold job imports the file beside the script.
    """
    runs = make("colorsys")
    (runs.place / "colorsys.py").write_text("mine = True\n")
    spec = runs.spec("import colorsys\nprint(colorsys.mine)\n")

    warm = runs.warm(spec)

    assert ("True\n", "cold: colorsys.py beside the script has the name of a module that is loaded already") == (
        warm.log,
        warm.start,
    )


@pytest.mark.parametrize("in_place", [False, True], ids=["replaced", "edited"])
@pytest.mark.parametrize("place", ["site-packages", "lib"])
def test_what_was_changed_since_is_imported_anew(
    make: Callable[..., WarmRuns], tmp_path: Path, place: str, *, in_place: bool
) -> None:
    """A job starts cold, and names the change, if a module has changed since it was loaded."""
    library = tmp_path / place
    library.mkdir()
    (library / "model.py").write_text("version = 1\n")
    runs = make("model")
    spec = runs.spec("import model\nprint(model.version)\n")
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(library)})
    runs.prepare(spec)

    if not in_place:
        (library / "model.py").unlink()
    (library / "model.py").write_text("version = 22\n")
    warm = runs.warm(spec)

    assert ("22\n", f"cold: {library}/model.py has changed since") == (warm.log, warm.start)


def test_a_package_that_was_installed_since_is_found(make: Callable[..., WarmRuns], tmp_path: Path) -> None:
    """A job starts cold if a package was installed or upgraded since, even if it is not loaded yet."""
    packages = tmp_path / "site-packages"
    (packages / "late-1.0.dist-info").mkdir(parents=True)
    runs = make()
    spec = runs.spec(SCRIPT)
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(packages)})
    runs.prepare(spec)

    (packages / "late-1.0.dist-info").rename(packages / "late-1.1.dist-info")

    assert f"cold: {packages}/late-1.0.dist-info has changed since" == runs.warm(spec).start


def test_a_module_that_changes_during_its_import_is_unusable(make: Callable[..., WarmRuns], tmp_path: Path) -> None:
    """A module that changes while it is imported makes no warm interpreter.

    Otherwise the new file would be taken for the loaded one, and all later jobs would get the old module.
    """
    (tmp_path / "lib").mkdir()
    model = tmp_path / "lib" / "model.py"
    model.write_text("version = 1\nopen(__file__, 'a').write('# upgraded\\n')\n")
    runs = make("model")
    spec = runs.spec("import model\nprint(model.version)\n")
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(tmp_path / "lib")})
    runs.refusal(spec)
    until(lambda: runs.warm_interpreters.tidy() or runs.warm_interpreters._unfit, what="it has said so")

    assert f"{model} was changed while modules were imported" == runs.refusal(spec)


def test_packages_of_a_user_that_come_later_are_found(make: Callable[..., WarmRuns]) -> None:
    """A job starts cold if the user's site-packages directory has appeared since.

    The directory is on no path before it exists; ``pip install --user`` creates it.
    """
    runs = make()
    spec = runs.spec("import newlib\nprint(newlib.version)\n")
    python = str(Path(sys.base_prefix, "bin", "python3").resolve())  # a virtual environment has no user packages
    spec = replace(spec, argv=(python, "train.py"))
    runs.prepare(spec)

    packages = runs.place / ".local/lib/python{}.{}/site-packages".format(*sys.version_info)
    packages.mkdir(parents=True)
    (packages / "newlib.py").write_text("version = 1\n")
    warm = runs.warm(spec)

    assert ("1\n", f"cold: {packages} has changed since") == (warm.log, warm.start)


def test_a_module_that_comes_later_in_a_directory_of_the_path_is_found(
    make: Callable[..., WarmRuns], tmp_path: Path
) -> None:
    """A job starts cold if a new module in a directory of the path would replace a loaded one.

    Other files and directories that appear there, such as results, change nothing.
    """
    library = tmp_path / "lib"
    library.mkdir()
    runs = make("colorsys")
    spec = runs.spec("import colorsys\nprint(colorsys.__file__)\n")
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(library)})
    runs.prepare(spec)
    (library / "results").mkdir()
    (library / "results.csv").touch()

    assert "warm" == runs.warm(spec).start

    runs.prepare(spec)
    (library / "colorsys.py").touch()
    warm = runs.warm(spec)
    assert (f"{library}/colorsys.py\n", f"cold: {library}/colorsys.py has changed since") == (warm.log, warm.start)


def test_a_directory_of_the_path_that_comes_later_is_searched(make: Callable[..., WarmRuns], tmp_path: Path) -> None:
    """A job starts cold if a directory of the path has appeared since, because it may hold any module."""
    runs = make()
    spec = runs.spec(SCRIPT)
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(tmp_path / "lib")})
    runs.prepare(spec)

    (tmp_path / "lib").mkdir()

    assert f"cold: {tmp_path}/lib has changed since" == runs.warm(spec).start


def test_a_script_that_is_not_there_is_missed_by_python_itself(make: Callable[..., WarmRuns]) -> None:
    """A missing script is reported by Python itself, with Python's message and exit code."""
    runs = make()
    spec = replace(runs.spec(SCRIPT), argv=(runs.spec(SCRIPT).argv[0], "gone.py"))

    cold, warm = runs.cold(spec), runs.warm(spec)

    assert "exit 2" == cold.ending
    assert (cold.log, cold.ending, "cold: gone.py is no file that can be read") == (warm.log, warm.ending, warm.start)


def test_a_working_directory_that_is_gone_refuses_the_job_as_ever(make: Callable[..., WarmRuns]) -> None:
    """A job whose working directory is gone is refused, cold or warm."""
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.prepare(spec)

    gone = replace(spec, cwd="/no/such/place")

    assert runs.cold(gone).ending == runs.warm(gone).ending
    assert "cannot enter the working directory /no/such/place: No such file or directory" in runs.warm(gone).ending


# ---- deaths around a warm start --------------------------------------------------------------------------------------


def test_an_interpreter_that_was_killed_leaves_the_pool(make: Callable[..., WarmRuns]) -> None:
    """A warm interpreter that was killed leaves the pool, with its shim."""
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.prepare(spec)
    shim = runs.warm_interpreters._interpreters[0]._shim.pid

    os.kill(pid_of(runs), signal.SIGKILL)

    until(lambda: not Path(f"/proc/{shim}").exists(), what="its shim leaves as well")
    runs.warm_interpreters.tidy()
    assert [] == runs.warm_interpreters._interpreters


def test_an_interpreter_that_dies_as_the_job_comes_makes_it_start_cold(make: Callable[..., WarmRuns]) -> None:
    """A job starts cold if its warm interpreter dies right after the order.

    The interpreter is stopped first, so that its death is noticed only after the order was sent.
    """
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.prepare(spec)
    pid = pid_of(runs)
    os.kill(pid, signal.SIGSTOP)

    directory, shim = runs.begin_warm(spec)
    until(directory.shim, what="the shim has begun")
    os.kill(pid, signal.SIGKILL)

    ended = runs.ended(directory, shim)
    assert ("ran []\n", "exit 0", "cold: the warm interpreter has ended") == (ended.log, ended.ending, ended.start)


def test_an_interpreter_that_does_not_answer_can_be_cancelled(make: Callable[..., WarmRuns]) -> None:
    """A job whose warm interpreter does not answer can be cancelled."""
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.prepare(spec)
    os.kill(pid_of(runs), signal.SIGSTOP)
    directory, shim = runs.begin_warm(spec)
    until(directory.shim, what="the shim has begun")

    directory.ask_end(EndingKind.CANCELLED)

    ended = runs.ended(directory, shim)
    assert ("", True) == (ended.log, ended.ending.startswith("cancelled"))


def test_an_interpreter_whose_shim_was_killed_holds_no_lock(make: Callable[..., WarmRuns]) -> None:
    """A warm interpreter whose shim was killed holds no lock, so the claim can be released."""
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.prepare(spec)
    (warm_interpreter,) = runs.warm_interpreters._interpreters
    os.kill(warm_interpreter._shim.pid, signal.SIGSTOP)  # the shim cannot receive the order
    directory, shim = runs.begin_warm(spec)

    os.kill(shim.pid, signal.SIGKILL)

    until(lambda: not Path(f"/proc/{shim.pid}").exists(), what="it is gone")
    assert shim.code() is None
    assert directory.shim() is None
    lock = until(directory.try_lock, what="the lock is free")
    os.close(lock)
    shim.end()


FAMILY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    open("daemon", "w").write(str(os.getpid()))
    time.sleep(1000)
time.sleep(1000)
"""


@pytest.mark.parametrize("killed", [False, True], ids=["cancelled", "its shim killed"])
def test_nothing_outlives_a_warm_job(make: Callable[..., WarmRuns], *, killed: bool) -> None:
    """No process outlives a warm job.

    /proc shows the initial environment of the interpreter for its forks; it is rewritten to hold the run's token.
    """
    runs = make()
    directory, shim = runs.begin_warm(runs.spec(FAMILY))
    path = runs.place / "daemon"
    daemon = int(until(lambda: path.exists() and path.read_text(), what="a daemon that left its session"))
    if killed:
        os.kill(shim.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{shim.pid}").exists())
        assert 1 <= process_tree.sweep(TOKEN, directory.token)
    else:
        os.kill(shim.pid, signal.SIGTERM)  # SIGTERM only wakes the shim
        directory.renew(time.monotonic() - 1)
        directory.close()
        os.kill(shim.pid, signal.SIGUSR1)

    until(lambda: not Path(f"/proc/{daemon}").exists(), what="it is gone")
    shim.end()


# ---- on a GPU --------------------------------------------------------------------------------------------------------

GPU_JOB = """
import torch, os
torch.cuda.init()
print(torch.cuda.fractions, os.environ["CUDA_VISIBLE_DEVICES"])
"""


def test_the_cap_and_the_report_work_in_a_warm_job(
    make: Callable[..., WarmRuns], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory cap and the report of torch work in a warm job.

    The hook is loaded with the interpreter, before there is a run, and takes effect when the job begins.
    """
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "lib" / "torch" / "cuda.py").write_text(CUDA)
    card = RunDevice(uuid="GPU-0", lease_bytes=6 * GIB, kind=DeviceKind.GPU, total_bytes=24 * GIB)
    monkeypatch.setattr("warm_runs.CARD", card)
    runs = make("torch.cuda")
    spec = runs.spec(GPU_JOB, mem_bytes=6 * GIB)
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(tmp_path / "lib")})

    cold, warm = runs.cold(spec), runs.warm(spec)

    assert "warm" == warm.start
    assert (cold.log, "exit 0") == (warm.log, warm.ending)
    assert "{0: 0.225586} GPU-0\n" == warm.log
    report = read_reports(runs.place)
    assert report is not None
    assert 2 == len((runs.place / "reports").read_text().splitlines())


# ---- through the queue -----------------------------------------------------------------------------------------------


def submitted(site: Site, script: Path, *words: str) -> int:
    """Submit a script with ``--warm`` and wait for its end; return the job's id."""
    job_id = int(site.cli("submit", "--warm", "--mem", "2G", *words, str(script)).stdout)
    site.until_recorded(job_id)
    return job_id


@pytest.mark.full
def test_jobs_of_a_sweep_start_warm_and_show_says_so(site: Site, tmp_path: Path) -> None:
    """`show` reports the warm starts of a sweep, and why the first job started cold."""
    site.environ.update(GPUQUEUE_WARM_MODULES="json")
    site.start_recorder()
    site.start_worker()
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('token', os.environ['GPUQUEUE_TOKEN'])\n")

    first = submitted(site, script)

    assert "started cold: no warm interpreter is ready yet" in site.cli("show", str(first)).stdout
    until(lambda: "started warm" in site.cli("show", str(submitted(site, script))).stdout, what="a warm start")
    other = submitted(site, script, "--env", "OMP_NUM_THREADS=3")
    # With OMP_NUM_THREADS from the submitter, the queue sets none of these variables.
    assert "started cold: MKL_NUM_THREADS differs" in site.cli("show", str(other)).stdout
    assert JobState.SUCCEEDED is site.client.jobs.get(other).state


@pytest.mark.full
def test_a_job_that_its_interpreter_refused_is_never_called_warm(site: Site, tmp_path: Path) -> None:
    """A job that its warm interpreter refused is reported as started cold, once, while it runs.

    The worker only sends the order; only the shim knows the outcome.
    """
    site.environ.update(GPUQUEUE_WARM_MODULES="json")
    site.start_recorder()
    site.start_worker()
    gate, script = tmp_path / "gate", tmp_path / "train.py"
    script.write_text("print('quick')\n")
    submitted(site, script)
    until(lambda: "started warm" in site.cli("show", str(submitted(site, script))).stdout, what="a warm start")
    (tmp_path / "json.py").touch()
    script.write_text(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\n")

    def refused() -> Any:
        """Return the notes of a job that found a warm interpreter, during the run and after it."""
        job = int(site.cli("submit", "--warm", "--mem", "2G", str(script)).stdout)
        shown = until(lambda: [note for note in _notes(site, job) if "started" in note], what="it says how it started")
        gate.touch()
        site.until_recorded(job)
        gate.unlink()
        return None if "no warm interpreter is ready yet" in shown[0] else (shown, _notes(site, job))

    why = ["started cold: json.py beside the script has the name of a module that is loaded already"]
    assert (why, why) == until(refused, what="a job that finds a warm interpreter")


def _notes(site: Site, job: int) -> list[str]:
    """Return the notes about how a job was started."""
    lines = site.cli("show", str(job)).stdout.splitlines()
    return [line[line.index("started ") :] for line in lines if "note" in line and "started " in line]


@pytest.mark.full
def test_a_warm_job_outlives_its_worker_and_idle_interpreters_do_not(site: Site, tmp_path: Path) -> None:
    """After SIGKILL of the worker, the warm job goes on and the idle interpreters end.

    The next worker adopts the job, which has started once.
    """
    site.environ.update(GPUQUEUE_WARM_MODULES="json")
    site.start_recorder()
    worker = site.start_worker()
    script = tmp_path / "train.py"
    script.write_text("print('quick')\n")
    submitted(site, script)
    until(lambda: "started warm" in site.cli("show", str(submitted(site, script))).stdout, what="a warm start")
    gate, effects = tmp_path / "gate", tmp_path / "effects"
    script.write_text(
        f"import os, time\nopen({str(effects)!r}, 'a').write('run ')\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\nraise SystemExit(3)\n"
    )
    until(lambda: len(waiting_below(worker.pid)) == 1, what="the next warm interpreter")
    job = int(site.cli("submit", "--warm", "--mem", "2G", str(script)).stdout)
    until(effects.exists, what="the job runs")
    warm_interpreters = until(lambda: waiting_below(worker.pid), what="the next warm interpreter")

    site.end(worker, signal.SIGKILL)

    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in warm_interpreters), what="they are gone")
    site.start_worker()
    gate.touch()
    record = site.until_recorded(job)
    assert ("exit 3", 1, "run ") == (str(record.runs[-1].ending), len(record.runs), effects.read_text())


@pytest.mark.full
@pytest.mark.parametrize(
    ("step", "runs"),
    [("workers.warm_pool:WarmInterpreter.become", 2), ("workers.warm_pool:WarmPool._start_wanted", 1)],
)
def test_a_worker_killed_around_the_order_costs_no_job_and_doubles_none(
    site: Site, tmp_path: Path, step: str, runs: int
) -> None:
    """A worker killed around the order loses no job and runs none twice.

    Before the order the run is lost and the job runs again. After the order the job runs and is adopted.
    """
    site.environ.update(GPUQUEUE_WARM_MODULES="json")
    site.start_recorder()
    effects, script = tmp_path / "effects", tmp_path / "train.py"
    script.write_text(f"open({str(effects)!r}, 'a').write('run ')\n")
    time_of = "kill@2" if step.endswith("_start_wanted") else "kill"  # the first call: the job that finds none
    command = [sys.executable, str(DIE_AT), time_of, step, "run", "--device", "0", "--plain"]
    worker = site.spawn_command(command)
    submitted(site, script)
    pid = until(lambda: waiting_below(worker.pid), what="a warm interpreter")[0]
    until(lambda: _waits_for_a_message(pid), what="it is ready")
    effects.unlink()

    job = int(site.cli("submit", "--warm", "--mem", "2G", str(script)).stdout)
    assert -signal.SIGKILL == worker.wait(30), site.log()
    site.start_worker()

    record = site.until_recorded(job)
    assert (JobState.SUCCEEDED, runs, "run ") == (record.job.state, len(record.runs), effects.read_text())


def _waits_for_a_message(pid: int) -> bool:
    """Return whether a process sleeps in recvmsg(2), as far as the kernel shows it.

    A warm interpreter that sleeps there is ready.
    """
    asleep = "\nState:\tS" in Path(f"/proc/{pid}/status").read_text()
    where = Path(f"/proc/{pid}/wchan").read_text()
    return asleep and ("skb" in where or where == "0")


def waiting_below(worker: int) -> list[int]:
    """Return the idle warm interpreters below a worker.

    A warm interpreter that has become a job shows the job's command.
    """
    return [pid for pid in process_tree.below(worker) if b"inside/warm_start.py" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.full
def test_memory_of_a_warm_job_on_a_simulated_device_is_seen(site: Site, tmp_path: Path) -> None:
    """The memory of a warm job on a simulated device is measured.

    A simulated device finds its processes by the environment that /proc shows.
    """
    site.environ.update(GPUQUEUE_WARM_MODULES="json", PYTHONPATH=str(Path(__file__).parents[3] / "support"))
    site.start_recorder()
    site.start_worker()
    script = tmp_path / "train.py"
    script.write_text(
        "from metered import until_seen\nkeep = bytearray(200 * 2**20)\nkeep[::4096] = bytes(len(keep[::4096]))\n"
        "until_seen(peak_bytes=len(keep))\n"
    )

    def warm() -> Any:
        record = site.until_recorded(submitted(site, script, "--mem", "400M"))
        return record if any(note.text == "started warm" for note in record.notes) else None

    record = until(warm, what="a warm start")

    (device,) = record.runs[-1].devices
    assert (device.peak.bytes or 0) >= 200 * 2**20
