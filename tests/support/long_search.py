"""How long Hypothesis looks for an order of acts that breaks something: briefly with each run, for a night by hand.

In a run of all tests it tries the same examples each time, so that none fails by chance. ``STATEFUL_EXAMPLES=5000``
tries that many others, at random and longer ones; what fails is shown with the line that repeats it::

    STATEFUL_EXAMPLES=5000 .venv/bin/python -m pytest --timeout 0 tests/integration/queue/test_stateful.py
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

#: The name of the variable; of none that the tests wipe.
VARIABLE = "STATEFUL_EXAMPLES"
#: How many steps an example has at most, in each run and in a long one.
STEPS, LONG_STEPS = 30, 60

#: Where what failed is kept for the next search; also on a machine of CI, where Hypothesis by itself keeps nothing.
KEPT = ".hypothesis/examples"

_QUIET = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


def search(examples: int, asked: str | None = None) -> settings:
    """Return how to look: *examples* that are always the same, or as many as *asked* (the variable) at random.

    Raises:
        ValueError: the variable has no number.

    """
    asked = os.environ.get(VARIABLE, "") if asked is None else asked
    if not asked:
        return settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            suppress_health_check=_QUIET,
        )
    return settings(
        max_examples=int(asked),
        stateful_step_count=LONG_STEPS,
        deadline=None,
        derandomize=False,
        database=DirectoryBasedExampleDatabase(KEPT),
        print_blob=True,
        suppress_health_check=_QUIET,
    )
