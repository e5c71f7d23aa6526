from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from factories import make_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from one_shim import Shim
from short_host import own_disk
from site_of_one import Site

from gpuqueue.system.logs import LogTail, last_bytes
from gpuqueue.text.units import MIB
from workers.run.verdict import tail
from workers.shim.log import LogLimit

LIMIT = 4 * MIB
MARKER = "are missing here: the log exceeded its limit of 4194304 bytes"

#: Writes 210 MB of numbered lines in five rounds, each of which waits for a file, and then a last line.
RUNAWAY = """
import os, pathlib, sys, time
said = pathlib.Path(sys.argv[1])
number = 0
for round in range(5):
    while not (said / str(round)).exists():
        time.sleep(0.01)
    for _ in range(40):
        os.write(1, b"".join(b"line %015d\\n" % n for n in range(number, number + 50_000)))
        number += 50_000
    (said / ("done%d" % round)).touch()
while not (said / "end").exists():
    time.sleep(0.01)
print("the last line")
"""


def on_disk(log: Path) -> int:
    """Return the bytes that a log occupies on the disk."""
    return log.stat().st_blocks * 512 if log.exists() else 0


def is_cut(log: Path) -> bool:
    """Return whether a log is within its limit, and its end is there. Without holes its end is written back last."""
    stat = log.stat()
    return stat.st_blocks * 512 <= LIMIT and stat.st_size > LIMIT // 4


def read(log: Path, reader: LogTail | None = None) -> str:
    """Return what a reader sees, from its last position on."""
    reader = reader or LogTail()
    reader.turn_to(log)
    return b"".join(reader.rest()).decode()


def numbers(text: str) -> list[int]:
    """Return the numbers of the whole lines."""
    return [int(line[5:]) for line in text.splitlines() if line.startswith("line ") and len(line) == 20]


def run_away(shims: Callable[..., Shim], output: Path, **changes: Any) -> tuple[Shim, list[str]]:
    """Let a job write 210 MB with a limit of 4 MiB; return the shim and what a follower saw in each round."""
    output.mkdir()
    shim = shims(sys.executable, "-c", RUNAWAY, str(output), log_limit_bytes=LIMIT, **changes)
    follower, seen = LogTail(), []
    for round_ in range(5):
        (output / str(round_)).touch()
        until(lambda r=round_: (output / f"done{r}").exists(), what="the round")  # type: ignore[misc]
        until(lambda: is_cut(shim.directory.log), what="the log is within its limit while the job runs")
        seen.append(read(shim.directory.log, follower))
    (output / "end").touch()
    assert "exit 0" == str(shim.ended().ending)
    seen.append(read(shim.directory.log, follower))
    return shim, seen


@pytest.mark.full
def test_a_runaway_log_keeps_its_beginning_and_its_end_and_the_disk_its_room(shims: Any, tmp_path: Path) -> None:
    """A log over its limit keeps its beginning and its end, and stays within the limit on the disk.

    The job writes 210 MB with a limit of 4 MiB. No reader ever sees a NUL.
    """
    shim, seen = run_away(shims, tmp_path / "output")
    text = read(shim.directory.log)
    beginning, _, end = text.partition(MARKER)

    assert on_disk(shim.directory.log) <= LIMIT
    assert 210_000_014 == shim.directory.log.stat().st_size, "offsets stay as they are: nothing was moved"
    assert "\0" not in text
    assert text.startswith("line 000000000000000\nline 000000000000001\n")
    assert list(range(len(numbers(beginning)))) == numbers(beginning)
    assert len(beginning) > LIMIT // 4 - 8192
    assert text.endswith("line 000000009999999\nthe last line\n")
    first = numbers(end)[0]
    assert list(range(first, 10_000_000)) == numbers(end)
    assert len(end) >= LIMIT // 2
    assert b"the last line" in tail(shim.directory.log)
    assert "\0" not in "".join(seen)
    assert "bytes were left out before they could be shown" in "".join(seen)
    assert seen[-1].endswith("the last line\n")


@pytest.mark.full
def test_a_file_system_without_holes_is_not_filled_either(shims: Any, tmp_path: Path) -> None:
    """On a file system without holes the log is cut to its beginning and its newest megabyte.

    What the job writes while the log is cut may be lost: whole lines, and nothing comes twice or in another order.
    """
    with own_disk(tmp_path / "disk", "ramfs") as disk:
        shim, seen = run_away(shims, tmp_path / "output", runs=disk / "runs")
        text = read(shim.directory.log)
    beginning, _, end = text.partition(MARKER)

    assert len(text) <= LIMIT
    assert text.startswith("line 000000000000000\n")
    assert list(range(len(numbers(beginning)))) == numbers(beginning)
    assert text.endswith("line 000000009999999\nthe last line\n")
    assert len(end) > MIB - 4096
    assert sorted(set(numbers(end))) == numbers(end)
    assert seen[-1].endswith("the last line\n")


@pytest.mark.full
def test_a_whole_site_keeps_to_the_limit_and_shows_no_nul(site: Site) -> None:
    """The setting reaches the shim, and `logs` and `logs -f` skip the hole."""
    site.environ["GPUQUEUE_LOG_LIMIT"] = "1M"
    site.start_recorder()
    site.start_worker()
    script = "import os\nfor n in range(200_000): os.write(1, b'line %015d\\n' % n)\n"
    job = site.queue.requests.submit(make_spec(argv=(sys.executable, "-c", script), mem_bytes=MIB))
    run = site.until_recorded(job.id).runs[-1]
    assert run.log_path is not None

    assert on_disk(Path(run.log_path)) <= MIB
    for words in (("logs",), ("logs", "-f")):
        text = site.cli(*words, str(job.id)).stdout
        assert "\0" not in text
        assert text.startswith("line 000000000000000\n")
        assert "missing here: the log exceeded its limit of 1048576 bytes" in text
        assert text.endswith("line 000000000199999\n")


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(st.integers(1, 900_000), st.sampled_from(["look", "read", "empty"])), min_size=1, max_size=25
    )
)
def test_whatever_is_written_the_end_is_kept_and_no_nul_is_read(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | str]
) -> None:
    """The end of a log is kept and no NUL is read, for any order of operations.

    These are appends, checks, reads, and a job that empties its own log.
    """
    log = tmp_path_factory.mktemp("log") / "log"
    log.touch()
    limit, follower, written = LogLimit(str(log), MIB), LogTail(), 0
    since_emptied = b""
    for step in steps:
        if step == "look":
            limit.check()
        elif step == "read":
            assert "\0" not in read(log, follower)
        elif step == "empty":
            os.truncate(log, 0)
            since_emptied = b""
        else:
            assert isinstance(step, int)
            words = b"".join(b"%019d\n" % n for n in range(written, written + step // 20 + 1))
            written += step // 20 + 1
            since_emptied += words
            with log.open("ab") as file:
                file.write(words)
    limit.check()
    text = read(log).encode()

    assert b"\0" not in text
    assert on_disk(log) <= MIB + 8192
    assert text.endswith(since_emptied[-MIB // 4 :])
    assert last_bytes(log, 1000) == text[-1000:]


def test_a_log_that_its_job_has_emptied_begins_anew(tmp_path: Path) -> None:
    """The limit of a log that its job has emptied counts from its new beginning.

    In this test the log has grown past the old hole before the next check.
    """
    log = tmp_path / "log"
    log.write_bytes(b"old\n" * MIB)
    limit = LogLimit(str(log), MIB)
    limit.check()
    assert on_disk(log) <= MIB

    log.write_bytes(b"new\n" * MIB)
    assert limit.check() < 1.0, "such a log is looked at again soon"

    assert on_disk(log) <= MIB
    text = read(log)
    assert ("missing here" in text, "old" in text, text.endswith("new\nnew\n")) == (True, False, True)


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    """With GPUQUEUE_LOG_LIMIT=none, the log is never cut."""
    log = tmp_path / "log"
    log.write_bytes(b"x" * 5 * MIB)

    LogLimit(str(log), None).check()

    assert on_disk(log) >= 5 * MIB


@pytest.mark.parametrize("written", [b"", b"line\n" * 100, b"line\n" * MIB], ids=["empty", "short", "over the limit"])
@pytest.mark.parametrize("where", [["--keep-size"], []], ids=["behind its end", "before its end"])
def test_what_a_job_allocates_in_its_log_is_freed(tmp_path: Path, written: bytes, where: list[str]) -> None:
    """A job can allocate any amount of the disk without writing (fallocate(2)), also behind the end of its log."""
    log = tmp_path / "log"
    log.write_bytes(written)
    words = ["fallocate", *where, "--length", str(64 * MIB), str(log)]
    if shutil.which(words[0]) is None or subprocess.run(words, check=False).returncode != 0:
        pytest.skip("nothing can be allocated in a file here")
    assert on_disk(log) >= 64 * MIB
    limit, size = LogLimit(str(log), MIB), log.stat().st_size

    for _ in range(2):  # a log that is over its limit is cut first
        limit.check()

    assert on_disk(log) <= 4 * MIB
    assert log.stat().st_size == size
    assert read(log).rstrip("\0").startswith(written[: MIB // 8].decode())


WIDE = "训练模型损失下降"


@pytest.mark.parametrize("holes", [True, False], ids=["with holes", "without holes"])
@pytest.mark.parametrize(
    ("written", "whole"),
    [
        (f"{WIDE}\n" * 200_000, WIDE),
        (f"epoch 1: {WIDE}\r" * 150_000, f"epoch 1: {WIDE}"),
        (WIDE * 200_000, None),
    ],
    ids=["lines", "a progress bar", "one line"],
)
def test_a_log_is_cut_at_the_end_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, whole: str | None, *, holes: bool
) -> None:
    """Regression: it was cut within a line, and within a character, on both sides of the hole.

    A line of megabytes is cut between two characters. Each further cut leaves no more than one line about it.
    """
    if not holes:
        monkeypatch.setattr("workers.shim.log._punch", lambda *_: False)
    log = tmp_path / "log"
    limit = LogLimit(str(log), MIB)
    for _ in range(3):
        with log.open("ab") as file:
            file.write(written.encode())
        limit.check()
    text = read(log)  # which raises if a character is cut

    assert on_disk(log) <= MIB + 8192
    assert 1 == text.count(" bytes are missing here: the log exceeded its limit of 1048576 bytes\n")
    begin, _, end = text.partition("gpuqueue: ")
    lines = {line.strip(" ") for part in (begin, end.partition("\n")[2]) for line in re.split("[\r\n]", part)}
    assert lines <= {whole, ""} if whole is not None else {*"".join(lines)} <= {*WIDE}
    assert min(len(begin), len(end)) > 64 * 1024
