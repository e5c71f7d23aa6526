"""Loads the Lua scripts: one file for each act, with the shared parts before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.lazy.imports import import_all_now, later
from gpuqueue.queue.job_fields import FIELDS
from gpuqueue.queue.keys import PREFIX
from gpuqueue.queue.resp.client import RespClient

if TYPE_CHECKING:
    from gpuqueue.queue import functions
else:
    functions = later("gpuqueue.queue.functions")

#: The parts before every act.
PRELUDE = ("core", "arguments", "fair_share", "state", "leases")
#: The acts, one script each. The other Lua files are shared parts; SHARED says before which acts they go.
ACTS = (
    "rebuild_begin",
    "rebuild_job",
    "rebuild_array",
    "rebuild_preemptions",
    "rebuild_marks",
    "rebuild_finish",
    "take_ids",
    "submit",
    "claim",
    "started",
    "name_host",
    "heartbeat",
    "run_note",
    "run_mark",
    "release_claim",
    "adopt",
    "park",
    "finish",
    "lose",
    "lose_host",
    "reap",
    "reserve",
    "promote",
    "preempt",
    "preempt_devices",
    "set_policy",
    "set_limits",
    "usage",
    "why",
    "listing",
    "cancel",
    "hold",
    "release",
    "edit_members",
    "edit",
    "extend",
    "move_front",
    "set_tags",
    "settle",
    "drain",
    "resume",
    "calendar_add",
    "calendar_cancel",
)

#: The acts that open a store. A store that is not open refuses all other acts.
OPENING = frozenset(
    {"rebuild_begin", "rebuild_job", "rebuild_array", "rebuild_preemptions", "rebuild_marks", "rebuild_finish"}
)
#: The acts that set the rules of the site. A store accepts them during a rebuild too, so that the rules apply from the
#: start.
RULES = frozenset({"set_policy", "set_limits"})
#: The act that runs most often. It is a stored function if the server supports that (see functions.py). Its text
#: returns the act as a Lua function.
LASTING = frozenset({"claim"})
#: What can follow the name of a field in Lua.
_AFTER_A_NAME = ",) }\n"
_LUA = Path(__file__).with_name("lua")
_FIRST = "do local why = refusal() if why then return why end end\n"
_FIRST_OF_RULES = f"if call('EXISTS', P .. 'rebuilding') == 0 then\n{_FIRST}end\n"

#: The parts before an act, in addition to the prelude.
SHARED = {
    "claim": (
        *("device_filter", "device_end", "array_index", "limits", "dependencies", "capacity"),
        *("topology", "better_device", "array", "claim_room", "claim_take", "claim_search"),
    ),
    "reserve": (
        *("device_filter", "device_end", "array_index", "limits", "capacity", "limit_reservation"),
        *("prospects", "turns", "reserved_idle"),
    ),
    "promote": ("device_filter", "device_end", "array_index", "limits", "capacity"),
    "preempt": ("device_filter", "device_end", "array_index", "limits", "capacity", "idle_priority", "preempt_run"),
    "why": (
        "device_filter",
        "device_end",
        "array_index",
        "limits",
        "capacity",
        "limit_forecast",
        "obstacles",
        "rivals",
        "exclusions",
        "idle_priority",
    ),
    "listing": ("device_filter", "device_end", "array_index", "limits", "capacity", "obstacles"),
    "name_host": ("machines",),
    "heartbeat": ("machines", "device_end", "drains", "preempt_run"),
    "usage": ("device_filter", "array_index", "limits", "submit_limits"),
    "move_front": ("authorize", "priority_front"),
    "set_tags": ("authorize",),
    "extend": ("authorize", "device_filter", "array_index", "limits"),
    "rebuild_marks": ("priority_front",),
    **dict.fromkeys(
        ("adopt", "lose_host", "reap", "rebuild_job", "rebuild_array"), ("dependencies", "array_index", "array")
    ),
    "release_claim": (
        *("device_filter", "feasibility", "dependencies", "array_index", "array"),
        *("drains", "exclusions"),
    ),
    "lose": ("dependencies", "array_index", "array", "drains"),
    "finish": ("device_filter", "array_index", "limits", "dependencies", "array", "drains", "memory_retry"),
    **dict.fromkeys(("drain", "resume"), ("drains",)),
    **dict.fromkeys(("calendar_add", "calendar_cancel"), ("device_end", "drains")),
    "preempt_devices": ("preempt_run",),
    **dict.fromkeys(
        ("cancel", "hold"),
        ("authorize", "dependencies", "array_index", "array"),
    ),
    **dict.fromkeys(("release", "edit_members"), ("authorize", "dependencies", "array_index", "array", "exclusions")),
    "submit": (
        *("device_filter", "feasibility", "array_index", "limits", "limit_refusal", "submit_limits"),
        *("dependencies", "array"),
    ),
    "edit": (
        *("authorize", "device_filter", "feasibility", "array_index", "limits", "limit_refusal"),
        *("dependencies", "array"),
    ),
}


@cache
def source(act: str) -> str:
    """Return the text of one script or shared part, without the prelude and with the stored names of fields."""
    folder = "acts" if act in ACTS else "shared"
    text = (_LUA / folder / f"{act}.lua").read_text(encoding="ascii")
    head, *tables = text.split("F{")
    head, *constants = "".join((head, *map(_two_tables, tables))).split("F.")
    return "".join((head, *map(_constant, constants)))


def _two_tables(text: str) -> str:
    """Return Lua that began with ``F{a, b}`` with two tables: the stored names, and the names in the code."""
    names, _, rest = text.partition("}")
    each = names.replace(",", " ").split()
    stored, texts = (", ".join(form.format(name) for name in each) for form in ("F.{}", "'{}'"))
    return f"{{{stored}}}, {{{texts}}}{rest}"


def _constant(text: str) -> str:
    """Return Lua that began with ``F.name`` with the stored name. A regular expression would slow down each command."""
    name = text[:30]
    for end in _AFTER_A_NAME:
        name = name.partition(end)[0]
    return f"'{FIELDS[name]}'{text[len(name) :]}"


def load_all() -> None:
    """Read all scripts and import all deferred modules now, for a process that lives for weeks.

    Later the files may belong to a newer version, or the process may have no file descriptor left.
    """
    for act in ACTS:
        whole(act)
    import_all_now()


def whole(act: str, clock: str = "") -> str:
    """Return the text of one script with all parts before it.

    *clock* is inserted after the prelude; a simulation replaces ``now_ms`` there (see simulated_clock.py).
    """
    if act in LASTING:
        return f"{lasting(act, clock)}()"
    first = _FIRST_OF_RULES if act in RULES else "" if act in OPENING else _FIRST
    return "".join((*map(source, PRELUDE), clock, first, _shared(act), source(act)))


def lasting(act: str, clock: str = "") -> str:
    """Return a Lua chunk that returns an act of LASTING as a function. *clock*: see :func:`whole`.

    A Lua function has at most 200 local variables, so the act and its shared parts are a function within the prelude.
    """
    prelude, body = "".join(map(source, PRELUDE)), clock + _shared(act) + source(act)
    return f"{prelude}return (function()\n{body}\nend)()"


def _shared(act: str) -> str:
    return "".join(map(source, SHARED.get(act, ())))


class Scripts:
    """The scripts of one connection, each registered at its first use and called by its digest or function name."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._registered: dict[str, Any] = {}

    def run(self, act: str, *args: str | float) -> Any:
        """Run the script *act* in one atomic step and return its reply."""
        return self._script(act)(keys=self._keys(), args=args)

    def add(self, pipe: Any, act: str, *args: str | float) -> None:
        """Add the script *act* to *pipe*."""
        self._script(act)(keys=self._keys(), args=args, client=pipe)

    def run_each(self, act: str, many: Iterable[Sequence[str | float]], *, is_retried: bool = False) -> list[Any]:
        """Run the script *act* once for each of *many*, each in a separate step; return the replies.

        If a script fails, its error takes the place of its reply. With *is_retried*, the caller runs what has failed
        again: a script whose text was sent before is sent by its digest, although the store may have restarted since.
        """
        pipe = self._client.pipeline(transaction=False)
        if is_retried and isinstance(self._client, RespClient):
            self._script(act).expect_known(pipe)
        for args in many:
            self.add(pipe, act, *args)
        return list(pipe.execute(raise_on_error=False))

    def _keys(self) -> list[str]:
        return [PREFIX]

    def _clock(self) -> str:
        return ""

    def _script(self, act: str) -> Any:
        script = self._registered.get(act)
        if script is None:
            script = self._client.register_script(whole(act, self._clock()))
            if act in LASTING and not isinstance(self._client, RespClient):  # it runs one command only
                script = functions.Function(self._client, act, lasting(act, self._clock()), instead=script)
            self._registered[act] = script
        return script
