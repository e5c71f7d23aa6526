"""The files of submissions, and what a program that starts again finds in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.executor.submissions import About, KeptCalls, Submission, Submissions


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
