"""Entry point of ``gpuqueue`` and ``python -m gpuqueue``.

The imports take a tenth of a second. A Ctrl-C during that time ends the process without a traceback, because no work
has begun. The signal handler is set only here, so that programs that import gpuqueue as a library keep their own.
"""

from __future__ import annotations

import os

#: Same as ``gpuqueue.console.INTERRUPTED``, without the import of that module.
INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it. On a Ctrl-C during the imports, exit with 130 at once."""
    try:
        import signal  # noqa: PLC0415 - Python does not load it at start-up

        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # false under nohup
        if ours:  # Python prints and drops an exception that is raised in a callback during an import
            signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
        from gpuqueue.cli.main import main as run_command_line  # noqa: PLC0415 - the slow import

        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_command_line()
    except KeyboardInterrupt:  # outside the code that reports an interrupt
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
