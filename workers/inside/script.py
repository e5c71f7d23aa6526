"""What a script may change that was read already when the spare did its imports: by its text alone. Python 3.8 and on.

A script that sets ``OMP_NUM_THREADS`` before its ``import torch`` sets it too late in a spare, and one that changes
``sys.path`` may mean another torch. Nobody can tell by its text whether it comes to that line, or in which order; nor
is there an end to the ways of writing it. So it is the other way round: what plainly reads, or plainly sets a variable
that may be set at any time, starts warm; with any other use of the environment, or of where modules come from, it is
started as ever, which costs time and nothing else. Loaded by :mod:`workers.inside.warm_start`. Standard library only.
"""

import ast
import re
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

#: A longer one is not looked at: to take this much to pieces costs a fifth of a second of what the spare saves.
MOST_BYTES = 256 * 1024
#: What is read, and what changes a mapping: by its first argument, or by all.
READ_OF_LIST = ("copy", "count", "index", "__contains__", "__getitem__", "__iter__", "__len__")
READ_OF_MAPPING = ("copy", "get", "items", "keys", "values", "__contains__", "__getitem__", "__iter__", "__len__")
BY_NAME = ("__delitem__", "__setitem__", "pop", "setdefault")
BY_MANY = ("__ior__", "update")
#: Ways to what a module holds that do not name it.
INNARDS = ("__dict__", "__getattribute__", "__setattr__", "__delattr__")
#: Functions of Python that read what they are given, and pass nothing of it on that could be changed.
SHOWING = ("bool", "id", "len", "print", "repr", "str", "type")
READING = (*SHOWING, "dict", "dir", "enumerate", "frozenset", "iter", "list", "set", "sorted", "tuple")
#: Functions of ``os`` that start a program, in an environment that they read.
STARTING = ("exec", "posix_spawn", "spawn")
#: What only reads what stands in it, and what only reads what stands there in it.
READ_ANYWHERE_IN = (ast.Compare, ast.FormattedValue, ast.Starred, ast.Expr, ast.BinOp, ast.UnaryOp, ast.Assert)
READ_IN = (
    ((ast.For, ast.AsyncFor, ast.comprehension), "iter"),
    ((ast.If, ast.While, ast.IfExp), "test"),
    ((ast.Subscript,), "value"),
)
#: What sets the affinity where it is given processors, and only tells it where it is not.
PSUTIL = "cpu_affinity"
#: A command that sets it, as ``os.system`` is given it.
TASKSET = re.compile(r"\s*(?:\S*/)?taskset\s")
#: What a use may change that is not called so itself.
MEANT = {
    **dict.fromkeys(("os", "putenv", "clearenv", "load_dotenv"), "os.environ"),
    **dict.fromkeys(("sys", "addsitedir"), "sys.path"),
}


def changes(path: str, is_too_late: "Callable[[str], bool]", bindings: "Any") -> "Optional[str]":
    """Return what the script at *path* does that would be too late in a spare, or may do; None if nothing.

    *bindings* is the module of that name beside this one.
    """
    with open(path, "rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        return f"is longer than {MOST_BYTES // 1024} KiB"
    found = Look(is_too_late, bindings).look(text, {})
    return None if found is None else "{1} (line {0})".format(*found)


class Look:
    """A look at a text."""

    def __init__(self, is_too_late: "Callable[[str], bool]", bindings: "Any") -> None:
        self.is_too_late, self.bindings = is_too_late, bindings
        hints = "|".join((*bindings.MEMBERS, *bindings.HOLDERS, "__import__", PSUTIL, "taskset"))
        self.hint = re.compile(rf"\b(?:{hints})\b".encode())

    def look(self, text: bytes, given: "Dict[str, str]") -> "Optional[Tuple[int, str]]":
        """Return the first line that may change something, and what; None if there is none, or Python refuses it.

        Some names are *given* to what another script runs.
        """
        if not given and not self.hint.search(text):
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python says them when it runs the script
                nodes = linked(ast.parse(text))
        except Exception:  # noqa: BLE001 - Python says it when it runs the script
            return None
        names = self.bindings.Bindings(nodes, given)
        found = [(node.lineno, "may change " + MEANT.get(kind, kind)) for node, kind in names.doubts]
        for node in nodes:
            words = self.words_of(node, names)
            if words is not None:
                found.append((node.lineno, words))
        return min(found, default=None)

    def words_of(self, node: "Any", names: "Any") -> "Optional[str]":
        """Return what a node changes or may change."""
        kind = names.kind(node)
        if kind is None:
            return self.words_without(node, names)
        keys = self.keys(node, kind, names)
        if keys is None:
            return f"may change {MEANT.get(kind, kind)}"
        for key in keys:
            words = names.words(key)
            if words is None:
                return "may change os.environ"
            late = next((word for word in words if self.is_too_late(word)), None)
            if late is not None:
                return f"changes {late}"
        return None

    def words_without(self, node: "Any", names: "Any") -> "Optional[str]":
        """Return what a node may change that stands for nothing itself: it says the name as a string, or runs one."""
        if isinstance(node, ast.Constant):
            said = isinstance(node.above, ast.Expr) or is_call(node.above, ("print",), names)  # type: ignore[attr-defined]
            return self.words_of_string(node.value) if isinstance(node.value, str) and not said else None
        if isinstance(node, ast.Call):
            return self.words_of_call(node, names)
        if isinstance(node, ast.Attribute) and node.attr == "__import__" and is_changed(node):
            return "may change __import__"
        return None

    def words_of_string(self, text: str) -> "Optional[str]":
        """Return what may be changed by who has this name (``os.environ``, as mock takes it), or this command."""
        if TASKSET.match(text + " "):
            return f"may change {self.bindings.AFFINITY}"
        kind = self.bindings.kind_of_words(text.split("."))
        return None if kind is None else f"may change {MEANT.get(kind, kind)}"

    def words_of_call(self, call: "ast.Call", names: "Any") -> "Optional[str]":
        """Return what a call changes or may change by what it is given."""
        name = self.bindings.called(call)
        if name == PSUTIL and (call.args or call.keywords):
            return f"may change {self.bindings.AFFINITY}"
        first = self.bindings.constant(call.args[0]) if call.args else None
        if name in ("exec", "eval") and isinstance(first, (str, bytes)):
            found = self.look(first.encode(errors="replace") if isinstance(first, str) else first, names.names)
            return None if found is None else found[1]
        return None

    def keys(self, node: "Any", kind: str, names: "Any") -> "Optional[List[Any]]":
        """Return what a use sets in the environment, the names as they stand there; None if nobody can tell."""
        of = self.bindings
        if is_changed(node):
            return self.keys_of_change(node, kind, names)
        if kind in (of.ENVIRON, of.PATH, of.MODULES):
            return self.keys_of_mapping(node, kind, names)
        if kind in ("os", "sys"):
            return self.keys_of_holder(node, names)
        above = node.above
        if kind == of.SETTER and isinstance(above, ast.Call) and above.func is node:
            return above.args[:1] or None
        return [] if is_call(above, SHOWING, names) or (kind == of.SETTER and is_named(node, above)) else None

    def keys_of_change(self, node: "Any", kind: str, names: "Any") -> "Optional[List[Any]]":
        """Return the same for what is itself replaced or taken away: a name alone may be."""
        if isinstance(node.above, ast.AugAssign):
            return self.keys_of(node.above.value, names) if kind == self.bindings.ENVIRON else None
        owner = node.value if isinstance(node, ast.Attribute) else None
        return None if names.kind(owner) in ("os", "sys") else []

    def keys_of_mapping(self, node: "Any", kind: str, names: "Any") -> "Optional[List[Any]]":
        """Return the same for the environment, and for a list or mapping of modules."""
        above = node.above
        if isinstance(above, ast.Attribute):
            return self.keys_of_method(above, kind, names)
        if isinstance(above, ast.Subscript) and above.value is node and is_changed(above):
            return [above.slice] if kind == self.bindings.ENVIRON else None
        return [] if is_read(node, above, names) else None

    def keys_of_holder(self, node: "Any", names: "Any") -> "Optional[List[Any]]":
        """Return the same for a module: what it holds is looked at where it is named."""
        above = node.above
        if isinstance(above, ast.Attribute):
            return None if above.attr in INNARDS else []
        if is_call(above, ("getattr", "hasattr"), names) and len(above.args) > 1 and above.args[0] is node:
            word = self.bindings.constant(above.args[1])
            return [] if isinstance(word, str) and word not in INNARDS else None
        return [] if is_call(above, (*SHOWING, "dir"), names) or is_named(node, above) else None

    def keys_of_method(self, method: "Any", kind: str, names: "Any") -> "Optional[List[Any]]":
        """Return the same for what is called of the environment, or of a list or mapping of modules."""
        call, name = method.above, method.attr
        if name in (READ_OF_LIST if kind == self.bindings.PATH else READ_OF_MAPPING):
            return None if isinstance(call, ast.Attribute) else []  # .get.__self__
        if kind != self.bindings.ENVIRON or not isinstance(call, ast.Call) or call.func is not method:
            return None
        if name in BY_NAME:
            return call.args[:1] or None
        return self.keys_of_call(call, names) if name in BY_MANY else None

    def keys_of_call(self, call: "ast.Call", names: "Any") -> "List[Any]":
        """Return the keys of all that a call is given."""
        keys = [key for each in call.args for key in self.keys_of(each, names)]
        for keyword in call.keywords:
            keys += [ast.Constant(value=keyword.arg)] if keyword.arg else self.keys_of(keyword.value, names)
        return keys

    def keys_of(self, mapping: "Any", names: "Any") -> "List[Any]":
        """Return the keys of a mapping where they stand there, else the mapping."""
        if is_call(mapping, ("dict",), names):
            return self.keys_of_call(mapping, names)
        if not isinstance(mapping, ast.Dict):
            return [[mapping]]  # no key, whatever it is called
        keys = []  # type: List[Any]
        for key, value in zip(mapping.keys, mapping.values):  # noqa: B905 - Python 3.8 has no strict
            keys += [key] if key is not None else self.keys_of(value, names)
        return keys


def linked(tree: "Any") -> "List[Any]":
    """Return the nodes of a tree, each with the one ``above`` it."""
    nodes = [tree]
    for node in nodes:  # grows as it goes
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context):  # one for all
                child.above = node  # type: ignore[attr-defined]
                nodes.append(child)
    return nodes


def is_read(node: "Any", above: "Any", names: "Any") -> bool:
    """Return whether the environment, or a list or mapping of modules, is only read where it stands.

    Or gets a name: that is looked at wherever it stands.
    """
    if isinstance(above, ast.Call):
        # Who calls it means something else: environ() of psutil.
        return above.func is node or is_call(above, READING, names) or is_reader(above.func, names)
    if isinstance(above, ast.keyword):
        return above.arg is None or (above.arg == "env" and names.starts_program(above.above.func))  # type: ignore[attr-defined]
    if isinstance(above, ast.Dict):  # {**os.environ}
        return any(key is None and value is node for key, value in zip(above.keys, above.values))  # noqa: B905
    within = next((getattr(above, field, None) for kinds, field in READ_IN if isinstance(above, kinds)), None)
    return within is node or isinstance(above, READ_ANYWHERE_IN) or is_named(node, above)


def is_named(node: "Any", above: "Any") -> bool:
    """Return whether *node* gets a plain name."""
    if isinstance(above, ast.Assign):
        return all(isinstance(target, ast.Name) for target in above.targets)
    return isinstance(above, ast.AnnAssign) and above.value is node and isinstance(above.target, ast.Name)


def is_reader(func: "Any", names: "Any") -> bool:
    """Return whether *func* is ``",".join``, or of those of ``os`` that start a program."""
    if not isinstance(func, ast.Attribute):
        return False
    if func.attr == "join":
        return isinstance(func.value, ast.Constant) or getattr(func.value, "attr", "") == "pathsep"
    return func.attr.startswith(STARTING) and names.kind(func.value) == "os"


def is_call(node: "Any", functions: "Tuple[str, ...]", names: "Any") -> bool:
    """Return whether *node* calls one of these functions of Python."""
    return isinstance(node, ast.Call) and names.is_builtin(node.func) and node.func.id in functions  # type: ignore[attr-defined]


def is_changed(node: "Any") -> bool:
    """Return whether what *node* names is set or taken away."""
    return isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
