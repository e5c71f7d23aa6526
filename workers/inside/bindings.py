"""What the names of a script stand for, of what a spare has read already: by its text alone. Python 3.8 and later.

That is the environment, and where modules come from. Scopes are not told apart: a name that stands for the environment
somewhere is taken for it everywhere. Loaded by :mod:`workers.inside.warm_start`. Standard library only.
"""

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

ENVIRON, SETTER, PATH, MODULES, AFFINITY = "os.environ", "putenv", "sys.path", "sys.modules", "the CPU affinity"
#: What a view of the environment is of: ``os.environ.items()._mapping``. A script's own objects may have one as well.
VIEWED, OWNERS = "_mapping", ("self", "cls")
#: Modules through which the rest can be had, and what is had through them.
HOLDERS = {"os": "os", "posix": "os", "sys": "sys"}
#: Names that mean one thing, whatever stands before the dot.
MEMBERS = {
    "environ": ENVIRON,
    "environb": ENVIRON,
    VIEWED: ENVIRON,
    "putenv": SETTER,
    "setenv": SETTER,  # of the C library
    "unsetenv": SETTER,
    "clearenv": "clearenv",
    "load_dotenv": "load_dotenv",
    "meta_path": "sys.meta_path",
    "path_hooks": "sys.path_hooks",
    "path_importer_cache": "sys.path_importer_cache",
    "addsitedir": "addsitedir",
    "addsitepackages": "addsitedir",
    "addusersitepackages": "addsitedir",
    "sched_setaffinity": AFFINITY,  # torch counts the processors when it is imported
    "pthread_setaffinity_np": AFFINITY,
}
#: Names that mean this only behind ``sys.``: too many other things are called so.
OF_SYS = {"path": PATH, "modules": MODULES}
#: Calls that return a module by its name, and those that return names with what they stand for.
IMPORTS, NAMESPACES = ("__import__", "import_module"), ("globals", "locals", "vars")
#: Fields by which a node gives a name other than by a plain assignment, and most nodes, which give none.
NAMELESS = (ast.Attribute, ast.Call, ast.Constant, ast.Expr, ast.keyword)
NAMING = ("name", "asname", "arg", "rest")


class Bindings:
    """What each name of a script stands for, as far as it matters."""

    def __init__(self, nodes: "List[Any]", given: "Dict[str, str]") -> None:
        """Take the names of a script's *nodes*, beside those that are *given* to it."""
        self.names: Dict[str, str] = dict(given)
        #: Where a name comes to stand for two of these things, or for one and is a member of a class.
        self.doubts: List[Tuple[Any, str]] = []
        #: Functions that start a program, and names of the module that has them.
        self.runs: Set[str] = set()
        self.running = {"subprocess"}
        self.taken: Set[str] = set()
        self._literal: Dict[str, List[Any]] = {}
        self._stored: Dict[str, int] = {}
        for node in nodes:
            self._take(node)
        assigned = [node for node in nodes if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None]
        before = -1
        while before != len(self.names):  # a = os.environ; b = a
            before = len(self.names)
            for node in assigned:
                kind = self.kind(node.value)
                for target in targets(node):
                    if kind is not None and isinstance(target, ast.Name):
                        self._bind(node, target.id, kind)

    def _take(self, node: "Any") -> None:
        """Note the names that *node* gives."""
        if isinstance(node, NAMELESS):
            return
        if isinstance(node, ast.Import):
            self._take_modules(node)
        elif isinstance(node, ast.ImportFrom):
            self._take_members(node)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            self._stored[node.id] = self._stored.get(node.id, 0) + 1
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in targets(node):
                self._note_literals(target, [node.value])
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            pairs, items = is_items(node.iter), members(node.iter)
            target = node.target.elts[0] if pairs and isinstance(node.target, ast.Tuple) else node.target
            if items is not None and pairs == isinstance(node.target, ast.Tuple):
                self._note_literals(target, items)
        else:
            self.taken.update(name for name in (getattr(node, field, None) for field in NAMING) if type(name) is str)

    def _take_modules(self, node: "ast.Import") -> None:
        """Note what an import gives; that its names are taken is noted with each of them."""
        for each in node.names:
            if each.name == "subprocess":
                self.running.add(each.asname or each.name)
            name = each.name if each.asname else each.name.partition(".")[0]
            if name in HOLDERS:
                self._bind(node, each.asname or name, HOLDERS[name])

    def _take_members(self, node: "ast.ImportFrom") -> None:
        """Note what is imported out of a module."""
        for each in node.names:
            kind = MEMBERS.get(each.name) or HOLDERS.get(each.name)
            if node.module == "sys":
                kind = kind or OF_SYS.get(each.name)
            elif node.module == "subprocess":
                self.runs.add(each.asname or each.name)
            if kind is not None:
                self._bind(node, each.asname or each.name, kind)
            elif each.name == "*":
                for name, meant in {**MEMBERS, **HOLDERS, **(OF_SYS if node.module == "sys" else {})}.items():
                    self._bind(node, name, meant)

    def _bind(self, node: "Any", name: str, kind: str) -> None:
        """Note that *name* stands for *kind*."""
        if self.names.setdefault(name, kind) != kind or in_class(node):
            self.doubts.append((node, kind))

    def _note_literals(self, target: "Any", values: "List[Any]") -> None:
        """Note the words that *target* is, one after another, where they stand there."""
        if isinstance(target, ast.Name) and all(isinstance(value, ast.Constant) for value in values):
            self._literal.setdefault(target.id, []).append([value.value for value in values])

    def kind(self, node: "Any") -> "Optional[str]":
        """Return what an expression stands for; None for all that does not matter."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._member(node.value, node.attr)
        if isinstance(node, ast.Subscript):  # sys.modules["os"], globals()["os"]
            within = called(node.value) in NAMESPACES or self.kind(node.value) == MODULES
            return HOLDERS.get(str(constant(node.slice))) if within else None
        if isinstance(node, ast.Call) and called(node) in IMPORTS and node.args:
            return HOLDERS.get(str(constant(node.args[0])))
        if isinstance(node, ast.Call) and called(node) == "getattr" and len(node.args) > 1:
            return self._member(node.args[0], str(constant(node.args[1])))
        return None

    def _member(self, base: "Any", name: str) -> "Optional[str]":
        """Return what ``base.name`` stands for."""
        if name in OF_SYS and self.kind(base) == "sys":
            return OF_SYS[name]
        if name == VIEWED and isinstance(base, ast.Name) and base.id in OWNERS:
            return None
        return MEMBERS.get(name) or HOLDERS.get(name)

    def is_builtin(self, node: "Any") -> bool:
        """Return whether a name is what Python gives it, and none of the script's own."""
        return isinstance(node, ast.Name) and node.id not in self.taken and node.id not in self._stored

    def starts_program(self, node: "Any") -> bool:
        """Return whether *node* is a function of ``subprocess``, which only reads its ``env``."""
        if isinstance(node, ast.Attribute):
            return isinstance(node.value, ast.Name) and node.value.id in self.running
        return isinstance(node, ast.Name) and node.id in self.runs

    def words(self, key: "Any") -> "Optional[List[str]]":
        """Return all that a key can be: a word that stands there, or a name for such words only. None: anything."""
        key = plain(key)
        value = constant(key)
        if value is not None:
            return [text_of(value)]
        if not isinstance(key, ast.Name) or key.id in self.taken:
            return None
        known = self._literal.get(key.id, [])
        if not known or len(known) != self._stored.get(key.id):
            return None
        return [text_of(value) for values in known for value in values]


def targets(node: "Any") -> "List[Any]":
    """Return what an assignment assigns to."""
    return list(node.targets) if isinstance(node, ast.Assign) else [node.target]


def is_items(node: "Any") -> bool:
    """Return whether *node* is ``{…}.items()``."""
    return called(node) == "items" and isinstance(getattr(node.func, "value", None), ast.Dict)


def members(node: "Any") -> "Optional[List[Any]]":
    """Return what a loop over *node* goes through, or the keys of that; None if it does not stand there."""
    if is_items(node):
        node = node.func.value
    if isinstance(node, ast.Dict):
        return list(node.keys)
    return list(node.elts) if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else None


def in_class(node: "Any") -> bool:
    """Return whether what *node* assigns becomes a member of a class."""
    while not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        if isinstance(node, ast.ClassDef):
            return True
        node = node.above
    return False


def kind_of_words(words: "List[str]") -> "Optional[str]":
    """Return what a name with dots stands for, or what it is had through; None for all that does not matter."""
    if not all(word.isidentifier() for word in words):
        return None
    for before, word in zip(["", *words], words):  # noqa: B905 - Python 3.8 has no strict
        kind = OF_SYS.get(word) if before == "sys" else MEMBERS.get(word)
        if kind is not None or word == "__import__":
            return kind or word
    return None


def called(node: "Any") -> str:
    """Return the last word of what is called; nothing where *node* is no call."""
    func = getattr(node, "func", None)
    return str(getattr(func, "attr", getattr(func, "id", "")))


def constant(node: "Any") -> "Any":
    """Return the value that stands there; None if it is none."""
    return plain(node).value if isinstance(plain(node), ast.Constant) else None


def plain(node: "Any") -> "Any":
    """Return what stands between the brackets of a subscript, where *node* does: Python 3.8 has a node around it."""
    return node.value if type(node).__name__ == "Index" else node


def text_of(value: "Any") -> str:
    """Return a name of a variable as a string."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
