from __future__ import annotations

from itertools import pairwise
from types import MappingProxyType

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.placement import Shape
from gpuqueue.text.units import GIB, MIB


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ()},
        {"argv": ("",)},
        {"mem_bytes": 0},
        {"mem_bytes": -1},
        {"mem_bytes": 6e9},
        {"mem_bytes": True},
        {"mem_bytes": 10**20},
        {"gpus": "2"},
        {"gpus": 1.0},
        {"name": 5},
        {"priority": 1},
        {"priority": "high"},
        {"argv": ("echo", 1)},
        {"env": {"A": 1}},
        {"time_limit_s": float("nan")},
        {"time_limit_s": "1h"},
        {"gpus": 0},
        {"gpus": 65},
        {"device": "gpu"},
        {"device": DeviceKind.GPU},
        {"gpus": 2, "device": DeviceFilter.CPU},
        {"time_limit_s": 0.0},
        {"name": ""},
        {"name": "x" * 129},
        {"cwd": "relative"},
        {"pool": "a:b"},
        {"account": Account(name="a b", uid=1, host="h")},
        {"argv": ("echo", "a\0b")},
        {"env": {"A": "\0"}},
    ],
)
def test_what_could_never_run_is_no_spec(changes: dict[str, object]) -> None:
    """A spec that no process could run cannot be created."""
    with pytest.raises(BadRequest):
        make_spec(**changes)


@pytest.mark.parametrize("name", JobSpec.__slots__)
def test_no_field_is_just_anything(name: str) -> None:
    """Every field checks its type. A boolean is refused for a number, although Python treats it as one."""
    usual = getattr(make_spec(), name)
    with pytest.raises(BadRequest, match=r"must be .*, not <object"):
        make_spec(**{name: object()})
    if not isinstance(usual, bool):
        with pytest.raises(BadRequest):
            make_spec(**{name: True})


def test_what_is_of_a_kind_is_of_that_kind() -> None:
    """Subclasses of str and any mapping are accepted unchanged."""

    class Name(str):
        __slots__ = ()

    spec = make_spec(name=Name("own"), env=MappingProxyType({Name("A"): Name("1")}), argv=(Name("true"),))

    assert ("own", {"A": "1"}, ("true",)) == (spec.name, dict(spec.env), spec.argv)


def test_a_shape_rounds_up_and_the_job_keeps_its_figures() -> None:
    """A shape rounds memory up to whole MiB and time to the next step, so that few shapes exist.

    The job keeps its exact figures.
    """
    spec = make_spec(mem_bytes=GIB + 1, time_limit_s=61.0, gpus=2, pool="big")

    assert Shape(GIB + MIB, 90, 2, "big") == spec.shape
    assert f"{GIB + MIB}:90:2:big" == str(spec.shape)
    assert GIB + 1 == spec.mem_bytes


def test_a_shape_omits_an_empty_device_filter() -> None:
    """A shape without a device kind has no such part, as before device kinds existed.

    A pool name contains no colon, so the parts are unambiguous.
    """
    assert f"{GIB}:0:1:big" == str(make_spec(pool="big").shape)
    assert f"{GIB}:0:1:big:cpu" == str(make_spec(pool="big", device=DeviceFilter.CPU).shape)
    assert f"{GIB}:0:1::any" == str(make_spec(device=DeviceFilter.ANY).shape)


def test_a_limit_beyond_the_last_step_counts_as_none_in_matching() -> None:
    """A time limit above the last step counts as none, because nothing can be planned around weeks."""
    assert 0 == make_spec(time_limit_s=86400.0 * 31).shape.time_limit_s
    assert 0 == make_spec().shape.time_limit_s


def test_steps_of_time_are_narrow_enough_for_backfill() -> None:
    """The time steps are narrow enough for backfill.

    Regression: a limit of 65 minutes counted as four hours, and the job did not fit a gap of ninety minutes.
    """
    steps = Shape.TIME_STEPS_S

    assert all(before < after <= 2 * before for before, after in pairwise(steps))
    assert all(after <= 1.5 * before for before, after in pairwise(steps) if before >= 60)
    assert 75 * 60 == make_spec(time_limit_s=65 * 60.0).shape.time_limit_s


def test_the_environment_stays_out_of_repr() -> None:
    """The environment is not in the repr, because users paste logs and environments hold secrets."""
    assert "hunter2" not in repr(make_spec(env={"SECRET": "hunter2"}))


def test_all_faults_of_a_request_are_said_at_once() -> None:
    """Each with its field in JSON; one alone is as it was."""
    with pytest.raises(BadRequest) as refused:
        make_spec(mem_bytes=0, gpus=99, cwd="here", tags=("a b",))
    assert ["cwd", "tags", "mem_bytes", "gpus"] == [field for field, _ in refused.value.faults]
    assert "; ".join(words for _, words in refused.value.faults) == str(refused.value)
    with pytest.raises(BadRequest, match=r"^a job cannot ask for 99 devices: give a number from 1 to 64$"):
        make_spec(gpus=99)
