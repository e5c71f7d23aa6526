"""``gpuqueue fetch`` from a real server: what is printed, what is written, and what stays after a kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archives import Entry, archive, file, link
from bounded import until
from files_service import FilesService, files_service
from site_of_one import BIN
from terminal import Terminal

from gpuqueue.files.names import LEFT_OUT_NOTES
from gpuqueue.files.receive import STAGING

GPUQUEUE = str(BIN / "gpuqueue")
ENTRIES: list[Entry] = [
    file("results/a.csv", b"1,2\n"),
    file("results/b/model.pt", bytes(700_000)),
    link("last", "results/b"),
]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user of a service. The URL is added later."""
    token = tmp_path / "token"
    token.write_text("gq_abcdefgh_secretsecret")
    token.chmod(0o600)
    state = {"GPUQUEUE_STATE_DIR": str(tmp_path / "state"), "GPUQUEUE_CONFIG": os.devnull}
    return {**os.environ, **state, "GPUQUEUE_TOKEN_FILE": str(token)}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return the current directory of the user."""
    made = tmp_path / "here"
    made.mkdir()
    return made


@pytest.fixture
def fetch(environ: dict[str, str], here: Path) -> Run:
    """Return a function that runs the command against a service."""

    def run(service: FilesService, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [GPUQUEUE, "fetch", *words], env={**environ, "GPUQUEUE_URL": service.url}, cwd=here,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return run


def names(directory: Path) -> list[str]:
    """Return the files and links below *directory*, but for the ignore file that fetch makes."""
    found = {str(each.relative_to(directory)) for each in directory.rglob("*") if each.is_file()}
    return sorted(found - {".gitignore"})


def test_files_come_to_a_directory_of_the_job(fetch: Run, here: Path) -> None:
    """One line says what came and where it is; a second fetch writes nothing."""
    with files_service(
        parts=[archive(ENTRIES)], headers={"Gpuqueue-Run": "2", "Gpuqueue-Source": "directory"}
    ) as service:
        first, second = fetch(service, "81"), fetch(service, "81")

    assert (0, "3 files, 683.6K, in results-81\n", "") == (first.returncode, first.stdout, first.stderr)
    assert (0, "3 files, 683.6K, in results-81; all of them there before\n") == (second.returncode, second.stdout)
    assert ["results/a.csv", "results/b/model.pt"] == names(here / "results-81")
    assert "1,2\n" == (here / "results-81/results/a.csv").read_text()
    assert [("/api/v1/jobs/81/files", {})] * 2 == service.requests


def test_patterns_run_and_directory_are_passed_on(fetch: Run, here: Path) -> None:
    """The service gets the patterns as they were typed, and the number of the run."""
    with files_service(
        parts=[archive([file("a")])], headers={"Gpuqueue-Run": "1", "Gpuqueue-Source": "kept"}
    ) as service:
        done = fetch(service, "17_2", "results/**", "!*.tmp", "é&x", "--run", "1", "--to", "deep/er", "--json")

    assert 0 == done.returncode, done.stderr
    assert {
        "directory": "deep/er",
        "files": 1,
        "size_bytes": 3,
        "skipped": 0,
        "run": 1,
        "source": "kept",
        "left_out": [],
        "notes": [],
    } == json.loads(done.stdout)
    assert [("/api/v1/jobs/17_2/files", {"run": ["1"], "pattern": ["results/**", "!*.tmp", "é&x"]})] == service.requests
    assert "one" == (here / "deep/er/a").read_text()


def test_what_the_service_could_not_pack_is_named(fetch: Run, here: Path) -> None:
    """A fetch without the files that have no name for an archive has exit code 1, also if there are no others."""
    notes = file(LEFT_OUT_NOTES, b"left out 'r\\xe9s.txt', which is not UTF-8\n")
    for parts, first in (([file("a"), notes], "1 file, 3B, in results-12\n"), ([notes], "0 files\n")):
        with files_service(parts=[archive(parts)]) as service:
            done = fetch(service, "12")
        assert (1, first) == (done.returncode, done.stdout), done.stderr
        assert done.stderr.endswith("gpuqueue: left out 'r\\xe9s.txt', which is not UTF-8\n")
    assert ["a"] == names(here / "results-12")


def test_a_list_writes_nothing(fetch: Run, here: Path) -> None:
    """``--list`` prints sizes and paths, safe for a terminal, or JSON."""
    with files_service(parts=[archive([*ENTRIES, file("a\x1bb")])]) as service:
        done, plain = fetch(service, "81", "--list"), fetch(service, "81", "--list", "--json")

    assert [
        "    4B  results/a.csv",
        "683.6K  results/b/model.pt",
        "  link  last -> results/b",
        "    3B  a\N{REPLACEMENT CHARACTER}b",
    ] == done.stdout.splitlines()
    assert {"path": "last", "size_bytes": 0, "target": "results/b"} == json.loads(plain.stdout)[2]
    assert [] == list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "job 81 has made or changed no file in its copy of the code: gpuqueue fetch --list 81 '**' shows all"),
        (("*.csv", "x"), "no file of job 81 matches *.csv x: gpuqueue fetch --list 81 '**' shows all"),
        (("--list", "x"), "no file of job 81 matches x: gpuqueue fetch --list 81 '**' shows all"),
    ],
)
def test_nothing_is_one_line(fetch: Run, here: Path, words: tuple[str, ...], message: str) -> None:
    """If no file matches, the command is refused, and no directory is made."""
    with files_service(parts=[archive([])]) as service:
        done = fetch(service, "81", *words)

    assert (5, "", f"gpuqueue: {message}\n") == (done.returncode, done.stdout, done.stderr)
    assert [] == list(here.iterdir())


def test_a_refusal_of_the_service_is_printed(fetch: Run) -> None:
    """The reason and the exit code are those of the service."""
    problem = {"type": "about:blank", "title": "Refused", "status": 409, "error": "Refused", "exit_code": 5}
    with files_service(problem={**problem, "detail": "job 81 ran in /x on gpu1: its code did not travel"}) as service:
        done = fetch(service, "81")

    assert (5, "gpuqueue: job 81 ran in /x on gpu1: its code did not travel\n") == (done.returncode, done.stderr)


def test_a_warning_of_the_service_is_printed(fetch: Run) -> None:
    """If a host does not answer, the user knows that the files are those that were kept."""
    headers = {"Gpuqueue-Warning": "host gpu2 does not answer: these are the files that were kept"}
    with files_service(parts=[archive([file("a")])], headers=headers) as service:
        done = fetch(service, "81")

    assert (0, "gpuqueue: host gpu2 does not answer: these are the files that were kept\n") == (
        done.returncode,
        done.stderr,
    )


def test_a_file_with_another_content_needs_replace(fetch: Run, here: Path) -> None:
    """Nothing is replaced, and one line says how to."""
    (here / "results-81/results").mkdir(parents=True)
    (here / "results-81/results/a.csv").write_text("mine")
    with files_service(parts=[archive(ENTRIES)]) as service:
        refused = fetch(service, "81")
        assert "mine" == (here / "results-81/results/a.csv").read_text()
        done = fetch(service, "81", "--replace")

    assert (5, "") == (refused.returncode, refused.stdout)
    assert (
        "gpuqueue: results-81/results/a.csv is there with another content. Nothing was replaced: add --replace, or "
        "name another directory with --to\n"
    ) == refused.stderr
    assert (0, "1,2\n") == (done.returncode, (here / "results-81/results/a.csv").read_text())


def test_a_file_in_the_place_of_the_directory_is_one_line(fetch: Run, here: Path) -> None:
    """The message names the option."""
    (here / "there").touch()
    with files_service(parts=[archive(ENTRIES)]) as service:
        done = fetch(service, "81", "--to", "there")

    assert (2, "gpuqueue: there is a file: name a directory with --to\n") == (done.returncode, done.stderr)


def test_an_archive_that_is_cut_short_leaves_what_is_whole(fetch: Run, here: Path) -> None:
    """The exit code is 1, and the same command brings the rest."""
    whole = archive([file("a"), file("b", bytes(900_000)), file("c")])
    with files_service(parts=[whole[:500_000]], breaks=True) as service:
        cut = fetch(service, "81")
        assert ["a"] == names(here / "results-81")
        service.parts, service.breaks = [whole], False
        done = fetch(service, "81")

    assert (1, "", 1) == (cut.returncode, cut.stdout, cut.stderr.count("\n"))
    assert cut.stderr.startswith("gpuqueue: the archive was cut short in 'b': the service at http://127.0.0.1:")
    assert cut.stderr.endswith(
        "does not answer: the connection was closed. 1 file, 3B, arrived in results-81: run the same command again, "
        "which keeps them\n"
    )
    assert (0, "3 files, 878.9K, in results-81; 1 of them there before\n") == (done.returncode, done.stdout)


def test_files_that_were_left_out_are_named(fetch: Run, here: Path) -> None:
    """The others are there, each name is safe to print, and the exit code is 1."""
    odd = [file(f"a{number}\x1b[2J") for number in range(12)]
    with files_service(parts=[archive([file("a"), *odd])]) as service:
        done = fetch(service, "81")

    lines = done.stderr.splitlines()
    assert (1, "1 file, 3B, in results-81\n", 11) == (done.returncode, done.stdout, len(lines))
    assert "gpuqueue: not fetched: a0\N{REPLACEMENT CHARACTER}[2J has control characters" == lines[0]
    assert "gpuqueue: not fetched: 2 more" == lines[-1]
    assert ["a"] == names(here / "results-81")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("x",), "is no job"),
        (("17_1-2",), "17_1-2 is several jobs"),
        (("81", ""), "it is empty"),
        (("81", "--list", "--to", "x"), "--list writes no file: leave out --to and --replace"),
        (("81", "--run", "0"), "--run"),
    ],
)
def test_a_mistake_is_one_line(fetch: Run, words: tuple[str, ...], message: str) -> None:
    """It costs no request."""
    with files_service() as service:
        done = fetch(service, *words)

    assert (2, [], 1) == (done.returncode, service.requests, done.stderr.count("\n"))
    assert message in done.stderr


class Slow:
    """The parts of an archive, of which the rest waits until it is released."""

    def __init__(self, content: bytes, first_bytes: int) -> None:
        self.released = threading.Event()
        self._content, self._first_bytes = content, first_bytes

    def __iter__(self) -> Iterator[bytes]:
        yield self._content[: self._first_bytes]
        assert self.released.wait(60)
        yield self._content[self._first_bytes :]


@pytest.fixture
def slow() -> Iterator[Slow]:
    """Return an archive that stops in the middle of its second file."""
    made = Slow(archive([file("a"), file("b", bytes(2_000_000)), file("c")]), 1_000_000)
    yield made
    made.released.set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_fetch_that_is_ended_leaves_no_half_file(
    fetch: Run, environ: dict[str, str], here: Path, slow: Slow, number: signal.Signals
) -> None:
    """Files that are whole stay, no half file has its final name, and the next fetch brings the rest."""
    with files_service(parts=slow) as service:
        process = subprocess.Popen(
            [GPUQUEUE, "fetch", "81"], env={**environ, "GPUQUEUE_URL": service.url}, cwd=here,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        part = here / "results-81" / STAGING / "part"
        until(lambda: part.exists() and part.stat().st_size > 100_000, what="the half of the second file")
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        left = names(here / "results-81")
        slow.released.set()
        done = fetch(service, "81")

    if number is signal.SIGINT:
        assert (130, "gpuqueue: interrupted", ["a"]) == (process.returncode, errors.strip(), left)
    else:
        assert (-9, [f"{STAGING}/part", "a"]) == (process.returncode, left)
    assert (0, "3 files, 1.9M, in results-81; 1 of them there before\n") == (done.returncode, done.stdout)
    assert ["a", "b", "c"] == names(here / "results-81")


def test_a_terminal_shows_how_much_has_arrived(environ: dict[str, str], here: Path, slow: Slow) -> None:
    """At a terminal a line on stderr says how much has arrived, and it is gone at the end."""
    with files_service(parts=slow) as service:
        url = {"GPUQUEUE_URL": service.url, "TERM": "xterm"}
        with Terminal([GPUQUEUE, "fetch", "81", "--to", str(here / "out")], {**environ, **url}) as terminal:
            until((here / "out" / STAGING / "part").exists, what="the beginning of the second file")
            slow.released.set()
            terminal.shows("3 files, 1.9M, in")
    assert ["a", "b", "c"] == names(here / "out")


@pytest.mark.full
def test_memory_is_bounded(environ: dict[str, str], here: Path) -> None:
    """A file of 200 MiB in one answer takes no memory of its size."""
    size_bytes = 200 * 2**20
    parts = [file("large", size=size_bytes)[0].tobuf(), *[bytes(2**20)] * 200, bytes(1024)]
    program = (
        "import sys; from gpuqueue.cli.main import main\n"
        f"sys.argv = ['gpuqueue', 'fetch', '81', '--to', {str(here / 'out')!r}]\n"
        "try: main()\n"
        "finally: print(*[each.split()[1] for each in open('/proc/self/status') if 'VmHWM' in each], file=sys.stderr)"
    )
    with files_service(parts=parts) as service:
        done = subprocess.run(
            [sys.executable, "-c", program], env={**environ, "GPUQUEUE_URL": service.url},
            capture_output=True, text=True, check=True, timeout=100,
        )  # fmt: skip

    assert size_bytes == (here / "out/large").stat().st_size
    assert int(done.stderr) < 64 * 1024
