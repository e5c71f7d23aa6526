"""Tests that the output files of an earlier run survive a failure in the current run."""

from __future__ import annotations

import json
import os
import signal
import stat
import tempfile
import threading
from pathlib import Path

import pytest
from benchmark_report import PAGE, make_report

from benchmarks import __main__ as whole
from benchmarks.catalogue import BENCHMARKS
from benchmarks.measure import whole_file
from benchmarks.measure.figure import Absent, Figure, Measured
from benchmarks.measure.whole_file import check_writable, put_whole
from benchmarks.page import write as page_write

#: A figure of the earlier run.
EARLIER = Figure(name="a", value=20.0, unit="ms")


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the report file of an earlier run, and restore `threading.excepthook`, which a stopped run replaces."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(whole, "_machine", dict)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "run.json"
    path.write_text(make_report(EARLIER).to_json())
    return path


def test_a_run_that_is_stopped_before_its_first_figure_leaves_the_file_of_an_earlier_one(
    old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is stopped before its first figure leaves the earlier file unchanged.

    Regression: an empty report replaced the file, and the message claimed that it held what was measured.
    """

    def stopped(*, quick: bool) -> Measured:
        yield Absent(name="one", why=f"{quick}")
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(whole, "BENCHMARKS", {"one": stopped})
    before = old.read_bytes()

    with pytest.raises(SystemExit) as ended:
        whole.main(["--json", str(old)])

    assert 130 == ended.value.code
    assert before == old.read_bytes()
    shown_text = capsys.readouterr().err
    assert f"benchmarks: stopped by SIGINT; nothing was measured until then, {old} is as it was\n" == shown_text


def test_a_run_that_could_measure_nothing_is_kept_at_its_end(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete run without figures writes its report, because the report holds the reasons."""

    def absent(*, quick: bool) -> Measured:
        yield Absent(name="one", why=f"{quick}")

    monkeypatch.setattr(whole, "BENCHMARKS", {"one": absent})

    assert 0 == whole.main(["--json", str(old)])
    assert [{"name": "one", "why": "False"}] == json.loads(old.read_text())["absent"]


def test_an_impossible_value_is_left_out_of_the_page_and_reported(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report with a lone surrogate leaves the page unchanged and gives a one-line error.

    Regression: it left an empty page and printed the last line of a traceback.
    """
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    old.write_text(make_report(EARLIER, Absent(name="peers.rq", why="\udc80")).to_json())
    monkeypatch.setattr(whole, "lacking", lambda _report: [])

    assert 1 == whole.main(["--from", str(old), "--write", str(page)])

    reported = f"benchmarks: {page} is not written: the report has characters that are none (surrogates not allowed)\n"
    assert reported == capsys.readouterr().err
    assert PAGE == page.read_text()
    assert {page, old} == set(tmp_path.iterdir())


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write leaves the old page. Regression: a full disk left half a page."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)

    def full(_number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        page_write.write(make_report(EARLIER), page)

    assert PAGE == page.read_text()
    assert [page] == list(tmp_path.iterdir())


def test_what_is_replaced_stays_what_it_was(tmp_path: Path) -> None:
    """Replacing a file keeps its mode and a symbolic link to it. A pipe or a device is not replaced by a file."""
    page, link = tmp_path / "page.md", tmp_path / "link.md"
    page.write_text("old")
    page.chmod(0o640)
    link.symlink_to(page)

    put_whole(link, "new")
    put_whole(tmp_path / "made", "made")
    put_whole(Path(os.devnull), "gone")

    assert ("new", 0o640, True) == (page.read_text(), stat.S_IMODE(page.stat().st_mode), link.is_symlink())
    umask = os.umask(0o022)
    os.umask(umask)
    assert 0o666 & ~umask == stat.S_IMODE((tmp_path / "made").stat().st_mode)
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("option", ["--json", "--write"])
def test_a_name_that_no_file_can_have_is_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overlong name and a symbolic link loop are usage errors. Regression: each of them gave a traceback."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    for name in ("x" * 300, "a", "a/run.json"):
        with pytest.raises(SystemExit) as ended:
            whole.main([option, name])
        assert 2 == ended.value.code
        assert f"error: {option}: " in capsys.readouterr().err.splitlines()[-1]
    assert {"a", "b"} == {each.name for each in tmp_path.iterdir()}


@pytest.mark.parametrize("place", ["/dev/full", "/sys/x.json"])
def test_an_unwritable_report_path_is_refused_at_once(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unwritable report path is refused before the first measurement.

    Regression: the error came after the first part, and the results were lost.
    """
    if not Path(place).parent.is_dir():
        pytest.skip(f"no {Path(place).parent} here")
    monkeypatch.setattr(whole, "BENCHMARKS", dict.fromkeys(BENCHMARKS))

    with pytest.raises(SystemExit) as ended:
        whole.main(["--json", place])

    assert 2 == ended.value.code
    assert f"error: --json: {place} cannot be written: " in capsys.readouterr().err


def test_a_reader_writes_nothing(tmp_path: Path) -> None:
    """`check_writable` creates no file, writes nothing to an existing file, and does not wait for a pipe."""
    there, pipe = tmp_path / "there", tmp_path / "pipe"
    there.write_text("old")
    os.mkfifo(pipe)

    for each in (there, tmp_path / "new", pipe):
        check_writable(each)

    assert {there, pipe} == set(tmp_path.iterdir())
    assert "old" == there.read_text()
