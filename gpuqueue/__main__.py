"""Where ``gpuqueue`` and ``python -m gpuqueue`` begin: a Ctrl-C while all the rest is imported ends it in silence.

The imports take a tenth of a second, in which a Ctrl-C is somebody's change of mind, and nothing was done yet. Only
here: whoever imports gpuqueue as a library keeps the signals that they have.
"""

from __future__ import annotations

import os

#: As gpuqueue.console has it, which would be the first of those imports.
INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it; interrupted while importing, end with 130 at once."""
    try:
        import signal  # noqa: PLC0415 - it is not of the few that Python itself loads

        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored (nohup)
        if ours:  # an exception would be shown and lost where Python calls us back in the middle of an import
            signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
        from gpuqueue.cli.main import main as run_command_line  # noqa: PLC0415 - what is imported here takes the time

        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_command_line()
    except KeyboardInterrupt:  # before or behind what has a word for it
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
