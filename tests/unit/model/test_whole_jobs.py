"""What a job may ask for that is handed to an engine as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from factories import make_spec

from gpuqueue.client.edit import change_of
from gpuqueue.client.placement import placed
from gpuqueue.codec.request import decode_spec, encode_spec
from gpuqueue.errors import BadRequest
from gpuqueue.model.device import DeviceFilter, DeviceKind, names_gpus, suits, without_beside
from gpuqueue.model.job_request import JobEdit, JobRequest
from gpuqueue.model.placement import Placement
from gpuqueue.words.values import places_of

SLURM = DeviceFilter.SLURM


def test_only_an_engine_takes_a_whole_job_and_it_takes_no_other() -> None:
    """Also not one that may run on any device."""
    takes = {wanted for wanted in (None, *DeviceFilter) if suits(wanted, DeviceKind.SLURM, gpus_known=False)}

    assert {SLURM} == takes
    assert [DeviceKind.SLURM] == [kind for kind in DeviceKind if suits(SLURM, kind, gpus_known=True)]


def test_the_engine_counts_as_one_device() -> None:
    """However many GPUs it gives. The spec keeps the number, and survives its JSON."""
    spec = make_spec(device=SLURM, gpus=512, nodes=64)

    assert (1, 512) == (spec.shape.gpus, spec.gpus)
    assert spec == decode_spec(encode_spec(spec))
    assert "512 GPUs on 64 nodes of Slurm" == places_of(spec)
    assert "1 GPU on 1 node of Slurm" == places_of(make_spec(device=SLURM))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"nodes": 2}, "--nodes is for a whole job"),
        ({"device": SLURM, "nodes": 0}, "cannot ask for 0 nodes"),
        ({"device": SLURM, "nodes": 2, "gpus": 3}, "3 GPUs cannot be shared evenly by 2 nodes"),
        ({"device": SLURM, "gpus": 0}, "cannot ask for 0 GPUs"),
        ({"device": SLURM, "placement": Placement(exclusive=True)}, "cannot choose devices"),
        ({"device": SLURM, "warm": True}, "warm has no meaning"),
        ({"device": SLURM, "nodes": "2"}, "nodes must be a whole number"),
    ],
)
def test_what_has_no_meaning_is_refused(wrong: dict[str, Any], words: str) -> None:
    """A spec may come from the API, which knows no option."""
    with pytest.raises(BadRequest, match=words):
        make_spec(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"on": "pbs"}, "'pbs' is no engine: write slurm"),
        ({"on": "slurm", "mem": "4G"}, "--mem has no meaning with --on slurm, since Slurm gives whole GPUs"),
        ({"on": "slurm", "exclusive": True}, "--exclusive has no meaning"),
        ({"on": "slurm", "device": "cpu"}, "--device has no meaning"),
        ({"on": "slurm", "pty": True}, "--pty has no meaning"),
        ({"device": "slurm"}, "no device slurm"),
    ],
)
def test_an_option_without_a_meaning_is_named(wrong: dict[str, Any], words: str) -> None:
    """An engine is named by --on, and is no device."""

    def none(names: object) -> list[str]:
        raise BadRequest(f"no device {', '.join(names)}")  # type: ignore[call-overload]

    with pytest.raises(BadRequest, match=words):
        placed(JobRequest(["true"], **wrong), none)


def test_an_engine_is_served_alone_or_beside_devices() -> None:
    """The rest of the words says which devices."""
    assert ["gpu:0,2", "gpu", "slurm", "sim:4x24G", "cpu"] == [
        without_beside(spec) for spec in ("gpu:0,2,cpu,slurm", "gpu,slurm", "slurm", "sim:4x24G", "cpu,slurm")
    ]
    assert names_gpus("auto,cpu,slurm")
    assert not names_gpus("slurm")


def test_an_edit_that_has_no_meaning_is_refused() -> None:
    """The number of GPUs and the time limit of a job that waits can change."""
    spec = make_spec(device=SLURM, gpus=4, nodes=2)
    edit = change_of(JobEdit(gpus=8, time_limit="2h"), lambda _: ())

    assert (8, 7200.0) == (edit(spec).gpus, edit(spec).time_limit_s)
    for wrong, option in ((JobEdit(mem="4G"), "--mem"), (JobEdit(device="gpu"), "--device")):
        with pytest.raises(BadRequest, match=f"{option} has no meaning for a job on slurm"):
            change_of(wrong, lambda _: ())(spec)
    with pytest.raises(BadRequest, match="cannot be shared evenly"):
        change_of(JobEdit(gpus=3), lambda _: ())(spec)
