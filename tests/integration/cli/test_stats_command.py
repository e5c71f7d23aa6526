"""The ``stats`` command and ``--plot`` with a real history and real image files."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from factories import ADA, BOB, make_offer, make_spec, serve
from outbox import T0, Outbox, facts
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.cli.commands.stats import course_of
from gpuqueue.codec.request import encode_ended
from gpuqueue.model.device import Peak, PeakSource, Timeline
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.model.statistics import By
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.text.units import GIB

PNG = b"\x89PNG\r\n\x1a\n"
NAME = "$\\frac{a}{ <b>&名"  # neither formula nor mark-up, and with characters that few fonts have


@pytest.fixture
def recorded(site: Site) -> Site:
    """Return a site with a history of two ended jobs and one that never ran.

    One of the ended jobs has a timeline on two devices.
    """
    pytest.importorskip("matplotlib")
    site.make_tables()
    outbox = Outbox(site.client.database)
    outbox.submit(1, make_spec(account=ADA, name=NAME, mem_bytes=2 * GIB, gpus=2))
    outbox.claim(1, devices="GPU-0,GPU-1")
    outbox.started(1, devices="GPU-0,GPU-1")
    line = Timeline(step_s=0.5, bytes=(None, GIB // 2, GIB, None, None, GIB // 4))
    peak = Peak(bytes=GIB, source=PeakSource.NVML_SAMPLED, samples=4, interval_s=0.5)
    devices = tuple(replace(each, timeline=line) for each in facts("GPU-0,GPU-1", peak))
    ended = encode_ended(ending=Ending.from_status(0), duration_s=2.8, devices=devices)
    outbox.report(1, Act.FINISH, JobState.SUCCEEDED, token="1.a", ended=ended)
    outbox.submit(2, make_spec(account=BOB, name="short"))
    outbox.claim(2)
    outbox.started(2)
    outbox.finish(2, Ending.from_status(3), JobState.FAILED)
    outbox.submit(3)
    outbox.record()
    return site


PERIOD = ("--since", "2026-11-01", "--until", "2026-11-05")


@pytest.mark.full
def test_the_table_json_and_csv_have_the_same_values(recorded: Site) -> None:
    """Table, JSON and CSV have the same figures: one row per user. The table and JSON also have a total."""
    table = recorded.cli("stats", *PERIOD).stdout.splitlines()
    plain = json.loads(recorded.cli("stats", *PERIOD, "--json").stdout)
    rows = list(csv.DictReader(io.StringIO(recorded.cli("stats", *PERIOD, "--csv").stdout)))

    assert ["USER", "ada", "bob", "all"] == [line.split()[0] for line in table[:4]]
    assert ["ada", "bob"] == [group["label"] for group in plain["groups"]] == [row["key"] for row in rows]
    assert max(map(len, table[4:])) <= 80, "the notes below it broke on a usual terminal"
    assert (2, 1, 0.5) == (plain["total"]["runs"], plain["total"]["failed"], plain["total"]["failure_rate"])
    assert [str(group["figures"]["gpu_s"]) for group in plain["groups"]] == [row["gpu_s"] for row in rows]
    assert "nothing ran in this time" in recorded.cli("stats", "--since", "2026-11-02", "--until", "2026-11-03").stderr


@pytest.mark.parametrize("columns", [30, 60])
def test_the_table_fits_a_narrow_terminal(recorded: Site, columns: int) -> None:
    """The table fits a narrow terminal and keeps the column of GPU hours. Rows used to wrap at 60 columns."""
    with Terminal([str(BIN / "gpuqueue"), "stats", *PERIOD], recorded.environ, columns=columns) as terminal:
        assert 0 == terminal.ended()
        lines = terminal.written.decode().splitlines()

    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("USER ")
    assert "GPU H" in lines[0]


def test_a_line_says_how_much_longer_shared_runs_took(recorded: Site) -> None:
    """One run alone took 10 s, and one of the same command beside others 12.5 s."""
    outbox = Outbox(recorded.client.database)
    outbox.number, outbox.cursor = 100, recorded.client.database.cursor()
    for job_id, (duration_s, shared) in enumerate(((10.0, False), (12.5, True)), 50):
        peak = Peak(bytes=GIB, source=PeakSource.NVML_SAMPLED, samples=50, shared=shared)
        outbox.submit(job_id, make_spec(account=ADA, argv=("train", "x")))
        outbox.claim(job_id)
        outbox.started(job_id)
        ended = encode_ended(ending=Ending.from_status(0), duration_s=duration_s, devices=facts("GPU-0", peak))
        outbox.report(job_id, Act.FINISH, JobState.SUCCEEDED, token="1.a", ended=ended)
    outbox.record()

    line = "1 run beside others on a device took 1.25 times as long as 1 run of the same command alone."
    assert line in recorded.cli("stats", *PERIOD).stdout.replace("\n", " ")
    plain = json.loads(recorded.cli("stats", *PERIOD, "--json").stdout)
    assert {"factor": 1.25, "commands": 1, "shared_runs": 1, "alone_runs": 1} == plain["stretch"]


def test_a_line_says_what_reservations_cost(recorded: Site) -> None:
    """The hours of idle reserved devices are below the table of all users, and unknown while the store is away."""
    assert "reserved" not in recorded.cli("stats", *PERIOD).stdout
    store = connect(recorded.environ["GPUQUEUE_REDIS_URL"])
    store.hset(keys.META, "reserved_idle_ms", 9_000_500)
    store.close()

    line = "Since the store was opened, devices were idle for 2.5 h because they were reserved."
    assert line in recorded.cli("stats", *PERIOD).stdout.replace("\n", " ")
    plain = [json.loads(recorded.cli("stats", *PERIOD, "--json", *who).stdout) for who in ((), ("-u", "ada"))]
    assert [9000.5, None] == [each["reserved_idle_device_s"] for each in plain]

    recorded.environ["GPUQUEUE_REDIS_URL"] = "unix:///nowhere"
    assert json.loads(recorded.cli("stats", *PERIOD, "--json").stdout)["reserved_idle_device_s"] is None


@pytest.mark.full
def test_a_day_on_which_nothing_ran_is_not_a_row(recorded: Site) -> None:
    """The table leaves out days without runs, which would fill most of a month. The JSON has every day."""
    by_day = ("stats", *PERIOD, "--by", "day")
    plain = json.loads(recorded.cli(*by_day, "--json").stdout)
    table = recorded.cli(*by_day).stdout.split("\n\n")[0].splitlines()

    with_runs = [group["label"] for group in plain["groups"] if group["figures"]["runs"]]
    assert 0 < len(with_runs) < len(plain["groups"])
    assert ["DAY", *with_runs] == [line.split()[0] for line in table if not line.startswith("all")]


@pytest.mark.full
def test_a_chart_over_time_begins_shortly_before_the_first_run(recorded: Site) -> None:
    """A chart begins shortly before the first run, so that a new site's chart does not show weeks without data."""
    runs = recorded.client.history.stats(By.USER, since=T0 - timedelta(days=30), until=T0 + timedelta(hours=1))

    course = course_of(recorded.client, runs, None)

    assert course.bounds[0] > T0 - timedelta(hours=2)
    assert course.bounds[-1] == runs.until
    assert runs.total.runs == sum(step.waits for step in course.steps)


@pytest.mark.full
@pytest.mark.parametrize("words", [("stats", *PERIOD), ("show", "1")])
def test_each_picture_is_whole_and_nothing_else_is_written(
    recorded: Site, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Each image file is complete, the command names it, and no other file is written."""
    for kind in ("png", "svg"):
        path = tmp_path / f"out.{kind}"
        done = recorded.cli(*words, "--plot", str(path))
        assert ("", f"gpuqueue: {path} written\n") == (done.stdout, done.stderr)

    assert {"out.png", "out.svg"} == {entry.name for entry in tmp_path.iterdir() if entry.is_file()}
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)
    assert ET.parse(tmp_path / "out.svg").getroot().tag.endswith("svg")  # noqa: S314 - this test's own file


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["stats", "--plot", "charts.pdf"], 2, "name a file that ends in .png or .svg"),
        (["stats", "--plot", "charts.png", "--json"], 2, "exclude each other"),
        (["stats", "--by", "colour"], 2, "use user, device, host, day or size"),
        (["stats", "--since", "2026-11-05", "--until", "2026-11-01"], 2, "nothing lies between them"),
        (["stats", "--since", "2020-01-01", "--by", "day"], 2, "at most 400 days"),
        (["stats", "--since", "2999-01-01"], 2, "in the future"),
        (
            ["stats", "--plot", "nowhere/charts.png"],
            2,
            "cannot write 'nowhere/charts.png': No such file or directory: name a file in a directory",
        ),
        (
            ["show", "1", "--plot", "nowhere/job.svg"],
            2,
            "cannot write 'nowhere/job.svg': No such file or directory: name a file in a directory",
        ),
        (["show", "1", "--plot", "job.png", "--json"], 2, "exclude each other"),
        (["show", "2", "--plot", "job.png"], 5, "job 2 has no memory to draw"),
        (
            ["stats", "--since", "2026-11-02", "--until", "2026-11-03", "--plot", "none.png"],
            5,
            "no job ran in this time: there is nothing to draw",
        ),
        (["stats", *PERIOD, "--user", "eve", "--plot", "none.png"], 5, "no job of eve ran in this time"),
        (["show", "9", "--plot", "job.png"], 3, "there is no job 9"),
    ],
)
def test_a_picture_that_cannot_be_is_one_line(recorded: Site, words: list[str], code: int, line: str) -> None:
    """Each error is one line on stderr, and no file is left behind."""
    done = recorded.cli(*words, check=False)

    assert (code, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert line in done.stderr
    assert not Path(words[-1]).exists()


@pytest.mark.full
def test_an_old_picture_stays_where_the_new_one_fails(recorded: Site, tmp_path: Path) -> None:
    """A new image replaces the old file only when it is complete."""
    path = tmp_path / "out.png"
    path.write_text("old")
    recorded.cli("show", "2", "--plot", str(path), check=False)
    assert "old" == path.read_text()
    recorded.cli("show", "1", "--plot", str(path))
    assert path.read_bytes().startswith(PNG)


@pytest.mark.full
def test_without_the_library_it_says_what_to_install(recorded: Site, tmp_path: Path) -> None:
    """Without matplotlib ``--plot`` names the package to install. Commands without ``--plot`` do not need it."""
    code = (
        "import sys; sys.modules['matplotlib'] = None; import importlib.util as u; real = u.find_spec;"
        "u.find_spec = lambda name, *rest: None if name == 'matplotlib' else real(name, *rest);"
        "from gpuqueue.cli.main import main; main()"
    )
    for words, expected in ((("stats",), 0), (("show", "1"), 0), (("stats", "--plot", str(tmp_path / "a.png")), 1)):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=recorded.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert expected == done.returncode, done.stderr
    assert "pip install 'gpuqueue-server[plot]'" in done.stderr


@pytest.fixture
def repeated(site: Site) -> Site:
    """Return a site with a history of four jobs of one script."""
    site.make_tables()
    outbox = Outbox(site.client.database)
    peak = Peak(bytes=GIB // 2, source=PeakSource.NVML_SAMPLED, samples=40)
    for job_id in range(1, 5):
        outbox.submit(job_id, make_spec(account=ADA))
        outbox.claim(job_id)
        outbox.started(job_id)
        ended = encode_ended(ending=Ending.from_status(0), duration_s=3600.0, devices=facts("GPU-0", peak))
        outbox.report(job_id, Act.FINISH, JobState.SUCCEEDED, token="1.a", ended=ended)
    outbox.record()
    return site


def test_learned_memory_is_compared_with_what_was_asked(repeated: Site) -> None:
    """The table and JSON have each rule. Three of the four jobs are repeats, which used half of what they had."""
    table = repeated.cli("stats", *PERIOD, "--learning").stdout.splitlines()
    plain = json.loads(repeated.cli("stats", *PERIOD, "--learning", "--json").stdout)

    assert ["what", "was", "asked", "3", "100.0", "%", "0", "3.0", "1.5", "100", "%"] == table[1].split()
    assert ["learned", "3", "100.0", "%", "0"] == table[2].split()[:5]
    assert (4, 3) == (plain["jobs"], plain["repeats"])
    assert "asked" == plain["rules"][0]["key"]
    assert {"fit_rate": 1.0, "above_peak": 1.0}.items() <= plain["rules"][0]["figures"].items()
    assert "0 of 0 jobs" in repeated.cli("stats", *PERIOD, "--learning", "--user", "eve").stdout


@pytest.fixture
def busy(site: Site) -> Site:
    """Return a site with two cards of 24 GiB, and a history of a heavy and a light user with jobs of each size."""
    site.make_tables()
    serve(site.queue, make_offer("GPU-0"), make_offer("GPU-1"))
    outbox = Outbox(site.client.database)
    sizes = ((ADA, 6, 1), (ADA, 16, 1), (ADA, 24, 1), (ADA, 20, 2), (BOB, 6, 1))
    for job_id, (account, gib, gpus) in enumerate(sizes, 1):
        outbox.submit(job_id, make_spec(account=account, mem_bytes=gib * GIB, gpus=gpus))
        uuids = ",".join(f"GPU-{number}" for number in range(gpus))
        devices = tuple(replace(each, lease_bytes=gib * GIB) for each in facts(uuids, Peak.unknown()))
        outbox.run(job_id, devices, Ending.from_status(0), duration_s=2.0 if account is ADA else 0.1)
    outbox.record()
    return site


def test_waits_are_shown_by_size_and_usage_and_beside_first_fit(busy: Site) -> None:
    """Waits are shown by size and by light and heavy users, as they were and in a replay with first-fit."""
    done = busy.cli("stats", *PERIOD, "--order")
    plain = json.loads(busy.cli("stats", *PERIOD, "--order", "--json").stdout)

    measured, _, replayed, *_ = done.stdout.split("\n\n")
    groups = ["small", "large", "whole", "several", "light", "heavy", "all"]
    assert ["WHOSE", *groups] == [line.split()[0] for line in measured.splitlines()]
    assert ["2", "1", "1", "1", "1", "4", "5"] == [line.split()[1] for line in measured.splitlines()[1:]]
    assert ["REPLAYED", *groups] == [line.split()[0] for line in replayed.splitlines()]
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert ["bob"] == plain["light_users"]
    assert pytest.approx(1.0, abs=0.01) == plain["by_size"]["total"]["wait_mean_s"]
    assert groups == [*plain["replay"]["ours"]] == [*plain["replay"]["first_fit"]]


def test_the_order_without_a_replay_starts_no_store(busy: Site) -> None:
    """With --jobs 0 only the waits of the history are shown."""
    assert "REPLAYED" not in busy.cli("stats", *PERIOD, "--order", "--jobs", "0").stdout
    assert json.loads(busy.cli("stats", *PERIOD, "--order", "--jobs", "0", "--json").stdout)["replay"] is None


@pytest.mark.parametrize("words", [("--order", "--by", "day"), ("--order", "--learning"), ("--jobs", "5")])
def test_the_order_has_options_of_its_own(site: Site, words: tuple[str, ...]) -> None:
    """Options that --order does not take are refused in one line, and so is --jobs without it."""
    done = site.cli("stats", *words, check=False)

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert "--order" in done.stderr


def test_the_placements_are_compared_on_the_own_history(busy: Site) -> None:
    """Without a trace the jobs of the history are replayed on the devices that are served, beside how they ran."""
    done = busy.cli("simulate", "--compare", "placement")

    lines = done.stdout.splitlines()
    assert "5 jobs of 2 users, <0.01 GPU-hours, on 2x24G" == lines[0]
    assert ["as it was", "spread", "pack", "least-busy"] == [line[:10].strip() for line in lines[3:7]]


@pytest.mark.parametrize("words", [("--by", "day"), ("--csv",), ("--plot", "a.png")])
def test_learning_has_no_groups_and_no_charts(site: Site, words: tuple[str, ...]) -> None:
    """Options that --learning does not take are refused in one line."""
    done = site.cli("stats", "--learning", *words, check=False)

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert "--learning excludes --by, --csv and --plot" in done.stderr
