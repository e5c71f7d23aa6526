"""Python functions as jobs: a real queue, real workers, and programs as users write them."""

from __future__ import annotations

import ast
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import called
import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.errors import BadRequest, NoResult
from gpuqueue.executor import executor as tasks
from gpuqueue.executor.calls import Call, InsideJob
from gpuqueue.executor.executor import Executor
from gpuqueue.model.job import JobState
from gpuqueue.queue.connect import connect
from gpuqueue.settings.settings import Settings

#: How long a job may take to come back on a busy machine, in seconds.
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def running(_server: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a site with a worker and a recorder. The tests of this module share it."""
    client = connect(_server.redis_url)
    client.flushall()
    client.close()
    made = Site(tmp_path_factory.mktemp("site"), _server.redis_url)
    made.start_recorder()
    made.start_worker()
    yield made
    made.stop()


@pytest.fixture
def executor(running: Site, tmp_path: Path) -> Iterator[Executor]:
    """Return an executor of this site."""
    with Executor(client=running.client, directory=tmp_path / "calls", mem="1M") as found:
        yield found
        found.shutdown(wait=False, cancel_futures=True)


def test_results_come_back_as_from_any_executor(executor: Executor, running: Site, tmp_path: Path) -> None:
    """Values, exceptions with their traceback, as_completed, wait and map work, and no file is left."""
    future = executor.submit(called.square, 3)
    failed = executor.submit(called.divide, 1, below=0)
    assert {future, failed} == {*concurrent.futures.as_completed([future, failed], timeout=PATIENCE_S)}
    assert 9 == future.result()
    with pytest.raises(ZeroDivisionError) as raised:
        failed.result()
    assert isinstance(raised.value.__cause__, InsideJob)
    assert "return above / below" in str(raised.value.__cause__)
    job = running.client.jobs.get(future.job)
    assert ("square", JobState.SUCCEEDED, str(Path.cwd())) == (job.spec.name, job.state, job.spec.cwd)
    assert JobState.FAILED is running.client.jobs.get(failed.job).state

    values = executor.map(called.divide, [8, 6, 4], [2, 2, 2], timeout=PATIENCE_S)
    chunked = executor.map(called.square, range(5), chunksize=2)
    assert [4.0, 3.0, 2.0] == [*values]
    assert [0, 1, 4, 9, 16] == [*chunked]
    assert [] == [*executor.map(called.square, [])]
    until(lambda: not [*(tmp_path / "calls").iterdir()], what="the files are removed")
    with pytest.raises(BadRequest, match="cannot be pickled"):
        executor.submit(called.square, (each for each in ()))
    assert not [*(tmp_path / "calls").iterdir()]


def test_several_calls_are_one_array(executor: Executor, running: Site, tmp_path: Path) -> None:
    """Each call is a member with its own options, and calls the function in the directory of the caller."""
    calls = [Call(called.square, (number,)) for number in range(3)]
    futures = executor.submit_array([*calls, Call(called.place)], name="sweep", tags=["night"], cwd=str(tmp_path))

    assert [0, 1, 4, str(tmp_path)] == [each.result(PATIENCE_S) for each in futures]
    array = futures[0].job.partition("_")[0]
    assert [f"{array}_{number}" for number in range(4)] == [each.job for each in futures]
    spec = running.client.jobs.get(futures[3].job).spec
    assert ("sweep", ("night",), 1024 * 1024) == (spec.name, spec.tags, spec.mem_bytes)


def test_a_job_without_a_result_says_how_it_ended(executor: Executor) -> None:
    """A crash and a time limit give the words of the queue, the job, and the end of its log."""
    crashed = executor.submit(called.end, 3)
    (late,) = executor.submit_array([Call(called.wait_for, ("/nowhere",))], time_limit=1)

    with pytest.raises(NoResult) as raised:
        crashed.result(PATIENCE_S)
    assert f"job {crashed.job} (end) ended without a result: exit 3" == str(raised.value)
    assert crashed.job == raised.value.job
    assert "the last words" in str(raised.value.__cause__)
    with pytest.raises(NoResult, match=rf"^job {late.job} \(wait_for\) ended without a result: timed out"):
        late.result(PATIENCE_S)


def test_a_cancel_ends_the_job(executor: Executor, running: Site, tmp_path: Path) -> None:
    """Running and waiting jobs are cancelled, by their future and by a command; an ended one cannot be."""
    active, waiting, other, ended = (
        executor.submit(called.wait_for, "/nowhere"),
        *executor.submit_array([Call(called.square, (1,))], begin="2h"),
        *executor.submit_array([Call(called.square, (1,))], begin="2h"),
        executor.submit(called.square, 2),
    )
    until(active.running, what="the job runs", timeout_s=PATIENCE_S)
    assert not waiting.running()
    assert 4 == ended.result(PATIENCE_S)
    assert not ended.cancel()

    assert active.cancel()
    assert active.cancelled()
    assert waiting.cancel()
    running.client.jobs.cancel(other.job)
    with pytest.raises(concurrent.futures.CancelledError):
        other.result(PATIENCE_S)
    assert {active, waiting, other} == concurrent.futures.wait([active, waiting, other], PATIENCE_S).done
    running.until_state(int(active.job), JobState.CANCELLED)
    until(lambda: not [*(tmp_path / "calls").iterdir()], what="the files are removed")


def test_a_shutdown_waits_or_does_not(running: Site, tmp_path: Path) -> None:
    """Without waiting, jobs that run go on and those that wait are cancelled if asked. Nothing more is accepted."""
    made = Executor(client=running.client, directory=tmp_path / "calls", mem="1M")
    go = tmp_path / "go"
    active = made.submit(called.wait_for, str(go))
    (waiting,) = made.submit_array([Call(called.square, (1,))], begin="2h")
    until(active.running, what="the job runs", timeout_s=PATIENCE_S)

    made.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    assert not active.done()
    with pytest.raises(RuntimeError, match="after shutdown"):
        made.submit(called.square, 1)
    go.touch()
    made.shutdown()
    assert active.done()
    assert str(go) == active.result()


def test_a_task_runs_here_or_in_a_job(running: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks of a process share an executor, and each has its own options."""
    with Executor(client=running.client, directory=tmp_path / "calls") as made:
        monkeypatch.setattr(tasks, "_executor", lambda: made)
        future = called.triple.submit(5)
        assert [3, 6] == [*called.triple.map([1, 2], timeout=PATIENCE_S)]
        assert 15 == future.result(PATIENCE_S)
    assert "tripled" == running.client.jobs.get(future.job).spec.name


def test_a_program_that_ends_with_its_result_leaves_no_files(running: Site, tmp_path: Path) -> None:
    """It ended before the thread had removed them, so each run of the example in the docs left a directory."""
    code = (
        "import gpuqueue, pathlib, sys\n"
        "executor = gpuqueue.Executor(directory=sys.argv[1], mem='1M')\n"
        "print(executor.submit(divmod, 7, 4).result(), flush=True)\n"
    )
    program = tmp_path / "program.py"
    program.write_text(code)

    for _ in range(3):
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path / "files")],
            env=running.environ,
            capture_output=True,
            check=True,
        )
        assert b"(1, 3)\n" == done.stdout
    assert [] == [*(tmp_path / "files").iterdir()]


#: A program as a user writes it, with its functions in the main program. It notes each start of a call.
PROGRAM = """
import os, sys, time
from pathlib import Path
import gpuqueue
from gpuqueue import Call

here = Path(__file__).parent

def work(number):
    with (here / "calls").open("a") as file:
        file.write(f"{number}\\n")
    if number == 1 and not (here / "mended").exists():
        raise ValueError(number)
    while number == 2 and not (here / "go").exists():
        time.sleep(0.05)
    return number * 10

if __name__ == "__main__":
    with gpuqueue.Executor(key="sweep", directory=here / "kept", mem="1M") as executor:
        futures = executor.submit_array([Call(work, (number,)) for number in range(3)])
        futures.append(executor.submit(work, 3))
        print(" ".join(each.job for each in futures), flush=True)
        print([str(each.exception() or each.result()) for each in futures], flush=True)
"""


def test_a_killed_program_finds_its_calls_by_key(running: Site, tmp_path: Path) -> None:
    """After kill -9 the next program finds running jobs and values. Only the call that failed is submitted again."""
    program = tmp_path / "sweep.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    with subprocess.Popen(command, env=running.environ, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        names = first.stdout.readline().split()
        for name, state in zip(names, ("succeeded", "failed", "running", "succeeded"), strict=True):
            until(lambda name=name, state=state: running.client.jobs.get(name).state == state, timeout_s=PATIENCE_S)
        first.kill()
    assert -signal.SIGKILL == first.returncode

    (tmp_path / "mended").touch()
    with subprocess.Popen(command, env=running.environ, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        again = second.stdout.readline().split()
        (tmp_path / "go").touch()
        assert "['0', '10', '20', '30']" == second.stdout.readline().strip()
    assert 0 == second.returncode
    assert [names[0], *names[2:]] == [again[0], *again[2:]]
    assert names[1] != again[1]
    third = subprocess.run(command, env=running.environ, capture_output=True, text=True, check=True)
    assert [" ".join(again), "['0', '10', '20', '30']"] == third.stdout.splitlines()
    assert ["0", "1", "1", "2", "3"] == sorted((tmp_path / "calls").read_text().split())


def keyed(site: Site, directory: Path, **options: str) -> Executor:
    """Return an executor with a key."""
    return Executor(client=site.client, directory=directory, key="once", mem="1M", **options)


def forget_jobs(directory: Path) -> None:
    """Leave the submissions in *directory* as a program does that is killed before it knows the ids of its jobs."""
    for path in directory.glob("*/about"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "job": None}))


def test_a_program_that_was_killed_while_it_submitted_finds_its_job(running: Site, tmp_path: Path) -> None:
    """The id was not written yet: the job that waits is found by its dedupe key. Another function is refused."""
    with keyed(running, tmp_path, begin="2h") as first, keyed(running, tmp_path, begin="2h") as second:
        future = first.submit(called.square, 3)
        forget_jobs(tmp_path / "once")

        found = second.submit(called.square, 3)
        assert future.job == found.job
        assert found.cancel()
        with (
            keyed(running, tmp_path) as third,
            pytest.raises(BadRequest, match=r"of called\.square, and now is one of called\.divide"),
        ):
            third.submit(called.divide, 1, 2)


def test_an_ended_job_whose_id_was_lost_is_submitted_again_if_it_failed(running: Site, tmp_path: Path) -> None:
    """The history has it. A value is there without the id."""
    with keyed(running, tmp_path) as first:
        failed, value = first.submit(called.divide, 1, 0), first.submit(called.square, 3)
        assert isinstance(failed.exception(PATIENCE_S), ZeroDivisionError)
        until(lambda: running.client.history.has(int(failed.job)), what="the history has it")
    forget_jobs(tmp_path / "once")

    with keyed(running, tmp_path) as second:
        again, there = second.submit(called.divide, 1, 1), second.submit(called.square, 3)
        assert 1.0 == again.result(PATIENCE_S)
        assert int(failed.job) < int(again.job)
        assert (value.job, 9) == (there.job, there.result(0))


def test_calls_travel_to_a_service_on_another_machine(running: Site, tmp_path: Path) -> None:
    """With the code, as files of the copy: modules beside it are found, and the results are fetched."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "ours.py").write_text("import os\n\ndef where(number):\n    return number, os.getcwd(), __file__\n")
    socket, port = tmp_path / "api.sock", 18000 + os.getpid() % 40000
    serve = ["serve", "--socket", str(socket), "--listen", f"127.0.0.1:{port}", "--behind-proxy"]
    running.spawn_command([sys.executable, "-m", "gpuqueue", *serve])
    until(socket.exists, what="the service", timeout_s=PATIENCE_S)
    token = tmp_path / "token"
    local = {**running.environ, "GPUQUEUE_URL": f"unix://{socket}"}
    made = [sys.executable, "-m", "gpuqueue", "token", "create", "--name", "laptop"]
    token.write_text(subprocess.run(made, env=local, capture_output=True, text=True, check=True).stdout)
    token.chmod(0o600)
    far = {"GPUQUEUE_URL": f"http://127.0.0.1:{port}", "GPUQUEUE_TOKEN_FILE": str(token)}
    program = (
        "import gpuqueue, ours\n"
        "with gpuqueue.Executor(mem='1M', key='far') as executor:\n"
        "    print([*executor.map(ours.where, [1, 2])])\n"
    )
    (project / "main.py").write_text(program)
    environ = {**os.environ, **far, "GPUQUEUE_STATE_DIR": str(tmp_path / "laptop"), "GPUQUEUE_CONFIG": os.devnull}
    for _ in range(2):  # the second program finds the results on its machine
        done = subprocess.run([sys.executable, "main.py"], env=environ, cwd=project, capture_output=True, text=True)  # noqa: PLW1510
        assert (0, "") == (done.returncode, done.stderr)
    values = ast.literal_eval(done.stdout)
    assert [1, 2] == [number for number, _, _ in values]
    assert all(str(running.settings.runs_dir) in where and where in file for _, where, file in values)
    until(lambda: [len(each.members) for each in running.client.history.folded(tags=["far"])] == [1], what="one array")
