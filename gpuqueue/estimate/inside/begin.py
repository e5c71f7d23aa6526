"""Runs a script unmodified for a few steps, as if there were a GPU, and writes down what it would have needed there.

    python begin.py REPORT STEPS SCRIPT [ARGS…]

The end comes at once and for good (``os._exit``): no ``except`` of the script's keeps it alive, and no ``finally`` and
no ``atexit`` writes a checkpoint over a good one. The report is written anew after each step, so that there is one
also where the time runs out.
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
#: Lines of a traceback that go into the report, from its end.
TAIL = 12
#: prctl(2): the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG, SIGKILL = 1, 9


def beside(name: str) -> Any:
    """Import one of the files beside this one."""
    sys.path.insert(0, HERE)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(HERE)


class DryRun:
    """One run of a script, counted."""

    def __init__(self, report: str, steps: int) -> None:
        self.report = report
        self.most = steps
        self.pid = os.getpid()
        self.steps: Dict[int, int] = {}
        self.optimizers: List[str] = []
        #: Whether the script has made an optimizer: then it is the steps that count.
        self.has_optimizer = False
        self.forwards = 0
        self.depth = 0
        self.dtypes: Dict[str, int] = {}
        self.torch: Any = importlib.import_module("torch")
        self.book: Any = beside("_gpuqueue_ledger")
        self.ledger: Any = self.book.Ledger()

    def watch(self) -> None:
        """Hook into torch: who steps, which module goes forward, which tensors are parameters."""
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
        """Hook into the modules: their passes, their parameters and buffers."""
        module: Any = self.torch.nn.Module
        call, apply = module.__call__, module._apply
        modules: Any = importlib.import_module("torch.nn.modules.module")
        modules.register_module_parameter_registration_hook(
            lambda _, __, tensor: self.ledger.label([tensor], self.book.PARAMETERS)
        )
        modules.register_module_buffer_registration_hook(
            lambda _, __, tensor: self.ledger.label([tensor], self.book.BUFFERS)
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
            self.ledger.label(this.buffers(recurse=False), self.book.BUFFERS)
            self.parameters(this.parameters(recurse=False))
            return out

        module.__call__, module._apply = called, applied
        os.register_at_fork(after_in_child=self.ledger.forget)

    def parameters(self, tensors: Any) -> None:
        """Tell the ledger that these are parameters."""
        found = [each for each in tensors if each is not None]
        self.ledger.label(found, self.book.PARAMETERS)
        for each in found:
            self.dtypes[str(each.dtype).replace("torch.", "")] = each.element_size()

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """Tell the ledger which tensors are parameters and gradients, while both are there."""
        given = [each for group in optimizer.param_groups for each in group["params"]]
        self.parameters(given)
        self.ledger.label([each.grad for each in given if each.grad is not None], self.book.GRADIENTS)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Tell the ledger what the optimizer keeps; end, when every optimizer in use has made its steps."""
        kept = [each for state in optimizer.state.values() for each in tensors_of(state)]
        self.ledger.label(kept, self.book.STATES)
        if type(optimizer).__name__ not in self.optimizers:
            self.optimizers.append(type(optimizer).__name__)
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        counts = self.steps.values()
        if min(counts) >= self.most or max(counts) >= 2 * self.most:
            self.leave("enough")
        self.write("going on")

    def before_forward(self, module: Any) -> None:
        """Count the passes of whole models; without an optimizer they are what is counted."""
        if self.depth or os.getpid() != self.pid or not any(True for _ in module.parameters()):
            return
        if self.forwards >= self.most and not self.has_optimizer:
            self.leave("enough")
        self.forwards += 1

    def write(self, ended: str, trace: str = "") -> None:
        """Write the report, whole or not at all."""
        told = {
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
            json.dump(told, file)
        os.replace(self.report + ".new", self.report)

    def leave(self, ended: str, trace: str = "") -> None:
        """Write the report and end this process, whoever called."""
        if os.getpid() != self.pid:
            return
        self.write(ended, trace)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)

    def run(self, script: str, args: List[str]) -> None:
        """Run the script as ``python script`` would, in this process, and end."""
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
            with modes.Sending(self.ledger, self.book.SENT, self.book.SENT) as sending:
                sending.reach_backward()
                with modes.Counting(self.ledger, self.book.REST):  # in one statement it is of 3.9
                    exec(code, main.__dict__)  # noqa: S102 - the user's own script
        except SystemExit as end:
            good = end.code is None or end.code == 0
            self.leave("finished" if good else "failed", "" if good else "the script ended with {!r}".format(end.code))
        except BaseException:  # noqa: BLE001 - of whatever kind: it is told
            self.leave("failed", told(sys.exc_info()[2]))
        self.leave("finished")


def told(trace: Any) -> str:
    """Return the end of the traceback of what was raised, without our own frames."""
    error = sys.exc_info()[1]
    frames = [each for each in traceback.extract_tb(trace) if os.path.dirname(each.filename) != HERE]
    kind = type(error)
    lines = traceback.format_list(frames) + traceback.format_exception_only(kind, error)
    return "\n".join("".join(lines).splitlines()[-TAIL:])


def tensors_of(state: Any) -> List[Any]:
    """Return the tensors in what an optimizer keeps of one parameter."""
    values = state.values() if hasattr(state, "values") else []
    return [each for value in values for each in (value if isinstance(value, (list, tuple)) else [value])]


def main() -> None:
    """Do what the command line says."""
    report, steps, script = sys.argv[1:4]
    with contextlib.suppress(OSError, AttributeError):  # the dry run ends with whoever asked for it
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
