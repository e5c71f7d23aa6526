"""An interpreter in waiting: imports what a site names, then becomes a job's first process. Any Python from 3.8 on.

Started by :mod:`workers.shim.warm` as ``python warm_start.py SOCKET MODULES ROOM``, in the environment of an earlier
job.
It says ``ready``, or why it is good for nothing, and waits. The order names a run directory; with it come the log and
the end of a pipe. Then it either turns into exactly what ``python script.py …`` would be, and says ``ok`` before the
first line of the script, or says ``cold: …`` and leaves: the job is then started as ever, and nothing of it has run.

The script runs by the call by which Python itself runs one, in a new ``__main__``: traceback, exit code, ``sys.exit``,
Ctrl-C and what comes at the end are Python's own. docs/howto/warm-start.md says what differs all the same.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # ours; a job has its script's there
sys.argv, ARGUMENTS = [""], sys.argv

import ctypes  # noqa: E402 - not before our own directory is off the path
import errno  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import time  # noqa: E402
import types  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

#: The variable whose place in memory becomes that of the variables by which a run's processes are known.
ROOM = "GPUQUEUE_SPARE"
#: Those variables; the first is the one that must be there.
SHOWN = ("GPUQUEUE_TOKEN", "CUDA_VISIBLE_DEVICES", "GPUQUEUE_JOB_ID", "GPUQUEUE_RUN_DIR", "GPUQUEUE_DEVICES")
MOST_BYTES = 8192
#: As the shim says it.
TOO_LATE = "started too late: the claim may be another's"
#: Places of the fields of /proc/PID/stat behind the name; see proc(5).
CODE, START_STACK, DATA, START_BRK = (23, 24), 25, (42, 43), 44
ARG_START, ARG_END, ENV_START, ENV_END = 45, 46, 47, 48
PR_SET_MM, PR_SET_MM_MAP = 35, 14


class Cold(Exception):
    """This interpreter cannot be that job."""


class Unstartable(Exception):
    """Nor could any other: the shim reports it."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number = number


# ---- in waiting ------------------------------------------------------------------------------------------------------


def preload(names: "List[str]", watch: "Any") -> None:
    """Import *names*; *watch* shall know what that looks for in vain.

    Raises:
        Cold: one of them cannot be imported, or has started CUDA: it would see the devices of no job.

    """
    missing = watch.Missing()
    sys.meta_path.append(missing)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise Cold(f"{name} cannot be imported: {error}") from error
    sys.meta_path.remove(missing)
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + fd).startswith("/dev/nvidia"):
                raise Cold(f"importing {names[-1]} starts CUDA")
        except OSError:
            continue


def check_import(importing: "Any", seen: "Any") -> None:
    """Look whether what was imported was changed in that time: what is *seen* now may be newer than what is loaded.

    Raises:
        Cold: it was.

    """
    path = importing.changed(seen)
    if path is not None:
        raise Cold(f"{path} was changed while modules were imported")


class Helpers:
    """What looks whether a job may begin here; loaded while there is none."""

    def __init__(self) -> None:
        self.watch = beside("watch")
        self.script = beside("script")
        self.bindings = beside("bindings")
        self.variables = beside("variables")
        self.latched = beside(os.path.join(os.pardir, "warm", "latched_variables"))


def beside(name: str) -> "Any":
    """Return the module *name* beside this one, which no script finds among those that are loaded."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    module = types.ModuleType("_gpuqueue_" + os.path.basename(name))
    module.__file__ = path
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), vars(module))  # noqa: S102 - ours
    return module


# ---- becoming a job --------------------------------------------------------------------------------------------------


def check_script(watch: "Any", argv: "List[str]", cwd: str) -> "Tuple[str, str]":
    """Return the script's path as Python would name it, and the directory that comes first on its path.

    Raises:
        Cold: it is nothing that we can run, or something beside it would be imported in place of what we have.

    """
    named = argv[1]
    path = named if os.path.isabs(named) else cwd + os.sep + named  # as Python does it: a ./ in it stays
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise Cold(f"{named} is no file that can be read")  # the cold start says it as Python does
    directory = os.path.dirname(os.path.realpath(path))
    if not getattr(sys.flags, "safe_path", False):
        words = watch.shadow(directory)
        if words is not None:
            raise Cold(words)
    return path, directory


def check_text(helpers: "Helpers", path: str) -> None:
    """Look whether the script changes what was read already.

    Raises:
        Cold: it does, or seems to.

    """
    words = helpers.script.changes(path, helpers.latched.is_too_late, helpers.bindings)
    if words is not None:
        raise Cold(f"the script {words}")


def check_start(variables: "Any", before: "Dict[str, str]") -> None:
    """Look whether something that runs when Python starts has changed the environment since *before*.

    Raises:
        Cold: it has. What it would make of another job's, nobody knows.

    """
    name = variables.changed_at_start(before)
    if name is not None:
        raise Cold(f"{name} is changed when Python starts, by a sitecustomize or a .pth file")


def check_unchanged(watch: "Any", before: "Any") -> None:
    """Look whether what was seen *before* is as it was.

    Raises:
        Cold: it is not.

    """
    path = watch.changed(before)
    if path is not None:
        raise Cold(f"{path} has changed since")


def check_beside(watch: "Any") -> None:
    """Look whether a module would have been another one if it had been loaded in the working directory.

    Raises:
        Cold: it would.

    """
    file = watch.read_when_loaded()
    if file is not None:
        raise Cold(f"{file} in the working directory is read when its module is loaded")


def enter(spec: "Dict[str, Any]") -> None:
    """Go where the job runs.

    Raises:
        Unstartable: there is no such place, or it is too late for that.

    """
    os.umask(int(spec["umask"]))
    refuse_late(spec)
    try:
        os.chdir(spec["cwd"])  # on a dead file server this can take for ever; the shim watches
    except OSError as error:
        words = "cannot enter the working directory {}: {}".format(spec["cwd"], error.strerror)
        raise Unstartable(error.errno or errno.EIO, words) from error
    refuse_late(spec)


def refuse_late(spec: "Dict[str, Any]") -> None:
    """Refuse when the claim may be another's by now."""
    if time.monotonic() >= spec["start_before"]:
        raise Unstartable(0, TOO_LATE)


def show(argv: "List[str]", env: "Dict[str, str]") -> None:
    """Let /proc tell of the job what it would tell of any: its command, and its environment.

    The kernel shows the memory in which the process got them at its start. The room for the command, and for the
    variables by which a run's processes are known, was left there; then the kernel is told where both begin and end.
    Where it will not hear of that, the rest of the room shows: as empty arguments behind those of the job.
    """
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[ENV_START]), int(fields[ENV_END])
    block = ctypes.string_at(start, end - start)
    entry = next((entry for entry in block.split(b"\0") if entry.startswith(ROOM.encode() + b"=")), None)
    if entry is None:
        raise Cold("it has no room for the token of a run")
    said = b""
    for name in SHOWN:
        pair = os.fsencode("{}={}".format(name, env.get(name, ""))) + b"\0"
        if len(said) + len(pair) <= len(entry):
            said += pair
        elif name == SHOWN[0]:
            raise Cold("it has no room for the token of a run")
    ctypes.memmove(start + block.index(entry), said.ljust(len(entry), b"\0"), len(entry))
    start, end = int(fields[ARG_START]), int(fields[ARG_END])
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    ctypes.memmove(start, words[: end - start - 1].ljust(end - start, b"\0"), end - start)
    pairs = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    show_exactly([0, *map(int, fields[1:])], words, pairs)


def show_exactly(fields: "List[int]", words: bytes, pairs: bytes) -> None:
    """Tell the kernel where the command and the environment are that /proc shows: prctl(2), PR_SET_MM_MAP.

    Unlike the other calls of its kind it needs no privilege (Linux 3.18). It wants all borders of the process's memory,
    of which only these change. A command that fits stays where it is: programs that rename themselves write there.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    place = libc.malloc(ctypes.c_size_t(len(words) + len(pairs)))  # for good: it is read until the process is gone
    if not place:
        return
    ctypes.memmove(place, words + pairs, len(words) + len(pairs))
    fits = len(words) < fields[ARG_END] - fields[ARG_START]
    borders = [fields[at] for at in (*CODE, *DATA, START_BRK)] + [0, fields[START_STACK]]
    borders += [fields[ARG_START], fields[ARG_START] + len(words)] if fits else [place, place + len(words)]
    borders += [place + len(words), place + len(words) + len(pairs)]
    asked = ctypes.create_string_buffer(struct.pack("=12QIi", *borders, 0, 0, -1), 104)
    for _ in range(10):
        top = libc.sbrk(0) or 0
        struct.pack_into("=Q", asked, 40, top)
        refused = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.addressof(asked), len(asked), 0)
        if refused or libc.sbrk(0) == top:  # else somebody has asked for memory meanwhile: that top is the right one
            return


def take_output(log: int) -> None:
    """Write to *log* from now on, and first what the imports have said: without us they would say it there."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    early = b""
    while len(early) < os.fstat(1).st_size:
        early += os.pread(1, MOST_BYTES, len(early)) or b"\0"
    os.write(log, early)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def take_names(argv: "List[str]", path: str, directory: str, cwd: str) -> None:
    """Have the names by which a script knows itself: ``sys.argv``, ``sys.path[0]``, ``__main__``."""
    sys.argv = list(argv[1:])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(argv)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = cwd  # type: ignore[attr-defined]  # where its children start
    kept["__main__"] = sys.modules["__main__"]
    ours, new = vars(sys.modules["__main__"]), types.ModuleType("__main__")
    vars(new).update({name: ours[name] for name in ("__builtins__", "__loader__") if name in ours})
    if "__annotations__" in ours:
        vars(new)["__annotations__"] = {}
    if sys.version_info < (3, 9):
        path = argv[1]
    kept["path"] = path
    sys.modules["__main__"] = new
    if "__mp_main__" in sys.modules:  # as multiprocessing has it when it is imported
        sys.modules["__mp_main__"] = new


#: What must not be collected, and where the script is.
kept = {}  # type: Dict[str, Any]


def take_over(order: "Dict[str, Any]", log: int, before: "Dict[str, str]", helpers: "Helpers", seen: "Any") -> None:
    """Become the job of the run directory that *order* names.

    Raises:
        Cold: we cannot; another interpreter can.
        Unstartable: nobody can.

    """
    with open(os.path.join(order["run_dir"], "spec"), encoding="utf-8") as file:
        spec = json.load(file)
    check_unchanged(helpers.watch, seen)
    enter(spec)
    cwd = os.getcwd()  # where the job's own goes through a link, another name of it
    path, directory = check_script(helpers.watch, spec["argv"], cwd)
    check_text(helpers, path)
    check_beside(helpers.watch)
    helpers.variables.take(spec["env"], before)
    if "TZ" in spec["env"]:
        time.tzset()
    show(spec["argv"], spec["env"])
    hook = sys.modules.pop("_gpuqueue_hook", None)
    if hook is not None:
        hook.take_over()
    take_names(spec["argv"], path, directory, cwd)
    take_output(log)


# ---- the two halves --------------------------------------------------------------------------------------------------


def wait_for_a_job() -> None:
    """Import, say that we are ready, and become the job that comes; return only then."""
    shim = socket.socket(fileno=int(ARGUMENTS[1]))
    shim.set_inheritable(False)
    helpers = Helpers()
    before = helpers.variables.given()
    importing = helpers.watch.Import()
    try:
        check_start(helpers.variables, before)
        preload(ARGUMENTS[2].split(","), helpers.watch)
        seen = helpers.watch.seen()
        check_import(importing, seen)
    except Cold as cold:
        shim.send((f"unfit: {cold}").encode(errors="replace")[:MOST_BYTES])
        os._exit(0)
    shim.send(b"ready")
    # As socket.recv_fds, which Python has since 3.9.
    message, ancillary, _, _ = shim.recvmsg(MOST_BYTES, socket.CMSG_SPACE(8), socket.MSG_CMSG_CLOEXEC)
    if not message:
        os._exit(0)
    log, told = (int.from_bytes(ancillary[0][2][at : at + 4], sys.byteorder) for at in (0, 4))
    try:
        take_over(json.loads(message.decode()), log, before, helpers, seen)
        os.write(told, b"ok")
    except Unstartable as error:
        leave(told, f"{error.number} {error}")
    except Cold as cold:
        leave(told, f"cold: {cold}")
    except OSError as error:
        leave(told, "cold: %s" % (error.strerror or error))
    except Exception as error:  # noqa: BLE001 - whatever it is, a cold start does not have it
        leave(told, f"cold: {error}")
    os.close(told)
    shim.close()


def leave(told: int, words: str) -> None:
    """Say why this comes to nothing, and end without a trace."""
    os.write(told, words.encode(errors="replace")[:MOST_BYTES])
    os._exit(127)


def run(path: str) -> int:
    """Run a script as Python runs the one that it is started with; return 0, or -1 after an exception.

    The frame of this call, and that of the module, lie below those of the script, which can see them.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(os.fsencode(path), b"rb")
    if not file:  # it was there a moment ago
        number = ctypes.get_errno()
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {number}] {os.strerror(number)}\n")
        os._exit(2)
    call = ctypes.pythonapi.PyRun_SimpleFileExFlags
    call.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    return int(call(file, os.fsencode(path), 1, None))


def end_after_exception() -> None:
    """End as Python does when a script has raised: with 1, or by the signal where it was Ctrl-C."""
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        sys.excepthook = lambda *_: None  # it was shown already
        raise KeyboardInterrupt
    sys.exit(1)


if __name__ == "__main__":
    wait_for_a_job()
    if run(kept["path"]) != 0:
        end_after_exception()
