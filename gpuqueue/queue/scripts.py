"""Loads the Lua scripts: one file an act, what they share in front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.lazy.imports import import_all_now, later
from gpuqueue.queue.keys import PREFIX
from gpuqueue.queue.resp.client import Door

if TYPE_CHECKING:
    from gpuqueue.queue import functions, lua_minify
else:
    functions = later("gpuqueue.queue.functions")
    lua_minify = later("gpuqueue.queue.lua_minify")

#: What stands before every act.
PRELUDE = ("core", "state")
#: One script an act; ``device_filter.lua`` is the prelude of those that match jobs with devices,
#: ``capacity.lua`` of those that look ahead, ``limits.lua`` of those that limits concern, ``dependencies.lua`` and
#: ``array.lua`` of those that queue a job or take it out, ``limit_reservation.lua`` of the tick that keeps room,
#: ``limit_forecast.lua`` of the one that explains,
#: ``array_index.lua`` of those with limits or members,
#: ``authorize.lua`` of those by which people change a job, ``priority_front.lua`` of those that move one to the front,
#: ``feasibility.lua`` of those that take a request, ``topology.lua`` and ``better_device.lua`` of the claim; they are
#: no acts.
ACTS = (
    "rebuild_begin",
    "rebuild_job",
    "rebuild_array",
    "rebuild_preemptions",
    "rebuild_marks",
    "rebuild_finish",
    "submit",
    "claim",
    "started",
    "heartbeat",
    "run_note",
    "release_claim",
    "adopt",
    "park",
    "finish",
    "lose",
    "reap",
    "reserve",
    "promote",
    "preempt",
    "set_policy",
    "set_limits",
    "usage",
    "why",
    "cancel",
    "hold",
    "release",
    "edit_members",
    "edit",
    "move_front",
    "set_tags",
    "notification_result",
    "settle",
    "drain",
    "resume",
)

#: The acts that make a store ready; it refuses every other one before.
OPENING = frozenset(
    {"rebuild_begin", "rebuild_job", "rebuild_array", "rebuild_preemptions", "rebuild_marks", "rebuild_finish"}
)
#: The acts that tell a store the rules of its site: it takes them also while it is made ready, to have them from the
#: first moment on.
RULES = frozenset({"set_policy", "set_limits"})
#: The act that runs most often, and in processes that live long: it stays in the server where that can keep it (see
#: functions.py). Its text returns a function, which is the act; for a command that comes once it would not pay.
LASTING = frozenset({"claim"})
_LUA = Path(__file__).with_name("lua")
_FIRST = "do local why = refusal() if why then return why end end\n"
_FIRST_OF_RULES = f"if call('EXISTS', P .. 'rebuilding') == 0 then\n{_FIRST}end\n"


class Late(str):
    """A part that an act seldom needs. It stands in a function, ``load_waits``, which the act calls first.

    Of a look at an idle queue half the time was spent on making functions that nobody called.
    """

    __slots__ = ()


#: What stands before an act beside the prelude.
SHARED = {
    "claim": (
        *("device_filter", Late("array_index"), Late("limits"), Late("dependencies"), Late("capacity")),
        *("topology", Late("better_device"), Late("array")),
    ),
    "reserve": ("device_filter", "array_index", "limits", "capacity", "limit_reservation"),
    **dict.fromkeys(("promote", "preempt"), ("device_filter", "array_index", "limits", "capacity")),
    "why": ("device_filter", "array_index", "limits", "capacity", "limit_forecast"),
    "usage": ("device_filter", "array_index", "limits"),
    "move_front": ("authorize", "priority_front"),
    "set_tags": ("authorize",),
    "rebuild_marks": ("priority_front",),
    **dict.fromkeys(
        (*("adopt", "finish", "release_claim", "lose", "reap", "rebuild_job", "rebuild_array"),),
        ("dependencies", "array_index", "array"),
    ),
    **dict.fromkeys(
        ("cancel", "hold", "release", "edit_members"), ("authorize", "dependencies", "array_index", "array")
    ),
    "submit": ("device_filter", "feasibility", "array_index", "limits", "dependencies", "array"),
    "edit": ("authorize", "device_filter", "feasibility", "array_index", "limits", "dependencies", "array"),
}


@cache
def source(act: str) -> str:
    """Return the text of one script without the prelude."""
    folder = "acts" if act in ACTS else "shared"
    return (_LUA / folder / f"{act}.lua").read_text(encoding="ascii")


def load_all() -> None:
    """Read every script now, and every module that waits, for a process that lives for weeks.

    By the time it needs a rare one the files may be a newer version's, or it may have no descriptor left.
    """
    for act in ACTS:
        whole(act)
    import_all_now()


def whole(act: str, clock: str = "") -> str:
    """Return the text of one script with everything that stands before it.

    *clock* goes right behind the prelude, to give a simulation another ``now_ms`` (see simulated.py).
    """
    if act in LASTING:
        return f"{lasting(act, clock)}()"
    first = _FIRST_OF_RULES if act in RULES else "" if act in OPENING else _FIRST
    return "".join((*map(source, PRELUDE), clock, first, _shared(act), source(act)))


def lasting(act: str, clock: str = "") -> str:
    """Return what makes the act, of those that last: a chunk of Lua that returns it as a function. As :func:`whole`."""
    return lua_minify.lean(lua_minify.nested((*map(source, PRELUDE), clock + _shared(act), source(act))))


def _shared(act: str) -> str:
    return "".join(_late(part) if isinstance(part, Late) else source(part) for part in SHARED.get(act, ()))


def _late(part: str) -> str:
    """Return a part whose functions are made by ``load_…``, once, and not before."""
    head, _, body = source(part).partition("\ndo\n")
    exported = head[head.index("\nlocal ") + len("\nlocal ") :].partition(",")[0]
    return f"{head}\nlocal function load_{part}()\nif {exported} then return end\n{body}"


class Scripts:
    """The scripts of one connection, each registered when it is first used and sent by its digest, or its name."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._registered: dict[str, Any] = {}

    def run(self, act: str, *args: str | float) -> Any:
        """Run the script *act* in one atomic step and return its reply."""
        return self._script(act)(keys=self._keys(), args=args)

    def run_each(self, act: str, many: Iterable[Sequence[str | float]]) -> list[Any]:
        """Run the script *act* once for each of *many*, each in a step of its own.

        Return the replies; in the place of one that the store refused its error.
        """
        script = self._script(act)
        pipe = self._client.pipeline(transaction=False)
        for args in many:
            script(keys=self._keys(), args=args, client=pipe)
        return list(pipe.execute(raise_on_error=False))

    def _keys(self) -> list[str]:
        return [PREFIX]

    def _clock(self) -> str:
        return ""

    def _script(self, act: str) -> Any:
        script = self._registered.get(act)
        if script is None:
            script = self._client.register_script(whole(act, self._clock()))
            if act in LASTING and not isinstance(self._client, Door):  # who comes by the small door comes once
                script = functions.Function(self._client, act, lasting(act, self._clock()), instead=script)
            self._registered[act] = script
        return script
