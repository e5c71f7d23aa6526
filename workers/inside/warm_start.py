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
import time  # noqa: E402
import types  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

MOST_BYTES = 8192
#: Same text as in :mod:`workers.shim.start`.
TOO_LATE = "started too late: another worker may hold the claim"
#: Objects that must not be garbage-collected, and the path of the script.
kept = {}  # type: Dict[str, Any]


class Cold(Exception):
    """This interpreter cannot become the job; a cold start can."""


class Unstartable(Exception):
    """No interpreter can start the job. The shim reports the error."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


# ---- waiting for a job -----------------------------------------------------------------------------------------------


def beside(name: str) -> "Any":
    """Load the module *name* from this directory without an entry in ``sys.modules``, so that no script can see it."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    module = types.ModuleType("_gpuqueue_" + name)
    module.__file__ = path
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), vars(module))  # noqa: S102 - a file of this package
    return module


#: The modules that a warm start needs, loaded before a job arrives.
variables, watch, proc_files = beside("variables"), beside("watch"), beside("proc_files")


def preload(names: "List[str]") -> None:
    """Import *names*.

    Raises:
        Cold: a module cannot be imported, or its import starts CUDA, which would then not see the job's devices.

    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise Cold(f"{name} cannot be imported: {error}") from error
    for fd in os.listdir("/proc/self/fd"):
        try:
            starts_cuda = os.readlink("/proc/self/fd/" + fd).startswith("/dev/nvidia")
        except OSError:
            continue
        if starts_cuda:
            raise Cold(f"importing {names[-1]} starts CUDA")


def refuse(found: "Optional[str]", reason: str) -> None:
    """Raise Cold with *reason* about what was *found*, if anything was."""
    if found is not None:
        raise Cold(reason.format(found))


def wait_for_a_job() -> None:
    """Import the modules, report that the interpreter is ready, and become the job that arrives; return only then."""
    shim = socket.socket(fileno=int(ARGUMENTS[1]))
    shim.set_inheritable(False)
    before, modules = variables.given(), watch.Modules()
    try:
        changed = variables.changed_at_start(before)
        refuse(changed, "{} is changed when Python starts, by a sitecustomize or a .pth file")
        preload(ARGUMENTS[2].split(","))
        refuse(modules.outdated(), "{} was changed while modules were imported")
    except Cold as cold:
        shim.send((f"unfit: {cold}").encode(errors="replace")[:MOST_BYTES])
        os._exit(0)
    shim.send(b"ready")
    run_dir, log, answer = order(shim)
    shim.close()
    try:
        become(run_dir, log, before, modules)
        os.write(answer, b"ok")
    except Unstartable as error:
        leave(answer, f"{error.number} {error}")
    except Exception as error:  # noqa: BLE001 - a cold start does not run this code
        leave(answer, "cold: {}".format(getattr(error, "strerror", None) or error))
    os.close(answer)


def order(shim: socket.socket) -> "Tuple[str, int, int]":
    """Wait for the order of the shim; return the run directory, the log and the pipe for the answer."""
    # The same as socket.recv_fds, which needs Python 3.9.
    message, ancillary, _, _ = shim.recvmsg(MOST_BYTES, socket.CMSG_SPACE(8), socket.MSG_CMSG_CLOEXEC)
    if not message:
        os._exit(0)
    log, answer = (int.from_bytes(ancillary[0][2][at : at + 4], sys.byteorder) for at in (0, 4))
    return os.fsdecode(message), log, answer


def leave(answer: int, reason: str) -> None:
    """Write the reason for the refusal into the pipe *answer*, and end without cleanup."""
    os.write(answer, reason.encode(errors="replace")[:MOST_BYTES])
    os._exit(127)


# ---- becoming a job --------------------------------------------------------------------------------------------------


def become(run_dir: str, log: int, before: "Dict[str, str]", modules: "Any") -> None:
    """Become the job of *run_dir*: check, and then change all that belongs to this process."""
    with open(os.path.join(run_dir, "spec"), encoding="utf-8") as file:
        spec = json.load(file)
    refuse(modules.changed(), "{} has changed since")
    path, directory, cwd = enter(spec)
    refuse(watch.shadow(directory), "{} beside the script has the name of a module that is loaded already")
    variables.take(spec["env"], before)
    proc_files.show(spec["argv"], spec["env"])
    take_over(spec, path, directory, cwd)
    take_output(log)


def enter(spec: "Dict[str, Any]") -> "Tuple[str, str, str]":
    """Set the job's umask and enter its working directory.

    Returns the script's path as Python would name it, the directory that comes first on its ``sys.path``, and the
    working directory without symbolic links.

    Raises:
        Cold: the script is not a readable file.
        Unstartable: the directory cannot be entered, or it is too late to start the job.

    """
    os.umask(int(spec["umask"]))
    try:
        os.chdir(spec["cwd"])  # can block for ever on a dead file server; the shim watches
    except OSError as error:
        reason = "cannot enter the working directory {}: {}".format(spec["cwd"], error.strerror)
        raise Unstartable(error.errno or errno.EIO, reason) from error
    if time.monotonic() >= spec["start_before"]:
        raise Unstartable(0, TOO_LATE)
    named, cwd = spec["argv"][1], os.getcwd()
    path = named if os.path.isabs(named) else cwd + os.sep + named  # a ./ in it stays, as in Python
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise Cold(f"{named} is no file that can be read")  # the cold start shows Python's own error
    return path, os.path.dirname(os.path.realpath(path)), cwd


def take_over(spec: "Dict[str, Any]", path: str, directory: str, cwd: str) -> None:
    """Set the state that Python derives from its environment and its command line at its start."""
    if "TZ" in spec["env"]:
        time.tzset()
    hook = sys.modules.pop("_gpuqueue_hook", None)
    if hook is not None:
        hook.take_over()
    sys.argv = list(spec["argv"][1:])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(spec["argv"])
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = cwd  # type: ignore[attr-defined]  # the directory in which its children start
    kept["path"] = path if sys.version_info >= (3, 9) else spec["argv"][1]
    kept["__main__"] = sys.modules["__main__"]
    sys.modules["__main__"] = new = new_main()
    if "__mp_main__" in sys.modules:  # multiprocessing sets it at its import
        sys.modules["__mp_main__"] = new


def new_main() -> types.ModuleType:
    """Return a module as Python makes it for a script."""
    ours, new = vars(sys.modules["__main__"]), types.ModuleType("__main__")
    vars(new).update({name: ours[name] for name in ("__builtins__", "__loader__") if name in ours})
    if "__annotations__" in ours:
        vars(new)["__annotations__"] = {}
    return new


def take_output(log: int) -> None:
    """Send all output to *log* from now on, and copy the earlier output of the imports to it first."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os.write(log, os.pread(1, os.fstat(1).st_size, 0))
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def run(path: str) -> int:
    """Run a script the way ``python script.py`` does; return 0, or -1 after an exception.

    The script can see the stack frames of this function and of this module below its own.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(os.fsencode(path), b"rb")
    if not file:  # deleted since `enter`
        number = ctypes.get_errno()
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {number}] {os.strerror(number)}\n")
        os._exit(2)
    call = ctypes.pythonapi.PyRun_SimpleFileExFlags
    call.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    return int(call(file, os.fsencode(path), 1, None))


if __name__ == "__main__":
    wait_for_a_job()
    if run(kept["path"]) != 0:
        # End as Python does after an uncaught exception: with exit code 1, or by SIGINT after a KeyboardInterrupt.
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            sys.excepthook = lambda *_: None  # the traceback was already printed
            raise KeyboardInterrupt
        sys.exit(1)
