"""The warm interpreter. It imports the configured modules, then becomes a job's first process. Python 3.8 and later.

Started by :mod:`workers.shim.warm` as ``python warm_start.py SOCKET MODULES ROOM``, in the environment of an earlier
job. It sends ``ready``, or the reason why it is unusable, and waits. The order from the shim names a run directory, and
carries the log and the write end of a pipe. There are two outcomes. The interpreter becomes the process that
``python script.py`` would start, and writes ``ok`` into the pipe before the first line of the script. Or it writes
``cold: …`` (or an errno and a reason) and ends. In that case no code of the job has run; after ``cold`` the shim starts
the job cold.

The script runs through the C function with which Python itself runs a script, in a new ``__main__`` module. Traceback,
exit code, ``sys.exit``, Ctrl-C and shutdown are therefore Python's own. docs/howto/warm-start.md lists the differences.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this file's directory; a job has its script's directory there
sys.argv, ARGUMENTS = [""], sys.argv

import ctypes  # noqa: E402 - only after this directory is off the path
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

#: The placeholder variable whose memory is overwritten with the variables in ``SHOWN``.
ROOM = "GPUQUEUE_SPARE"
#: The variables that identify the processes of a run. The first one is required.
SHOWN = ("GPUQUEUE_TOKEN", "CUDA_VISIBLE_DEVICES", "GPUQUEUE_JOB_ID", "GPUQUEUE_RUN_DIR", "GPUQUEUE_DEVICES")
MOST_BYTES = 8192
#: Same text as in :mod:`workers.shim.start`.
TOO_LATE = "started too late: the claim may be another's"
#: Indexes of fields in /proc/PID/stat, counted from the field after the name; see proc(5).
CODE, START_STACK, DATA, START_BRK = (23, 24), 25, (42, 43), 44
ARG_START, ARG_END, ENV_START, ENV_END = 45, 46, 47, 48
PR_SET_MM, PR_SET_MM_MAP = 35, 14


class Cold(Exception):
    """This interpreter cannot become the job; a cold start can."""


class Unstartable(Exception):
    """No interpreter can start the job. The shim reports the error."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number = number


# ---- waiting for a job -----------------------------------------------------------------------------------------------


def preload(names: "List[str]", watch: "Any") -> None:
    """Import *names*; record in *watch* the modules that these imports look for and do not find.

    Raises:
        Cold: a module cannot be imported, or its import starts CUDA, which would then not see the job's devices.

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
    """Check that no module changed on disk during the imports, so that the files in *seen* match the loaded modules.

    Raises:
        Cold: a path was changed.

    """
    path = importing.changed(seen)
    if path is not None:
        raise Cold(f"{path} was changed while modules were imported")


class Helpers:
    """The modules that check whether a job may start here. They are loaded before a job arrives."""

    def __init__(self) -> None:
        self.watch = beside("watch")
        self.variables = beside("variables")


def beside(name: str) -> "Any":
    """Load the module *name* from this directory without an entry in ``sys.modules``, so that no script can see it."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    module = types.ModuleType("_gpuqueue_" + name)
    module.__file__ = path
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), vars(module))  # noqa: S102 - a file of this package
    return module


# ---- becoming a job --------------------------------------------------------------------------------------------------


def check_script(watch: "Any", argv: "List[str]", cwd: str) -> "Tuple[str, str]":
    """Return the script's path as Python would name it, and the directory that comes first on its ``sys.path``.

    Raises:
        Cold: the script is not a readable file, or a module beside it would be imported instead of a loaded one.

    """
    named = argv[1]
    path = named if os.path.isabs(named) else cwd + os.sep + named  # a ./ in it stays, as in Python
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise Cold(f"{named} is no file that can be read")  # the cold start shows Python's own error
    directory = os.path.dirname(os.path.realpath(path))
    if not getattr(sys.flags, "safe_path", False):
        words = watch.shadow(directory)
        if words is not None:
            raise Cold(words)
    return path, directory


def check_start(variables: "Any", before: "Dict[str, str]") -> None:
    """Check that nothing that runs when Python starts has changed the environment since *before*.

    Raises:
        Cold: a variable was changed. The change for another job's environment would be unknown.

    """
    name = variables.changed_at_start(before)
    if name is not None:
        raise Cold(f"{name} is changed when Python starts, by a sitecustomize or a .pth file")


def check_unchanged(watch: "Any", before: "Any") -> None:
    """Check that the files and directories in *before* have not changed since.

    Raises:
        Cold: a path has changed.

    """
    path = watch.changed(before)
    if path is not None:
        raise Cold(f"{path} has changed since")


def check_beside(watch: "Any") -> None:
    """Check that the working directory has no file that a loaded module would have read at its import.

    Raises:
        Cold: there is such a file.

    """
    file = watch.read_when_loaded()
    if file is not None:
        raise Cold(f"{file} in the working directory is read when its module is loaded")


def enter(spec: "Dict[str, Any]") -> None:
    """Set the job's umask and enter its working directory.

    Raises:
        Unstartable: the directory cannot be entered, or it is too late to start the job.

    """
    os.umask(int(spec["umask"]))
    refuse_late(spec)
    try:
        os.chdir(spec["cwd"])  # can block for ever on a dead file server; the shim watches
    except OSError as error:
        words = "cannot enter the working directory {}: {}".format(spec["cwd"], error.strerror)
        raise Unstartable(error.errno or errno.EIO, words) from error
    refuse_late(spec)


def refuse_late(spec: "Dict[str, Any]") -> None:
    """Raise Unstartable if another worker may hold the claim by now."""
    if time.monotonic() >= spec["start_before"]:
        raise Unstartable(0, TOO_LATE)


def show(argv: "List[str]", env: "Dict[str, str]") -> None:
    """Make /proc show the job's command and environment for this process.

    The kernel shows the memory in which the process got its arguments and environment at its start. This function
    overwrites the placeholders there with the command and with the variables in ``SHOWN``. Then it sets the bounds of
    both areas. If the kernel refuses the new bounds, the unused room shows as empty arguments after those of the job.

    Raises:
        Cold: the placeholder is missing or too small for the token of the run.
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
    borders = [fields[at] for at in (*CODE, *DATA, START_BRK)] + [0, fields[START_STACK]]
    borders += [fields[ARG_START], fields[ARG_START] + len(words)] if fits else [place, place + len(words)]
    borders += [place + len(words), place + len(words) + len(pairs)]
    asked = ctypes.create_string_buffer(struct.pack("=12QIi", *borders, 0, 0, -1), 104)
    for _ in range(10):
        top = libc.sbrk(0) or 0
        struct.pack_into("=Q", asked, 40, top)
        refused = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.addressof(asked), len(asked), 0)
        if refused or libc.sbrk(0) == top:
            return
        # Another thread has moved the heap's end meanwhile: set the bounds again with the new end.


def take_output(log: int) -> None:
    """Send all output to *log* from now on, and copy the earlier output of the imports to it first."""
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
    """Set the names by which a script knows itself: ``sys.argv``, ``sys.path[0]``, ``__main__``."""
    sys.argv = list(argv[1:])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(argv)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = cwd  # type: ignore[attr-defined]  # the directory in which its children start
    kept["__main__"] = sys.modules["__main__"]
    ours, new = vars(sys.modules["__main__"]), types.ModuleType("__main__")
    vars(new).update({name: ours[name] for name in ("__builtins__", "__loader__") if name in ours})
    if "__annotations__" in ours:
        vars(new)["__annotations__"] = {}
    if sys.version_info < (3, 9):
        path = argv[1]
    kept["path"] = path
    sys.modules["__main__"] = new
    if "__mp_main__" in sys.modules:  # multiprocessing sets it at its import
        sys.modules["__mp_main__"] = new


#: Objects that must not be garbage-collected, and the path of the script.
kept = {}  # type: Dict[str, Any]


def take_over(order: "Dict[str, Any]", log: int, before: "Dict[str, str]", helpers: "Helpers", seen: "Any") -> None:
    """Become the job of the run directory that *order* names.

    Raises:
        Cold: this interpreter cannot become the job; a cold start can.
        Unstartable: no interpreter can start the job.

    """
    with open(os.path.join(order["run_dir"], "spec"), encoding="utf-8") as file:
        spec = json.load(file)
    check_unchanged(helpers.watch, seen)
    enter(spec)
    cwd = os.getcwd()  # without symbolic links, unlike the spec's path
    path, directory = check_script(helpers.watch, spec["argv"], cwd)
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


# ---- main program ----------------------------------------------------------------------------------------------------


def wait_for_a_job() -> None:
    """Import the modules, report that the interpreter is ready, and become the job that arrives; return only then."""
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
    # The same as socket.recv_fds, which needs Python 3.9.
    message, ancillary, _, _ = shim.recvmsg(MOST_BYTES, socket.CMSG_SPACE(8), socket.MSG_CMSG_CLOEXEC)
    if not message:
        os._exit(0)
    log, reported = (int.from_bytes(ancillary[0][2][at : at + 4], sys.byteorder) for at in (0, 4))
    try:
        take_over(json.loads(message.decode()), log, before, helpers, seen)
        os.write(reported, b"ok")
    except Unstartable as error:
        leave(reported, f"{error.number} {error}")
    except Cold as cold:
        leave(reported, f"cold: {cold}")
    except OSError as error:
        leave(reported, "cold: %s" % (error.strerror or error))
    except Exception as error:  # noqa: BLE001 - a cold start does not run this code
        leave(reported, f"cold: {error}")
    os.close(reported)
    shim.close()


def leave(reported: int, words: str) -> None:
    """Write the reason for the refusal into the pipe *reported*, and end without cleanup."""
    os.write(reported, words.encode(errors="replace")[:MOST_BYTES])
    os._exit(127)


def run(path: str) -> int:
    """Run a script the way ``python script.py`` does; return 0, or -1 after an exception.

    The script can see the stack frames of this function and of this module below its own.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(os.fsencode(path), b"rb")
    if not file:  # deleted since `check_script`
        number = ctypes.get_errno()
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {number}] {os.strerror(number)}\n")
        os._exit(2)
    call = ctypes.pythonapi.PyRun_SimpleFileExFlags
    call.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    return int(call(file, os.fsencode(path), 1, None))


def end_after_exception() -> None:
    """End as Python does after an uncaught exception: with exit code 1, or by SIGINT after a KeyboardInterrupt."""
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        sys.excepthook = lambda *_: None  # the traceback was already printed
        raise KeyboardInterrupt
    sys.exit(1)


if __name__ == "__main__":
    wait_for_a_job()
    if run(kept["path"]) != 0:
        end_after_exception()
