"""The simulator, which runs the real scripts with a simulated clock, and the ``simulate`` command."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from click.testing import CliRunner, Result
from factories import make_spec, make_status

from gpuqueue.cli.main import commands
from gpuqueue.embedded.store import scratch_store
from gpuqueue.errors import BadRequest, StoreUnreachable
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.placement import Preference
from gpuqueue.model.run import Ending, Record, Run, RunDevice
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.scripts import ACTS, Scripts, whole
from gpuqueue.queue.simulated_clock import CLOCK, NEVER_SILENT, SimulatedClock, SimulatedQueue
from gpuqueue.simulator import own, shapes, trace
from gpuqueue.simulator.comparison import compare_placements
from gpuqueue.simulator.ours import EPOCH_MS, Ours
from gpuqueue.simulator.replay import Placement, replay
from gpuqueue.simulator.shapes import EXAMPLE, made
from gpuqueue.simulator.site import Knobs, Site
from gpuqueue.simulator.trace import Request
from gpuqueue.text.units import GIB, MIB

DAY_S = 86400.0
POLICIES = ["ours", "exclusive", "backfill", "first-fit", "easy", "shortest"]


def job(number: int, arrival_s: float, mem: int, duration_s: float, **more: Any) -> Request:
    """Return a request for *mem* GiB."""
    words = {"user": "ann", **more}
    return Request(number=number, arrival_s=arrival_s, mem_bytes=mem * GIB, duration_s=duration_s, **words)


@pytest.fixture(scope="module")
def scratch() -> Iterator[str]:
    """Return the address of a scratch store."""
    with scratch_store() as url:
        yield url


@pytest.fixture
def run(scratch: str) -> Any:
    """Return a function that replays requests under gpuqueue's policy, each time in an empty store."""

    def replayed(requests: list[Request], site: Site, knobs: Knobs | None = None, **more: Any) -> list[Placement]:
        client = connect(scratch)
        client.flushall()
        client.close()
        ours = more.pop("kind", Ours)(scratch, site, knobs or Knobs(), **more)
        try:
            placed = replay(requests, ours)
        finally:
            ours.close()
        assert sum(ours.starts.values()) == len(requests), "each start was reported once"
        return sorted(placed, key=lambda each: each.request.number)

    return replayed


def starts(placed: list[Placement]) -> list[float]:
    """Return the start of each job, in seconds."""
    return [each.start_s for each in placed]


# ---- the clock ---------------------------------------------------------------------------------------------------


def test_no_script_of_a_real_queue_takes_the_time_from_a_caller(store_url: str) -> None:
    """Neither the script's text nor the call of a real queue accepts a time from the caller."""
    client = connect(store_url)
    scripts = Scripts(client)
    for act in ACTS:
        assert "KEYS[2]" not in whole(act), act
        assert whole(act).count("now_ms =") == 0, act
        assert NEVER_SILENT not in whole(act), act
        assert whole(act, CLOCK).replace(CLOCK, "") == whole(act), "all else is the same"
    assert not scripts._clock()
    assert len(scripts._keys()) == 1
    client.close()


def test_time_passes_as_the_simulation_says(store_url: str) -> None:
    """Acts and the shared prelude use the simulated time, and no trace of it stays in the store."""
    clock = SimulatedClock(EPOCH_MS)
    queue = SimulatedQueue(store_url, clock)
    queue.recovery.open(0, pause_s=5.0)
    assert queue.recovery.pause_left_s() == 5.0
    clock.now_ms += 4_000
    assert queue.recovery.pause_left_s() == 1.0
    clock.now_ms += 1_000
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)
    assert queue.recovery.pause_left_s() == 0.0
    clock.now_ms += 86_400_000 - 5_000
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)

    client = connect(store_url)
    assert client.hget("{gq}:meta", "reap") == str(EPOCH_MS + 86_400_000)
    real = JobQueue(store_url)
    real.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)
    assert int(client.hget("{gq}:meta", "reap") or 0) == pytest.approx(real.now_ms(), abs=60_000)
    for each in (queue, real, client):
        each.close()


# ---- the policy --------------------------------------------------------------------------------------------------


def test_jobs_share_a_card_and_pass_what_does_not_fit(run: Any) -> None:
    """Two jobs share the card. The large one waits for both, and a later small one passes it."""
    placed = run(
        [job(0, 0, 12, 100), job(1, 0, 10, 50), job(2, 1, 24, 10), job(3, 2, 2, 30)], Site.parse("24G", slots=8)
    )

    assert starts(placed) == [0, 0, 100, 2]


def test_room_is_reserved_for_a_job_that_waited_long(run: Any) -> None:
    """After ten minutes a large job gets a reservation, and small jobs without a time limit no longer pass it."""
    small = [job(number, 240 * number, 12, 600, user="bob") for number in range(30)]
    large = job(30, 1, 24, 60)
    requests = sorted([*small, large], key=lambda each: each.arrival_s)
    site = Site.parse("24G", slots=8)

    reserved = starts(run(requests, site))[30]
    not_reserved = starts(run(requests, site, Knobs(reserve_after_s=None)))[30]

    assert reserved <= 601 + 10 + 600, "after ten minutes, the next tick, and what ran then"
    assert not_reserved > 7000


def pair_behind(run_s: float, length_s: float, *, limit_s: float | None = None) -> list[Request]:
    """Return a run on one card, a job that needs both cards, and three days of small jobs by another user.

    The job for both cards is number 1. Each small job fills half a card, and there are always enough of them for both
    cards.
    """
    count = math.ceil(3 * DAY_S / length_s) * 4
    small = [
        job(2 + each, 10 + length_s / 4 * each, 12, length_s, user="bob", time_limit_s=limit_s) for each in range(count)
    ]
    return [job(0, 0, 24, run_s), job(1, 1, 20, 3600, gpus=2), *small]


@pytest.mark.full
def test_no_card_is_empty_for_days_for_what_cannot_start_for_days(run: Any) -> None:
    """A reservation does not leave a card empty while the other card has a long run without a time limit.

    The empty card used to be reserved for all of the two days.
    """
    placed = run(pair_behind(2 * DAY_S, 1800), Site.parse("2x24G", slots=8))

    on_the_empty_one = [each for each in placed[2:] if each.start_s < 2 * DAY_S]
    used_s = sum(each.request.run_s for each in on_the_empty_one) / 2
    assert used_s > 2 * DAY_S - 2 * 3600, "all but two hours of two days, on both of its halves"
    pair_s = placed[1].start_s
    assert 2 * DAY_S <= pair_s <= 2 * DAY_S + 2 * 1800, "and the pair has not been forgotten: two lengths of what came"


@pytest.mark.full
@pytest.mark.timeout(900)  # ten thousand jobs, with coverage
@pytest.mark.parametrize("length_s", [300, 3600, 6 * 3600])
def test_who_needs_two_cards_starts_within_a_few_lengths_of_what_runs(run: Any, length_s: float) -> None:
    """A job on two cards starts within a few job lengths, although no job has a limit and new ones always wait.

    This also holds for jobs that run longer than the first reservation waits. Both cards are the whole site, so that a
    reservation lasts for a quarter of the wait only.
    """
    requests = [each for each in pair_behind(length_s, length_s) if each.arrival_s < DAY_S * 2]

    pair_s = run(requests, Site.parse("2x24G", slots=8))[1].start_s

    assert pair_s <= 7 * length_s + 20 * 60


def test_a_card_beside_a_run_that_stays_is_filled(run: Any) -> None:
    """Memory beside a long run is not reserved for a job that cannot start before that run ends.

    Twenty of 24 GiB were once reserved for a job of 23 GiB while a notebook of 2 GiB ran.
    """
    requests = [job(0, 0, 2, DAY_S), job(1, 1, 23, 60), job(2, 2, 20, 60, user="bob"), job(3, 2 * 3600, 20, 60)]

    placed = starts(run(requests, Site.parse("24G", slots=8)))

    assert placed[2] == 2, "nothing is reserved yet"
    assert placed[3] == 2 * 3600, "nor any more"
    assert placed[1] == pytest.approx(DAY_S)


def test_who_has_used_less_goes_first_and_old_usage_fades(run: Any) -> None:
    """The user with less recent usage goes first.

    Bob's two hours, ten half-lives ago, count less than Ann's recent hour.

    With a slow decay Bob waits.
    """
    knobs = Knobs(half_life_s=DAY_S)
    site = Site.parse("24G", slots=8)
    now_s = 10 * DAY_S
    past = [job(0, 0, 24, 7200, user="bob"), job(1, now_s - 3600, 24, 3600, user="ann")]
    busy = job(2, now_s, 24, 100, user="eve")
    both = [job(3, now_s + 1, 24, 10, user="ann"), job(4, now_s + 2, 24, 10, user="bob")]

    assert starts(run([*past, busy, *both], site, knobs))[3:] == [now_s + 110, now_s + 100]
    slow = Knobs(half_life_s=1000 * DAY_S)
    assert starts(run([*past, busy, *both], site, slow))[3:] == [now_s + 100, now_s + 110]


def test_shares_decide_who_goes_first(run: Any) -> None:
    """Ann used twice as much as Bob. With three times his share she still goes first."""
    site = Site.parse("24G", slots=8)
    past = [job(0, 0, 24, 2000, user="ann"), job(1, 2000, 24, 1000, user="bob"), job(2, 3000, 24, 50, user="eve")]
    both = [job(3, 3001, 24, 10, user="bob"), job(4, 3002, 24, 10, user="ann")]

    assert starts(run([*past, *both], site))[3:] == [3050, 3060]
    assert starts(run([*past, *both], site, Knobs(shares={"ann": 3.0})))[3:] == [3060, 3050]


def test_a_job_that_waits_a_day_is_promoted(run: Any) -> None:
    """A job with low priority beside endless normal jobs is promoted after a day. Reservations are off here."""
    normal = [job(number, 3600 * number, 24, 3600, user="bob") for number in range(60)]
    low = job(60, 1, 24, 60, priority=Priority.LOW)
    requests = sorted([*normal, low], key=lambda each: each.arrival_s)

    promoted = Knobs(reserve_after_s=None)
    assert starts(run(requests, Site.parse("24G", slots=8), promoted))[60] == pytest.approx(25 * 3600, abs=3600)
    never = Knobs(reserve_after_s=None, age_after_s=None)
    assert starts(run(requests, Site.parse("24G", slots=8), never))[60] == 60 * 3600


def test_several_devices_are_taken_together_on_one_host(run: Any) -> None:
    """A job on two devices starts at once, long after the last heartbeat and between two ticks.

    The worker that claims first must already count on the other devices.
    """
    late_s = 3 * DAY_S + 3
    requests = [job(0, 0, 2, 5 * DAY_S), job(1, late_s, 20, 60, gpus=2), job(2, late_s, 10, 60)]

    placed = run(requests, Site.parse("24G/2x24G", slots=8))
    beside = run([requests[1], requests[2]], Site.parse("2x24G", slots=8))

    assert (placed[1].start_s, set(placed[1].cards)) == (late_s, {1, 2})
    assert starts(beside) == [late_s, late_s + 60]


@pytest.mark.parametrize("seed", range(4))
def test_jobs_are_placed_as_the_site_says(run: Any, seed: int) -> None:
    """Jobs spread or pack as the site's setting says, whichever worker is woken first. The result used to be random."""
    site = Site.parse("2x24G,48G", slots=8)
    small = [job(number, number, 4, 1000) for number in range(3)]
    large = job(3, 10, 46, 60)

    spread = run([*small, large], site, seed=seed)
    packed = run([*small, large], site, Knobs(placement=Preference.PACK), seed=seed)

    assert [(2,), {0, 1}] == [spread[2].cards, {card for each in spread[:2] for card in each.cards}]
    assert spread[3].start_s == pytest.approx(1002, abs=2)
    assert [first for first, *_ in (each.cards for each in packed[:3])] in ([0] * 3, [1] * 3), "one card is filled"
    assert (packed[3].cards, packed[3].start_s) == ((2,), 10)


@pytest.mark.parametrize("seed", range(4))
def test_small_jobs_leave_the_largest_card_to_a_job_that_needs_it(run: Any, seed: int) -> None:
    """On a T4, an L40 and an H200, two small jobs go to the smaller cards, and more of them fill all cards by share."""
    site = Site.parse("15G,45G,140G", slots=8)
    small = [job(number, number, 4, 1000) for number in range(12)]

    few = run([*small[:2], job(2, 10, 139, 60)], site, seed=seed)
    many = run(small, site, seed=seed)

    assert [(0,), (1,), (2,)] == [each.cards for each in few]
    assert few[2].start_s == 10
    assert {0: 2, 1: 3, 2: 7} == Counter(card for each in many for card in each.cards)


@pytest.mark.parametrize("seed", range(3))
def test_the_least_busy_device_is_chosen_by_what_is_known(run: Any, seed: int) -> None:
    """The third job goes to the card of the run that uses it less, although the other one has more free memory.

    If nothing is known of the runs, it goes where fewer run; equally many do, so the memory decides.
    """
    jobs = [job(0, 0, 12, 1000, utilisation=0.2), job(1, 1, 4, 1000, utilisation=0.9), job(2, 2, 4, 100)]
    site, knobs = Site.parse("2x24G", slots=8), Knobs(placement=Preference.LEAST_BUSY)

    first, second, third = run(jobs, site, knobs, seed=seed)
    assert first.cards != second.cards
    assert first.cards == third.cards
    first, second, third = run(jobs, site, knobs, seed=seed, expected=lambda _: None)
    assert second.cards == third.cards


class OneNeverAsks(Ours):
    """A site whose second device sends heartbeats and claims nothing."""

    def _might_start_any(self, place: int) -> bool:
        return place != 1 and super()._might_start_any(place)


@pytest.mark.full
def test_a_job_that_is_left_to_a_device_which_does_not_take_it_waits_for_a_moment(run: Any) -> None:
    """A job left for a better device that does not claim it waits 0.2 s of simulated time, as on a real site.

    The first job goes to the smaller of two empty devices at once. The other device has the larger free share then.
    """
    placed = run([job(0, 5, 4, 60), job(1, 5, 6, 60)], Site.parse("24G,48G", slots=8), kind=OneNeverAsks)

    assert starts(placed) == [5, 5.2]
    assert [(0,), (0,)] == [each.cards for each in placed]


class EveryTick(Ours):
    """A policy that ticks every interval and asks every device each time, as real workers do."""

    def _tick_alarm_s(self) -> float | None:
        """Return the time of the next tick, in seconds, or None if no job waits."""
        self._changed = True
        return self._next_tick_s(self._ticked_s) if self._waiting else None


SITE = Site.parse("2x24G,12G/24G", slots=3, headroom_bytes=512 * MIB)
#: A trace with twelve times the usual arrival rate, so that many jobs wait.
BUSY = [
    Request(
        number=each.number,
        arrival_s=round(each.arrival_s / 12),
        user=each.user,
        mem_bytes=each.mem_bytes,
        gpus=min(each.gpus, 2),
        duration_s=min(each.duration_s, 1200.0),
        time_limit_s=each.time_limit_s,
        priority=each.priority,
    )
    for each in made(50, 3)
]


@pytest.mark.full
@pytest.mark.parametrize(("seed", "reservations"), [(0, 1), (1, 2), (2, 1), (3, 1)])
def test_what_is_left_out_changes_nothing(run: Any, seed: int, reservations: int) -> None:
    """The simulator's shortcuts skip no tick that changes anything, and no device that would get a job."""
    knobs = Knobs(reserve_after_s=120.0, age_after_s=1800.0, tick_s=30.0, reservations=reservations)

    quick = run(BUSY, SITE, knobs, seed=seed)

    assert quick == run(BUSY, SITE, knobs, kind=EveryTick, skip=False, seed=seed)
    assert len({each.start_s for each in quick}) > 30
    assert max(each.wait_s for each in quick) > 1800.0


@pytest.mark.full
def test_a_replay_asks_the_store_seldom(run: Any, scratch: str) -> None:
    """A replay with a long queue makes fewer than 20 calls for each job.

    It made 55: heartbeats that nobody read, claims that could not succeed, and ticks for jobs that had started.
    """
    requests = [replace(each, arrival_s=round(each.arrival_s / 4)) for each in made(200, 2)]
    client = connect(scratch)
    client.config_resetstat()

    placed = run(requests, Site.parse("8x24G", slots=16))

    stats: Any = client.info("commandstats")
    client.close()
    assert stats["cmdstat_evalsha"]["calls"] < 20 * len(requests)
    assert sum(each.wait_s for each in placed) > 3600 * len(requests)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_device_is_over_committed(run: Any, seed: int) -> None:
    """On a busy day no device exceeds its bytes or slots at any time, and every job runs once, where it fits."""
    placed = run(BUSY, SITE, seed=seed)

    assert [each.request for each in placed] == BUSY
    for place, card in enumerate(SITE.cards):
        here = [each for each in placed if place in each.cards]
        for moment_s in {each.start_s for each in here}:
            there = [each for each in here if each.start_s <= moment_s < each.end_s]
            assert sum(each.request.mem_bytes for each in there) <= card.usable_bytes
            assert len(there) <= SITE.slots
    for each in placed:
        assert len(each.cards) == each.request.gpus
        assert len({SITE.cards[place].host for place in each.cards}) == 1
        assert each.start_s >= each.request.arrival_s


@pytest.mark.full
def test_the_same_chance_gives_the_same_replay(run: Any) -> None:
    """The same seed gives the same replay. Another seed changes which worker claims first."""
    assert run(BUSY, SITE) == run(BUSY, SITE)
    assert run(BUSY, SITE) != run(BUSY, SITE, seed=1)


# ---- the scratch store ---------------------------------------------------------------------------------------------


def test_a_scratch_store_is_gone_with_its_directory() -> None:
    """A scratch store ends with its context, and its directory is removed."""
    with scratch_store() as url:
        directory = Path(url.removeprefix("unix://")).parent
        with closing(JobQueue(url)) as other:
            assert other.epoch() is None
        assert directory.exists()
    assert not directory.exists()
    with pytest.raises(StoreUnreachable), closing(JobQueue(url)) as other:
        other.epoch()


def test_a_scratch_store_dies_with_who_started_it() -> None:
    """A scratch store ends with the process that started it, even if that was killed."""
    text = (
        "import signal; from gpuqueue.embedded.store import scratch_store\n"
        "with scratch_store() as url: print(url, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        with closing(JobQueue(url)) as other:
            assert other.epoch() is None
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(30)

    def gone() -> bool:
        try:
            with closing(JobQueue(url)) as other:
                other.epoch()
        except StoreUnreachable:
            return True
        return False

    until(gone, what="the end of the store")


# ---- the command ---------------------------------------------------------------------------------------------------


def command(*words: str, given: str | None = None) -> Result:
    """Run ``gpuqueue simulate``."""
    return CliRunner().invoke(commands, ["simulate", *words], input=given)


@pytest.fixture
def example(tmp_path: Path) -> str:
    """Return the path of a file with the example trace."""
    path = tmp_path / "trace.csv"
    path.write_text(command("--example").stdout)
    return str(path)


def test_the_example_is_a_trace_and_a_table(example: str) -> None:
    """The example trace gives a table of six policies and three users, within 80 columns."""
    assert Path(example).read_text() == EXAMPLE

    shown = command(example, "--devices", "2x24G")

    assert shown.exit_code == 0, shown.output
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines[3:9]] == POLICIES
    assert {"ann", "bob", "eve"} <= {line.split()[0] for line in lines if line}
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("shape", shapes.SHAPES)
def test_a_made_trace_of_a_shape_loads_the_named_devices(shape: str) -> None:
    """A printed trace of a shape is the one that the library makes, and is read back."""
    made_for = ("--devices", "2x24G/4x24G", "--headroom", "1G")

    shown = command("--make", "30", "--shape", shape, "--seed", "3", *made_for)

    site = Site.parse("2x24G/4x24G", slots=16, headroom_bytes=GIB)
    expected = shapes.shaped(shapes.SHAPES[shape], site, 30, seed=3)
    assert shown.stdout.splitlines() == list(trace.write(expected))
    assert len(trace.read(shown.stdout.splitlines(), "t").requests) == 30


def test_one_is_no_plural() -> None:
    """One job of one user is written in the singular."""
    lines = "arrival_s,user,mem,duration_s\n0,ann,1G,5\n"

    shown = CliRunner().invoke(commands, ["simulate", "-", "--devices", "24G"], input=lines)

    assert shown.stdout.startswith("1 job of 1 user, "), shown.output


@pytest.mark.full
def test_the_table_keeps_to_80_columns_where_waits_are_long() -> None:
    """The table fits 80 columns with waits of days and long user names. Users beyond the limit are counted."""
    rows = [f"0,user-with-a-long-name-{number},20G,{400000 + number}" for number in range(25)]
    shown = command("-", "--devices", "1x24G", given="\n".join(["arrival_s,user,mem,duration", *rows]))

    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "and 5 more" in shown.stdout


def test_it_shows_what_reservations_cost() -> None:
    """Devices are idle while they are reserved for a large job, for as long as the table and the JSON say."""
    small = "".join(f"{240 * number},bob,11G,600\n" for number in range(30))
    given = f"arrival_s,user,mem,duration_s\n{small}1,ann,23G,60\n"
    words = ("-", "--devices", "24G")

    idle_s = json.loads(command(*words, "--json", given=given).stdout)["reserved_idle_device_s"]
    without = json.loads(command(*words, "--json", "--reserve-after", "none", given=given).stdout)

    assert 60 < idle_s < 600
    assert 0 == without["reserved_idle_device_s"]
    assert (
        f"Devices were idle for {idle_s / 3600:.2f} h because they were reserved."
        in command(*words, given=given).stdout
    )


def test_json_has_the_same_values_in_full(example: str) -> None:
    """The JSON has every policy and user, and is the same for the same seed."""
    first = json.loads(command(example, "--devices", "2x24G", "--json").stdout)
    again = json.loads(command(example, "--devices", "2x24G", "--json").stdout)

    assert first.pop("took_s") > 0
    again.pop("took_s")
    assert first == again
    assert first["outcomes"][0]["all"]["jobs"] == 8
    assert math.isclose(first["outcomes"][0]["all"]["gpu_s"], 7200 + 3 * 1800 + 2400 + 300 + 2 * 5400 + 3600)
    assert [each["policy"] for each in first["outcomes"]] == POLICIES
    for each in first["outcomes"]:
        assert sum(user["jobs"] for user in each["users"].values()) == 8


def test_the_placements_are_compared_by_turnaround(example: str) -> None:
    """Each placement has a line, the one of the settings first, and the verdict names the best."""
    words = (example, "--devices", "2x24G", "--compare", "placement")

    shown = command(*words)
    plain = json.loads(command(*words, "--jobs", "5", "--json").stdout)

    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("8 jobs of 3 users, ")
    assert ["PLACEMENT", "spread", "pack", "least-busy"] == [line.split()[0] for line in lines[2:6]]
    assert "than spread, the placement of the settings." in shown.stdout
    assert max(map(len, lines)) <= 80
    assert {"spread": 5, "pack": 5, "least-busy": 5} == {name: its["jobs"] for name, its in plain["placements"].items()}
    assert plain["served"] is None


def test_a_comparison_that_takes_too_long_has_the_same_jobs_under_each_placement() -> None:
    """After its time no further job arrives in the first replay, and the others replay the same jobs."""
    seen: list[int] = []
    requests = made(20, 1)

    compared = dict(compare_placements(requests, SITE, Knobs(), seen=seen.append, most_s=0.0))

    assert [*Preference] == [*compared]
    assert {1} == {figures.jobs for figures in compared.values()} == set(seen)


def test_the_own_history_is_a_trace_that_was_served() -> None:
    """A record becomes a request with what its last run was allocated, and the wait that it had."""
    recorded = (record(7, 100.0, wait_s=30.0, duration_s=60.0), record(8, 0.0, wait_s=5.0, duration_s=10.0))

    read, served = own.trace_of(recorded)

    assert [("8", 0.0, 6 * GIB), ("7", 100.0, 6 * GIB)] == [
        (each.name, each.arrival_s, each.mem_bytes) for each in read.requests
    ]
    assert [(5.0, 10.0), (30.0, 60.0)] == [(each.wait_s, each.run_s) for each in served]
    devices = (make_status("GPU-0"), make_status("GPU-1", headroom_bytes=GIB), make_status("GPU-2", host="nodeB"))
    assert "2x24G/1x24G" == own.in_words(own.site_of(devices))
    assert 3 * 23 * GIB == own.site_of(devices).usable_bytes
    with pytest.raises(BadRequest, match="no GPU is served here"):
        own.site_of(())


def record(job_id: int, submitted_s: float, *, wait_s: float, duration_s: float) -> Record:
    """Return the record of a job that asked for 2 GiB and was given 6."""
    submitted_at = datetime(2026, 11, 1, tzinfo=timezone.utc) + timedelta(seconds=submitted_s)
    claimed_at = submitted_at + timedelta(seconds=wait_s)
    job = Job(id=job_id, spec=make_spec(mem_bytes=2 * GIB), state=JobState.SUCCEEDED, submitted_at=submitted_at)
    device = RunDevice(uuid="GPU-0", lease_bytes=6 * GIB, kind=DeviceKind.GPU)
    run = Run(
        job_id=job_id,
        attempt=1,
        token="1.a",
        host="nodeA",
        worker="w",
        claimed_at=claimed_at,
        ended_at=claimed_at + timedelta(seconds=duration_s),
        ending=Ending.from_status(0),
        duration_s=duration_s,
        devices=(device,),
    )
    return Record(job=job, runs=(run,))


def test_a_job_that_no_device_could_run_is_left_out_and_reported() -> None:
    """A job that fits no device is left out for all policies, with a message."""
    given = "arrival_s,user,mem,duration\n0,ann,4G,10\n0,ann,40G,10\n"

    shown = command("-", "--devices", "24G", "--json", given=given)

    assert shown.stderr == "1 job left out: fit no device of this site (line 3)\n"
    reported = json.loads(shown.stdout)
    assert (reported["too_large"]["count"], reported["outcomes"][0]["all"]["jobs"]) == (1, 1)


def test_a_job_beyond_a_limit_is_left_out_and_reported() -> None:
    """A job that a limit never allows is left out for all policies, with a message. It would wait for ever."""
    given = "arrival_s,user,mem,duration,gpus\n0,ann,4G,10,1\n0,ann,4G,10,2\n"
    words = ("-", "--devices", "2x24G", "--limits", "ann: running_gpus=1", "--json")

    shown = command(*words, given=given)

    assert shown.stderr == "1 job left out: beyond a limit even without other jobs (line 3)\n"
    reported = json.loads(shown.stdout)
    assert [(1, 3), (0, None)] == [
        (reported[key]["count"], reported[key]["line"]) for key in ("over_limit", "too_large")
    ]
    assert 1 == reported["outcomes"][0]["all"]["jobs"]
    nothing = command(*words, given="arrival_s,user,mem,duration,gpus\n0,ann,4G,10,2\n")
    assert str(nothing.exception) == "the limits let no job of the trace run, not even the 2x4G of line 2: raise them"


@pytest.mark.parametrize(
    ("limits", "longest_s"),
    [
        ("", 0),
        ("ann: running_gpus=1", 1000),
        ("*: running_mem=1G/refuse", 1000),  # the simulator makes jobs wait instead of refusing them
        ("bob: running_gpus=1", 0),
        ("*: queued_jobs=0", 0),
        ("@vision: running_jobs=1", 1000),
    ],
)
def test_limits_make_jobs_wait(limits: str, longest_s: float) -> None:
    """Limits make jobs wait. The real scripts apply them, and groups may come from the trace."""
    given = "arrival_s,user,mem,duration,group\n0,ann,1G,1000,vision\n0,ann,1G,1000,vision\n"

    reported = json.loads(command("-", "--devices", "2x24G", "--limits", limits, "--json", given=given).stdout)

    assert longest_s == reported["outcomes"][0]["all"]["wait_max_s"]


def test_a_limit_keeps_nobody_else_waiting() -> None:
    """Ann's second job waits for her first because of a limit, and Bob's job passes it."""
    given = "arrival_s,user,mem,duration\n0,ann,20G,1000\n0,ann,20G,1000\n1,bob,20G,10\n"

    reported = json.loads(
        command("-", "--devices", "2x24G", "--limits", "ann: running_jobs=1", "--json", given=given).stdout
    )

    users = reported["outcomes"][0]["users"]
    assert (1000, 0) == (users["ann"]["wait_max_s"], users["bob"]["wait_max_s"])


def test_knobs_are_those_of_the_settings_unless_an_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters come from the settings unless an option overrides them.

    With one slot, two small jobs wait for each other.
    """
    given = "arrival_s,user,mem,duration\n0,ann,1G,1000\n0,ann,1G,1000\n"

    def longest(*words: str) -> float:
        reported = json.loads(command("-", "--devices", "24G", "--json", *words, given=given).stdout)
        return float(reported["outcomes"][0]["all"]["wait_max_s"])

    assert longest() == 0
    assert longest("--slots", "1") == 1000
    monkeypatch.setenv("GPUQUEUE_SLOTS", "1")
    assert longest() == 1000
    assert longest("--slots", "2") == 0


def test_placement_is_an_option() -> None:
    """Spread, two small jobs leave no card for a large one. Packed on one card, they do."""
    given = "arrival_s,user,mem,duration\n0,ann,4G,1000\n1,ann,4G,1000\n2,bob,22G,10\n"

    def longest(*words: str) -> float:
        reported = json.loads(command("-", "--devices", "2x24G", "--json", *words, given=given).stdout)
        return float(reported["outcomes"][0]["all"]["wait_max_s"])

    assert longest() == longest("--placement", "spread") == 998
    assert longest("--placement", "pack") == 0


@pytest.mark.full
def test_runs_slow_each_other_if_asked() -> None:
    """With ``--slowdown`` two runs that share a card take longer, and the table has a column for that."""
    given = "arrival_s,user,mem,duration,utilisation\n0,ann,4G,930,60%\n0,ann,4G,93,50%\n"
    words = ("-", "--devices", "24G")

    plain = json.loads(command(*words, "--slowdown", "--json", given=given).stdout)
    ours = plain["outcomes"][0]
    assert (True, 937) == (plain["slows"], ours["makespan_s"])
    assert (937 / 930 + 100 / 93) / 2 == pytest.approx(ours["all"]["stretch"])
    unslowed = json.loads(command(*words, "--json", given=given).stdout)
    assert (False, 930, 1) == (
        unslowed["slows"],
        unslowed["outcomes"][0]["makespan_s"],
        unslowed["outcomes"][0]["all"]["stretch"],
    )
    shown = command(*words, "--slowdown", given=given).stdout
    assert " STRETCH " in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "STRETCH" not in command(*words, given=given).stdout


def test_a_knob_is_blamed_by_its_option(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error names the option that was given, or the setting if the value came from there."""
    refused = command(example, "--devices", "24G", "--reserve-after", "soon")

    assert str(refused.exception).startswith("--reserve-after: 'soon' is not a duration")
    monkeypatch.setenv("GPUQUEUE_SLOTS", "many")
    assert "GPUQUEUE_SLOTS" in str(command(example, "--devices", "24G", "--headroom", "1G").exception)


@pytest.mark.parametrize("kind", [pytest.param("png", marks=pytest.mark.full), "svg"])
def test_the_charts_are_written(example: str, tmp_path: Path, kind: str) -> None:
    """Each chart file is written completely, and no other file is."""
    path = tmp_path / f"picture.{kind}"

    shown = command(example, "--devices", "2x24G", "--plot", str(path))

    assert shown.exit_code == 0, shown.output
    assert "exclusive" in shown.output  # the table is printed too
    assert path.stat().st_size > 5000
    assert {"trace.csv", path.name} == {each.name for each in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("words", "shown_text"),
    [
        ((), "name a trace: gpuqueue simulate trace.csv"),
        (("t.csv",), "name the devices: gpuqueue simulate t.csv --devices 4x24G"),
        (("-", "--devices", "foo"), "'foo' names no devices: write 4x24G"),
        (("-", "--devices", "2x1G", "--headroom", "2G"), "a headroom of 2G leaves nothing of a card with 1G"),
        (("-", "--devices", "24G", "--shares", "foo"), "--shares: 'foo' is no share: write ann=2"),
        (("-", "--devices", "sim:1x1G"), "no job of the trace fits these devices"),
        (("--example", "--make", "5"), "choose one"),
        (("--make", "5", "--shape", "gangs"), "name the devices that the trace is made for: --devices 4x24G"),
        (("--example", "--devices", "24G"), "--devices has no effect on the trace that --example prints: leave it out"),
        (("--make", "5", "--slots", "2"), "--slots has no effect on the trace that --make prints: leave it out"),
        (
            ("--make", "5", "--shape", "gangs", "--devices", "24G", "--slowdown"),
            "--slowdown has no effect on the trace that --make with --shape prints: leave it out",
        ),
        (("t.csv", "--compare", "placement"), "name the devices: gpuqueue simulate t.csv --compare placement --dev"),
        (("--compare", "placement", "--placement", "pack"), "--compare excludes --plot and --placement"),
        (("t.csv", "--jobs", "9"), "--jobs is for --compare"),
        (("t.csv", "--shape", "gangs"), "--shape says what --make prints: add --make 1000"),
        (("t.csv", "--devices", "24G"), "cannot read 't.csv': No such file"),
        (("-", "--devices", "24"), "add the unit: 24M or 24G"),
        (("-", "--devices", "24G", "--slots", "0"), "--slots: '0' is no whole number"),
        (("-", "--devices", "24G", "--half-life", "1s"), "too short"),
        (("-", "--devices", "24G", "--placement", "x"), "is no placement: write spread, pack or least-busy"),
        (("-", "--devices", "24G", "--shares", "@x=1"), "name them in groups"),
        (("-", "--devices", "24G", "--limits", "ann=2"), "--limits: 'ann=2' is no limit: write ann: running_gpus=4"),
        (("-", "--devices", "24G", "--shares", "ann=0", "--groups", "a: ann"), "--shares and --groups: "),
        (("-", "--devices", "24G", "--json", "--plot", "x.png"), "exclude each other"),
        (("-", "--devices", "24G", "--plot", "x.pdf"), "--plot cannot write"),
        (("-", "--devices", "99999999x24G"), "'99999999x24G' has 99999999 devices or more: at most 1024 can be"),
        (("-", "--devices", "24G/" * 1024 + "24G"), "has 1025 devices or more: at most 1024 can be"),
        (("-", "--devices", "1G"), "fits these devices, not even the 4G of line 7: give more or larger ones"),
    ],
)
def test_an_invalid_value_is_refused_in_one_line(words: tuple[str, ...], shown_text: str) -> None:
    """Invalid arguments are refused in one line, before a store is started."""
    shown = CliRunner().invoke(commands, ["simulate", *words], input=EXAMPLE)

    assert shown_text in str(shown.exception)
    assert isinstance(shown.exception, BadRequest)
    assert shown.stdout == ""
