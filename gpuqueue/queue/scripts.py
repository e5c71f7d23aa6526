"""Loads the Lua scripts: one file an act, what they share in front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.later import import_all_now, later
from gpuqueue.queue.door.door import Door
from gpuqueue.queue.keys import PREFIX

if TYPE_CHECKING:
    from gpuqueue.queue import functions, lean
else:
    functions = later("gpuqueue.queue.functions")
    lean = later("gpuqueue.queue.lean")

#: What stands before every act.
PRELUDE = ("base", "lib")
#: One script an act; ``constraints.lua`` is the prelude of those that match jobs with devices,
#: ``placement.lua`` of those that look ahead, ``limits.lua`` of those that limits concern, ``waits.lua`` and
#: ``members.lua`` of those that queue a job or take it out, ``quota.lua`` of the tick that keeps room, ``under.lua``
#: of the one that explains,
#: ``ranges.lua`` of those with limits or members,
#: ``owner.lua`` of those by which people change a job, ``front.lua`` of those that move one to the front,
#: ``judge.lua`` of those that take a request, ``together.lua`` and ``elsewhere.lua`` of the claim; they are no acts.
ACTS = (
    "begin",
    "restore",
    "gather",
    "recall",
    "remember",
    "open",
    "submit",
    "claim",
    "started",
    "beat",
    "note",
    "giveback",
    "adopt",
    "park",
    "finish",
    "lose",
    "reap",
    "reserve",
    "age",
    "preempt",
    "policy",
    "restrict",
    "uses",
    "why",
    "cancel",
    "hold",
    "release",
    "part",
    "edit",
    "move",
    "mark",
    "told",
    "settle",
    "drain",
    "resume",
)

#: The acts that make a store ready; it refuses every other one before.
OPENING = frozenset({"begin", "restore", "gather", "recall", "remember", "open"})
#: The acts that tell a store the rules of its site: it takes them also while it is made ready, to have them from the
#: first moment on.
RULES = frozenset({"policy", "restrict"})
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
        *("constraints", Late("ranges"), Late("limits"), Late("waits"), Late("placement")),
        *("together", Late("elsewhere"), Late("members")),
    ),
    "reserve": ("constraints", "ranges", "limits", "placement", "quota"),
    **dict.fromkeys(("age", "preempt"), ("constraints", "ranges", "limits", "placement")),
    "why": ("constraints", "ranges", "limits", "placement", "under"),
    "uses": ("constraints", "ranges", "limits"),
    "move": ("owner", "front"),
    "mark": ("owner",),
    "remember": ("front",),
    **dict.fromkeys(
        (*("adopt", "finish", "giveback", "lose", "reap", "restore", "gather"),),
        ("waits", "ranges", "members"),
    ),
    **dict.fromkeys(("cancel", "hold", "release", "part"), ("owner", "waits", "ranges", "members")),
    "submit": ("constraints", "judge", "ranges", "limits", "waits", "members"),
    "edit": ("owner", "constraints", "judge", "ranges", "limits", "waits", "members"),
}


@cache
def source(act: str) -> str:
    """Return the text of one script without the prelude."""
    return (_LUA / f"{act}.lua").read_text(encoding="ascii")


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
    return lean.lean(lean.nested((*map(source, PRELUDE), clock + _shared(act), source(act))))


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
