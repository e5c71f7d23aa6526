"""Users of a service are sent to its administrator, who alone can start what the service needs."""

from __future__ import annotations

import pytest

from gpuqueue.cli.options.own_queue import how_to_start
from gpuqueue.client.remote.link import Link
from gpuqueue.errors import GpuQueueError, HistoryUnreachable, StoreUnreachable
from gpuqueue.queue.connect import NOT_OPEN, not_open_error
from gpuqueue.service.responses import problem_of
from gpuqueue.settings.settings import SYSTEM_SOCKET, Settings


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (
            StoreUnreachable("the store at unix:///s does not answer: it died at 18:02", "make room there"),
            "the store at unix:///s does not answer: it died at 18:02",
        ),
        (not_open_error(NOT_OPEN["NOTOPEN"]), "the store was never opened for gpuqueue, or lost its data"),
        (HistoryUnreachable("it has no tables", "run gpuqueue up, or gpuqueue db upgrade"), "it has no tables"),
    ],
)
def test_no_answer_of_the_service_names_the_command_up(error: GpuQueueError, what: str) -> None:
    """They would start a queue of their own, or be refused."""
    expected = f"{what}: ask the administrator of this site to start it (gpuqueue doctor)"
    assert expected == problem_of(error).detail


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        (f"unix://{SYSTEM_SOCKET}", "Ask the administrator to start it"),
        ("unix:///tmp/mine.sock", "Is gpuqueue serve running there?"),
    ],
)
def test_the_service_of_the_machine_is_started_by_its_administrator(url: str, remedy: str) -> None:
    """A service of one's own is one's own matter."""
    link = Link(Settings.load({"GPUQUEUE_URL": url}), url)
    error = link.unreachable(ConnectionRefusedError(111, "Connection refused"))
    assert f"the service at {url} does not answer: Connection refused. {remedy}" == str(error)


def test_workers_of_a_service_are_started_by_its_administrator() -> None:
    """Without a service, ``up`` starts them."""
    own, of_service = ({"GPUQUEUE_STATE_DIR": "/x"}, {"GPUQUEUE_URL": "unix:///tmp/mine.sock"})
    assert "start one with gpuqueue up" == how_to_start(Settings.load(own))
    assert "ask the administrator to start one" == how_to_start(Settings.load(of_service))
