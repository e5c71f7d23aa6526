from __future__ import annotations

from pathlib import Path

import pytest
import torch_scripts

from workers.inside import bindings
from workers.inside.script import MOST_BYTES, changes
from workers.warm.latched_variables import is_too_late

REPOSITORY = Path(__file__).parents[4]
SCRIPTS = [name for name, value in vars(torch_scripts).items() if name.isupper() and isinstance(value, str)]


def change_of(tmp_path: Path, text: str | bytes) -> str | None:
    """Return the first change in a script with this text, or None."""
    path = tmp_path / "train.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return changes(str(path), is_too_late, bindings)


@pytest.mark.parametrize(
    "text",
    [
        'import os\nos.environ["OMP_NUM_THREADS"] = "1"',
        'import os.path\nos.environ["OMP_NUM_THREADS"] = "1"',
        'import os as o\no.environ["OMP_NUM_THREADS"] += "1"',
        'from os import environ\nenviron["OMP_NUM_THREADS"]: str = "1"',
        'from os import environ as e\ne["OMP_NUM_THREADS"] = "1"',
        'import os\nenv = os.environ\nenv["OMP_NUM_THREADS"] = "1"',
        'import os\ndel os.environ["OMP_NUM_THREADS"]',
        'import os\nos.environ.pop("OMP_NUM_THREADS", None)',
        'import os\nos.environ.setdefault("OMP_NUM_THREADS", "1")',
        'import os\nos.environ.update({"A": "HOME", "OMP_NUM_THREADS": "1"})',
        'import os\nos.environ.update({"A": "B", **{"OMP_NUM_THREADS": "1"}})',
        'import os\nos.environ.update(OMP_NUM_THREADS="1")',
        'import os\nos.environ.update(dict(OMP_NUM_THREADS="1"))',
        'import os\nos.environ |= {"OMP_NUM_THREADS": "1"}',
        'import os\nos.putenv("OMP_NUM_THREADS", "1")',
        'from os import unsetenv, environ\nunsetenv("OMP_NUM_THREADS")',
        'import os\nfor name in ("A", "OMP_NUM_THREADS"):\n    os.environ[name] = "1"',
        'import os\ndef main():\n    if 1:\n        os.environ["OMP_NUM_THREADS"] = "1"',
        'import os\nos.environb[b"OMP_NUM_THREADS"] = b"1"',
        'import posix\nposix.putenv(b"OMP_NUM_THREADS", b"1")',
        'import os\nput = os.putenv\nput("OMP_NUM_THREADS", "1")',
        'import os\ne: dict = os.environ\ne["OMP_NUM_THREADS"] = "1"',
        'import os\na = os.environ\nb = a\nb |= {"OMP_NUM_THREADS": "1"}',
        'import os\nfor os.environ["OMP_NUM_THREADS"] in ["1"]: pass',
        'import os\nfor k, v in {"OMP_NUM_THREADS": "1"}.items(): os.environ.setdefault(k, v)',
        'import os\no = os\no.environ["OMP_NUM_THREADS"] = "1"',
        'import os\nk = "OMP_NUM_THREADS"\nos.environ.__setitem__(k, "1")',
        'import os\nos.environ.items()._mapping["OMP_NUM_THREADS"] = "1"',
        'import ctypes\nctypes.CDLL(None).setenv(b"OMP_NUM_THREADS", b"1", 1)',
        'import subprocess\nsubprocess.os.environ["OMP_NUM_THREADS"] = "1"',
        '__import__("os").environ["OMP_NUM_THREADS"] = "1"',
        'from os import *\nenviron["OMP_NUM_THREADS"] = "1"',
        'exec("import os; os.environ.update(OMP_NUM_THREADS=1)")',
        '# coding: latin-1\n"\xe9"\nimport os\nos.environ["OMP_NUM_THREADS"] = "1"'.encode("latin-1"),
    ],
)
def test_a_variable_that_is_read_once(tmp_path: Path, text: str | bytes) -> None:
    """A variable that torch reads once is found however it is set, changed or removed, if its name is in the text."""
    assert (change_of(tmp_path, text) or "").startswith("changes OMP_NUM_THREADS (line ")


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_torch_reads_twice(tmp_path: Path, name: str) -> None:
    """A change of these variables prevents a warm start.

    CUDA reads them late, so each run has its own values. But the allocator that they select is taken at ``import
    torch``. Regression: a script that set ``backend:cudaMallocAsync`` before its ``import torch`` worked in a cold
    start, and failed in a warm interpreter.
    """
    text = f"import os\nos.environ[{name!r}] = 'backend:cudaMallocAsync'\nimport torch"

    assert f"changes {name} (line 2)" == change_of(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        *(f"import sys\nsys.path.{call}" for call in ("insert(0, 'x')", "append('x')", "extend(['x'])", "remove('x')")),
        *(
            f"import sys\n{what}"
            for what in ("sys.path[0:0] = ['x']", "sys.path = []", "sys.path += ['x']", "del sys.path[0]")
        ),
        "import os, sys as s\nif 1:\n    s.path.append('x')",
        "from sys import path\npath.append('x')",
        "import site\nsite.addsitedir('x')",
        "from site import addsitedir\naddsitedir('x')",
        "import sys\np = sys.path\np.insert(0, 'x')",
        "import sys as s\np = s.path\np += ['x']",
        "import sys\nfor d in ['x']:\n    path = sys.path; path[:0] = [d]",
        "import sys\np: list = sys.path\ndel p[0]",
        "import sys\np = q = sys.path\nr = q\nr.clear()",
        "import sys\np, x = sys.path, 1",
        "import sys\nlist.insert(sys.path, 0, 'x')",
        "import sys\nsys.path[0], x = 'x', 1",
        "import sys\nadd = sys.path.append",
        "import sys\nadd(sys.path)",
        "import sys\nprint((p := sys.path))",
        "import sys\nclass A: path = sys.path",
        "class A:\n    from sys import path",
        "import sys\nm = sys\nm.path.append('x')",
        "import sys\nvars(sys)['path']",
        "import sys\nsys.__dict__['path']",
        "import sys\ngetattr(sys, 'path').append('x')",
        "import sys\ngetattr(sys, 'pa' + 'th').append('x')",
        "import sys\nsetattr(sys, 'path', ['x'])",
        "import os\nos.sys.path.append('x')",
        "import subprocess\nsubprocess.sys.path.append('x')",
        "import torch\ns = torch.sys\ns.path.append('x')",
        "__import__('sys').path.append('x')",
        "import importlib\ns = importlib.import_module('sys')\ns.path.append('x')",
        "import os, sys\nglobals()['sys'].path.append('x')",
        "import sys\nsys.modules['sys'].path.append('x')",
        "from sys import *\npath.append('x')",
        "import sys\ndef print(x): x.append('x')\nprint(sys.path)",
        "exec('import sys; sys.path.append(1)')",
        "import sys\nexec('sys.path.append(1)')",
        "import sys as s\np = s.path\neval('p.append(1)')",
        "from mine import *\nsys.path.append('x')",
    ],
)
def test_the_path_that_modules_come_from(tmp_path: Path, text: str) -> None:
    """A possible change of sys.path is found, because another torch or its dependencies may be there.

    Code that cannot be analysed counts as a change.
    """
    assert (change_of(tmp_path, text) or "").startswith("may change sys.path (line ")


@pytest.mark.parametrize(
    "text",
    [
        *("import os\nos.sched_setaffinity(0, {0})", "from os import sched_setaffinity as s\ns(0, {0})"),
        *("import os\npin = os.sched_setaffinity\npin(0, {0})", "import os\nmap(os.sched_setaffinity, x, y)"),
        *("import os\ngetattr(os, 'sched_setaffinity')(0, {0})", "import os\nif 1:\n    os.sched_setaffinity(*x)"),
        *("import psutil\npsutil.Process().cpu_affinity([0])", "import psutil\np.cpu_affinity(cpus=[0])"),
        *("import ctypes\nctypes.CDLL(None).sched_setaffinity(0, 8, x)", "import os\nos.system(f'taskset -cp 0 {x}')"),
        *("x.run(['taskset', '-cp', '0'])", "x.run('/usr/bin/taskset -cp 0 1')"),
    ],
)
def test_the_processors_of_a_script(tmp_path: Path, text: str) -> None:
    """A possible change of the CPU affinity is found.

    Torch has as many threads as there were processors at its import.
    """
    assert (change_of(tmp_path, text) or "").startswith("may change the CPU affinity (line ")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import sys\nsys.meta_path.insert(0, F)", "sys.meta_path"),
        ("from sys import meta_path as m\nm[:0] = [F]", "sys.meta_path"),
        ("import sys\nfor finder in sys.meta_path: finder.find_spec = f", "sys.meta_path"),
        ("import sys\nsys.path_hooks.append(f)", "sys.path_hooks"),
        ("import sys\nsys.path_importer_cache.clear()", "sys.path_importer_cache"),
        ("import sys\nsys.modules['torch'] = mine", "sys.modules"),
        ("import sys\nloaded = sys.modules\ndel loaded['torch']", "sys.modules"),
        ("from sys import modules\nmodules.pop('torch')", "sys.modules"),
        ("import sys\nsys.modules.update(torch=mine)", "sys.modules"),
        ("m.patch.object(x, 'y')\nm.patch.dict(in_dict='sys.modules', torch=x)", "sys.modules"),
        ("mock.patch('builtins.__import__', x)", "__import__"),
        ("import builtins\nbuiltins.__import__ = f", "__import__"),
        ("import builtins\nsetattr(builtins, '__import__', f)", "__import__"),
    ],
)
def test_how_modules_are_found(tmp_path: Path, text: str, name: str) -> None:
    """A script's own finder, or its own module under a known name, would have precedence over the loaded modules."""
    assert (change_of(tmp_path, text) or "").startswith(f"may change {name} (line ")


@pytest.mark.parametrize(
    "text",
    [
        *("import os\nenv, x = os.environ, 1", "import os\nif (e := os.environ): pass"),
        *("import os\ndef setup(e): pass\nsetup(os.environ)", "import os\nsetup(env=os.environ)"),
        *("import os\nclass A: env = os.environ", "import os\nclass A:\n    if 1: env = os.environ"),
        *("import os\nclass A: env: dict = os.environ", "import os\nself.env = os.environ"),
        *("import os\nd = vars(os)['environ']", "import os\nos.__dict__['environ']", "import os\nf(os)"),
        *("import os\ngetattr(os, 'environ')", "import os\ngetattr(os, 'env' + 'iron')", "import os\n[os]"),
        *("import operator\noperator.attrgetter('environ')", "import os\nos.environ = {}", "import os\nx = lambda: os"),
        *(
            "import os\nfor e in [os.environ]: pass",
            "import os\ndef f(e=os.environ): pass",
            "import os\n{1: os.environ}",
        ),
        *(
            "import os\ndef f(): return os.environ",
            "import os\nx = os.environ or {}",
            "import os\n[e for e in (os.environ,)]",
        ),
        *(
            "import os\nsave = os.environ.setdefault",
            "import os\ns = os.putenv; x = [s]",
            "import os\nos.environ.clear()",
        ),
        *(
            "import copy, os\ncopy.copy(os.environ)['A'] = '1'",
            "import os\nos.environ._data",
            "import os\nos.environ.get.__self__",
            "import os\nos.clearenv()",
        ),
        *("import os\nos.environ[name] = '1'", "import os\nfor n in open('x'): os.environ[n] = '1'"),
        *("import os\nk = 'A' + 'B'\nos.environ[k] = '1'", "import os\ndef f(k): os.environ[k] = '1'\nk = 'A'"),
        *("import os\nk = 'A'\nfor k in x: os.environ[k] = '1'", "import os\nos.environ.__setitem__(*x)"),
        *(
            "import os\nk = 'A'\nk += 'B'\nos.environ[k] = '1'",
            "import os\nfor v, k in {'A': 'B'}.items(): os.environ[k] = v",
        ),
        *(
            "import os\nos.environ.update(mine)",
            "import os\nos.environ.update(**mine)",
            "import os\nos.environ |= mine",
        ),
        *(
            "import os\nos.putenv(*x)",
            "import os\nos.environ[f'{x}_Y'] = '1'",
            "from dotenv import load_dotenv as l\nl()",
        ),
        *("from unittest import mock\nmock.patch.dict('os.environ', x)", "import os\nmock.patch.dict(os.environ, x)"),
        *("mock.patch.dict(in_dict='os.environ', values=x)", "mock.patch.dict(**{'in_dict': 'os.environb'})"),
        *("operator.attrgetter('subprocess.os.environ')(x)", "f('os.putenv')", "p = mock.patch('os.environ.get', x)"),
        *("import os\nos.environ.items()._mapping[k] = '1'", "import os\nv = os.environ.keys()\nf(v._mapping)"),
        *("import os\nos.environ.items()._mapping._data[b'A'] = b'1'", "import os\ngetattr(v, '_mapping')[k] = '1'"),
        *("import os\ne = os.environ\ne = os\n", "import os\ndef dict(x): pass\ndict(os.environ)"),
        *("import ctypes\ngetattr(ctypes.CDLL(None), 'setenv')", "eval('__import__(\"os\").environ.clear()')"),
    ],
)
def test_what_may_change_the_environment(tmp_path: Path, text: str) -> None:
    """An environment that is passed on, or a name that is not in the text, may be any change."""
    assert (change_of(tmp_path, text) or "").startswith("may change os.environ (line ")


def test_the_first_such_line_is_told(tmp_path: Path) -> None:
    """The first such line is reported, so that the user can find it."""
    text = "import os, sys\n\nsys.path.append('x')\nos.environ['OMP_NUM_THREADS'] = '1'\n"

    assert "may change sys.path (line 3)" == change_of(tmp_path, text)
    assert "changes OMP_NUM_THREADS (line 3)" == change_of(tmp_path, text.replace("sys.path.append('x')\n", ""))


def test_a_text_that_is_too_long_is_not_looked_at(tmp_path: Path) -> None:
    """A text that is too long is not analysed, and may change anything."""
    assert "is longer than 256 KiB" == change_of(tmp_path, "x = 1\n" * MOST_BYTES)


@pytest.mark.parametrize(
    "text",
    [
        "import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ.get('HOME'))",
        "import sys\nprint(sys.path, sys.path[0], sys.path.index('x'))",
        "import os\nos.environ['WANDB_MODE'] = os.environ['HOME']",
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'",
        "import os\nfor name in ('A', 'B'):\n    os.environ[name] = '1'",
        "import os\nenv = os.environ.copy()\nenv['OMP_NUM_THREADS'] = '1'\nenv = {**os.environ, 'HOME': ''}",
        "import os\nenv = os.environ\nrank = int(env['RANK'])\nenv['WANDB_MODE'] = 'offline'\nget = os.environ.get",
        "import os\nos.environ.update({'MASTER_ADDR': 'x', 'MASTER_PORT': '1'}, WANDB_MODE='offline')",
        "import os\nfor k, v in {'A': 'OMP_NUM_THREADS'}.items(): os.environ.setdefault(k, v)",
        "import os\nif 'RANK' in os.environ and not os.getenv('X'): print(os.environ, f'{os.environ}')",
        "import os\nd = dict(os.environ)\ne = os.environ | {'OMP_NUM_THREADS': '1'}\nf(**os.environ)",
        "import os\n[k for k in os.environ if k]\nfor k, v in sorted(os.environ.items()): print(k, v)",
        "import os, subprocess\nsubprocess.run(['x'], env=os.environ)\nos.execve('x', [], os.environ)",
        "from subprocess import Popen\nfrom os import environ as e\nPopen('x', env=e)",
        "import sys\nprint(':'.join(sys.path), len(sys.path), 'x' in sys.path, [*sys.path], sys.path + ['x'])",
        "import sys\nfor p in sys.path: print(p)\np = list(sys.path)\np.append('x')\nq = sys.path[:]",
        "import sys\nif 'torch' in sys.modules: m = sys.modules[__name__]\nsetattr(m, 'x', sys.modules.get('y'))",
        "import sys\nif hasattr(sys, 'ps1') or getattr(sys, 'frozen', False): sys.exit(sys.argv[1:])",
        "import os, sys\nos.umask(0)\nsys.stdout = open(os.devnull, 'w')\nsys.setrecursionlimit(9)\ndel os",
        "import argparse\np = argparse.ArgumentParser()\npath = p.parse_args().path\npath.append(1)",
        "import torch\nfor m in torch.nn.Linear(1, 1).modules(): m.path = []\ntorch.nn.Module.modules.pop()",
        "def app(environ): environ['OMP_NUM_THREADS'] = '1'\nenviron = {}\nenviron |= {'HOME': '/'}\napp(environ)",
        "def addsitedir(os): return os\naddsitedir([])",
        "import psutil\nprint(psutil.Process().environ()['OMP_NUM_THREADS'])",
        "import os, psutil\nprint(len(os.sched_getaffinity(0)), psutil.Process().cpu_affinity(), args.cpu_affinity)",
        "import ctypes, importlib\nlib = ctypes.CDLL('x')\nimportlib.import_module('mine').main()",
        "exec(open('configurator.py').read())\neval('1 + 1')\nmodel.eval()",
        "# os.environ['OMP_NUM_THREADS'] = '1'; sys.path.append('x')",
        "import os\nos.path.join('a').append('x')\npath = []\npath.append('x')",
        "import os, sys\n'sys.path'\nprint('os.environ', os.environ)\nf('see os.environ', 'os.path', 'sys.argv')",
        "class A:\n    def add(self, k):\n        self._mapping[k] = self._mapping = {}\nprint(row._mapping['x'])",
        "import os\nos.environ['OMP_NUM_THREADS'] = = '1'",
        b"import os\n'\xff'\nos.environ['OMP_NUM_THREADS'] = '1'",
        b"import os\nos.environ['OMP_NUM_THREADS'] = '1'\0",
        "import os\nos.environ['A'] = " + "(" * 5000 + ")" * 5000,
        "",
    ],
)
def test_what_changes_nothing_or_cannot_be_told(tmp_path: Path, text: str | bytes) -> None:
    """Reads, variables that may be set at any time, and texts that Python itself refuses are no change."""
    assert change_of(tmp_path, text) is None


@pytest.mark.filterwarnings("error")
def test_python_alone_warns_of_a_script(tmp_path: Path) -> None:
    """The analysis prints no warning. Python prints the same warning when the script runs."""
    assert change_of(tmp_path, "import os\nprint('\\d', os.environ, 1 is 1)") is None


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.py")), ids=lambda path: path.name)
def test_the_examples_start_warm(path: Path) -> None:
    """The examples start warm, because users begin with them."""
    assert changes(str(path), is_too_late, bindings) is None


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_as_somebody_might_have_written_them_start_warm(tmp_path: Path, name: str) -> None:
    """Typical scripts start warm. A rule that makes them start cold is useless."""
    assert change_of(tmp_path, getattr(torch_scripts, name)) is None


def test_a_script_for_many_devices_starts_warm(tmp_path: Path) -> None:
    """A distributed script starts warm. It reads a launcher's variables, sets them itself, and starts a program."""
    assert change_of(tmp_path, DISTRIBUTED) is None


#: A distributed script as in tutorials.
DISTRIBUTED = """
import argparse
import os
import random
import subprocess
import sys
from os import environ, path
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DEFAULTS = dict(lr=1e-3, data=os.environ.get("SM_CHANNEL_TRAINING", "./data"))


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ.setdefault("MASTER_PORT", "12355")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        print(name, value)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def git_sha():
    env = os.environ.copy()
    env["GIT_DIR"] = path.join(os.getcwd(), ".git")
    return subprocess.check_output(["git", "rev-parse", "HEAD"], env=env).decode()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
    parser.add_argument("--out", default=os.environ["HOME"] if "HOME" in os.environ else None)
    args = parser.parse_args(sys.argv[1:])
    if "SLURM_PROCID" in environ:
        args.local_rank = int(environ["SLURM_LOCALID"])
    visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    print(f"python {sys.version}, {visible}, {sys.path[0]}", file=sys.stderr)
    print({k: v for k, v in os.environ.items() if k.startswith("NCCL")})
    this = sys.modules[__name__]
    model = getattr(this, vars(args).get("model", "main"))
    if sys.platform == "win32" or not hasattr(os, "fork"):
        sys.exit("not here")
    mp.spawn(setup, args=(2,), nprocs=2)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
"""
