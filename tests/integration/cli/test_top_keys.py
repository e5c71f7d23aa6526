"""The keys of ``gpuqueue top``, pressed by Textual's pilot, with a real store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from factories import make_offer, make_spec, serve
from site_of_one import Site
from textual.pilot import Pilot

from gpuqueue.cli.top.app import BINDINGS, KEYS, Help, Top
from gpuqueue.cli.top.job_pane import MARK, FittedTable, JobPane
from gpuqueue.model.device import Health
from gpuqueue.model.job import JobState

Script = Callable[[Pilot[None]], Awaitable[None]]


def press_keys(site: Site, script: Script, columns: int = 80) -> None:
    """Run `top` on a site in a terminal of this size, and let *script* press keys."""

    async def run() -> None:
        app = Top(site.client, interval_s=0.2)
        async with app.run_test(size=(columns, 24)) as pilot:
            await script(pilot)

    asyncio.run(run())


async def until(pilot: Pilot[None], condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait until *condition* holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it does not come"
        await pilot.pause(0.05)


def jobs(pilot: Pilot[None]) -> list[str]:
    """Return the cells of each line of the table of jobs, as text."""
    table = pilot.app.query_one("#jobs", FittedTable)
    return [" ".join(str(cell) for cell in table.get_row_at(row)) for row in range(table.row_count)]


def names(pilot: Pilot[None]) -> list[str]:
    """Return the names in the table of jobs."""
    return [name for line in jobs(pilot) for name in line.split() if name in {"one", "two", "three"}]


def head(pilot: Pilot[None]) -> str:
    """Return the head line."""
    return str(pilot.app.query_one("#head").render())


@pytest.fixture
def waiting(site: Site) -> Site:
    """Return a site with three waiting jobs."""
    site.make_tables()
    serve(site.queue, make_offer(host=site.settings.host))
    for name in ("one", "two", "three"):
        site.queue.requests.submit(make_spec(name=name))
    return site


@pytest.mark.full
def test_escape_closes_what_was_opened(waiting: Site) -> None:
    """Escape closes the help and the pane, and then removes the filter and the marks."""

    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(jobs(pilot)) == 3)
        await pilot.press("question_mark")
        assert isinstance(pilot.app.screen, Help)
        await pilot.press("escape")
        assert not isinstance(pilot.app.screen, Help)
        await pilot.press("space", "slash", *"one")
        await until(pilot, lambda: names(pilot) == ["one"])
        await pilot.press("enter", "d")
        pane = pilot.app.query_one("#pane", JobPane)
        assert pane.display
        await pilot.press("escape")
        assert not pane.display
        assert ["one"] == names(pilot)
        await pilot.press("escape")
        assert ["one", "two", "three"] == names(pilot)
        assert "1 marked" in head(pilot)
        await pilot.press("escape")
        assert "marked" not in head(pilot)

    press_keys(waiting, script)


@pytest.mark.full
def test_a_filter_takes_words_of_any_column(waiting: Site) -> None:
    """A filter shows the jobs that have all its words, while it is typed. Its letters are no commands."""

    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(jobs(pilot)) == 3)
        await pilot.press("slash", *"queued")
        assert ["one", "two", "three"] == names(pilot)
        await pilot.press("space", *"two")
        assert ["two"] == names(pilot)
        await pilot.press("enter")
        assert "filter: queued two" in head(pilot)
        await pilot.press("h")
        await until(pilot, lambda: waiting.queue.jobs.get(2).state is JobState.HELD)  # type: ignore[union-attr]

    press_keys(waiting, script)
    assert [JobState.QUEUED] * 2 == [job.state for job in waiting.queue.jobs.live() if job.id != 2]


def test_actions_change_the_marked_jobs(waiting: Site) -> None:
    """With marks an action changes the marked jobs and no other. Cancel asks once, with their number."""

    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(jobs(pilot)) == 3)
        await pilot.press("space", "space")
        assert [True, True, False] == [MARK in line for line in jobs(pilot)]
        assert "2 marked" in head(pilot)
        await pilot.press("h")
        await until(pilot, lambda: ["held", "held", "queued"] == [_state(line) for line in jobs(pilot)])
        assert "job 1, 2: held" == str(pilot.app.query_one("#message").render())
        await pilot.press("c")
        await until(pilot, lambda: "Cancel 2 jobs: 1, 2?" in str(pilot.app.screen.query("Static").first().render()))
        await pilot.press("y")
        await until(pilot, lambda: names(pilot) == ["three"])
        assert "marked" not in head(pilot)

    press_keys(waiting, script)


def _state(line: str) -> str:
    return next(str(state) for state in JobState if f" {state} " in line)


def test_ended_jobs_are_shown_and_retried(site: Site) -> None:
    """The jobs that ended last are shown on demand, and one of them can be submitted again."""
    site.start_recorder()
    job_id = site.queue.requests.submit(make_spec(name="one", account=site.client.account)).id
    site.client.jobs.cancel(job_id)
    site.until_recorded(job_id)

    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "0 waiting" in head(pilot))
        assert [] == jobs(pilot)
        await pilot.press("e")
        await until(pilot, lambda: names(pilot) == ["one"])
        assert "cancelled" in jobs(pilot)[0]
        assert "ended " in jobs(pilot)[0]
        await pilot.press("r")
        await until(pilot, lambda: "1 waiting" in head(pilot))
        assert ["one", "one"] == names(pilot)
        await pilot.press("up", "r")
        await until(pilot, lambda: "only a job that has ended" in str(pilot.app.query_one("#message").render()))

    press_keys(site, script)


@pytest.mark.full
def test_the_pane_can_have_the_whole_screen(waiting: Site) -> None:
    """A tall pane has all lines but those of the head, the message and the keys."""

    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(jobs(pilot)) == 3)
        pane = pilot.app.query_one("#pane", JobPane)
        await pilot.press("t")
        await until(pilot, lambda: pane.size.height > 24 - 5)
        assert not pilot.app.query_one("#jobs").display
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.query_one("#jobs").display)
        assert not pane.display

    press_keys(waiting, script)


def test_what_the_driver_reports_is_shown_for_each_device(site: Site) -> None:
    """Utilisation, temperature and power are shown if the driver of any device reports them."""
    site.make_tables()
    health = Health(utilisation=0.971, temperature_c=71.3, power_w=311.8)
    serve(site.queue, make_offer("GPU-0", host=site.settings.host, health=health))
    serve(site.queue, make_offer("GPU-1", host=site.settings.host))

    def devices(pilot: Pilot[None]) -> list[str]:
        table = pilot.app.query_one("#devices", FittedTable)
        return [" ".join(str(cell) for cell in table.get_row_at(row)) for row in range(table.row_count)]

    async def script(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(devices(pilot)) == 2)
        assert "97 % 71 °C 312 W" in devices(pilot)[0]
        assert "- - -" in devices(pilot)[1]

    press_keys(site, script)
    (first, second) = site.client.devices.list()
    assert (0.97, 71.0, 312.0) == (first.utilisation, first.temperature_c, first.power_w)
    assert second.utilisation is None
    assert "UTIL" in site.cli("top", "--once").stdout


def test_each_key_is_in_the_help() -> None:
    """The help lists every key that the screen has, beside Ctrl-C."""
    listed = {word for keys, _ in KEYS for word in keys.split()}
    shown = {"question_mark": "?", "slash": "/", "plus": "+", "minus": "-", "escape": "Esc"}
    shown |= {"pageup": "PgUp", "pagedown": "PgDn"}
    for binding in BINDINGS:
        key = str(getattr(binding, "key", binding)).split(",")[0]
        assert key in {"ctrl+c", "question_mark"} or shown.get(key, key) in listed, key
