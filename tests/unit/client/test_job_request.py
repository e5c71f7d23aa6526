"""Tests that hold everything that lists the values of a request to `JobRequest`."""

from __future__ import annotations

import inspect
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import click
import pytest

from gpuqueue.cli.commands.edit import edit
from gpuqueue.cli.commands.retry import SELECTION, retry
from gpuqueue.cli.commands.run import run
from gpuqueue.cli.commands.submit import submit
from gpuqueue.cli.options.job_request import GROUPS
from gpuqueue.client.jobs import Jobs
from gpuqueue.client.submit import spec_of
from gpuqueue.codec.request import decode_spec, encode_spec
from gpuqueue.errors import BadRequest
from gpuqueue.history.columns import spec_columns
from gpuqueue.model.job_request import JobEdit, JobRequest
from gpuqueue.model.job_spec import Account, Checkout, JobSpec
from gpuqueue.model.terminal_size import Window
from gpuqueue.settings.settings import Settings

REQUEST = [each.name for each in fields(JobRequest)]
EDIT = [each.name for each in fields(JobEdit)]
#: For each field of a request, a value that no default gives. Those in NEEDS need others beside them.
SAMPLES: dict[str, Any] = {
    "command": ["sleep", "1"],
    "args": ["--lr", "1"],
    "mem": "2G",
    "gpus": 2,
    "on": "slurm",
    "nodes": 2,
    "device": "cpu",
    "device_type": "A100",
    "exclusive": True,
    "preference": "pack",
    "time_limit": "1h",
    "signal": "USR1@120",
    "name": "other",
    "env": ["LR=1"],
    "cwd": "/tmp",
    "priority": "high",
    "pool": "big",
    "requeue": False,
    "cap": False,
    "pty": Window(columns=80, rows=24),
    "warm": True,
    "python": "/bin/sh",
    "environment": "torch-2.6",
    "after": "12:any",
    "begin": "2030-01-01",
    "hold": True,
    "dedupe": "key",
    "retries": 3,
    "retry_on": "lost",
    "mem_retries": 5,
    "on_end": "team",
    "on_fail": "team",
    "array": "0-3",
    "sweep": ["lr=1,2"],
    "each_line": "lines.txt",
    "at_once": 2,
    "max_failures": 3,
    "tags": ["baseline"],
    "git": True,
    "separate_stderr": True,
    "output": "out-%j.txt",
    "error": "err-%j.txt",
    "snapshot": True,
    "snapshot_allow": [".env"],
    "keep": ["results/**"],
    "probe": "flat=60,steps=200",
    "cpus": 0.5,
    "cpu_mem": "32G",
    "visible": "index",
    "stop_on_nan": True,
    "stop_when_stalled": "30m",
    "container": "torch:2.6",
    "bind": ["/data"],
    "given_in": {"mem": "train.py line 2"},
    "anyway": True,
}
NEEDS: dict[str, dict[str, Any]] = {
    "args": {"command": "train.py"},
    "python": {"command": "train.py"},
    "nodes": {"on": "slurm", "gpus": 2},
    "signal": {"time_limit": "2h"},
    "retry_on": {"retries": 3},
    "at_once": {"array": "0-3"},
    "max_failures": {"array": "0-3"},
    "sweep": {"command": ["true", "{lr}"]},
    "each_line": {"command": ["true", "{line}"]},
    "keep": {"snapshot": True},
    "probe": {"time_limit": "2h"},
    "bind": {"container": "torch:2.6"},
}
#: Fields that permit something, and so change no spec.
PERMITS = {"snapshot_allow", "anyway"}
#: The fields of a spec that come from the submitting process, from a retry, from the history, from the service or from
#: a later version.
NOT_REQUESTED = {
    *("account", "umask", "retry_of", "script", "mem_source", "ticket"),
    *("expected_utilisation", "expected_duration_s"),
    "extended_s",  # only an edit extends a run
}
CHECKOUT = Checkout(commit="a" * 40, branch="main", dirty=False)
#: Columns of a job with another name than their field of the spec.
COLUMNS = {
    **dict.fromkeys(("user_name", "user_uid", "submit_host"), "account"),
    "command": "argv",
    "spec": "",
}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Return a connection without a store, in a git checkout with a script."""
    (tmp_path / "train.py").touch()
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpuqueue.client.submit.CheckoutReader", lambda _: SimpleNamespace(seen=lambda: CHECKOUT))
    environ = {"CONFIG": "/dev/null", "STATE_DIR": str(tmp_path), "NOTIFY": "team=json://x", "GIT": "false"}
    return SimpleNamespace(
        settings=Settings.load({f"GPUQUEUE_{name}": value for name, value in environ.items()}),
        past_runs=SimpleNamespace(of=lambda *_, **__: ()),
        queue=SimpleNamespace(senders=SimpleNamespace(all=list), devices=SimpleNamespace(all=list)),
        account=Account(name="ada", uid=1, host="nodeA"),
    )


def spec(site: Any, **asked: Any) -> JobSpec:
    """Return the spec of a request with these values."""
    mem = {} if "on" in asked else {"mem": "1G"}  # an engine is not asked for memory
    return spec_of(site, JobRequest(**{"command": ["true"], **mem, **asked}))


def changed(site: Any, name: str) -> set[str]:
    """Return the fields of the spec that differ with a value for *name*."""
    needs = NEEDS.get(name, {})
    before, after = spec(site, **needs), spec(site, **{**needs, name: SAMPLES[name]})
    assert after == decode_spec(encode_spec(after)), name
    found = {each.name for each in fields(JobSpec) if getattr(before, each.name) != getattr(after, each.name)}
    for column in spec_columns(after, ""):
        assert COLUMNS.get(column, column) in {"", *(each.name for each in fields(JobSpec))}, column
    differ = {key for key, value in spec_columns(after, "").items() if value != spec_columns(before, "")[key]}
    assert {COLUMNS.get(column, column) for column in differ} <= found
    return found


def test_the_methods_take_the_fields_of_a_request() -> None:
    """`submit` and `edit` show all their arguments to `help` and to editors. All of an edit can be requested too."""
    assert ["self", *REQUEST] == [*inspect.signature(Jobs.submit).parameters]
    assert ["self", "job", *EDIT] == [*inspect.signature(Jobs.edit).parameters]
    assert {*EDIT} <= {*REQUEST}
    assert {*inspect.signature(Jobs.retry).parameters} - {"self", "job", "found", "warn", "changes"} <= {*REQUEST}


def test_each_field_is_explained() -> None:
    """The docstring explains each field, in the order of the fields."""
    lines = inspect.getdoc(JobRequest) or ""
    assert REQUEST == [
        line.split(":")[0].strip() for line in lines.splitlines() if line[:4] == " " * 4 and line[4] != " "
    ]


def test_the_options_are_the_fields_of_a_request() -> None:
    """Each field has an option with its name. Some fields have an option for each of their values."""
    words = {"command", "args", "probe", "given_in"}  # `gpuqueue probe` decides its own, and files the last
    asked = {each.name for each in submit.params}
    extra = {"script", "spread", "pack", "least_busy", "no_snapshot", "dry_run"}
    assert {*REQUEST} - words - {"preference"} == asked - extra
    assert asked - {"at_once", "dry_run"} == {each.name for each in run.params}
    shown = {each.name for each in submit.params if isinstance(each, click.Option)} - {"anyway", "dry_run"}
    assert sorted(shown) == sorted(name for names in GROUPS.values() for name in names)
    flags = {"spread", "pack", "least_busy", "none", "alone", "shared", "job_id"}
    assert {*EDIT} - {"preference", "exclusive"} == {each.name for each in edit.params} - flags
    assert {each.name for each in retry.params} - {"name", *SELECTION} <= {*REQUEST}


def test_each_field_reaches_the_spec(site: Any) -> None:
    """Each field of a request changes the spec. Each field of the spec is requested or known."""
    assert [*SAMPLES] == REQUEST
    found = {name: changed(site, name) for name in REQUEST}
    assert [] == [name for name, differ in found.items() if not differ and name not in PERMITS]

    seen = set().union(*found.values())
    assert {each.name for each in fields(JobSpec)} - NOT_REQUESTED == seen - NOT_REQUESTED


def refused(site: Any, **fields: Any) -> str:
    """Return why a request with these fields is refused."""
    with pytest.raises(BadRequest) as raised:
        spec_of(site, JobRequest(["true"], mem="1M", git=False, **fields))
    return str(raised.value)


def test_a_link_to_the_output_that_cannot_be_made_is_refused(site: Any, tmp_path: Any) -> None:
    """A file in the way, a missing directory, and code that travels are named at submit; an earlier link is not."""
    (tmp_path / "old.txt").touch()
    (tmp_path / "own.txt").symlink_to("old.txt")
    (tmp_path / "broken.txt").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.txt").symlink_to("/runs/1/1.a/log")
    for name in ("old.txt", "own.txt", "broken.txt", "folder"):
        assert f"{name} exists, and the link to the output replaces no file" in refused(site, output=name)
    assert "mkdir -p" in refused(site, error="logs/%j.txt")
    assert "one file for all members" in refused(site, output="out.txt", array="0-3")
    assert "gpuqueue logs ID > FILE" in refused(site, output="out.txt", snapshot=True)
    request = JobRequest(["true"], mem="1M", git=False, output="link.txt", error="link.txt")
    spec = spec_of(site, request)
    assert ("link.txt", None, False) == (spec.output, spec.error, spec.separate_stderr)
