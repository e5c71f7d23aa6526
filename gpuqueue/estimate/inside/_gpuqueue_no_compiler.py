"""Imports torch so that its own functions do not import its compiler.

The import of the compiler takes as long as that of torch, and a dry run compiles nothing. A script may import it.
"""

import functools
import importlib
import sys
import types
from typing import Any, Callable


def import_torch() -> Any:
    """Import torch and return it."""
    compiling: Any = types.ModuleType("torch._compile")
    compiling._disable_dynamo = _unchanged  # the module has only this decorator
    sys.modules["torch._compile"] = compiling
    torch: Any = importlib.import_module("torch")
    for optimizer in vars(torch.optim).values():
        step: Any = getattr(optimizer, "step", None)
        if getattr(getattr(step, "__code__", None), "co_name", "") == "_use_grad":
            optimizer.step = _stepping(torch, step.__wrapped__)
    return torch


def _unchanged(function: Any = None, **_: bool) -> Any:
    """Replace the decorator that excludes a function from compilation. It imports the compiler at the first call."""
    return _unchanged if function is None else function


def _stepping(torch: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return *step* as ``_use_grad_for_differentiable`` of torch decorates it, which imports the compiler too."""

    @functools.wraps(step)
    def stepping(this: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(this.defaults["differentiable"]):
            return step(this, *args, **kwargs)

    return stepping
