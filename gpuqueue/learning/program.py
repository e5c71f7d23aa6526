"""Splits a command line into the program, under which the history finds earlier runs, and its arguments. Pure."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

#: Longest program that the history stores, in characters. PostgreSQL refuses index entries above 2704 bytes, and a
#: character has at most four. Paths differ at their ends, so the end is kept.
MOST = 255
#: Options after which an interpreter takes the program itself, as in ``python -m train``.
_NAMING = frozenset({"-m", "--module", "-c"})
#: Ends of a word that names the file that a launcher runs, as in ``torchrun --nproc-per-node 2 train.py``.
_FILES = (".py", ".sh", ".jl", ".r", ".lua")


def program_of(argv: Sequence[str], script: str | None, cwd: str) -> str:
    """Return the program that *argv* runs in *cwd*: the same text for each run of the same file.

    For a Python *script* this is its path. For another command it is the directory, the first word, and the word that
    names what a launcher runs, if there is one. Bytes that are not UTF-8 become question marks, for the databases.
    """
    found = (_path(script, cwd) if script is not None else " ".join([cwd, argv[0], *_launched(argv)]))[-MOST:]
    return found if found.isascii() else found.encode("utf-8", "replace").decode()


def names_a_file(argv: Sequence[str], script: str | None) -> bool:
    """Return whether *argv* runs a file of a user: a script, what a launcher runs, or a program with a directory.

    Programs such as ``true`` and ``nvidia-smi`` are on the path of all users, and nobody needs advice on their memory.
    """
    return script is not None or "/" in argv[0] or bool(_launched(argv))


@lru_cache(maxsize=64)
def _path(script: str, cwd: str) -> str:
    """Return the path of a script. It is cached, because the members of an array have the same one."""
    return os.path.normpath(os.path.join(cwd, script))  # noqa: PTH118 - a submit does not import pathlib


def _launched(argv: Sequence[str]) -> Sequence[str]:
    for before, word in pairwise(argv):
        if before in _NAMING:
            return before, word
        if "." in word and word.lower().endswith(_FILES) and not word.startswith("-"):
            return (word,)
    return ()


def arguments_of(words: Sequence[str]) -> Mapping[str, str]:
    """Return the arguments in *words* by name, as most programs would read them.

    ``--lr 1e-3``, ``--lr=1e-3`` and ``lr=1e-3`` are named arguments; an option before another option is a flag with an
    empty value. Other words are named by their position. An option that occurs twice has both values.
    """
    found: dict[str, str] = {}
    name = None
    position = 0
    for word in words:
        key, equals, value = word.partition("=")
        if _is_option(word) or (equals and key.replace("_", "a").replace(".", "a").isalnum()):
            key = key.lstrip("-") or key
            found[key] = f"{found[key]} {value}".rstrip() if key in found else value
            name = None if equals else key
        elif name is not None:
            found[name] = f"{found[name]} {word}" if found[name] else word
            name = None
        else:
            found[f"#{position}"] = word
            position += 1
    return found


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word not in {"-", "--"}
