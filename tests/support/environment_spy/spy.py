"""Prints the variables that Python code reads from ``os.environ`` while torch is imported.

It is started with ``-S``, so that it also sees the ``.pth`` files. A module that iterates over all variables is printed
as ``* of MODULE``.
"""

# ruff: noqa: T201 - what it prints is read by a test
import os
import sys

BETWEEN = ("__main__", "os", "collections.abc", "_collections_abc")


class Noting(type(os.environ)):  # type: ignore[misc]
    """An environment that prints the names that are read."""

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


#: Not empty during an iteration over all variables, whose single reads are not printed.
going_through: list[bool] = []

if __name__ == "__main__":
    os.environ.__class__ = Noting
    import site

    site.main()
    import torch  # noqa: F401
