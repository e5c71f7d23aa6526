"""``gpuqueue notebook``: Jupyter as a job. With a real JupyterLab where one is installed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest
from bounded import until
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.model.job import JobState

#: A Python with JupyterLab: the tests of this tool do not need one.
JUPYTER = os.environ.get("JUPYTER_PYTHON", "")
NOTEBOOK = [str(BIN / "gpuqueue"), "notebook", "--mem", "1M"]
#: A Python package that calls itself JupyterLab.
PRETENDER = """
import os, sys, time
from pathlib import Path
place = Path(os.environ["JUPYTER_RUNTIME_DIR"])
assert "JUPYTER_TOKEN" not in os.environ
port = next(word.partition("=")[2] for word in sys.argv if word.startswith("--ServerApp.port="))
token = Path(os.environ["JUPYTER_TOKEN_FILE"]).read_text()
Path("seen").write_text("\\n".join([token, oct(place.stat().st_mode), *sys.argv]))
if Path("broken").exists():
    sys.exit("cannot bind")
print(f"[I ServerApp] http://127.0.0.1:{port}/lab?token=...", flush=True)
Path("place").symlink_to(place)
while not Path("go").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def pretended(site: Site, tmp_path: Path) -> Site:
    """Return a site with the environment of a user whose Python has the pretender, in whose directory jobs run."""
    for name in ("jupyter_server", "jupyterlab"):
        (tmp_path / "lib" / name).mkdir(parents=True)
        (tmp_path / "lib" / name / "__init__.py").touch()
    (tmp_path / "lib" / "jupyterlab" / "__main__.py").write_text(PRETENDER)
    site.environ["PYTHONPATH"] = str(tmp_path / "lib")
    site.start_recorder()
    site.start_worker()
    return site


def address_of(printed: str) -> tuple[str, str]:
    """Return the port and the token in the address that was printed."""
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/lab\?token=([0-9a-f]{48})\n", printed)
    assert found is not None, printed
    return found[1], found[2]


def command_lines() -> Iterator[bytes]:
    """Yield the command line of each process of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            yield path.read_bytes()


def test_a_python_without_jupyter_is_named_before_anything_waits(site: Site) -> None:
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    done = site.cli("notebook", "--mem", "1M", "--python", python, check=False)

    words = f"gpuqueue: no Jupyter here: {python} -m pip install jupyterlab, or name another Python with --python\n"
    assert (2, words) == (done.returncode, done.stderr)
    missing = site.cli("notebook", "--mem", "1M", "--python", "/no/python", check=False)
    assert (2, "gpuqueue: cannot start /no/python: No such file or directory\n") == (missing.returncode, missing.stderr)
    assert [] == site.client.jobs.list()


def test_it_prints_the_address_and_the_token_is_in_no_command_line_and_no_log(pretended: Site, tmp_path: Path) -> None:
    """The job has the token in a file of its own directory, which goes with it. The history has none after the end."""
    asked = ("--mem", "1M", "--python", sys.executable, "--cwd", str(tmp_path), "--idle", "30m")
    done = pretended.cli("notebook", *asked, "--", "--extra")

    port, token = address_of(done.stdout)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert [token, "0o40700"] == seen[:2]
    assert f"--ServerApp.port={port}" in seen
    assert {"--ServerApp.ip=127.0.0.1", "--ServerApp.shutdown_no_activity_timeout=1800", "--extra"} <= {*seen}
    host = pretended.settings.host
    assert f"ready on {host}: it ends when nobody has used it for 30:00, or with gpuqueue cancel 1\n" in done.stderr
    assert f"ssh -N -L {port}:127.0.0.1:{port} {host}\n" in done.stderr
    assert not any(token.encode() in words for words in command_lines())
    assert token not in pretended.cli("logs", "1").stdout + pretended.cli("show", "1", "--json").stdout
    place = (tmp_path / "place").readlink()
    (tmp_path / "go").touch()
    record = pretended.until_recorded(1)
    assert (JobState.SUCCEEDED, "notebook", False) == (
        *(record.job.state, record.job.spec.name),
        record.job.spec.requeue,
    )
    assert not place.exists()
    assert token not in pretended.cli("show", "1", "--json").stdout


def test_what_ends_at_its_start_shows_why(pretended: Site, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    done = pretended.cli("notebook", "--mem", "1M", "--python", sys.executable, "--cwd", str(tmp_path), check=False)

    assert (1, "") == (done.returncode, done.stdout)
    assert "  cannot bind\ngpuqueue: job 1 failed (exit 1)\n" in done.stderr


def test_what_no_host_can_start_is_cancelled(pretended: Site, tmp_path: Path) -> None:
    """The Python was there when it was submitted."""
    (tmp_path / "python").symlink_to(sys.executable)
    pretended.client.devices.drain("0", reason="full")
    asked = [*NOTEBOOK, "--python", str(tmp_path / "python")]
    with Terminal(asked, pretended.environ, columns=140) as terminal:
        terminal.shows("job 1 queued")
        (tmp_path / "python").unlink()
        pretended.client.devices.resume(all_here=True)
        terminal.shows("cannot start")
        assert 5 == terminal.ended()
    assert JobState.CANCELLED is pretended.client.jobs.get(1).state


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_what_waits_is_cancelled_with_its_command(pretended: Site, number: signal.Signals, code: int) -> None:
    """Nobody else knows its token."""
    pretended.client.devices.drain("0", reason="full")
    with Terminal([*NOTEBOOK, "--python", sys.executable], pretended.environ, columns=120) as terminal:
        terminal.shows("job 1 queued, for at most 8h")
        terminal.shows("job 1 waits")
        terminal.process.send_signal(number)
        assert code == terminal.ended()
        terminal.shows("job 1 cancelled")
    assert JobState.CANCELLED is pretended.client.jobs.get(1).state


@pytest.mark.full
@pytest.mark.skipif(not JUPYTER, reason="JUPYTER_PYTHON names no Python with JupyterLab")
def test_a_real_jupyterlab_answers_only_with_the_token_and_ends_when_nobody_uses_it(site: Site, tmp_path: Path) -> None:
    site.start_recorder()
    site.start_worker()
    asked = ("--mem", "1M", "--python", JUPYTER, "--cwd", str(tmp_path), "--idle", "1s")
    port, token = address_of(site.cli("notebook", *asked).stdout)

    def ask(path: str, authorization: str, data: bytes | None = None) -> object:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{path}", data)
        request.add_header("Authorization", f"token {authorization}")
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
            return json.load(answer)

    with pytest.raises(HTTPError, match="403"):
        ask("kernels", "0" * 48)
    kernel = ask("kernels", token, b"{}")
    assert isinstance(kernel, dict)
    assert kernel["id"] == ask("kernels", token)[0]["id"]  # type: ignore[index]
    assert token not in site.cli("logs", "1").stdout
    assert "Culling kernels with idle durations > 1 seconds" in site.cli("logs", "1").stdout

    ended = until(lambda: site.client.jobs.get(1).state.is_end, timeout_s=240, what="the end without a user")
    assert ended
    assert JobState.SUCCEEDED is site.until_recorded(1).job.state
