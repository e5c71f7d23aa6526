"""Runs one call of an executor in its job. Standard library only: it may run without gpuqueue, by Python 3.8.

``GPUQUEUE_CALLS`` is the directory of the file ``calls``: a line of JSON, then the pickled calls. The number of the
call is the index of the array's member. The result is written beside it: a line of JSON, then a pickle.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback

#: The variable with the directory of the calls. A relative one begins at the job's directory.
FOLDER = "GPUQUEUE_CALLS"
#: The file of the calls in this directory.
CALLS = "calls"
#: How the name of the file of a result ends, behind the number of the call.
RESULT = ".result"


def main() -> None:
    """Run the call of this job and write its result. An exception ends the job with exit code 1."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if each != here]
    folder = os.path.abspath(os.environ[FOLDER])
    number = int(os.environ.get("GPUQUEUE_ARRAY_INDEX", "0"))
    path = os.path.join(folder, str(number) + RESULT)
    if os.path.exists(path):  # of an earlier run of the job
        os.unlink(path)
    calls_path = os.path.join(folder, CALLS)
    if not os.path.exists(calls_path):
        sys.exit(f"gpuqueue: the call is gone ({calls_path}): its program has ended, submit it again from there")
    with open(calls_path, "rb") as file:
        head = json.loads(file.readline())
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if own != head["python"]:
            made = head["python"]
            _refuse(path, f"its Python is {own}, and the call was made by {made}: name one that is {made} with python=")
        given = [os.path.abspath(each) for each in head["path"]]
        sys.path[:] = given + [each for each in sys.path if each not in given]
        file.seek(head["starts"][number], os.SEEK_CUR)
        pickled = file.read(head["sizes"][number])
    try:
        function, calls, is_one = pickle.loads(pickled)  # noqa: S301 - the submitter wrote it, for this account
        values = [function(*args, **kwargs) for args, kwargs in calls]
        result = _dumps(values[0] if is_one else values)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "cloudpickle":
            _refuse(path, f"its Python, {sys.executable}, has no cloudpickle: install it there")
        _write_error(path, error)
        raise
    _write(path, {"ok": True}, result)


def _refuse(path: str, fault: str) -> None:
    """Write why the call cannot be made here, and end the job with exit code 1."""
    _write(path, {"fault": fault}, b"")
    sys.exit("gpuqueue: " + fault)


def _dumps(value: object) -> bytes:
    """Pickle *value*, by cloudpickle if it is there: by value what is defined in the caller's main program."""
    try:
        from cloudpickle import dumps  # noqa: PLC0415 - a function of a module needs none
    except ImportError:
        from pickle import dumps  # noqa: PLC0415 - as above
    pickled: bytes = dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return pickled


def _write_error(path: str, error: Exception) -> None:
    """Write *error* and its traceback, without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frames))
    head: dict[str, object] = {
        "fault": "".join(traceback.format_exception_only(type(error), error)).strip(),
        "trace": trace,
    }
    try:
        pickled = _dumps(error)
    except Exception:  # noqa: BLE001 - whatever an exception holds; its text is enough
        pickled = b""
    _write(path, head, pickled)


def _write(path: str, head: dict[str, object], pickled: bytes) -> None:
    """Write a result, whole or not at all."""
    with open(path + ".new", "wb") as file:
        file.write(json.dumps(head).encode() + b"\n" + pickled)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
