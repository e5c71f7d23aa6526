from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from one_shim import Shim
from submitters import Launcher, People


@pytest.fixture
def launcher(launch: Callable[..., Launcher]) -> Launcher:
    """Return a launcher whose service account is that of the test, root."""
    return launch()


@pytest.fixture
def as_user(shims: Any, people: People, launcher: Launcher) -> Iterator[Callable[..., Shim]]:
    """Return a function that starts a run as a submitter, by default alice, in her home."""
    number = count(1)

    def start(*argv: str, name: str = people.alice.pw_name, uid: int = people.alice.pw_uid, **changes: Any) -> Shim:
        user = {"name": name, "uid": uid}
        fields = {"cwd": people.alice.pw_dir, "launcher": launcher.socket, "user": user, **changes}
        started: Shim = shims(*argv, runs=launcher.runs, job_id=next(number), entered=True, **fields)
        return started

    yield start
    for account in (people.alice, people.bob):  # what a failed test has left
        people.shell(account, "kill -9 -1")
