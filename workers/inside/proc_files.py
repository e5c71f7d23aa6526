"""Makes ``/proc`` show the command and environment of a warm job. Python 3.8 and later.

The kernel shows the memory in which a process got its arguments and environment at its start, and a fork inherits it.
The processes of a run are found by the token in that environment. A warm interpreter therefore starts with placeholders
in both, which are overwritten here. Loaded by :mod:`workers.inside.warm_start`. Standard library only.
"""

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Tuple

#: The placeholder variable, the last one of the environment.
ROOM = b"GPUQUEUE_WARM_ROOM="
#: The variables that identify the processes of a run. They are written over the placeholder.
SHOWN = ("GPUQUEUE_TOKEN", "CUDA_VISIBLE_DEVICES", "GPUQUEUE_JOB_ID", "GPUQUEUE_RUN_DIR", "GPUQUEUE_DEVICES")
#: Indexes of fields in /proc/PID/stat, counted from the state, the first field after the name; see proc(5).
CODE, START_STACK, DATA, START_BRK = (23, 24), 25, (42, 43), 44
ARG_START, ARG_END, ENV_START, ENV_END = 45, 46, 47, 48
PR_SET_MM, PR_SET_MM_MAP = 35, 14


def show(argv: "List[str]", env: "Dict[str, str]") -> None:
    """Make /proc show *argv* and *env* for this process.

    First overwrite the placeholders, which works on every kernel. Then set the bounds of both areas. If the kernel
    refuses that, the rest of the placeholders shows as empty arguments after those of the job.

    Raises:
        ValueError: there is no placeholder.

    """
    fields, words = write_command(argv)
    at = fields[ENV_START] + ctypes.string_at(fields[ENV_START], fields[ENV_END] - fields[ENV_START]).rindex(ROOM)
    shown = b""
    for name in SHOWN:
        pair = os.fsencode("{}={}".format(name, env.get(name, ""))) + b"\0"
        if len(shown) + len(pair) <= fields[ENV_END] - at:
            shown += pair
    overwrite(at, shown, fields[ENV_END])
    set_bounds(fields, words, b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items()))


def show_command(argv: "List[str]") -> None:
    """Make /proc show *argv* for this process, a fork of one whose command may be shorter.

    A kernel that refuses to move the command shows as much of it as has room in the place of the old one.
    """
    fields, words = write_command(argv)
    set_bounds(fields, words, ctypes.string_at(fields[ENV_START], fields[ENV_END] - fields[ENV_START]))


def write_command(argv: "List[str]") -> "Tuple[List[int], bytes]":
    """Overwrite the command with *argv*. Return the fields of /proc/self/stat, and the words with their NUL bytes."""
    with open("/proc/self/stat", "rb") as stat:
        fields = [0, *map(int, stat.read().rpartition(b")")[2].split()[1:])]
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    overwrite(fields[ARG_START], words[: fields[ARG_END] - fields[ARG_START] - 1], fields[ARG_END])
    return fields, words


def overwrite(start: int, content: bytes, end: int) -> None:
    """Write *content* and then NUL bytes into the memory between two addresses."""
    ctypes.memmove(start, content.ljust(end - start, b"\0"), end - start)


def set_bounds(fields: "List[int]", words: bytes, pairs: bytes) -> None:
    """Set the memory areas in which /proc looks for the command and the environment: prctl(2), PR_SET_MM_MAP.

    Unlike the other PR_SET_MM calls it needs no privilege (Linux 3.18). The call takes all bounds of the process's
    memory, of which only these two areas change. A command that fits stays in place, because programs that rename
    themselves write there.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    place = libc.malloc(ctypes.c_size_t(len(words) + len(pairs)))  # never freed: /proc reads it
    if not place:
        return
    ctypes.memmove(place, words + pairs, len(words) + len(pairs))
    fits = len(words) < fields[ARG_END] - fields[ARG_START]
    bounds = [fields[at] for at in (*CODE, *DATA, START_BRK)] + [0, fields[START_STACK]]
    bounds += [fields[ARG_START], fields[ARG_START] + len(words)] if fits else [place, place + len(words)]
    bounds += [place + len(words), place + len(words) + len(pairs)]
    asked = ctypes.create_string_buffer(struct.pack("=12QIi", *bounds, 0, 0, -1), 104)
    for _ in range(10):
        top = libc.sbrk(0) or 0
        struct.pack_into("=Q", asked, 40, top)
        refused = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.addressof(asked), len(asked), 0)
        if refused or libc.sbrk(0) == top:
            return
        # Another thread has moved the heap's end meanwhile: set the bounds again with the new end.
