"""What a script changes that was read already when the spare did its imports: by its text alone. Python 3.8 and later.

A script that sets ``OMP_NUM_THREADS`` before its ``import torch`` sets it too late in a spare, and one that changes
``sys.path`` may mean another torch. Nobody can tell by its text whether it comes to that line, or in which order: it is
started as ever then, which costs time and nothing else. Loaded by :mod:`workers.inside.spare`. Standard library only.
"""

import ast
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, List, Optional, Set

#: A longer one is not looked at: to take this much to pieces costs a tenth of a second of what the spare saves.
MOST_BYTES = 256 * 1024
#: A text with none of these does neither.
HINTS = (b"environ", b"putenv", b"unsetenv", b"addsitedir", b"sys.path", b"from sys", b"sys as")
#: Calls that change a list, and those that change a mapping; the latter by their first argument, or by all.
ON_LISTS = ("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort")
BY_NAME = ("__delitem__", "__setitem__", "pop", "setdefault")
BY_MANY = ("__ior__", "update")


def changes(path: str, is_latched: "Callable[[str], bool]") -> "Optional[str]":
    """Return what the script at *path* seems to change of what is read once; None if nothing, or if nobody can tell."""
    with open(path, "rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES or not any(hint in text for hint in HINTS):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python says them when it runs the script
            nodes = list(ast.walk(ast.parse(text)))
    except Exception:  # noqa: BLE001 - Python says it when it runs the script
        return None
    if changes_path(nodes):
        return "sys.path"
    return next((name for name in changed_names(nodes) if is_latched(name)), None)


def changes_path(nodes: "List[Any]") -> bool:
    """Return whether these nodes change ``sys.path``."""
    modules = {"sys"}
    paths = set()  # type: Set[str]
    for node in nodes:
        if isinstance(node, ast.Import):
            modules.update(each.asname for each in node.names if each.name == "sys" and each.asname)
        elif isinstance(node, ast.ImportFrom) and node.module == "sys":
            paths.update(each.asname or each.name for each in node.names if each.name == "path")

    def is_path(node: "Any") -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr == "path" and isinstance(node.value, ast.Name) and node.value.id in modules
        return isinstance(node, ast.Name) and node.id in paths

    def changes(node: "Any") -> bool:
        if isinstance(node, ast.Call):
            of = getattr(node.func, "value", None)
            return called(node) == "addsitedir" or (called(node) in ON_LISTS and is_path(of))
        if isinstance(node, ast.Subscript):
            return is_changed(node) and is_path(node.value)
        return is_path(node) and is_changed(node)

    return any(map(changes, nodes))


def changed_names(nodes: "List[Any]") -> "Iterator[str]":
    """Yield the names of variables that these nodes set, change or take away, and the words that might be such."""
    computed = False
    aliases = {"environ"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            aliases.update(each.asname or "" for each in node.names if each.name == "environ")
        elif isinstance(node, ast.Assign) and is_environ(node.value, aliases):
            aliases.update(target.id for target in node.targets if isinstance(target, ast.Name))
    for node in nodes:
        for key in keys(node, aliases):
            plain = key.value if type(key).__name__ == "Index" else key  # Python 3.8
            if isinstance(plain, ast.Constant):
                yield str(plain.value)
            else:
                computed = True
    if computed:  # for name in ("OMP_NUM_THREADS", …): os.environ[name] = "1"
        words = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        words += [node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg]
        yield from (word for word in words if word.isidentifier())


def keys(node: "Any", aliases: "Set[str]") -> "Iterator[Any]":
    """Yield what *node* sets in the environment: the names, as they stand there."""
    if isinstance(node, ast.Subscript) and is_changed(node) and is_environ(node.value, aliases):
        yield node.slice
    elif isinstance(node, ast.AugAssign) and is_environ(node.target, aliases):
        yield from keys_of(node.value)
    elif isinstance(node, ast.Call):
        name, on_environ = called(node), is_environ(getattr(node.func, "value", None), aliases)
        if name in ("putenv", "unsetenv") or (on_environ and name in BY_NAME):
            yield from node.args[:1]
        elif on_environ and name in BY_MANY:
            for each in node.args:
                yield from keys_of(each)
            for keyword in node.keywords:
                yield ast.Constant(value=keyword.arg) if keyword.arg else keyword.value


def keys_of(mapping: "Any") -> "Iterator[Any]":
    """Yield the keys of a mapping where they stand there, else the mapping."""
    if not isinstance(mapping, ast.Dict):
        yield mapping
        return
    for key, value in zip(mapping.keys, mapping.values):  # noqa: B905 - Python 3.8 has no strict
        yield value if key is None else key


def is_environ(node: "Any", aliases: "Set[str]") -> bool:
    """Return whether *node* is ``os.environ``."""
    if isinstance(node, ast.Attribute):
        return node.attr == "environ"
    return isinstance(node, ast.Name) and node.id in aliases


def is_changed(node: "Any") -> bool:
    """Return whether what *node* names is set or taken away."""
    return isinstance(node.ctx, (ast.Store, ast.Del))


def called(node: "ast.Call") -> str:
    """Return the last word of what is called."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))
