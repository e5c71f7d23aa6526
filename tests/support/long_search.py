"""How long Hypothesis searches for a breaking order of acts: briefly in each run, or for a night by hand.

In a run of all tests it tries the same examples each time, so that none fails by chance. ``STATEFUL_EXAMPLES=5000``
tries that many others, at random and longer. A failure is printed with the line that repeats it::

    STATEFUL_EXAMPLES=5000 .venv/bin/python -m pytest --timeout 0 tests/integration/queue/test_stateful.py
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

#: The name of the variable, which the tests do not wipe.
VARIABLE = "STATEFUL_EXAMPLES"
#: The most steps of an example, in each run and in a long search.
STEPS, LONG_STEPS = 30, 60

#: Where failures are stored for the next search. In CI, Hypothesis by itself stores nothing.
KEPT = ".hypothesis/examples"

_QUIET = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


def search(examples: int, asked: str | None = None) -> settings:
    """Return the settings of a search: *examples* fixed ones, or as many random ones as *asked* (the variable).

    Raises:
        ValueError: the variable is no number.
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
