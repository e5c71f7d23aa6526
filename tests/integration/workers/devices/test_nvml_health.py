"""Tests of the health of GPUs and of the distances between them, as the fake driver reports them."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from fake_driver.fake_driver import (
    ECC,
    EVENTS,
    FIELDS,
    GPU_IS_LOST,
    MARGIN,
    MODE,
    PAGES,
    POWER,
    REASONS,
    ROWS,
    TEMPERATURE,
    TEMPERATURE_V,
    THRESHOLD,
    TOPOLOGY,
    UTILISATION,
    FakeGpus,
    build,
    compiler,
)
from fake_driver.far_backend import WELL, FarBackend

from gpuqueue.model.device import Health, Xid, memory_errors_in_words, trouble_of
from workers.devices.backend import DeviceTrouble
from workers.worker import distances_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[[str], FarBackend]

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")

GIB = 2**30


@pytest.fixture
def fake(tmp_path: Path) -> FakeGpus:
    """Return two GPUs, half a GiB of each reserved."""
    return FakeGpus.create(tmp_path / "state", (24 * GIB, 80 * GIB), reserved_bytes=GIB // 2)


@pytest.fixture
def start(fake: FakeGpus, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts backends that see the fake driver."""
    library = build(tmp_path)
    with contextlib.ExitStack() as stack:
        yield lambda spec: stack.enter_context(contextlib.closing(FarBackend(spec, fake.environ(library))))


def test_health_is_what_the_driver_says(fake: FakeGpus, start: Start) -> None:
    """Each health field is the card's own value, in gpuqueue's units."""
    gpu = fake.state.gpus[1]
    gpu.temperature, gpu.gpu_max = 71, 90
    gpu.utilisation, gpu.ecc, gpu.compute_mode = 97, 2, 3
    gpu.memory_utilisation = 34
    gpu.rows, gpu.retirement = 2, 1
    gpu.power_mw = 312_400
    gpu.reasons = 0x1 | 0x2 | 0x4 | 0x8 | 0x20 | 0x40 | 0x80
    backend = start("auto")
    first, second = backend.devices()
    assert WELL == backend.health(first)
    assert Health(
        temperature_c=71.0,
        limit_c=90.0,
        utilisation=0.97,
        memory_utilisation=0.34,
        power_w=312.4,
        throttled=("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake"),
        ecc_uncorrected=2,
        compute_mode="exclusive_process",
        retired_rows=2,
        retirement="pending",
        xids=(),
    ) == backend.health(second)


@pytest.mark.full
@pytest.mark.parametrize("switch", ["unsupported", "missing"])
@pytest.mark.parametrize(
    ("question", "unknown"),
    [
        (TEMPERATURE, ["temperature_c"]),
        (TEMPERATURE_V, []),
        (THRESHOLD | MARGIN, ["limit_c"]),
        (FIELDS, []),
        (UTILISATION, ["utilisation", "memory_utilisation"]),
        (POWER, ["power_w"]),
        (REASONS, ["throttled"]),
        (ECC, ["ecc_uncorrected"]),
        (MODE, ["compute_mode"]),
        (ROWS, []),
        (ROWS | PAGES, ["retired_rows"]),
        (EVENTS, ["xids"]),
    ],
)
def test_an_unreported_value_is_none(
    fake: FakeGpus, start: Start, switch: str, question: int, unknown: list[str]
) -> None:
    """A question that the card or the driver does not support makes its own field None, and no other."""
    setattr(fake.state if switch == "missing" else fake.state.gpus[0], switch, question)
    backend = start("auto")
    expected = dataclasses.replace(WELL, **dict.fromkeys(unknown))
    assert expected == backend.health(backend.devices()[0])


@pytest.mark.parametrize(
    ("gpu_max", "slowdown", "fields", "limit_c"),
    [
        (0, 87, (0, 0, 0), 87.0),  # an old card with one threshold
        (0, 0, (45, 0, -2), 85.0),  # Ada and later: 45 degrees left at 40, and the threshold is T.Limit
        (0, 0, (45, -3, -2), 88.0),
        (0, 0, (45, 83, 87), 83.0),  # a driver that gives degrees
        (0, 0, (0, 0, 0), None),
    ],
)
def test_a_cards_own_line_is_found_old_and_new(
    fake: FakeGpus, start: Start, gpu_max: int, slowdown: int, fields: tuple[int, int, int], limit_c: float | None
) -> None:
    """The temperature limit is where the card begins to slow down, from the old call or the numbered fields."""
    gpu = fake.state.gpus[0]
    gpu.gpu_max, gpu.slowdown = gpu_max, slowdown
    gpu.margin, gpu.gpu_max_tlimit, gpu.slowdown_tlimit = fields
    backend = start("auto")
    assert limit_c == backend.health(backend.devices()[0]).limit_c


def test_a_hot_card_is_trouble_until_it_cools(fake: FakeGpus, start: Start) -> None:
    """A hot card is trouble, in words, from the next reading until it has cooled."""
    backend = start("auto")
    device = backend.devices()[0]
    fake.state.gpus[0].temperature = 84
    assert "it is hot: 84 °C, and the limit for new jobs is 78 °C" == trouble_of(backend.health(device))
    fake.state.gpus[0].temperature, fake.state.gpus[0].compute_mode = 60, 2
    assert "prohibited" in (trouble_of(backend.health(device)) or "")
    fake.state.gpus[0].compute_mode = 0
    assert trouble_of(backend.health(device)) is None


@pytest.mark.parametrize("mode", ["rows", "pages"])
def test_memory_that_was_retired_is_reported(fake: FakeGpus, start: Start, mode: str) -> None:
    """Newer cards report rows, older ones pages."""
    gpu = fake.state.gpus[0]
    gpu.unsupported = ROWS if mode == "pages" else 0
    gpu.rows, gpu.retirement = 3, 1
    backend = start("auto")

    health = backend.health(backend.devices()[0])

    assert (3, "pending") == (health.retired_rows, health.retirement)
    words = "3 rows of memory retired; a row of memory is retired at the next reset"
    assert words == memory_errors_in_words(0, health.retired_rows, health.retirement)
    assert trouble_of(health) is None
    assert "a row of memory is retired at the next reset" in (trouble_of(health, without_errors=True) or "")


def test_an_xid_error_is_read_once_and_closes_the_card_that_needs_a_reset(fake: FakeGpus, start: Start) -> None:
    """Errors before the worker started are those of the past. Other cards go on."""
    fake.report_xid(0, 31)
    backend = start("auto")
    first, second = backend.devices()
    assert () == backend.health(first).xids
    fake.report_xid(0, 31)
    fake.report_xid(0, 95)

    health = backend.health(first)

    assert [31, 95] == [xid.code for xid in health.xids or ()]
    assert health.xids == backend.health(first).xids
    assert "Xid 95, a memory error that may have damaged other programs: reset the GPU" in (trouble_of(health) or "")
    assert () == backend.health(second).xids


def test_an_xid_error_that_a_program_causes_closes_no_card() -> None:
    assert trouble_of(Health(xids=(Xid(31, datetime.now(timezone.utc)), Xid(8, datetime.now(timezone.utc))))) is None


def test_a_lost_gpu_has_no_health_and_no_distance(fake: FakeGpus, start: Start) -> None:
    """A lost card is trouble, and not a card with unknown health."""
    backend = start("auto")
    first, second = backend.devices()
    fake.state.gpus[1].error = GPU_IS_LOST
    with pytest.raises(DeviceTrouble, match="lost"):
        backend.health(second)
    with pytest.raises(DeviceTrouble, match="lost"):
        backend.distance(first, second)
    assert {} == distances_from(backend, first)
    assert WELL == backend.health(first)


def test_distance_is_the_drivers_and_a_link_makes_neighbours(fake: FakeGpus, start: Start) -> None:
    """The distance is NVML's own level, 0 with an NVLink, and None if it is unknown."""
    backend = start("auto")
    first, second = backend.devices()
    assert 50 == backend.distance(first, second)
    fake.state.levels[0][1] = 20
    assert 20 == backend.distance(first, second)
    fake.state.links[0][1] = 1
    assert 0 == backend.distance(first, second)
    assert {second.uuid: 0} == distances_from(backend, first)
    fake.state.gpus[0].unsupported = TOPOLOGY
    assert backend.distance(first, second) is None
    assert {} == distances_from(backend, first)
