"""The links to the log of a run, as the job's first process makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.shim.output_link import link, make_links

RUN = "/runs/23/1.a4"
ENV = {"GPUQUEUE_JOB_ID": "23", "GPUQUEUE_RUN_DIR": RUN}


def test_links_are_made_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each log has its link; None makes none."""
    monkeypatch.chdir(tmp_path)
    make_links({"log": "out-%j.txt", "stderr": None}, ENV)
    make_links({"log": None, "stderr": "err.txt"}, ENV)

    links = {each.name: str(each.readlink()) for each in tmp_path.iterdir()}
    assert {"out-23.txt": f"{RUN}/log", "err.txt": f"{RUN}/stderr"} == links


def test_a_link_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    """A retry leads to its own log, also when the log of the earlier run is gone."""
    file = tmp_path / "out.txt"
    link(str(file), "/runs/17/1.b5/stderr")
    link(str(file), f"{RUN}/log")

    assert (f"{RUN}/log", [file]) == (str(file.readlink()), list(tmp_path.iterdir()))


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_nothing_else_is_replaced(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file, a directory or a link of the person's own stays, the job starts, and its output says so."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "out.txt"
    (tmp_path / "data").write_text("mine")
    {"file": lambda: file.write_text("mine"), "directory": file.mkdir, "link": lambda: file.symlink_to("data")}[kind]()
    before = file.is_symlink(), file.is_dir()

    make_links({"log": "out.txt"}, ENV)

    assert before == (file.is_symlink(), file.is_dir())
    assert "gpuqueue: out.txt is no link to this output: File exists\n" == capfd.readouterr().err
    assert "mine" == (tmp_path / "data").read_text()


def test_a_missing_directory_stops_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The output says which link is missing and why."""
    monkeypatch.chdir(tmp_path)
    make_links({"log": "logs/%j.txt"}, ENV)

    assert "gpuqueue: logs/23.txt is no link to this output: No such file or directory\n" == capfd.readouterr().err
