"""The form of the web page with which people submit jobs. Pure."""

from __future__ import annotations

from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class JobForm:
    """A job as a person types it, in the forms of the options of ``gpuqueue submit``. Empty texts are empty fields.

    ``script`` is the name of a file, and ``snapshot`` the address of a snapshot that has this file at its top.
    ``args`` are the script's arguments, quoted as for a shell, and ``tags`` words. ``python`` is the interpreter of a
    ``.py`` script, as its host knows it.
    """

    script: str = ""
    snapshot: str = ""
    environment: str = ""
    python: str = ""
    args: str = ""
    mem: str = ""
    gpus: int = 1
    device: str = ""
    time_limit: str = ""
    cpus: str = ""
    cpu_mem: str = ""
    name: str = ""
    priority: str = "normal"
    pool: str = ""
    tags: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormStart:
    """What the form begins with, and what its fields can choose.

    For a job to run again, ``form`` has its values, ``label`` its name, ``command`` its command line, ``cwd`` its
    directory, and ``snapshot`` the copy of its code if there is one. ``has_script`` says whether its arguments can
    change, and ``warnings`` what the new job will not have. ``devices`` are names such as ``nodeA:0``. A script may
    have ``file_bytes``.
    """

    form: JobForm
    file_bytes: int
    label: str | None = None
    command: str | None = None
    cwd: str = ""
    snapshot: str | None = None
    has_script: bool = True
    warnings: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
