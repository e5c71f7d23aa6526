"""The job of the chaos benchmark: it lives for a while, and writes what it does, line by line.

python -I -S job.py NAME DURATION_S EXIT_CODE SIGNAL SECOND STUBBORN, in the directory of effects

A line is ``token role pid what stamp argument``; the stamp is the host's monotonic clock. ``what`` is begin, alive (ten
times a second, which shows that the process lives) or end. Every process of a run holds a lock on the job's name. If
another run of the same job is still alive in any of its processes, ``doubled`` is written.
"""

import fcntl
import os
import signal
import sys
import time

TICK_S = 0.1
#: How long a second process that is left over would live, in seconds: longer than any wait here.
LEFT_S = 600.0
#: Writes a line, then executes itself again; $0 is the file, $1 this text.
RESTLESS = """read up rest </proc/uptime
echo "$GPUQUEUE_TOKEN restless $$ alive $up -" >>"$0"
sleep 0.05
exec /bin/sh -c "$1" "$0" "$1" """

name, duration, exit_code, own_signal, second, stubborn = sys.argv[1:]
token = os.environ["GPUQUEUE_TOKEN"]
effects = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
lock = os.open(name + ".lock", os.O_RDWR | os.O_CREAT, 0o600)


def note(role: str, what: str, argument: object = "-") -> None:
    """Write one line, in one write."""
    os.write(effects, f"{token} {role} {os.getpid()} {what} {time.monotonic():.6f} {argument}\n".encode())


def live(role: str, for_s: float) -> None:
    """Stay alive for *for_s* seconds, and write that."""
    until = time.monotonic() + for_s
    while (left_s := until - time.monotonic()) > 0:
        time.sleep(min(TICK_S, left_s))
        note(role, "alive")


def second_process() -> None:
    """Start the second process, if the job has one."""
    if second == "none" or os.fork():
        return
    if second in {"daemon", "restless"}:
        os.setsid()
        if os.fork():
            os._exit(0)
    note(second, "begin")
    if second == "restless":
        os.set_inheritable(lock, True)
        os.execv("/bin/sh", ["/bin/sh", "-c", RESTLESS, name, RESTLESS])  # noqa: S606 - in its own place: that is the point
    live(second, float(duration) / 2 if second == "child" else LEFT_S)
    note(second, "end")
    os._exit(0)


if stubborn == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("first", "doubled")
note("first", "begin")
second_process()
live("first", float(duration))
if second == "child":
    os.wait()
note("first", "end", own_signal if own_signal != "0" else exit_code)
if own_signal != "0":
    os.kill(os.getpid(), int(own_signal))
os._exit(int(exit_code))
