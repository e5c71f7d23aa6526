"""The bodies of a remote client's requests have only what was set: an older service refuses fields that are new."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpuqueue.client.remote.link import Link
from gpuqueue.client.remote.submit import edit_body, retry_body
from gpuqueue.errors import BadRequest
from gpuqueue.model.job_request import JobEdit
from gpuqueue.model.job_spec import Priority
from gpuqueue.settings.settings import Settings


@pytest.fixture
def link() -> Link:
    """Return the link to a service that is not there: nothing is sent."""
    return Link(Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s"}), "unix:///nowhere")


@pytest.mark.parametrize(
    ("changes", "body"),
    [
        ({"priority": "high"}, {"priority": "high"}),
        ({"priority": Priority.HIGH}, {"priority": "high"}),
        ({"mem": "8G", "cpus": "none"}, {"mem": "8G", "cpus": "none"}),
        ({"exclusive": False, "mem_retries": 0, "pool": ""}, {"exclusive": False, "mem_retries": 0, "pool": ""}),
        ({"after": (), "begin": "now"}, {"after": [], "begin": "now"}),
        ({}, {}),
    ],
)
def test_an_edit_has_only_what_was_set(link: Link, changes: dict[str, Any], body: dict[str, Any]) -> None:
    """A false, empty or zero value is set; one that was not given is left out."""
    assert body == edit_body(link, JobEdit(**changes))


def test_a_retry_has_only_what_was_set(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of this process always travels, because the first one may be removed."""
    monkeypatch.setenv("COLOUR", "blue")

    bare = retry_body(link, None, None, {})
    full = retry_body(link, (), ["LR=1"], {"priority": "high"})

    assert {"fallback_env"} == {*bare}
    assert "blue" == bare["fallback_env"]["COLOUR"]
    del full["fallback_env"]
    assert {"args": (), "env": {"LR": "1"}, "changes": {"priority": "high"}} == full


def test_a_retry_gives_no_variables_of_devices_either(link: Link) -> None:
    """The service would drop them."""
    with pytest.raises(BadRequest, match="use --device 1 instead"):
        retry_body(link, None, ["CUDA_VISIBLE_DEVICES=1"], {})
