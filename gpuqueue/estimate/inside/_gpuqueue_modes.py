"""The two torch modes that intercept all tensor operations of a script.

The outer mode (:class:`Sending`) intercepts each torch function. It removes "cuda" from the arguments, and reports
"cuda:0" as the device of tensors that the ledger has on the GPU. The inner mode (:class:`Counting`) sees each computed
operation, including those of the backward pass, and counts the results computed from tensors on the GPU.
"""

import importlib
import re
from typing import Any, Callable, Dict, Iterator

torch: Any = importlib.import_module("torch")
overrides: Any = importlib.import_module("torch.overrides")
python_dispatch: Any = importlib.import_module("torch.utils._python_dispatch")
FunctionMode: Any = overrides.TorchFunctionMode
DispatchMode: Any = python_dispatch.TorchDispatchMode

#: Names of a GPU.
CUDA = re.compile(r"cuda(:\d+)?")
HOST = torch.device("cpu")
GPU = torch.device("cuda", 0)


def is_gpu(value: Any) -> bool:
    """Return whether *value* names a GPU."""
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and CUDA.fullmatch(value) is not None


def is_host(value: Any) -> bool:
    """Return whether *value* names the host's memory."""
    return bool(value == HOST) if isinstance(value, torch.device) else isinstance(value, str) and value == "cpu"


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield every tensor in *value*, which may be nested."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)


class Counting(DispatchMode):  # type: ignore[misc] # torch has no types here
    """Counts what is computed from tensors on the GPU."""

    def __init__(self, ledger: Any, label: str) -> None:
        super().__init__()
        self.ledger = ledger
        self.label = label

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation. Its results are on the GPU if an argument is, except storages of host arguments."""
        kwargs = kwargs or {}
        if self.ledger.paused:
            return func(*args, **kwargs)
        given = list(tensors_in((args, kwargs)))
        on_gpu = any(self.ledger.has(each) for each in given)
        out = func(*args, **kwargs)
        if on_gpu:
            hosts = {self.ledger.key_of(each) for each in given if not self.ledger.has(each)}
            for each in tensors_in(out):
                if self.ledger.key_of(each) not in hosts:
                    self.ledger.add(each, self.label)
        return out


class Sending(FunctionMode):  # type: ignore[misc] # torch has no types here
    """Lets a script move tensors to the simulated GPU."""

    def __init__(self, ledger: Any, label: str) -> None:
        super().__init__()
        self.ledger = ledger
        self.label = label
        tensor = torch.Tensor
        self._special: Dict[Any, Callable[..., Any]] = {
            torch.device: _device,
            torch._C._nn._parse_to: _parsed,
            tensor.to: self._to,
            tensor.cuda: self._cuda,
            tensor.cpu: self._cpu,
            tensor.pin_memory: lambda this, *_, **__: this,
            tensor.record_stream: lambda *_, **__: None,
            tensor.device.__get__: lambda this, *_: GPU if self.ledger.has(this) else this.device,
            tensor.is_cuda.__get__: lambda this, *_: self.ledger.has(this),
            tensor.is_cpu.__get__: lambda this, *_: this.is_cpu and not self.ledger.has(this),
            tensor.get_device: lambda this, *_: 0 if self.ledger.has(this) else -1,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call one torch function as on a machine with a GPU."""
        kwargs = kwargs or {}
        special = self._special.get(func)
        if special is not None:
            return special(*args, **kwargs)
        words = [*args, *kwargs.values()]
        if any(is_gpu(each) for each in words):
            out = func(*[_here(each) for each in args], **{name: _here(value) for name, value in kwargs.items()})
            for each in tensors_in(out):
                self.ledger.add(each, self.label)
            return out
        if any(is_host(each) for each in words):
            return self._on_host(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _on_host(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.ledger.paused += 1
        try:
            return func(*args, **kwargs)
        finally:
            self.ledger.paused -= 1

    def _to(self, this: Any, *args: Any, **kwargs: Any) -> Any:
        """Move a tensor, change its type, or both. A move copies, as between host and GPU."""
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = (GPU, *args[1:])  # a bare number is the index of a GPU
        words = [*args, *kwargs.values()]
        like = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.get("other")
        to_gpu = any(is_gpu(each) for each in words) or (like is not None and self.ledger.has(like))
        to_host = any(is_host(each) for each in words) or (like is not None and not self.ledger.has(like))
        most = 3 if like is None else 2  # the next positional argument is ``copy``, which is set below
        args = tuple(_here(each) for each in args[:most])
        kwargs = {name: _here(value) for name, value in kwargs.items()}
        there = self.ledger.has(this)
        if to_gpu and not there:
            return self._sent(this.to(*args, **{**kwargs, "copy": True}))
        if to_host and there:
            return self._on_host(this.to, *args, **{**kwargs, "copy": True})
        return this.to(*args, **kwargs)

    def _cuda(self, this: Any, *_: Any, **kwargs: Any) -> Any:
        if self.ledger.has(this):
            return this
        return self._sent(this.clone(memory_format=kwargs.get("memory_format", torch.preserve_format)))

    def _cpu(self, this: Any, *_: Any, **__: Any) -> Any:
        return self._on_host(this.clone) if self.ledger.has(this) else this

    def _sent(self, copy: Any) -> Any:
        self.ledger.add(copy, self.label)
        return copy

    def reach_backward(self) -> None:
        """Make the mode active in the backward pass too, which runs checkpoints and the script's own functions.

        torch disables a function mode inside the functions that it intercepts, and the backward pass is one of them.
        """
        graph: Any = importlib.import_module("torch.autograd.graph")
        for place in (torch.autograd, graph):
            engine = getattr(place, "_engine_run_backward", None)
            if engine is not None:
                place._engine_run_backward = self._around(engine)

    def _around(self, engine: Callable[..., Any]) -> Callable[..., Any]:
        def reached(*args: Any, **kwargs: Any) -> Any:
            if self in overrides._get_current_function_mode_stack():
                return engine(*args, **kwargs)
            with self:
                return engine(*args, **kwargs)

        return reached


def _device(*args: Any, **kwargs: Any) -> Any:
    """Return the requested device, which the script may compare and print. A bare number is the index of a GPU."""
    if args and isinstance(args[0], int):
        return torch.device("cuda", args[0])
    return torch.device(*args, **kwargs)


def _parsed(*args: Any, **kwargs: Any) -> Any:
    """Return the parsed arguments of ``Module.to``. A bare number is the index of a GPU."""
    if args and isinstance(args[0], int):
        args = (torch.device("cuda", args[0]), *args[1:])
    return torch._C._nn._parse_to(*args, **kwargs)


def _here(value: Any) -> Any:
    return HOST if is_gpu(value) else value
