"""Runs an unmodified script for a few steps with a simulated GPU, and writes a report of the memory it would need.

    python begin.py REPORT STEPS SCRIPT [ARGS…]

The process ends with ``os._exit``, so that no ``except`` of the script keeps it alive, and no ``finally`` or ``atexit``
overwrites a good checkpoint. The report is rewritten after each step, so that one exists if the time runs out.
"""

import contextlib
import ctypes
import importlib
import importlib.machinery
import json
import os
import sys
import traceback
import types
from typing import Any, Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
#: Number of last lines of a traceback that go into the report.
TAIL = 12
#: prctl(2): the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG, SIGKILL = 1, 9


def beside(name: str) -> Any:
    """Import a module from the directory of this file."""
    sys.path.insert(0, HERE)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(HERE)


class DryRun:
    """One dry run of a script."""

    def __init__(self, report: str, steps: int) -> None:
        self.report = report
        self.most = steps
        self.pid = os.getpid()
        self.steps: Dict[int, int] = {}
        self.optimizers: List[str] = []
        #: Whether the script has created an optimizer. Then its steps count, else the forward passes.
        self.has_optimizer = False
        self.forwards = 0
        self.depth = 0
        self.dtypes: Dict[str, int] = {}
        self.torch: Any = beside("_gpuqueue_no_compiler").import_torch()
        self.labels: Any = beside("_gpuqueue_ledger")
        self.ledger: Any = self.labels.Ledger()

    def watch(self) -> None:
        """Hook into torch: optimizer steps, forward passes, and the registration of parameters."""
        beside("_gpuqueue_pretence").install(self.ledger)
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_pre_hook(self.before_step)
        optimizer.register_optimizer_step_post_hook(self.after_step)
        made = optimizer.Optimizer.__init__

        def making(this: Any, *args: Any, **kwargs: Any) -> None:
            self.has_optimizer = True
            made(this, *args, **kwargs)

        optimizer.Optimizer.__init__ = making
        self.watch_modules()

    def watch_modules(self) -> None:
        """Hook into modules: their forward passes, parameters and buffers."""
        module: Any = self.torch.nn.Module
        call, apply = module.__call__, module._apply
        modules: Any = importlib.import_module("torch.nn.modules.module")
        modules.register_module_parameter_registration_hook(
            lambda _, __, tensor: self.ledger.label([tensor], self.labels.PARAMETERS)
        )
        modules.register_module_buffer_registration_hook(
            lambda _, __, tensor: self.ledger.label([tensor], self.labels.BUFFERS)
        )

        def called(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.before_forward(this)
            self.depth += 1
            try:
                return call(this, *args, **kwargs)
            finally:
                self.depth -= 1

        def applied(this: Any, *args: Any, **kwargs: Any) -> Any:
            out = apply(this, *args, **kwargs)
            self.ledger.label(this.buffers(recurse=False), self.labels.BUFFERS)
            self.parameters(this.parameters(recurse=False))
            return out

        module.__call__, module._apply = called, applied
        os.register_at_fork(after_in_child=self.ledger.forget)

    def parameters(self, tensors: Any) -> None:
        """Label *tensors* as parameters in the ledger."""
        found = [each for each in tensors if each is not None]
        self.ledger.label(found, self.labels.PARAMETERS)
        for each in found:
            self.dtypes[str(each.dtype).replace("torch.", "")] = each.element_size()

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """Label parameters and gradients in the ledger before a step, when both exist."""
        given = [each for group in optimizer.param_groups for each in group["params"]]
        self.parameters(given)
        self.ledger.label([each.grad for each in given if each.grad is not None], self.labels.GRADIENTS)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Label the optimizer's states in the ledger, and end if the optimizers have made enough steps."""
        states = [each for state in optimizer.state.values() for each in tensors_of(state)]
        self.ledger.label(states, self.labels.STATES)
        if type(optimizer).__name__ not in self.optimizers:
            self.optimizers.append(type(optimizer).__name__)
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        counts = self.steps.values()
        if min(counts) >= self.most or max(counts) >= 2 * self.most:
            self.leave("enough")
        self.write("going on")

    def before_forward(self, module: Any) -> None:
        """Count the forward passes of outermost modules. Without an optimizer, end after enough passes."""
        if self.depth or os.getpid() != self.pid or not any(True for _ in module.parameters()):
            return
        if self.forwards >= self.most and not self.has_optimizer:
            self.leave("enough")
        self.forwards += 1

    def write(self, ended: str, trace: str = "") -> None:
        """Write the report atomically."""
        reported = {
            "ended": ended,
            "steps": max(self.steps.values(), default=0),
            "forwards": self.forwards,
            "optimizers": self.optimizers,
            "dtypes": sorted(self.dtypes),
            "torch": str(self.torch.__version__),
            "peak_bytes": self.ledger.peak_bytes,
            "parts": self.ledger.parts(),
            "trace": trace,
        }
        with open(self.report + ".new", "w", encoding="utf-8") as file:
            json.dump(reported, file)
        os.replace(self.report + ".new", self.report)

    def leave(self, ended: str, trace: str = "") -> None:
        """Write the report and end this process. In a forked child, do nothing."""
        if os.getpid() != self.pid:
            return
        self.write(ended, trace)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)

    def run(self, script: str, args: List[str]) -> None:
        """Run the script in this process as ``python script`` would, then end the process."""
        sys.argv = [script, *args]
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=os.path.abspath(script), __builtins__=__builtins__, __cached__=None)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script)
        main.__spec__ = None
        sys.modules["__main__"] = main
        modes: Any = beside("_gpuqueue_modes")
        try:
            with open(script, "rb") as file:
                code = compile(file.read(), script, "exec")
            with modes.Sending(self.ledger, self.labels.SENT) as sending:
                sending.reach_backward()
                with modes.Counting(self.ledger, self.labels.REST):  # one parenthesized statement needs Python 3.9
                    exec(code, main.__dict__)  # noqa: S102 - the user's own script
        except SystemExit as end:
            good = end.code is None or end.code == 0
            if not good:  # below what the script has printed, such as the options that it takes
                print("the script ended with {!r}".format(end.code), file=sys.__stderr__)
            self.leave("finished" if good else "failed")
        except BaseException:  # noqa: BLE001 - every error goes into the report
            self.leave("failed", reported(sys.exc_info()[2]))
        self.leave("finished")


def reported(trace: Any) -> str:
    """Return the last lines of the traceback of the current exception, without the frames of this directory."""
    error = sys.exc_info()[1]
    frames = [each for each in traceback.extract_tb(trace) if os.path.dirname(each.filename) != HERE]
    kind = type(error)
    lines = traceback.format_list(frames) + traceback.format_exception_only(kind, error)
    return "\n".join("".join(lines).splitlines()[-TAIL:])


def tensors_of(state: Any) -> List[Any]:
    """Return the values in an optimizer's state of one parameter, with lists flattened."""
    values = state.values() if hasattr(state, "values") else []
    return [each for value in values for each in (value if isinstance(value, (list, tuple)) else [value])]


def main() -> None:
    """Run the script that the command line names."""
    report, steps, script = sys.argv[1:4]
    with contextlib.suppress(OSError, AttributeError):  # the dry run ends with its parent process
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != HERE]
    try:
        dry_run = DryRun(report, int(steps))
        dry_run.watch()
    except (ImportError, AttributeError) as error:
        with open(report, "w", encoding="utf-8") as file:
            json.dump({"ended": "no torch", "trace": "{}: {}".format(type(error).__name__, error)}, file)
        return
    dry_run.run(script, sys.argv[4:])


main()
