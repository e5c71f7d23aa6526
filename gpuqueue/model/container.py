"""The container of a job: the name of its image, and the files of the host that it binds. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import brief

#: Longest name of an image, and most binds of a job.
MAX_IMAGE, MAX_BINDS = 512, 64
#: The parts of a bind: the source, the target and whether the container may write.
_PARTS = 3
#: What ends a bind.
_MODES = ("ro", "rw")


class Engine(str, Enum):
    """The program that runs containers on a host: a value of the setting ``container_engine``."""

    PODMAN = "podman"
    DOCKER = "docker"
    APPTAINER = "apptainer"
    CHARLIECLOUD = "charliecloud"

    __str__ = str.__str__


def check_image(image: str) -> None:
    """Check the name of an image. It is a word of a command line, so it must be no option.

    Raises:
        BadRequest: it is malformed.

    """
    is_word = image.isprintable() and not any(char.isspace() for char in image)
    if not 0 < len(image) <= MAX_IMAGE or image.startswith("-") or not is_word:
        raise BadRequest(f"{brief(image)} is no image: name one as for the site's container engine, or a path")


def bind_of(text: str, cwd: str) -> str:
    """Return the bind that *text* describes, as ``SOURCE:TARGET`` or ``SOURCE:TARGET:ro``, with absolute paths.

    The source is taken from *cwd*, and ``~`` is not replaced: the home directory of the host of the run may differ.

    Raises:
        BadRequest: *text* is malformed.

    """
    import os.path  # noqa: PLC0415 - few jobs have binds

    parts = text.split(":")
    mode = parts.pop() if len(parts) > 1 and parts[-1] in _MODES else "rw"
    source = os.path.normpath(os.path.join(cwd, parts[0])) if parts[0] else ""  # noqa: PTH118 - pure
    target = parts[1] if len(parts) > 1 else source
    bind = f"{source}:{target}{':ro' if mode == 'ro' else ''}"
    check_bind(bind if len(parts) < _PARTS else text)
    return bind


def check_bind(text: str) -> None:
    """Check a bind with absolute paths. Engines separate binds by commas, and their parts by colons.

    Raises:
        BadRequest: it is malformed.

    """
    source, target, *mode = text.split(":") if text.count(":") in {1, 2} else ("", "")
    paths = (source, target)
    are_paths = all(path.startswith("/") and ".." not in path.split("/") for path in paths) and text.isprintable()
    if not are_paths or "," in text or mode not in ([], ["ro"]):
        raise BadRequest(f"{brief(text)} is no bind: write SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro, without commas")
    if not target.strip("/"):
        raise BadRequest("a bind cannot replace / of the image: name a directory below it")


def check(image: str, binds: Iterable[str]) -> None:
    """Check the image and the binds of a job.

    Raises:
        BadRequest: one is malformed, or there are too many.

    """
    check_image(image)
    several = tuple(binds)
    if len(several) > MAX_BINDS:
        raise BadRequest(f"a job has at most {MAX_BINDS} binds, not {len(several)}")
    for bind in several:
        check_bind(bind)
