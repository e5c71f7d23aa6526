"""Calls as bytes, run by the real program of a job, without a queue."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import called
import cloudpickle
import pytest

import gpuqueue
from gpuqueue.errors import BadRequest, GpuQueueError, NoResult
from gpuqueue.executor import calls as wire
from gpuqueue.executor import inside
from gpuqueue.executor.calls import Call, InsideJob
from gpuqueue.executor.executor import _request
from gpuqueue.executor.submissions import About, KeptCalls, Submission, Submissions
from gpuqueue.model.array import Array


def run(folder: Path, number: int = 0, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a call of the file in *folder*, as its job does."""
    environ = {**os.environ, inside.FOLDER: str(folder), "GPUQUEUE_ARRAY_INDEX": str(number), **variables}
    command = [sys.executable, *words, inside.__file__, "name"]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False)


def write(folder: Path, *calls: Call, path: list[str] | None = None) -> None:
    """Write *calls* into *folder*."""
    pickled = [wire.pickled(each) for each in calls]
    (folder / inside.CALLS).write_bytes(wire.packed(pickled, sys.path if path is None else path))


def outcome(folder: Path, number: int = 0) -> Future[Any]:
    """Return a future with the result in *folder*."""
    future: Future[Any] = Future()
    assert wire.settle(future, folder / f"{number}{inside.RESULT}", "17")
    return future


def test_a_traceback_of_a_function_by_value_shows_its_lines(tmp_path: Path) -> None:
    """A function of the main program, too. cloudpickle leaves the name of its file out, and so nobody saw the line."""

    def fails() -> float:
        return 1 / 0

    write(tmp_path, Call(fails))

    done = run(tmp_path)

    assert f'File "{__file__}", line {fails.__code__.co_firstlineno + 1}, in fails\n    return 1 / 0' in done.stderr


def test_a_call_comes_back_with_its_value(tmp_path: Path) -> None:
    """Each number is a call of its own: a function of a module, a closure, a partial, and one with keywords."""
    step = 5
    calls = [
        Call(called.square, (4,)),
        Call(lambda number: number + step, (1,)),
        Call(functools.partial(called.divide, below=4), (2,)),
        Call(called.divide, (), {"above": 1, "below": 2}),
    ]
    write(tmp_path, *calls)
    done = [run(tmp_path, number) for number in range(len(calls))]

    assert [0] * 4 == [each.returncode for each in done], done
    assert [16, 6, 0.5, 0.5] == [outcome(tmp_path, number).result() for number in range(4)]
    assert wire.has_value(tmp_path / f"0{inside.RESULT}")
    assert ["called.square", "called.divide"] == [calls[0].name, calls[2].name]


def test_several_calls_of_one_member_return_a_list(tmp_path: Path) -> None:
    """A chunk of a map is one pickle, whose value has the value of each call."""
    pickled = wire.pickled(Call(called.square), [(1,), (2,)])
    (tmp_path / inside.CALLS).write_bytes(wire.packed([pickled], sys.path))

    assert 0 == run(tmp_path).returncode
    assert [1, 4] == outcome(tmp_path).result()


def test_an_exception_comes_back_with_its_traceback(tmp_path: Path) -> None:
    """The exception is raised again, its cause shows the frames of the user's code, and the job fails."""
    write(tmp_path, Call(called.divide, (1, 0)))
    done = run(tmp_path)

    assert 1 == done.returncode
    assert "ZeroDivisionError" in done.stderr
    error = outcome(tmp_path).exception()
    assert isinstance(error, ZeroDivisionError)
    assert isinstance(error.__cause__, InsideJob)
    assert "called.py" in str(error.__cause__)
    assert inside.__file__ not in str(error.__cause__)
    assert not wire.has_value(tmp_path / f"0{inside.RESULT}")


def test_what_cannot_be_pickled_is_said(tmp_path: Path) -> None:
    """A result and an exception that cannot be pickled come back as errors that say so, with the traceback."""
    write(tmp_path, Call(called.unpicklable, (), {"raises": False}), Call(called.unpicklable, (), {"raises": True}))
    assert [1, 1] == [run(tmp_path, number).returncode for number in range(2)]

    assert "cannot pickle 'generator' object" in str(outcome(tmp_path, 0).exception())
    error = outcome(tmp_path, 1).exception()
    assert isinstance(error, NoResult)
    assert "job 17 has no result: called.Unpicklable: 1 and 2" == str(error)
    assert "raise Unpicklable(1, 2)" in str(error.__cause__)

    with pytest.raises(
        BadRequest, match=r"the call of called\.square cannot be sent to a job, since it cannot be pick"
    ):
        wire.pickled(Call(called.square, ((each for each in ()),)))


def test_an_earlier_result_is_not_taken_for_that_of_this_run(tmp_path: Path) -> None:
    """A job that runs again and crashes leaves no result, although its first run has left one."""
    write(tmp_path, Call(called.end, (3,)))
    (tmp_path / f"0{inside.RESULT}").write_bytes(b'{"fault": "old"}\n')
    future: Future[Any] = Future()

    assert 3 == run(tmp_path).returncode
    assert not wire.settle(future, tmp_path / f"0{inside.RESULT}", "17")


def test_another_python_is_refused(tmp_path: Path) -> None:
    """Code of one version of Python does not run in another one: the job says which there are, and does not try."""
    write(tmp_path, Call(called.square, (4,)))
    head, _, body = (tmp_path / inside.CALLS).read_bytes().partition(b"\n")
    changed = json.dumps({**json.loads(head), "python": "3.2"}).encode()
    (tmp_path / inside.CALLS).write_bytes(b"\n".join((changed, body)))

    fault = f"its Python is {wire.PYTHON}, and the call was made by 3.2"
    assert fault in run(tmp_path).stderr
    with pytest.raises(NoResult, match=fault):
        outcome(tmp_path).result()


def test_a_python_without_cloudpickle_says_so(tmp_path: Path) -> None:
    """A function by value needs cloudpickle where it is loaded; the error names the Python."""
    write(tmp_path, Call(lambda: 1), path=[])
    done = run(tmp_path, 0, "-S", "-E")

    assert (1, f"gpuqueue: its Python, {sys.executable}, has no cloudpickle: install it there\n") == (
        done.returncode,
        done.stderr,
    )
    assert "has no cloudpickle" in str(outcome(tmp_path).exception())


def test_a_call_that_is_gone_is_one_line(tmp_path: Path) -> None:
    """``gpuqueue retry`` of a job whose program has taken the result says what to do."""
    done = run(tmp_path)
    assert 1 == done.returncode
    assert done.stderr.startswith("gpuqueue: the call is gone (")


def test_the_modules_of_the_caller_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on this machine has all entries. One elsewhere has those below the directory that travels, from there."""
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "src"), "/opt/other", sys.prefix])

    here = wire.module_path(str(tmp_path), travels=False, is_far=False)
    assert [str(tmp_path), str(tmp_path / "src"), "/opt/other", sys.prefix] == here
    assert [".", "src"] == wire.module_path(str(tmp_path), travels=True, is_far=True)
    assert [".", "src", "/opt/other", sys.prefix] == wire.module_path(str(tmp_path), travels=True, is_far=False)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cloudpickle the error has the command that installs it."""
    monkeypatch.setattr(wire, "find_spec", lambda _: None)
    with pytest.raises(GpuQueueError, match=r"pip install 'gpuqueue-server\[python\]'"):
        wire.check_installed()


# ---- The decorator, without a queue ----------------------------------------------------------------------------------


def test_a_task_is_still_its_function() -> None:
    """A call runs here, and the name and the text of the function are there."""
    assert (12, "triple", "Return three times the number.") == (
        called.triple(4),
        called.triple.__name__,
        called.triple.__doc__,
    )
    bare = gpuqueue.task(called.square)
    assert 16 == bare(4)


def test_a_task_travels_by_its_name() -> None:
    """A job imports the module of a task, as that of a function. What no module has travels by value."""
    assert called.triple is pickle.loads(pickle.dumps(called.triple))  # noqa: S301 - our own
    assert len(pickle.dumps(called.triple)) < 100
    local = gpuqueue.task(mem="1G")(lambda number: number + 1)
    assert 5 == pickle.loads(cloudpickle.dumps(local))(4)  # noqa: S301 - as above


@pytest.mark.parametrize("name", ["memory", "array", "dedupe", "args"])
def test_a_wrong_option_is_named_at_once(name: str) -> None:
    """An option that no submit has, or that the executor decides, is refused where it is written."""
    with pytest.raises(BadRequest, match=f"^{name} is no option of an executor: there are "):
        gpuqueue.task(**{name: "1G"})(called.square)


# ---- What people see of a call: the arguments and the sweep of its job -----------------------------------------------


def submission(calls: int) -> Submission:
    """Return a submission of so many calls of one function."""
    names = tuple(map(str, range(calls)))
    return Submission(Path("calls"), About(names=names, functions=("train.main",) * calls, travels=False))


def test_the_values_of_calls_are_a_sweep_and_arguments() -> None:
    """So the history sorts by them, and the command of a member shows its own. The limits are those of the array."""
    values = [{"lr": "0.1", "x": "{a}"}, {"lr": "0.2", "x": "b"}]

    request = _request(submission(2), values, {"at_once": 1}, None, is_far=False)

    assert ["train.main", "lr={lr}", "x={x}"] == request.args
    assert isinstance(request.array, Array)
    assert (1, 0, None) == (request.array.at_once, request.array.max_failures, request.at_once)
    assert [{"index": str(at), **each} for at, each in enumerate(values)] == [request.array.values(at) for at in (0, 1)]


def test_the_values_of_a_single_call_are_arguments() -> None:
    """It is no array, so that nothing is replaced in them."""
    request = _request(submission(1), [{"x": "{a}"}], {}, None, is_far=False)

    assert (["train.main", "x={a}"], None) == (request.args, request.array)


def test_calls_without_values_are_an_array_by_index() -> None:
    """Its limits are checked as those of any submit."""
    request = _request(submission(2), [{}, {}], {"at_once": 3}, None, is_far=False)

    assert (["train.main"], "0-1", 3) == (request.args, request.array, request.at_once)
    with pytest.raises(BadRequest, match="at_once must be a whole number"):
        _request(submission(2), [{"a": "1"}, {"a": "2"}], {"at_once": "many"}, None, is_far=False)


# ---- The files of submissions, and what a program that starts again finds in them ------------------------------------


def about(*names: str, function: str = "train.train") -> About:
    """Return what a submission of these calls is."""
    return About(names=names, functions=(function,) * len(names), travels=False)


def submitted(submissions: Submissions, job: int, *names: str) -> Submission:
    """Return a submission that was submitted as *job*."""
    made = submissions.new(about(*names))
    made.write(b"calls")
    return made.with_job(job)


def test_the_newest_job_counts_unless_a_value_is_there(tmp_path: Path) -> None:
    """Calls 0 and 1 were submitted again: of 0 the new job counts, of 1 the value that the first job has left."""
    submissions = Submissions(tmp_path, "sweep")
    first = submitted(submissions, 5, "0", "1", "2")
    first.result(1).write_bytes(b'{"ok": true}\n')
    first.result(0).write_bytes(b'{"fault": "ValueError"}\n')
    again = submitted(submissions, 9, "0", "1")

    kept = KeptCalls([*Submissions(tmp_path, "sweep").known()])
    assert (again, 0) == kept.find("0", "train.train")
    assert (first, 1) == kept.find("1", "train.train")
    assert (first, 2) == kept.find("2", "train.train")
    assert kept.find("3", "train.train") is None
    assert ["5_0", "9_1"] == [first.about.label(0), again.about.label(1)]
    with pytest.raises(BadRequest, match=r"call 2 of key sweep was one of train.train, and now is one of train.other"):
        kept.find("2", "train.other")


def test_the_same_calls_have_the_same_directory(tmp_path: Path) -> None:
    """So a program that was killed while it submitted finds the job by the dedupe key. Old results are removed."""
    first = submitted(Submissions(tmp_path, "sweep"), 5, "0", "1")
    first.result(1).write_bytes(b'{"fault": "ValueError"}\n')
    again = Submissions(tmp_path, "sweep").new(about("0", "1"))
    other = Submissions(tmp_path, "sweep").new(about("0"))
    again.write(b"calls")

    assert first.folder == again.folder != other.folder
    assert first.dedupe == again.dedupe == f"sweep.{first.folder.name}"
    assert not first.result(1).exists()
    assert [again] == [*Submissions(tmp_path, "sweep").known()]


def test_a_directory_without_a_key_is_its_own_and_private(tmp_path: Path) -> None:
    """Two programs share no directory, and nobody else can read a pickle or write one."""
    submissions = Submissions(tmp_path / "calls", None)
    one, two = submissions.new(about("0")), submissions.new(about("0"))

    assert one.folder != two.folder
    assert [0o700, 0o700] == [each.stat().st_mode & 0o777 for each in (tmp_path / "calls", one.folder)]
    assert [] == [*submissions.known()]
    one.remove()
    assert [two.folder] == [*(tmp_path / "calls").iterdir()]


def test_what_no_program_waited_for_is_removed_at_last(tmp_path: Path) -> None:
    """A directory without a key is removed after 90 days by the next program. Those of keys stay."""
    old, young = (Submissions(tmp_path, None).new(about("0")).folder for _ in range(2))
    kept = submitted(Submissions(tmp_path, "sweep"), 5, "0").folder
    for folder in (old, kept):
        os.utime(folder, (0, 0))

    Submissions(tmp_path, "other")
    assert [False, True, True] == [each.exists() for each in (old, young, kept)]
