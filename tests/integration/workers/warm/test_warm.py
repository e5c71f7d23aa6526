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
from workers.run.torch_report import read_reports

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
    (warm_interpreter,) = runs.warm_interpreters._warm_pool
    (pid,) = process_tree._children(warm_interpreter._shim.pid)
    return pid


# ---- which job a warm interpreter becomes ----------------------------------------------------------------------------


def test_the_first_job_makes_the_spare_for_the_next(make: Callable[..., WarmRuns]) -> None:
    """The first job starts a warm interpreter for the next one, and each used interpreter is replaced."""
    runs = make()
    spec = runs.spec(SCRIPT)

    assert "no warm interpreter is ready yet" == runs.refusal(spec)
    assert [("ran []\n", "warm")] * 3 == [(each.log, each.start) for each in (runs.warm(spec) for _ in range(3))]


def test_a_job_unlike_it_is_told_what_differs_and_gets_its_own(make: Callable[..., WarmRuns]) -> None:
    """A job that the warm interpreter does not match is refused with the difference, and gets a new one.

    There is room for one warm interpreter, so the one of the latest job stays.
    """
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.spare_for(spec)
    other = replace(spec, env={**spec.env, "OMP_NUM_THREADS": "1"})

    assert "OMP_NUM_THREADS differs" == runs.refusal(other)
    assert "warm" == runs.warm(other).start
    assert "OMP_NUM_THREADS differs" == runs.refusal(spec)


def test_modules_that_are_not_there_are_told_of(make: Callable[..., WarmRuns]) -> None:
    """A module that cannot be imported is reported, and its import is not tried again.

    Each try would cost the time of an import.
    """
    runs = make("no_such_module")
    spec = runs.spec(SCRIPT)
    runs.refusal(spec)
    until(lambda: runs.warm_interpreters.tidy() or runs.warm_interpreters._unfit, what="it has said so")

    words = "no_such_module cannot be imported: No module named 'no_such_module'"
    assert [words, words] == [runs.refusal(spec), runs.refusal(spec)]
    assert [] == runs.warm_interpreters._warm_pool


@pytest.mark.parametrize("last", ['exec {} "$@"', '{} "$@"'], ids=["replaced", "beside it"])
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

    assert f"{wrapper} is a wrapper: which Python it starts only it knows" == runs.refusal(spec)
    assert [] == runs.warm_interpreters._warm_pool
    cold = runs.cold(spec)
    assert ("ran in 3.x\n", "exit 0") == (cold.log, cold.ending)


def test_an_interpreter_behind_links_is_no_wrapper(make: Callable[..., WarmRuns]) -> None:
    """An interpreter behind links is accepted; in a virtual environment it is a link to a link."""
    runs = make()
    (runs.place / "python").symlink_to(runs.place / "python3")
    (runs.place / "python3").symlink_to(sys.executable)
    spec = replace(runs.spec(SCRIPT), argv=(str(runs.place / "python"), "train.py"))

    assert "warm" == runs.warm(spec).start


def test_a_site_may_keep_none(make: Callable[..., WarmRuns]) -> None:
    """With GPUQUEUE_WARM_SPARES=0 a site keeps no warm interpreters."""
    assert "this site keeps no warm interpreters" == make(GPUQUEUE_WARM_SPARES="0").refusal(make().spec(SCRIPT))


def test_a_host_without_memory_keeps_none(make: Callable[..., WarmRuns], monkeypatch: pytest.MonkeyPatch) -> None:
    """A host short of memory keeps no warm interpreters: the memory is for jobs."""
    monkeypatch.setattr("workers.warm.pool._available_bytes", lambda: 0)
    runs = make()

    assert "the host has too little memory for a warm interpreter" == runs.refusal(runs.spec(SCRIPT))


@pytest.mark.full
def test_a_spare_that_nobody_wants_is_let_go(make: Callable[..., WarmRuns]) -> None:
    """An idle warm interpreter is ended, because it holds memory."""
    runs = make(GPUQUEUE_WARM_IDLE="1s")
    runs.spare_for(runs.spec(SCRIPT))
    pid = pid_of(runs)

    until(lambda: runs.warm_interpreters.tidy() or not runs.warm_interpreters._warm_pool, what="it is let go")

    until(lambda: not Path(f"/proc/{pid}").exists(), what="it is gone")


# ---- what the job finds ----------------------------------------------------------------------------------------------

#: Prints the environment without the variables that differ in each run.
ENVIRONMENT = """
import os
print({name: value for name, value in sorted(os.environ.items()) if name not in ("GPUQUEUE_TOKEN", "GPUQUEUE_ATTEMPT")})
"""


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


def test_what_an_import_changes_is_changed_in_a_spare(make: Callable[..., WarmRuns], tmp_path: Path) -> None:
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
    runs.spare_for(spec)
    own = runs.warm(replace(spec, env={**spec.env, "TAKEN": "3"}))
    assert ("'TAKEN': '3'" in own.log, own.start) == (True, "warm")


@pytest.mark.parametrize("change", ["os.environ['RUN'] = os.getcwd()", "os.environ.pop('SECRET', None)"])
def test_where_python_changes_variables_at_its_start_there_is_no_spare(
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


@pytest.mark.parametrize("kind", ["file", "package", "directory"])
def test_a_module_beside_the_script_that_a_library_has_missed(
    make: Callable[..., WarmRuns], tmp_path: Path, kind: str
) -> None:
    """A job starts cold if a module beside its script has the name of one that a library did not find.

    An example is torch, which works without dill. In a cold start the library finds the module beside the script.
    """
    (tmp_path / "seeker.py").write_text(
        "from importlib.util import find_spec\ntry: import optional_part\nexcept ImportError: optional_part = None\n"
        "found = optional_part is not None, find_spec('optional_part') is not None\n"
    )
    runs = make("seeker")
    spec = runs.spec("import seeker, sys\nprint(seeker.found, len(sys.meta_path))\n")
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(tmp_path)})
    without, cold = runs.warm(spec), runs.cold(spec)
    assert ("warm", cold.log) == (without.start, without.log)
    assert without.log.startswith("(False, False)")

    part = runs.place / ("optional_part.py" if kind == "file" else "optional_part")
    if kind != "file":
        part.mkdir()
    if kind != "directory":
        (part if kind == "file" else part / "__init__.py").touch()
    warm = runs.warm(spec)

    why = f"cold: {part.name} beside the script has the name of a module that was looked for in vain already"
    assert ("(True, True)", why) == (warm.log[:12], warm.start)


@pytest.mark.parametrize(
    ("place", "in_place", "reported"),
    [
        ("site-packages", False, ""),
        ("site-packages", True, "model.py"),  # an edit in place changes no directory
        ("lib", False, "model.py"),
    ],
    ids=["a package was upgraded", "a file of a package was edited where it lies", "a module that somebody works on"],
)
def test_what_was_changed_since_is_imported_anew(
    make: Callable[..., WarmRuns], tmp_path: Path, place: str, reported: str, *, in_place: bool
) -> None:
    """A job starts cold, and names the change, if a module has changed since it was loaded."""
    library = tmp_path / place
    library.mkdir()
    (library / "model.py").write_text("version = 1\n")
    runs = make("model")
    spec = runs.spec("import model\nprint(model.version)\n")
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(library)})
    runs.spare_for(spec)

    if not in_place:
        (library / "model.py").unlink()
    (library / "model.py").write_text("version = 22\n")
    warm = runs.warm(spec)

    assert ("22\n", f"cold: {library / reported} has changed since") == (warm.log, warm.start)


def test_what_was_changed_while_it_was_imported_makes_no_spare(make: Callable[..., WarmRuns], tmp_path: Path) -> None:
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
    runs.spare_for(spec)

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
    runs.spare_for(spec)
    (library / "results").mkdir()
    (library / "results.csv").touch()

    assert "warm" == runs.warm(spec).start

    runs.spare_for(spec)
    (library / "colorsys.py").touch()
    warm = runs.warm(spec)
    assert (f"{library}/colorsys.py\n", f"cold: {library}/colorsys.py has changed since") == (warm.log, warm.start)


def test_a_directory_of_the_path_that_comes_later_is_looked_in(make: Callable[..., WarmRuns], tmp_path: Path) -> None:
    """A job starts cold if a directory of the path has appeared since, because it may hold any module."""
    runs = make()
    spec = runs.spec(SCRIPT)
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(tmp_path / "lib")})
    runs.spare_for(spec)

    (tmp_path / "lib").mkdir()

    assert f"cold: {tmp_path}/lib has changed since" == runs.warm(spec).start


def test_settings_of_a_library_beside_the_job_are_read(make: Callable[..., WarmRuns], tmp_path: Path) -> None:
    """A job starts cold if a library's settings file lies in its working directory.

    The library reads the file when it is imported, and a warm interpreter imports it elsewhere.
    """
    (tmp_path / "matplotlib.py").write_text(
        "import os\ndpi = open('matplotlibrc').read() if os.path.exists('matplotlibrc') else 'none'\n"
    )
    runs = make("matplotlib")
    (runs.place / "matplotlibrc").write_text("dpi: 321")
    spec = runs.spec("import matplotlib\nprint(matplotlib.dpi)\n")
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(tmp_path)})

    warm = runs.warm(spec)

    why = "cold: matplotlibrc in the working directory is read when its module is loaded"
    assert ("dpi: 321\n", why) == (warm.log, warm.start)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("for name in ['OMP_NUM_THREADS']: os.environ[name] = '1'", "changes OMP_NUM_THREADS"),
        ("os.environb[b'OMP_NUM_THREADS'] = b'1'", "changes OMP_NUM_THREADS"),
        ("def setup(e): e['OMP_NUM_THREADS'] = '1'\nsetup(os.environ)", "may change os.environ"),
        ("vars(os)['environ']['OMP_NUM_THREADS'] = '1'", "may change os.environ"),
        ("sys.path.insert(0, os.environ['LIB'])", "may change sys.path"),
        ("p = sys.path; p.insert(0, os.environ['LIB'])", "may change sys.path"),
        ("list.insert(sys.path, 0, os.environ['LIB'])", "may change sys.path"),
        ("os.sched_setaffinity(0, os.sched_getaffinity(0))", "may change the CPU affinity"),
        (
            "sys.meta_path.insert(0, type('', (), {'find_spec': lambda name, *_: print('asked for', name)}))",
            "may change sys.meta_path",
        ),
    ],
)
def test_a_script_that_sets_what_was_read_already_starts_cold(
    make: Callable[..., WarmRuns], tmp_path: Path, line: str, words: str
) -> None:
    """A script that sets a value which imports have already read starts cold.

    In a cold job the import follows that line of the script; in a warm interpreter it came before.
    """
    for place, version in (("old", "old"), ("new", "new")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "numeric.py").write_text(
            f"import os\nsaw = '{version}', os.environ.get('OMP_NUM_THREADS')\n"
        )
    runs = make("numeric")
    spec = runs.spec(f"import os, sys\n{line}\nimport numeric\nprint(*numeric.saw, '\\d')\n")
    spec = replace(spec, env={**spec.env, "PYTHONPATH": str(tmp_path / "old"), "LIB": str(tmp_path / "new")})

    cold, warm = runs.cold(spec), runs.warm(spec)

    expected = {
        "may change sys.path": "new None",
        "may change sys.meta_path": "asked for numeric\nold None",
        "may change the CPU affinity": "old None",
    }
    assert expected.get(words, "old 1") in cold.log
    assert cold.log == warm.log
    assert (warm.start or "").startswith(f"cold: the script {words} (line ")


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
    runs.spare_for(spec)

    gone = replace(spec, cwd="/no/such/place")

    assert runs.cold(gone).ending == runs.warm(gone).ending
    assert "cannot enter the working directory /no/such/place: No such file or directory" in runs.warm(gone).ending


# ---- deaths around a warm start --------------------------------------------------------------------------------------


def test_a_spare_that_was_killed_is_replaced(make: Callable[..., WarmRuns]) -> None:
    """A warm interpreter that was killed leaves the pool, with its shim."""
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.spare_for(spec)
    shim = runs.warm_interpreters._warm_pool[0]._shim.pid

    os.kill(pid_of(runs), signal.SIGKILL)

    until(lambda: not Path(f"/proc/{shim}").exists(), what="its shim leaves as well")
    runs.warm_interpreters.tidy()
    assert [] == runs.warm_interpreters._warm_pool


def test_a_spare_that_dies_as_the_job_comes_makes_it_start_cold(make: Callable[..., WarmRuns]) -> None:
    """A job starts cold if its warm interpreter dies right after the order.

    The interpreter is stopped first, so that its death is noticed only after the order was sent.
    """
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.spare_for(spec)
    pid = pid_of(runs)
    os.kill(pid, signal.SIGSTOP)

    directory, shim = runs.begin_warm(spec)
    until(directory.shim, what="the shim has begun")
    os.kill(pid, signal.SIGKILL)

    ended = runs.ended(directory, shim)
    assert ("ran []\n", "exit 0", "cold: the warm interpreter has ended") == (ended.log, ended.ending, ended.start)


def test_a_spare_that_does_not_answer_can_be_cancelled(make: Callable[..., WarmRuns]) -> None:
    """A job whose warm interpreter does not answer can be cancelled."""
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.spare_for(spec)
    os.kill(pid_of(runs), signal.SIGSTOP)
    directory, shim = runs.begin_warm(spec)
    until(directory.shim, what="the shim has begun")

    directory.ask_end(EndingKind.CANCELLED)

    ended = runs.ended(directory, shim)
    assert ("", True) == (ended.log, ended.ending.startswith("cancelled"))


def test_a_spare_whose_shim_was_killed_holds_no_lock(make: Callable[..., WarmRuns]) -> None:
    """A warm interpreter whose shim was killed holds no lock, so the claim can be released."""
    runs = make()
    spec = runs.spec(SCRIPT)
    runs.spare_for(spec)
    (warm_interpreter,) = runs.warm_interpreters._warm_pool
    os.kill(warm_interpreter._shim.pid, signal.SIGSTOP)  # the shim cannot receive the order
    directory, shim = runs.begin_warm(spec)

    os.kill(shim.pid, signal.SIGKILL)

    until(lambda: not Path(f"/proc/{shim.pid}").exists(), what="it is gone")
    assert shim.code() is None
    assert directory.shim() is None
    lock = until(directory.try_lock, what="the lock is free")
    os.close(lock)


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


# ---- on a GPU --------------------------------------------------------------------------------------------------------

GPU_JOB = """
import torch, os
torch.cuda.init()
print(torch.cuda.fractions, os.environ["CUDA_VISIBLE_DEVICES"])
"""


def test_the_cap_and_the_report_work_in_a_spare_as_well(
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
    assert "{0: 0.2256} GPU-0\n" == warm.log
    report = read_reports(runs.place)
    assert report is not None
    assert 2 == len(list((runs.place / "inside").glob("*.json")))


# ---- through the queue -----------------------------------------------------------------------------------------------


def submitted(site: Site, script: Path, *words: str) -> int:
    """Submit a script with ``--warm`` and wait for its end; return the job's id."""
    job_id = int(site.cli("submit", "--warm", "--mem", "10M", *words, str(script)).stdout)
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
    assert "started cold: OMP_NUM_THREADS differs" in site.cli("show", str(other)).stdout
    assert JobState.SUCCEEDED is site.client.jobs.get(other).state


@pytest.mark.full
def test_a_job_that_its_spare_refused_is_never_called_warm(site: Site, tmp_path: Path) -> None:
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
    script.write_text(
        f"import os, sys, time\nsys.path.append('x')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    )

    def refused() -> Any:
        """Return the notes of a job that found a warm interpreter, during the run and after it."""
        job = int(site.cli("submit", "--warm", "--mem", "10M", str(script)).stdout)
        shown = until(lambda: [note for note in _notes(site, job) if "started" in note], what="it says how it started")
        gate.touch()
        site.until_recorded(job)
        gate.unlink()
        return None if "no warm interpreter is ready yet" in shown[0] else (shown, _notes(site, job))

    why = ["started cold: the script may change sys.path (line 2)"]
    assert (why, why) == until(refused, what="a job that finds a spare")


def _notes(site: Site, job: int) -> list[str]:
    """Return the notes about how a job was started."""
    lines = site.cli("show", str(job)).stdout.splitlines()
    return [line[line.index("started ") :] for line in lines if "note" in line and "started " in line]


@pytest.mark.full
def test_a_warm_job_outlives_its_worker_and_the_spares_do_not(site: Site, tmp_path: Path) -> None:
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
    until(lambda: len(spares_of(worker.pid)) == 1, what="the next spare")
    job = int(site.cli("submit", "--warm", "--mem", "10M", str(script)).stdout)
    until(effects.exists, what="the job runs")
    warm_interpreters = until(lambda: spares_of(worker.pid), what="the next spare")

    site.end(worker, signal.SIGKILL)

    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in warm_interpreters), what="the spares are gone")
    site.start_worker()
    gate.touch()
    record = site.until_recorded(job)
    assert ("exit 3", 1, "run ") == (str(record.runs[-1].ending), len(record.runs), effects.read_text())


@pytest.mark.full
@pytest.mark.parametrize(
    ("step", "runs"),
    [("workers.warm.pool:WarmInterpreter.become", 2), ("workers.warm.pool:WarmPool._start_wanted", 1)],
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
    pid = until(lambda: spares_of(worker.pid), what="a spare")[0]
    until(lambda: _waits_for_a_message(pid), what="it is ready")
    effects.unlink()

    job = int(site.cli("submit", "--warm", "--mem", "10M", str(script)).stdout)
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


def spares_of(worker: int) -> list[int]:
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
