"""Prints what Python code asks ``os.environ`` for: from the first ``.pth`` file on, while torch is imported.

Started with ``-S``, so that it is there before them. Who goes through all of it is printed as ``* of MODULE``.
"""

# ruff: noqa: T201 - what it prints is read by a test
import os
import sys

BETWEEN = ("__main__", "os", "collections.abc", "_collections_abc")


class Noting(type(os.environ)):  # type: ignore[misc]
    """The environment, which prints the names it is asked for."""

    def __getitem__(self, name: str) -> str:
        if not going_through:
            print(name)
        return str(super().__getitem__(name))

    def __contains__(self, name: object) -> bool:
        print(name)
        return bool(super().__contains__(name))

    def __iter__(self) -> object:  # type: ignore[override]
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__") in BETWEEN and frame.f_back is not None:
            frame = frame.f_back
        print("* of", frame.f_globals.get("__name__"))
        going_through.append(True)
        yield from super().__iter__()
        going_through.pop()


#: Whether somebody goes through all of it: those it holds were not asked for one by one.
going_through: list[bool] = []

if __name__ == "__main__":
    os.environ.__class__ = Noting
    import site

    site.main()
    import torch  # noqa: F401
