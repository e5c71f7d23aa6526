"""Counts the memory that tensors would use on the GPU: their kinds, sizes and lifetimes.

Every counted storage gets a number. The journal is a list of (number, bytes): positive when the storage is allocated,
negative when it is freed. The kind of a storage (a parameter, a gradient) is often known only later, so the journal is
evaluated at the end, when all labels are known.
"""

import weakref
from typing import Any, Callable, Dict, Iterable, List, Tuple

#: Granularity of torch's caching allocator: kMinBlockSize in CUDACachingAllocator.cpp.
BLOCK_BYTES = 512

PARAMETERS = "parameters"
GRADIENTS = "gradients"
STATES = "optimizer_states"
BUFFERS = "buffers"
SENT = "sent"
REST = "activations"
#: All labels, in the order of the output.
LABELS = (PARAMETERS, GRADIENTS, STATES, BUFFERS, SENT, REST)


def rounded(size: int) -> int:
    """Return the bytes that the allocator takes for *size* bytes."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


class Ledger:
    """The tensors on the simulated GPU. While ``paused`` is not 0, new tensors are in host memory."""

    def __init__(self) -> None:
        self.paused = 0
        self.live_bytes = 0
        self.peak_bytes = 0
        self._next = 0
        self._known: Dict[int, Tuple[int, int, Any]] = {}
        self._journal: List[Tuple[int, int]] = []
        self._labels: Dict[int, str] = {}

    def add(self, tensor: Any, label: str) -> None:
        """Count the storage of *tensor* from now on. If it is counted already, update its size."""
        storage = storage_of(tensor)
        if storage is None:
            return
        key, size = storage._cdata, storage.nbytes()
        known = self._known.get(key)
        if known is None:
            self._next += 1
            self._labels[self._next] = label
            known = (self._next, 0, weakref.ref(storage, self._freed(key)))
        if known[1] != size or key not in self._known:
            self._change(known[0], size - known[1], rounded(size) - rounded(known[1]))
            self._known[key] = (known[0], size, known[2])

    @staticmethod
    def key_of(tensor: Any) -> Any:
        """Return the identity of a tensor's storage, or None if it has no storage."""
        storage = storage_of(tensor)
        return None if storage is None else storage._cdata

    def has(self, tensor: Any) -> bool:
        """Return whether *tensor* is on the simulated GPU."""
        return bool(self._known) and self.key_of(tensor) in self._known

    def label(self, tensors: Iterable[Any], label: str) -> None:
        """Set the label of *tensors*, as far as they are counted."""
        for tensor in tensors:
            key = self.key_of(tensor)
            if key in self._known:
                self._labels[self._known[key][0]] = label

    def forget(self) -> None:
        """Stop counting. Called in forked child processes, which do not train."""
        self.paused += 1
        self._known.clear()

    def parts(self) -> Dict[str, Dict[str, int]]:
        """Return for each label its largest size and its size at the overall peak, in bytes.

        Sizes are those of the tensors before rounding. ``rounding`` is the sum that rounding added at the peak.
        """
        now = dict.fromkeys(LABELS, 0)
        largest = dict(now)
        at_peak = dict(now)
        sizes: Dict[int, int] = {}
        total = peak = 0
        for number, change in self._journal:
            label = self._labels[number]
            before = sizes.get(number, 0)
            sizes[number] = before + change
            now[label] += change
            largest[label] = max(largest[label], now[label])
            total += rounded(before + change) - rounded(before)
            if total > peak:
                peak, at_peak = total, dict(now)
        parts = {each: {"largest_bytes": largest[each], "at_peak_bytes": at_peak[each]} for each in LABELS}
        lost = peak - sum(at_peak.values())
        parts["rounding"] = {"largest_bytes": lost, "at_peak_bytes": lost}
        return parts

    def _freed(self, key: int) -> Callable[[Any], None]:
        def freed(_: Any) -> None:
            known = self._known.pop(key, None)
            if known is not None:
                self._change(known[0], -known[1], -rounded(known[1]))

        return freed

    def _change(self, number: int, change: int, taken: int) -> None:
        self._journal.append((number, change))
        self.live_bytes += taken
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def storage_of(tensor: Any) -> Any:
    """Return the storage of *tensor*, or None if it has none, such as a sparse tensor."""
    try:
        return tensor.untyped_storage()
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
