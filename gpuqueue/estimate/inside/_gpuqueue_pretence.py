"""Makes torch report one simulated GPU to a script. CUDA is never initialized."""

import contextlib
import importlib
import types
from typing import Any, Callable, Dict

torch: Any = importlib.import_module("torch")

#: Properties of the simulated GPU. Its memory is so large that no script reduces its size to fit.
NAME = "gpuqueue dry run"
TOTAL_BYTES = 80 * 2**30
CAPABILITY = (9, 0)
#: Names in torch.cuda that are replaced: functions that do nothing and return None (SILENT), and classes and functions
#: whose objects have no effect (EMPTY).
SILENT = (
    *("init", "_lazy_init", "set_device", "set_stream", "synchronize", "empty_cache", "ipc_collect"),
    *("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
    *("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"),
    *("reset_accumulated_memory_stats", "set_per_process_memory_fraction", "set_sync_debug_mode"),
)
EMPTY = (
    *("Stream", "Event", "StreamContext", "ExternalStream", "stream", "current_stream", "default_stream"),
    *("device", "device_of"),
)


class _Nothing:
    """Replaces a stream, an event or a context. Accepts every call and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> "_Nothing":  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def query(self) -> bool:
        """Return True: all work is complete."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Return 0, as milliseconds between two events."""
        return 0.0


def install(ledger: Any) -> None:
    """Install the simulated GPU into torch."""
    _device()
    _streams()
    _memory(ledger)
    _accelerator()
    _tensors()
    _autocast()
    _modules()
    _harmless()


def _device() -> None:
    """Replace the functions of torch.cuda that describe the device."""
    properties = types.SimpleNamespace(
        name=NAME,
        total_memory=TOTAL_BYTES,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=132,
        is_integrated=False,
        is_multi_gpu_board=False,
    )
    answers: Dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": NAME,
        "get_device_properties": properties,
        "get_device_capability": CAPABILITY,
        "get_arch_list": ["sm_90"],
        "is_bf16_supported": True,
        "is_tf32_supported": True,
        "is_current_stream_capturing": False,
        "memory_summary": "",
        "utilization": 0,
    }
    for name, answer in answers.items():
        _put(torch.cuda, name, _always(answer))


def _streams() -> None:
    """Replace what has no effect without a device, and the random state, which is that of the CPU."""
    for name in SILENT:
        _put(torch.cuda, name, _always(None))
    for name in EMPTY:
        _put(torch.cuda, name, _Nothing)
    _put(torch.cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state())
    _put(torch.cuda, "get_rng_state_all", lambda *_, **__: [torch.get_rng_state()])


def _memory(ledger: Any) -> None:
    """Replace the functions that report memory by the figures of *ledger*."""
    _put(torch.cuda, "mem_get_info", lambda *_, **__: (TOTAL_BYTES - ledger.live_bytes, TOTAL_BYTES))
    for name in ("memory_allocated", "memory_reserved", "memory_cached"):
        _put(torch.cuda, name, lambda *_, **__: ledger.live_bytes)
        _put(torch.cuda, "max_" + name, lambda *_, **__: ledger.peak_bytes)
    _put(torch.cuda, "memory_stats", lambda *_, **__: {"allocated_bytes.all.current": ledger.live_bytes})


def _put(where: Any, name: str, value: Any) -> None:
    """Replace the attribute *name* of *where* if it exists. No script needs one that this torch version lacks."""
    if hasattr(where, name):
        setattr(where, name, value)


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _accelerator() -> None:
    there = getattr(torch, "accelerator", None)
    if there is None:  # older than 2.6
        return
    answers: Dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_accelerator": torch.device("cuda"),
        **dict.fromkeys(("current_device_index", "current_device_idx"), 0),
        **dict.fromkeys(("set_device_index", "set_device_idx", "synchronize", "empty_cache")),
    }
    for name, answer in answers.items():
        _put(there, name, _always(answer))
    _put(there, "current_stream", _Nothing)


def _tensors() -> None:
    """Patch what the modes do not intercept: calls in other threads, and classes created with a device."""
    torch.Tensor.pin_memory = lambda this, *_, **__: this
    torch.Tensor.is_pinned = _always(True)
    torch.backends.cudnn.is_acceptable = _always(False)

    class Generator(torch.Generator):  # type: ignore[misc] # torch has no types here
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, "cpu" if str(device).startswith("cuda") else device)

    torch.Generator = Generator


def _autocast() -> None:
    """Redirect GPU autocast to the CPU in bfloat16: it has the size of float16, and all CPU kernels support it."""
    autocast = torch.amp.autocast_mode.autocast
    begin = autocast.__init__

    def begun(self: Any, device_type: str = "cuda", dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if str(device_type).startswith("cuda"):
            device_type, dtype = "cpu", torch.bfloat16
        begin(self, device_type, dtype, *args, **kwargs)

    autocast.__init__ = begun


def _modules() -> None:
    """Disable torch.compile, the replication of DataParallel and the device checks of checkpoints."""

    def compiled(model: Any = None, **_: Any) -> Any:
        return model if model is not None else lambda each: each

    torch.compile = compiled
    _put(torch.nn.Module, "compile", _always(None))
    # The checks compare a tensor's device before and after. torch's own code sees the real device in one of the two.
    checks = getattr(importlib.import_module("torch.utils.checkpoint"), "_allowed_determinism_checks_to_fns", {})
    checks["default"] = _always(None)
    torch.nn.DataParallel.forward = lambda this, *args, **kwargs: this.module(*args, **kwargs)


def _harmless() -> None:
    """Protect the script's files: torch.save writes nothing. torch.load loads into host memory first."""
    load = torch.load

    def load_here(*args: Any, **kwargs: Any) -> Any:
        args, where = (args[:1], args[1]) if len(args) > 1 else (args, kwargs.get("map_location"))
        kwargs["map_location"] = "cpu"
        loaded = load(*args, **kwargs)
        return _sent(loaded) if where is not None and str(where).startswith("cuda") else loaded

    def _sent(loaded: Any) -> Any:
        if isinstance(loaded, torch.Tensor):
            return loaded.to("cuda")
        if isinstance(loaded, dict):
            for name in loaded:
                with contextlib.suppress(TypeError):
                    loaded[name] = _sent(loaded[name])
        return loaded

    torch.load = load_here
    torch.save = _always(None)
