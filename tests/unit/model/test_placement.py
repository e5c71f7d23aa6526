from __future__ import annotations

from typing import Any

import pytest
from factories import make_spec

from gpuqueue.client.placement import placed
from gpuqueue.errors import BadRequest
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.placement import ANYWHERE, Placement, Preference, fits_model
from gpuqueue.text.units import GIB
from gpuqueue.words.values import put_of, wants_of


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("A100", True),
        ("a100", True),
        ("a100-80gb", True),
        ("80GB A100", True),
        ("NVIDIA A100-SXM4-80GB", True),
        ("A10", False),
        ("100", False),
        ("A100-40GB", False),
        ("H100", False),
    ],
)
def test_a_type_is_words_of_a_models_name(pattern: str, *, fits: bool) -> None:
    """A device type matches whole words of a model's name. A10 does not match A100."""
    assert fits == fits_model(pattern, "NVIDIA A100-SXM4-80GB")


def test_a_mig_profile_is_a_type() -> None:
    """A MIG profile is a device type, because the instance's name contains it."""
    assert fits_model("1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    assert not fits_model("1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb.me")


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (Placement(), ""),
        (Placement(exclusive=True), "x"),
        (Placement(exclusive=True, whole=True), "xw"),
        (Placement(preference=Preference.PACK), "p"),
        (Placement(preference=Preference.LEAST_BUSY), "l"),
        (Placement(models=("RTX 4090", "A100")), ":4090-rtx+a100"),
        (Placement(devices=("GPU-2", "GPU-1", "GPU-2")), "::GPU-1,GPU-2"),
        (Placement(exclusive=True, models=("A100",), devices=("GPU-1",)), "x:a100:GPU-1"),
    ],
)
def test_a_placement_in_a_shape(placement: Placement, text: str) -> None:
    """Equal placements have the same text, however they were given. The default placement adds nothing to a shape."""
    assert text == str(placement)
    assert bool(text) == bool(placement)
    shape = str(make_spec(placement=placement).shape)
    assert shape == (f"{GIB}:0:1:::{text}" if text else f"{GIB}:0:1:")


@pytest.mark.parametrize(
    "changes",
    [
        {"models": ("…",)},
        {"models": ("A" * 65,)},
        {"models": ("A100",) * 9},
        {"models": "A100"},
        {"devices": ("GPU-0:1",)},
        {"devices": ("GPU-0,GPU-1",)},
        {"devices": ("",)},
        {"devices": (1,)},
        {"exclusive": 1},
        {"whole": True},
        {"preference": "spread"},
    ],
)
def test_what_no_device_could_be_matched_with_is_refused(changes: dict[str, Any]) -> None:
    """An invalid placement is refused before it becomes part of a key in the store."""
    with pytest.raises(BadRequest):
        Placement(**changes)


def test_a_job_on_two_devices_names_two_or_none() -> None:
    """A job on two devices names at least two devices or none. It may choose among more."""
    spec: JobSpec = make_spec(gpus=2, placement=Placement(devices=("a", "b", "c")))
    assert 3 == len(spec.placement.devices)
    with pytest.raises(BadRequest, match="2 devices asked for, and 1 named"):
        make_spec(gpus=2, placement=Placement(devices=("a",)))


def uuids_of(names: Any) -> list[str]:
    """Return a device UUID for each name."""
    return [f"GPU-{name}" for name in names]


def put(device: Any = None, device_type: Any = None, preference: Any = None, **more: Any) -> Any:
    """Return the device kind and the placement for these options."""
    asked = {"device": device, "device_type": device_type, "preference": preference, "mem": "1G", **more}
    return placed(JobRequest(["true"], **asked), uuids_of)


def test_what_a_person_says_of_devices() -> None:
    """A known word is a device kind, any other word a device's name. A named device may have any kind."""
    assert (None, ANYWHERE) == put()
    assert (DeviceFilter.CPU, ANYWHERE) == put("cpu")
    assert (DeviceFilter.GPU, ANYWHERE) == put([DeviceFilter.GPU])
    assert (DeviceFilter.ANY, Placement(devices=("GPU-0", "GPU-1"))) == put(("0,1",))
    assert (None, Placement(models=("A100", "H100"))) == put(None, ["A100", "H100"])
    assert (None, Placement(models=("RTX 4090",))) == put(None, "RTX 4090")
    assert (None, Placement(preference=Preference.PACK)) == put(preference="pack")
    assert (None, Placement(preference=Preference.LEAST_BUSY)) == put(preference="least-busy")
    assert (None, Placement(exclusive=True)) == put(exclusive=True)
    assert (None, Placement(exclusive=True, whole=True)) == put(exclusive=True, mem=None)


@pytest.mark.parametrize("printed", [{"device": ["gpu", "0"]}, {"preference": "best"}, {"device": [1]}])
def test_what_makes_no_sense_of_devices_is_refused(printed: dict[str, Any]) -> None:
    """Contradictory or invalid device options raise `BadRequest`."""
    with pytest.raises(BadRequest):
        put(**printed)


@pytest.mark.parametrize(
    ("changes", "wants", "put"),
    [
        ({}, "", ""),
        ({"device": DeviceFilter.CPU}, "cpu", ""),
        ({"placement": Placement(models=("A100", "H100"))}, "A100|H100", ", of type A100 or H100"),
        ({"placement": Placement(devices=("a", "b"))}, "named", ", among a, b"),
        (
            {"placement": Placement(exclusive=True, preference=Preference.PACK)},
            "alone",
            ", alone there, placed by pack",
        ),
        (
            {"placement": Placement(models=("\x1b[31m",), exclusive=True)},
            "\N{REPLACEMENT CHARACTER}[31m alone",
            ", alone there, of type \N{REPLACEMENT CHARACTER}[31m",
        ),
    ],
)
def test_what_is_shown_of_a_placement(changes: dict[str, Any], wants: str, put: str) -> None:
    """A placement is one word in the list and complete in the job's details, without control characters."""
    spec = make_spec(**changes)

    assert (wants, put) == (wants_of(spec), put_of(spec.placement))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, ""),
        ({"requeue": False}, "o"),
        ({"expected_duration_s": 61.0}, "d90"),
        ({"expected_duration_s": 61.0, "requeue": False}, "d90"),
        ({"expected_duration_s": 1e8, "requeue": False}, "o"),  # beyond the last step
        ({"expected_duration_s": 60.0, "placement": Placement(exclusive=True, models=("A100",))}, "xd60:a100"),
        ({"expected_duration_s": 60.0, "requeue": False, "time_limit_s": 600.0}, "d60"),
        ({"expected_duration_s": 600.0, "requeue": False, "time_limit_s": 600.0}, ""),
    ],
)
def test_the_expected_duration_of_a_job_in_its_shape(changes: dict[str, Any], text: str) -> None:
    """Devices that are reserved or end ask for it. Jobs that differ only in it are of different shapes."""
    assert text == make_spec(**changes).shape.placement
