"""The decorator, without a queue."""

from __future__ import annotations

import pickle

import called
import cloudpickle
import pytest

import gpuqueue
from gpuqueue.errors import BadRequest


def test_a_task_is_still_its_function() -> None:
    """A call runs here, and the name and the text of the function are there."""
    assert (12, "triple", "Return three times the number.") == (
        called.triple(4),
        called.triple.__name__,
        called.triple.__doc__,
    )
    bare = gpuqueue.task(called.square)
    assert 16 == bare(4)


def test_a_task_travels_by_its_name() -> None:
    """A job imports the module of a task, as that of a function. What no module has travels by value."""
    assert called.triple is pickle.loads(pickle.dumps(called.triple))  # noqa: S301 - our own
    assert len(pickle.dumps(called.triple)) < 100
    local = gpuqueue.task(mem="1G")(lambda number: number + 1)
    assert 5 == pickle.loads(cloudpickle.dumps(local))(4)  # noqa: S301 - as above


@pytest.mark.parametrize("name", ["memory", "array", "dedupe", "args"])
def test_a_wrong_option_is_named_at_once(name: str) -> None:
    """An option that no submit has, or that the executor decides, is refused where it is written."""
    with pytest.raises(BadRequest, match=f"^{name} is no option of an executor: there are "):
        gpuqueue.task(**{name: "1G"})(called.square)
