"""Tests of the options that a script's ``#GPUQ`` lines and files named ``gpuqueue.toml`` give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.cli.commands.run import run
from gpuqueue.cli.commands.submit import submit
from gpuqueue.cli.options import in_files
from gpuqueue.errors import BadRequest


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Go into a project, with a user's and a site's directory beside it; return the directory of all three."""
    for name in ("project/code", "user", "site"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("GPUQUEUE_CONFIG", str(tmp_path / "user" / "config.toml"))
    monkeypatch.setattr(in_files, "SITE", str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path / "project" / "code")
    return tmp_path


def given(*words: str, script: str = "", command: Any = submit) -> dict[str, Any]:
    """Return the options of a command line whose script has this text."""
    Path("train.py").write_text(script)
    return dict(command.make_context("submit", ["train.py", *words]).params)


def write(place: Path, text: str) -> None:
    (place / "gpuqueue.toml").write_text(text)


def test_lines_of_a_script_give_what_is_not_typed() -> None:
    options = given("--mem", "3G", script="#!/usr/bin/python\n# What it needs:\n#GPUQ --mem 2G -t 2h --exclusive\n")

    assert (options["mem"], options["time_limit"], options["exclusive"]) == ("3G", "2h", True)
    assert options["given_in"] == {"time": "train.py line 3", "exclusive": "train.py line 3"}


def test_the_second_of_two_lines_counts_and_env_and_tag_add_up() -> None:
    options = given("--env", "A=3", script="#GPUQ --mem 1G --env A=1 --tag x\n#GPUQ --mem 2G --env B=2 --tag y\n")

    assert (options["mem"], options["env"], options["tags"]) == ("2G", ("A=1", "B=2", "A=3"), ("x", "y"))


def test_only_lines_above_the_first_command_count(capsys: pytest.CaptureFixture[str]) -> None:
    options = given(script="##GPUQ --mem 1G\n# GPUQ --mem 1G\n#GPUQUEUE --mem 1G\n\nimport sys\n#GPUQ --mem 1G\n")

    assert (options["mem"], "given_in" in options) == (None, False)
    assert "train.py line 6: #GPUQ lines count only above the first command" in capsys.readouterr().err


def test_the_script_comes_before_the_project_the_user_and_the_site(site: Path) -> None:
    write(site / "site", '[submit]\nmem = "1G"\ntime = "1h"\npool = "a"\npriority = "low"\n')
    write(site / "user", '[submit]\nmem = "2G"\ntime = "2h"\npool = "b"\n')
    write(site / "project", '[submit]\nmem = "3G"\ntime = "3h"\n')

    options = given(script="#GPUQ --mem 4G\n")

    assert [options[name] for name in ("mem", "time_limit", "pool", "priority")] == ["4G", "3h", "b", "low"]
    assert options["given_in"] == {
        "mem": "train.py line 1",
        "time": f"{site}/project/gpuqueue.toml",
        "pool": f"{site}/user/gpuqueue.toml",
        "priority": f"{site}/site/gpuqueue.toml",
    }


def test_the_nearest_file_of_a_project_is_read_alone(site: Path) -> None:
    write(site / "project", "[submit]\ngpus = 2\n")
    write(site / "project" / "code", '[submit]\nmem = "1G"\n')

    options = given()

    assert (options["mem"], options["gpus"]) == ("1G", 1)


def test_patterns_are_of_a_path_below_the_file_of_a_name_and_of_a_job(site: Path) -> None:
    write(
        site / "project",
        '[submit]\nmem = "1G"\n[scripts."code/*.py"]\nmem = "2G"\ntime = "2h"\n[scripts."*.sh"]\nmem = "9G"\n'
        '[scripts."train.py"]\npool = "big"\n[names."bert-*"]\nmem = "3G"\n',
    )

    assert [given()[name] for name in ("mem", "time_limit", "pool")] == ["2G", "2h", "big"]
    assert given("--name", "bert-1")["mem"] == "3G"
    assert given(script="#GPUQ --name bert-2\n")["mem"] == "3G"


def test_a_nearer_file_can_turn_a_flag_off(site: Path) -> None:
    write(site / "site", "[submit]\nexclusive = true\nspread = true\n")
    write(site / "project", "[submit]\nexclusive = false\n")

    options = given("--pack")

    assert (options["exclusive"], options["preference"]) == (False, "pack")


def test_lists_and_tables_give_an_option_many_times(site: Path) -> None:
    write(site / "project", '[submit]\ntag = ["a", "b"]\nenv = {A = 1, B = "x y"}\nretries = 3\n')

    options = given()

    assert (options["tags"], options["env"], options["retries"]) == (("a", "b"), ("A=1", "B=x y"), 3)


@pytest.mark.parametrize(
    ("script", "table", "words"),
    [
        ("\n#GPUQ --memory 2G\n", "", "train.py line 2: No such option '--memory'"),
        ("#GPUQ --job-name x\n", "", "Did you mean '--name'?"),
        ("#GPUQ --gpus x\n", "", "train.py line 1: Invalid value for '-g' / '--gpus': 'x' is not a valid integer"),
        ("#GPUQ --mem\n", "", "train.py line 1: Option '--mem' requires an argument"),
        ("#GPUQ --mem 2G train\n", "", "train.py line 1: 'train' is no option"),
        ("#GPUQ --help\n", "", "train.py line 1: --help can only be typed"),
        ("#GPUQ --dry-run\n", "", "train.py line 1: --dry-run can only be typed"),
        ("#GPUQ --name 'x\n", "", "train.py line 1: no closing quotation"),
        ("#GPUQ --spread --pack\n", "", "train.py line 1: --spread and --pack contradict each other"),
        ("", "[sumbit]\n", "gpuqueue.toml: 'sumbit' is none of its tables"),
        ("", "mem = 1\n", "gpuqueue.toml: 'mem' is none of its tables"),
        ("", "[submit]\nmem = 1979-05-27\n", "gpuqueue.toml: 'mem' must be a text, a number"),
        ("", "[submit]\nexclusive = 3\n", "does not take a value"),
        ("", "[scripts]\nmem = '1G'\n", "[scripts] has patterns with a table each"),
        ("", "[submit\n", "gpuqueue.toml is not TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(site: Path, script: str, table: str, words: str) -> None:
    write(site / "project", table)

    with pytest.raises(BadRequest) as caught:
        given(script=script)

    assert words in str(caught.value)


def test_run_reads_them_as_well_and_takes_no_array() -> None:
    assert given(script="#GPUQ --mem 2G\n", command=run)["mem"] == "2G"
    with pytest.raises(BadRequest, match=r"train\.py line 1: --array makes many jobs, and run attends one"):
        given(script="#GPUQ --array 0-3\n", command=run)


def test_the_help_reads_no_file(site: Path) -> None:
    write(site / "project", "[submit\n")

    with pytest.raises(SystemExit) as ended:
        submit.main(["--help"], standalone_mode=True)

    assert ended.value.code == 0


def test_a_file_of_another_account_is_not_read(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It could give ``--python`` or ``--env LD_PRELOAD``, and run a program of its owner as the caller."""
    write(site / "project", '[submit]\nmem = "1G"\n')
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(in_files, "ROOT", -1)
    assert given()["mem"] == "1G"  # it belongs to the owner of the script, which runs as the caller anyway

    (site / "project" / "gpuqueue.toml").chmod(0o666)
    assert given()["mem"] is None
    assert "is not read: everybody can write it" in capsys.readouterr().err


def test_a_file_that_belongs_to_nobody_known_is_not_read(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(site / "project", '[submit]\nmem = "1G"\n')
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(in_files, "ROOT", -1)

    options = dict(submit.make_context("submit", ["missing.py"]).params)

    assert (options["mem"], "it belongs to neither you nor" in capsys.readouterr().err) == (None, True)
