"""How many of something may go on at a time: for one name, and for all names together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gpuqueue.errors import TooManyRequests

#: After how many seconds a client that was refused should try again.
AGAIN_S = 5.0


class Slots:
    """Counts what goes on. Use it in the event loop only."""

    def __init__(self, most_of_one: int, most: int, what: str) -> None:
        """Allow *most_of_one* for each name and *most* in all. *what* says in a refusal what goes on."""
        self._most_of_one, self._most, self._what = most_of_one, most, what
        self._taken: Counter[str] = Counter()

    def take(self, name: str) -> Callable[[], None]:
        """Take a slot of *name*, and return the function that gives it back. More calls of it do nothing.

        Raises:
            TooManyRequests: there is none.

        """
        if self._taken[name] >= self._most_of_one or self._taken.total() >= self._most:
            raise TooManyRequests(f"too many {self._what} at a time: try again later", AGAIN_S)
        self._taken[name] += 1
        is_given_back = False

        def give_back() -> None:
            nonlocal is_given_back
            if not is_given_back:
                is_given_back = True
                self._taken[name] -= 1
                if not self._taken[name]:
                    del self._taken[name]

        return give_back
