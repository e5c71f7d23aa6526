from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path

import pytest
from factories import make_device, make_offer, make_spec, serve
from site_of_one import BIN, Site

from gpuqueue.cli.main import COMMANDS
from gpuqueue.errors import BadRequest
from gpuqueue.model.device import DeviceFilter, DeviceKind


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(site: Site, command: str) -> None:
    """Each command has ``--help`` and is in the list of commands."""
    assert "Usage: gpuqueue" in site.cli(command, "--help").stdout
    assert f"  {command} " in site.cli("--help").stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["submit", "missing.py", "--mem", "1G"], 2, "no such file: missing.py"),
        (["submit", "--mem", "1G"], 2, "no command: name a script"),
        (["submit", "--mem", "-6G", "--", "true"], 2, "negative sizes make no sense"),
        (["submit", "--mem", "6", "--", "true"], 2, "add the unit: 6M or 6G"),
        (["submit", "--", "true"], 2, "--mem 6G"),
        (["submit", "--mem", "80G", "--", "true"], 2, "the largest device can give 24G"),
        (["submit", "--mem", "1G", "--gpus", "9", "--", "true"], 2, "no host has more than 1"),
        (["submit", "--mem", "80G", "--device", "gpu", "--", "true"], 2, "the largest GPU can give 24G"),
        (["submit", "--mem", "1G", "--device", "tpu", "--", "true"], 2, "or write gpu, cpu or any"),
        (["submit", "--mem", "1G", "--gpus", "2", "--device", "cpu", "--", "true"], 2, "ask for one device"),
        (["submit", "--mem", "1G", "--time", "soon", "--", "true"], 2, "is not a duration"),
        (["submit", "--mem", "1G", "--env", "NOVALUE", "--", "true"], 2, "--env KEY=VALUE"),
        (["submit", "--mem", "1G", "--cwd", "/no/such", "--", "true"], 2, "no such directory"),
        (["submit", "--mem", "1G", "--", ""], 2, "there is no command to run"),
        (["show", "77"], 3, "there is no job 77"),
        (["logs", "77"], 3, "there is no job 77"),
        (["wait", "77"], 3, "there is no job 77"),
        (["cancel", "77"], 3, "there is no job 77"),
        (["hold", "77"], 3, "there is no job 77"),
        (["history", "--since", "yesterday-ish"], 2, "is no time"),
        (["history", "--json", "--csv"], 2, "exclude each other"),
        (["history", "--json", "--columns", "id"], 2, "--json has no columns"),
        (["history", "--columns", "id,colour"], 2, "'colour' is no column: choose from id, name, user"),
        (["history", "--columns", ""], 2, "'' is no column"),
        (["history", "--sort", "colour"], 2, "--sort: 'colour' is not valid: use id, ended, duration, peak or user"),
        (["history", "--ending", "badly"], 2, "--ending: 'badly' is not valid: use exited, signalled, "),
        (["history", "--exit-code", "256"], 2, "--exit-code: 256 is not valid: give a whole number from 0 to 255"),
        (
            ["history", "--exit-code", "0", "--exit-code=3"],
            2,
            "--exit-code takes one value and is given twice",
        ),
        (
            ["history", "-u", "ada", "--user", "bob", "-ueve"],
            2,
            "--user takes one value and is given 3 times",
        ),
        (["stats", "--by", "user", "--by", "host"], 2, "--by takes one value and is given twice"),
        (
            ["cancel", "-n", "a", "-n", "b"],
            2,
            "--name takes one value and is given twice: run the command once for each",
        ),
        (["queue", "-u", "ada", "-u", "bob"], 2, "--user takes one value and is given twice"),
        (["history", "--min-peak", "20"], 2, "add the unit: 20M or 20G"),
        (["history", "--min-duration", "long"], 2, "is not a duration"),
        (["history", "--min-duration", "2h", "--max-duration", "1h"], 2, "no run is both"),
        (["history", "--since", "1d", "--until", "2d"], 2, "nothing lies between them"),
        (["history", "--since", "0001-01-01"], 2, "is no time"),
        (["history", "--command", "x" * 1001], 2, "text must have at most 1000 characters"),
        (["history", "--after", "77"], 3, "no job 77 in the history to continue after: take the last id of a page"),
        (["history", "--sort", "peak", "--after", "77"], 3, "no job 77 in the history"),
        (["history", "--limit", "abc"], 2, "--limit: 'abc' is not valid: give a whole number from 1 to 1000000000"),
        (["top", "--interval", "nan"], 2, "--interval: nan is not valid: give a number from 0.2 to 3600"),
        (["show", "seven"], 2, "is no job: write 17"),
        (["show", "1_2-3"], 2, "1_2-3 is several jobs"),
        (["cancel", "1_x"], 2, "is no job"),
        (["cancel", "77_1"], 3, "there is no job 77"),
        (["submit", "--mem", "1G", "--array", "9-0", "--", "true"], 2, "names no index"),
        (["submit", "--mem", "1G", "--array", "0-1000000", "--", "true"], 2, "an index is at most 999999"),
        (["submit", "--mem", "1G", "--array", "0-9%x", "--", "true"], 2, "number of concurrent members"),
        (["submit", "--mem", "1G", "--sweep", "lr", "--", "true"], 2, "is no sweep: write it like lr=1e-3"),
        (["submit", "--mem", "1G", "--array", "0-9", "--sweep", "a=1", "--", "true"], 2, "exclude each other"),
        (["submit", "--mem", "1G", "--at-once", "3", "--", "true"], 2, "add one, such as --array 0-99"),
        (["submit", "--mem", "1G", "--array", "0-9%2", "--at-once", "3", "--", "true"], 2, "is given twice"),
        (["run", "--mem", "1G", "--array", "0-9", "--", "true"], 2, "run attends one: gpuqueue submit --array"),
        (["run", "--mem", "1G", "--sweep", "a=1,2", "--", "true"], 2, "--sweep makes many jobs"),
        (["submit", "--mem", "1G", "--sweep", "lr=0.1..0.5", "--", "true"], 2, "name other values one by one"),
        (["nonsense"], 2, "No such command"),
        (["submit", "x.py", "--lr", "1"], 2, "No such option '--lr'. What belongs to the script goes after --."),
        (["submit", "x.py", "--tiem", "1h"], 2, "'--tiem'. Did you mean '--time'? What belongs to the script"),
        (["submit", "x.py", "y", "--mem", "1G"], 2, "goes after --"),
        (["submit", "--mem", "0", "--", "true"], 2, "is not a size"),
        (["submit", "--mem", "1G", "--pool", "p", "--", "true"], 2, "no device is in pool p"),
        (["show", "99999999999999999999999999"], 2, "is no job"),
        (["history", "--before", "99999999999999999999999999"], 2, "is no job: write 17"),
    ],
)
def test_a_mistake_gets_a_clear_line_and_a_documented_code(site: Site, words: list[str], code: int, line: str) -> None:
    """A mistake gets a line on stderr with the fault and the remedy, no stdout, and queues nothing."""
    site.cli("db", "upgrade")
    serve(site.queue, make_offer(host="far"))

    done = site.cli(*words, check=False)

    assert (code, "") == (done.returncode, done.stdout)
    assert line in done.stderr
    assert (0, 0) == site.queue.jobs.counts()


def test_without_tables_the_history_says_what_to_do(site: Site) -> None:
    """A history without tables gives a message that says what to do, and no traceback."""
    done = site.cli("history", check=False)

    assert 4 == done.returncode
    assert "run gpuqueue up, or gpuqueue db upgrade" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "queue",
        "history",
        "stats",
        "show 1",
        "why 1",
        "logs 1",
        "wait 1",
        "gpus",
        "limits",
        "status",
        "top --json",
        "doctor",
    ],
)
def test_a_reading_command_creates_no_files(site: Site, tmp_path: Path, words: str) -> None:
    """Commands that only read create nothing in a missing state directory.

    A typing error in GPUQUEUE_STATE_DIR used to create a directory with an empty database.
    """
    wrong = tmp_path / "stat"
    environ = {name: value for name, value in site.environ.items() if name != "GPUQUEUE_REDIS_URL"}
    environ["GPUQUEUE_STATE_DIR"] = str(wrong)
    environ.pop("GPUQUEUE_DATABASE_URL", None)

    done = subprocess.run([BIN / "gpuqueue", *words.split()], env=environ, capture_output=True, text=True, check=False)

    assert done.returncode in {1, 4}
    assert not wrong.exists()
    if words not in {"doctor", "status"}:  # these two print a report
        (line,) = done.stderr.splitlines()
        assert "gpuqueue up" in line
        assert "GPUQUEUE_STATE_DIR" in line


def test_a_job_without_a_device_waits_with_a_warning(site: Site) -> None:
    """Without a worker a submitted job waits, with a message on stderr. Stdout has only the id, for scripts."""
    done = site.cli("submit", "--mem", "1G", "--", "true")

    assert "1\n" == done.stdout
    assert "gpuqueue up" in done.stderr
    (job,) = json.loads(site.cli("queue", "--json").stdout)["jobs"]
    assert ("queued", "device", ["true"]) == (job["state"], job["reason"], job["spec"]["argv"])
    assert 124 == site.cli("wait", "--timeout", "0.1s", "1", check=False).returncode


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [
        (DeviceKind.CPU, ["--device", "gpu"], "no GPU is served: the job waits for one"),
        (DeviceKind.GPU, ["--device", "cpu"], "no CPU is served: the job waits"),
        (DeviceKind.CPU, ["--device", "gpu", "--pool", "lab"], "no GPU is served in pool lab: the job waits for one"),
        (DeviceKind.CPU, ["--device", "any"], None),
        (DeviceKind.CPU, [], None),
        (DeviceKind.GPU, [], None),
    ],
)
def test_a_job_whose_device_kind_is_missing_waits_with_a_warning(
    site: Site, kind: DeviceKind, words: list[str], line: str | None
) -> None:
    """A job for a device kind without a worker is accepted with a message.

    On a laptop the user learns why nothing starts. Where the GPU host is down for an hour, the job is not refused.
    """
    serve(site.queue, make_offer("dev", host="far", device=make_device("dev", kind=kind), pool="lab"))

    done = site.cli("submit", "--mem", "1G", *words, "--", "true")

    assert ("1\n", line is None) == (done.stdout, done.stderr == "")
    assert (line or "") in done.stderr
    (job,) = json.loads(site.cli("queue", "--json").stdout)["jobs"]
    assert ("memory" if line is None else "device") == job["reason"]
    head, row = site.cli("queue").stdout.splitlines()
    assert ("device" in row) == (line is not None)
    assert (words[1] if words else "-") == row[head.index("WANTS") :].split("  ")[0].strip()


@pytest.mark.full
def test_a_site_says_on_what_jobs_run_and_a_job_says_otherwise(site: Site) -> None:
    """The setting for the default device applies unless the submitter names a device kind."""
    site.environ["GPUQUEUE_DEFAULT_DEVICE"] = "gpu"
    for words in ([], ["--device", "any"]):
        site.cli("submit", "--mem", "1G", *words, "--", "true")

    assert ["gpu", "any"] == [job["spec"]["device"] for job in json.loads(site.cli("queue", "--json").stdout)["jobs"]]
    assert "  asked      1G on 1 GPU, priority normal\n" in shown(site, 1)
    assert "  asked      1G on 1 device, GPU or CPU, priority normal\n" in shown(site, 2)


def test_a_program_says_on_what_it_runs_in_words(site: Site) -> None:
    """The Python API takes the device kinds of the command line.

    An unknown kind is refused before anything is queued.
    """
    assert DeviceFilter.CPU is site.client.jobs.submit(["true"], mem="1G", device="cpu").spec.device
    assert DeviceFilter.ANY is site.client.jobs.submit(["true"], mem="1G", device=DeviceFilter.ANY).spec.device
    with pytest.raises(BadRequest, match="or write gpu, cpu or any"):
        site.client.jobs.submit(["true"], mem="1G", device="tpu")
    assert (2, 0) == site.queue.jobs.counts()


def shown(site: Site, job_id: int) -> str:
    site.cli("db", "upgrade")
    return site.cli("show", str(job_id)).stdout


@pytest.mark.full
def test_csv_is_stable_and_injects_nothing(site: Site) -> None:
    """The CSV has one header and one line per job. A name that looks like a formula is escaped."""
    site.start_recorder()
    site.queue.requests.submit(make_spec(name="=cmd()", argv=("a\nb", "\x1b[31m")))
    site.cli("cancel", "1")
    site.until_recorded(1)

    (row,) = csv.DictReader(io.StringIO(site.cli("history", "--csv").stdout))

    assert ("1", "'=cmd()", "cancelled", "") == (row["id"], row["name"], row["state"], row["peak_bytes"])
    assert "\x1b" not in row["command"]


def test_a_reader_that_leaves_is_no_mistake(site: Site) -> None:
    """A reader that closes the pipe causes no error message."""
    for _ in range(3):
        site.queue.requests.submit(make_spec())
    done = subprocess.run(
        f"{Path(site.environ['PATH'].split(':')[0]) / 'gpuqueue'} queue --json | head -c 0",
        shell=True,
        env=site.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ("", "") == (done.stdout, done.stderr)


def test_a_missing_directory_is_reported_without_a_traceback(site: Site, tmp_path: Path) -> None:
    """A submit from a deleted directory gives a message and no traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec gpuqueue submit --mem 1M -- pwd"

    done = subprocess.run(
        ["/bin/sh", "-c", script], env=site.environ, capture_output=True, text=True, timeout=60, check=False
    )

    assert (2, "gpuqueue: the current directory is gone: go elsewhere, or use --cwd\n") == (
        done.returncode,
        done.stderr,
    )


def test_an_id_that_cannot_be_printed_goes_to_standard_error(site: Site) -> None:
    """If stdout cannot be written, stderr has the id, because the job is queued."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(BIN / "gpuqueue"), "submit", "--mem", "1M", "--", "true"],
            env=site.environ,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    assert 1 == done.returncode
    assert "job 1 is queued, but its id could not be printed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_the_history_goes_on_page_by_page_in_the_columns_asked_for(site: Site) -> None:
    """The first page says how to get the next one, and the last page has no such line.

    An empty result names the filter that matched nothing.
    """
    site.start_recorder()
    for number in (1, 2, 3):
        site.cli("submit", "--mem", "1G", "--name", f"n{number}", "--", "true")
    site.start_worker()
    for number in (1, 2, 3):
        site.until_recorded(number)

    first = site.cli("history", "--columns", "id,name,exit_code,mem", "--sort", "user", "--limit", "2")
    assert [["ID", "NAME", "EXIT", "ASKED"], ["3", "n3", "0", "1G"], ["2", "n2", "0", "1G"]] == [
        line.split() for line in first.stdout.splitlines()
    ]
    assert "and more: add --after 2\n" == first.stderr
    last = site.cli("history", "--columns", "id,pek", "--csv", "--sort", "user", "--after", "2", check=False)
    assert (2, "") == (last.returncode, last.stdout)
    assert "'pek' is no column: did you mean peak? Or choose from id" in last.stderr
    last = site.cli("history", "--columns", "id,name", "--csv", "--sort", "user", "--after", "2", "--exit-code", "0")
    assert ("id,name\n1,n1\n", "") == (last.stdout, last.stderr)
    heads = site.cli("history", "--columns", "ID,asked,Took,device,exit", "--csv", "--limit", "1", "--name", "n[12]")
    assert "id,mem_bytes,duration_s,devices,exit_code" == heads.stdout.splitlines()[0]
    assert "2," == heads.stdout.splitlines()[1][:2]

    here = site.settings.host
    assert ["3", "2", "1"] == [each["id"] for each in _csv(site, "--device", "0")]
    for words, hint in (
        (("--device", "7"), f"none ran on a device '{here}:7'. gpuqueue gpus lists all devices"),
        (("--host", "nowhere", "--user", "x"), "none ran on a host 'nowhere'. gpuqueue gpus"),
        (("--name", "n"), "none is called 'n'. A pattern finds more: --name 'train*'"),
        (("--name", "[x]*"), "none is called '[x]*'. There [ begins a set of letters; for the sign itself write [[]: "),
        (("--name", "m*"), "none is called 'm*'. A pattern is for the whole name, by case: --name '*part*' finds"),
        (("--tag", "no", "--user", "x"), "none is of a user 'x'. gpuqueue stats"),
        (("--tag", "no"), "none has the tag 'no'. gpuqueue history --columns id,name,tags shows which there are"),
        (("--exit-code", "3"), "none ended with exit code 3. gpuqueue history --columns id,ending,exit shows"),
        (("--min-peak", "900G", "--exit-code", "0"), "none took '900G' or more, as far as it is known. gpuqueue hist"),
        (("--array", "77"), "none is a member of an array 77. gpuqueue history --columns id,name,array shows"),
        (("--since", "2099-01-01"), "none was submitted since '2099-01-01'. gpuqueue history --limit 1 shows the last"),
        (("--until", "2001-01-01"), "none was submitted before '2001-01-01'. gpuqueue history --reverse --limit 1"),
        (
            ("--state", "failed", "--state", "lost"),
            "none is 'failed' or 'lost'. Leave out --state to see their states",
        ),
        (("--ending", "lost"), "none has the ending 'lost'. Leave out --ending"),
        (
            ("--command", "echo naïve"),
            "none has 'echo naïve' in its command or its note. The command is stored as gpuq",
        ),
        (("--command", "nowhere"), "none has 'nowhere' in its command or its note. Search for a shorter part"),
        (("--before", "1"), "none is older than job 1. gpuqueue history --reverse"),
        (("--name", "n1", "--before", "3", "--since", "1h", "--after", "1"), "none comes after job 1 in this order"),
        (("--name", "n2", "--before", "2"), "each filter finds some, all of them together none. Leave one out"),
    ):
        nothing = site.cli("history", *words, "--json")
        assert "[]\n" == nothing.stdout
        assert nothing.stderr.startswith(f"gpuqueue: no job in the history matches: {hint}")


def _csv(site: Site, *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(site.cli("history", "--csv", *words).stdout)))


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_changes_nothing_that_is_done(site: Site, closed: int) -> None:
    """With any closed standard stream ``submit`` succeeds.

    ``submit >&-`` used to queue its job and fail with a traceback, so that a user who tried again had two jobs.
    """
    site.queue.recovery.open(0)
    command = f'"{BIN / "gpuqueue"}" submit --mem 64M -- true {closed}>&-'

    done = subprocess.run(["/bin/sh", "-c", command], env=site.environ, capture_output=True, text=True, check=False)

    assert (0, False) == (done.returncode, "Traceback" in done.stderr), done.stderr
    assert 1 == len(site.queue.jobs.live())
