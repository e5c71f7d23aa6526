"""The placement of a job: constraints on its devices besides device kind, pool and memory. And its shape. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.device import DeviceFilter
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MIB

#: Most models and most devices that a job can name. They are part of its shape, which every claim reads.
MOST_MODELS = 8
MOST_DEVICES = 64
#: Longest text that names a model, in characters.
MOST_MODEL = 64
#: External processes may use at most 1/16 of a device that a job wants whole. The scripts have the same figure
#: (``gpuqueue/queue/lua/shared/device_filter.lua``), and a test compares the two.
EXTERNAL_SHARE = 16
#: A run of unknown utilisation counts as this share of its devices, which is about the mean of the jobs of one cluster
#: (Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019). The
#: scripts have the same figure (``better_device.lua``), and a test compares the two.
UNKNOWN_UTILISATION = 0.5

_WORD = pattern(r"[a-z0-9.]+")
#: Without commas and colons, which separate the UUIDs and the fields of a shape.
_UUID = pattern(r"[A-Za-z0-9_.@+/-]{1,128}")


class Preference(str, Enum):
    """The choice among the devices that fit a job for one device."""

    #: The device with the largest share of its memory free; of about equal shares the smallest device.
    SPREAD = "spread"
    #: The device with the least free memory that is still enough.
    PACK = "pack"
    #: The device whose runs have the least expected utilisation together; of equal ones as SPREAD.
    LEAST_BUSY = "least-busy"

    def __str__(self) -> str:
        return self.value

    @property
    def letter(self) -> str:
        """Return the letter that names it in a shape and in the scripts."""
        return self.value[0]

    @classmethod
    def parse(cls, text: object) -> Preference:
        """Return the preference that *text* names.

        Raises:
            BadRequest: *text* names none.

        """
        if not isinstance(text, str) or text not in list(cls):
            raise BadRequest(f"{brief(text)} is no placement: write {one_of(cls)}")
        return cls(text)


class Visible(str, Enum):
    """How a job finds its GPUs in CUDA_VISIBLE_DEVICES."""

    UUID = "uuid"
    #: As CUDA numbers them on their host. A MIG instance has no index, so it keeps its UUID.
    INDEX = "index"

    def __str__(self) -> str:
        return self.value


def one_of(words: Iterable[str]) -> str:
    """Return *words* as a choice, such as ``spread or pack``."""
    *others, last = map(str, words)
    return f"{', '.join(others)} or {last}"


def words_of(model: str) -> tuple[str, ...]:
    """Return the words of a model's name in lower case. ``NVIDIA A100-SXM4-80GB`` has four."""
    return tuple(_WORD.findall(model.lower()))


def fits_model(pattern: str, name: str) -> bool:
    """Return whether each word of *pattern* is a word of the model's *name*.

    For example, ``a100-80gb`` fits ``NVIDIA A100-SXM4-80GB``. The scripts have the same rule (``of_model`` in
    ``gpuqueue/queue/lua/shared/device_filter.lua``), and a test compares the two.
    """
    return set(words_of(pattern)) <= set(words_of(name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Constraints of a job on its devices. The default has none.

    - ``exclusive``: the job runs alone on each of its devices.
    - ``whole``: the job is exclusive and names no memory size, so external processes may use only a small part of each
      device (see EXTERNAL_SHARE).
    - ``models``: the devices must be of one of these models, matched by the words of the name.
    - ``devices``: the devices must be among these UUIDs.
    - ``preference``: None leaves the choice to the site.
    """

    exclusive: bool = False
    whole: bool = False
    models: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    preference: Preference | None = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: a field is of the wrong type or malformed, names too much, or contradicts another one.

        """
        flags: tuple[object, ...] = (self.exclusive, self.whole)
        if not all(isinstance(flag, bool) for flag in flags):
            raise BadRequest("exclusive must be true or false")
        if self.preference is not None and not isinstance(self.preference, Preference):
            raise BadRequest(f"the placement must be {one_of(Preference)}, not {brief(self.preference)}")
        _check_names("device type", self.models, MOST_MODELS)
        _check_names("device", self.devices, MOST_DEVICES)
        for model in self.models:
            if not words_of(model) or len(model) > MOST_MODEL:
                raise BadRequest(f"{brief(model)} is no device type: write a part of a model's name, such as A100")
        for device in self.devices:
            if not _UUID.fullmatch(device):
                raise BadRequest(f"{brief(device)} is no device's UUID")
        if self.whole and not self.exclusive:
            raise BadRequest("give the device memory that the job needs, or make the job exclusive")

    def __bool__(self) -> bool:
        """Return whether there is any constraint."""
        return self != ANYWHERE

    def __str__(self) -> str:
        """Return the text in a shape: ``flags:models:devices``, without trailing colons.

        Equal constraints give equal texts, whatever their order, because jobs of one shape are interchangeable.
        """
        flags = ("x" if self.exclusive else "") + ("w" if self.whole else "")
        flags += self.preference.letter if self.preference else ""
        models = "+".join(sorted({"-".join(sorted(set(words_of(model)))) for model in self.models}))
        return f"{flags}:{models}:{','.join(sorted(set(self.devices)))}".rstrip(":")


def _check_names(what: str, names: object, most: int) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise BadRequest(f"each {what} must be text")
    if len(names) > most:
        raise BadRequest(f"{len(names)} names of a {what}: at most {most} are accepted")


#: The placement without constraints.
ANYWHERE = Placement()


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a job's request that decides which devices it fits. Jobs of one shape are interchangeable.

    The idea is HTCondor's autocluster: each distinct shape is tested once, instead of each job. Memory is rounded up to
    whole MiB and the time limit to one of a few steps, so that there are few shapes. The job keeps its exact figures.
    """

    mem_bytes: int
    #: Seconds, one of TIME_STEPS_S; 0 means no limit.
    time_limit_s: int
    gpus: int
    pool: str
    device: DeviceFilter | None = None
    #: The text of the job's :class:`Placement`, with a flag for its duration: see ``device_filter.lua``.
    placement: str = ""

    #: Steps of time limits, in seconds. Each is at most twice the previous one, and at most 1.5 times from a minute on.
    #: With coarser steps, short jobs would seem to run into a reservation that they do not touch.
    TIME_STEPS_S = (
        *(10, 20, 30, 60, 90, 120, 180, 240, 300, 450, 600),
        *(minutes * 60 for minutes in (15, 20, 25, 30, 40, 50, 60, 75, 90, 120, 150, 180, 210, 240, 300)),
        *(hours * 3600 for hours in (6, 7, 8, 10, 12, 14, 16, 20, 24, 30, 36, 48, 60, 72)),
        *(days * 86400 for days in (4, 5, 6, 7, 8, 10, 12, 14, 18, 21, 25, 30)),
    )

    @classmethod
    def of(
        cls,
        mem_bytes: int,
        time_limit_s: float | None,
        gpus: int,
        pool: str,
        device: DeviceFilter | None,
        placement: Placement,
        *,
        expected_s: float | None = None,
        requeue: bool = True,
    ) -> Shape:
        """Return the shape of a request with these values. A time limit beyond the last step counts as no limit.

        *expected_s* counts if it is below the limit; *requeue* if there is neither, on a device with an end.
        """
        if device is not None and device.is_engine:  # the engine counts as one device, whatever it gives the job
            gpus = 1
        limit_s = cls.step_of(time_limit_s)
        flag = (
            f"d{step}"
            if (step := cls.step_of(expected_s)) and (not limit_s or step < limit_s)
            else ""
            if limit_s or requeue
            else "o"
        )
        flags, colon, names = str(placement).partition(":")
        return cls(-(-mem_bytes // MIB) * MIB, limit_s, gpus, pool, device, f"{flags}{flag}{colon}{names}")

    @classmethod
    def step_of(cls, seconds: float | None) -> int:
        """Return the first step that is not less than *seconds*; 0 without one, or beyond the last."""
        return 0 if seconds is None else next((step for step in cls.TIME_STEPS_S if seconds <= step), 0)

    def __str__(self) -> str:
        """Return the text in the store. It omits the device kind and the placement if the job has none."""
        text = f"{self.mem_bytes}:{self.time_limit_s}:{self.gpus}:{self.pool}"
        if self.placement:
            return f"{text}:{self.device or ''}:{self.placement}"
        return text if self.device is None else f"{text}:{self.device}"
