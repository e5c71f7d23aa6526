from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from warm_runs import WarmRuns

#: The scripts of the quick run. All others are in the full one.
IN_QUICK = frozenset(
    {"names", "traceback", "exit code", "ends in order", "streams", "descriptors", "signals", "spawned"}
)
#: Scripts by the subject that they could notice. Each runs cold and warm, and must print the same and end the same way.
CORPUS = {
    "names": """
        import os, sys
        print(sys.argv, sys.orig_argv[1:], __file__, __name__, __spec__, __package__, __doc__, __cached__)
        print(type(__loader__).__name__, __loader__.path, __builtins__, sorted(globals()))
        print(sys.path, os.getcwd(), sys.executable, sys.prefix, sys.flags, sys.warnoptions, sys._xoptions)
        """,
    "docstring": '''"""What it is for."""
x: int = 1
print(__doc__, __annotations__)
''',
    "traceback": """
        def inner(x):
            return 1 / x
        def outer():
            try:
                inner(0)
            except ZeroDivisionError as error:
                raise ValueError("two of them") from error
        outer()
        """,
    "syntax error": "print('never'\nx = = 1\n",
    "wrong encoding": "# coding: latin-99\nprint(1)\n",
    "exit code": "import sys; sys.exit(3)",
    "exit with words": "import sys; print('out'); sys.exit('enough')",
    "exit without": "raise SystemExit",
    "exit in a function at the end": "import atexit, os; atexit.register(lambda: os._exit(9))",
    "hard exit": "import os; print('seen'); os._exit(4)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "ctrl-c": "import time\ndef wait(): raise KeyboardInterrupt\nwait()",
    "sigint": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "sigterm": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
    "ends in order": """
        import atexit, threading, time
        atexit.register(print, "registered first")
        atexit.register(print, "registered last")
        def late():
            time.sleep(0.2)
            import __main__
            print("thread", __main__.value, __main__.Thing().__class__)
        class Thing: pass
        value = 5
        threading.Thread(target=late).start()
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        print("main is over")
        """,
    "error in a thread": "import threading; t = threading.Thread(target=lambda: 1/0, name='T'); t.start(); t.join()",
    "streams": """
        import sys
        for s in sys.stdin, sys.stdout, sys.stderr:
            print(s.name, s.mode, s.encoding, s.errors, s.isatty(), s.line_buffering, s.fileno(), s.newlines)
            print(type(s.buffer).__name__, getattr(s, "write_through", None))
        print(repr(sys.stdin.read()), sys.stdout is sys.__stdout__)
        sys.stderr.write("error\\n"); print("umlaut ä", file=sys.stderr); sys.stdout.buffer.write(b"\\xff\\n")
        """,
    "descriptors": "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))",
    "signals": """
        import signal
        for number in sorted(signal.valid_signals()):
            print(number, signal.getsignal(number))
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending())
        """,
    "limits": """
        import os, resource, threading
        for name in sorted(n for n in dir(resource) if n.startswith("RLIMIT_")):
            print(name, resource.getrlimit(getattr(resource, name)))
        mask = os.umask(0); print(oct(mask), os.nice(0), threading.active_count(), threading.current_thread().name)
        print(os.getpid() == os.getpgrp() == os.getsid(0), os.getuid(), os.getgroups())
        """,
    "environment": """
        import os, subprocess, sys
        hidden = {"GPUQUEUE_TOKEN", "GPUQUEUE_ATTEMPT", "_", "SHLVL"}
        show = "import os; print(sorted((k, v) for k, v in os.environ.items() if k not in %r))" % hidden
        exec(show)
        sys.stdout.flush()
        subprocess.run([sys.executable, "-c", show])
        """,
    "what proc shows": """
        import os, psutil, subprocess
        hidden = "GPUQUEUE_TOKEN", "GPUQUEUE_ATTEMPT", "GPUQUEUE_RUN_DIR"
        def show(who):
            print(open(f"/proc/{who}/cmdline", "rb").read())
            environ = open(f"/proc/{who}/environ", "rb").read()
            print(environ[-1:], [e for e in environ[:-1].split(b"\\0") if not e.decode().startswith(hidden)])
            shown = dict(e.split(b"=", 1) for e in environ[:-1].split(b"\\0"))
            print(shown[b"GPUQUEUE_TOKEN"].decode() == os.environ["GPUQUEUE_TOKEN"], open(f"/proc/{who}/comm").read())
        show("self")
        me = psutil.Process()
        print(me.cmdline(), sorted(set(me.environ()) - {"_"}), me.name())
        print(subprocess.run(["ps", "-o", "args=", "-p", str(os.getpid())], capture_output=True).stdout)
        pid = os.fork()
        if pid == 0:
            show("self")  # what is forked from it is known by that
            os._exit(0)
        os.waitpid(pid, 0)
        """,
    "pickles": """
        import dataclasses, pickle, typing
        @dataclasses.dataclass
        class Point:
            x: "int"
            y: "typing.Optional[Point]" = None
        print(pickle.loads(pickle.dumps(Point(1, Point(2)))), typing.get_type_hints(Point), Point.__module__)
        """,
    "source": "import inspect\ndef f():\n    return 1  # here\nprint(inspect.getsource(f), inspect.getfile(f))",
    "spawned": """
        import multiprocessing, os, sys
        def square(x): return x * x, __name__, os.getcwd(), sys.argv[1:]
        if __name__ == "__main__":
            for method in "fork", "spawn", "forkserver":
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, pool.map(square, range(3)))
            print(multiprocessing.get_start_method(), multiprocessing.current_process())
        """,
    "main of multiprocessing": """
        import multiprocessing, sys
        print(sys.modules["__mp_main__"] is sys.modules["__main__"])
        """,
    "environment of its own": """
        import os, subprocess, sys
        e = os.environ
        e["RANK"] = "3"
        os.environ.update({"WANDB_MODE": "offline"}, A="b")
        if "RANK" in os.environ and "multiprocessing" in sys.modules or True:
            print(e.get("WANDB_MODE"), dict(os.environ)["A"], sorted(k for k in os.environ if k in "RANK"))
        subprocess.run([sys.executable, "-c", "import os; print(os.environ['RANK'])"], env=os.environ)
        """,
    "executor": """
        from concurrent.futures import ProcessPoolExecutor
        def twice(x): return x + x
        if __name__ == "__main__":
            with ProcessPoolExecutor(2) as pool:
                print(list(pool.map(twice, range(4))))
        """,
    "hooks": """
        import faulthandler, gc, sys, tracemalloc, warnings, numpy
        print(faulthandler.is_enabled(), tracemalloc.is_tracing(), gc.isenabled(), gc.get_threshold(), sys.gettrace())
        print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.dont_write_bytecode, sys.excepthook)
        print(warnings.filters)
        def careful(): warnings.warn("mind this", UserWarning)
        careful(); careful()
        sys.excepthook = lambda kind, error, trace: print("hooked", kind.__name__, error, trace.tb_lineno)
        raise LookupError("gone")
        """,
    "async": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 5\nprint(asyncio.run(f()))",
    "logging": "import logging; logging.warning('careful'); logging.getLogger('x').error('worse')",
    "again": """
        import os, sys
        if len(sys.argv) < 4:
            os.execv(sys.executable, sys.orig_argv + ["again"])
        print(sys.argv)
        """,
    "imports beside it": """
        import helper_beside
        from package_beside import part
        print(helper_beside.__file__, part.where(), helper_beside.main_of())
        """,
    "unflushed": "import os, sys; sys.stdout.write('half a line'); sys.stdout.flush(); os._exit(0)",
    "many lines": "for i in range(20000): print(i, 'x' * 20)",
    "arguments": "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr', type=int); p.parse_args()",
    "locale": "import locale, sys; print(locale.getlocale(), sys.getfilesystemencoding(), sys.flags.utf8_mode)",
    "last error": "import atexit, sys; atexit.register(lambda: print(sys.last_type, sys.last_value)); raise OSError(5)",
}


def text_of(script: str) -> str:
    """Return *script* without this file's indentation."""
    lines = script.lstrip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines) + "\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRuns]:
    """Return a place to run scripts, with warm interpreters that have loaded most modules of the corpus."""
    place = tmp_path_factory.mktemp("corpus")
    (place / "package_beside").mkdir()
    (place / "package_beside" / "__init__.py").touch()
    (place / "package_beside" / "part.py").write_text("def where(): return __name__\n")
    (place / "helper_beside.py").write_text("import __main__\ndef main_of(): return __main__.__file__\n")
    modules = "multiprocessing,asyncio,argparse,logging,random,concurrent.futures,inspect,dataclasses,typing,numpy"
    runs = WarmRuns(place, modules)
    yield runs
    runs.close()


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in IN_QUICK else pytest.mark.full) for each in CORPUS]
)
def test_a_script_does_the_same_cold_and_warm(runs: WarmRuns, name: str) -> None:
    """The output, its order and the ending are the same."""
    spec = runs.spec(text_of(CORPUS[name]), "--lr", "1e-3")

    cold, warm = runs.cold(spec), runs.warm(spec)

    assert "warm" == warm.start
    assert (cold.log, cold.ending) == (warm.log, warm.ending)


@pytest.mark.parametrize(
    "named", ["./train.py", "./sub/../train.py", "sub//../././train.py", "../{}/train.py", "{}/train.py"]
)
def test_a_script_has_the_name_that_was_typed(runs: WarmRuns, named: str) -> None:
    """`__file__` is the script's name as it was typed, joined to the working directory and not normalized."""
    (runs.place / "sub").mkdir(exist_ok=True)
    named = named.format(runs.place.name if named.startswith("..") else runs.place)
    spec = runs.spec("import sys; print(__file__, sys.argv, sys.path[0]); 1 / 0")
    spec = replace(spec, argv=(spec.argv[0], named))

    cold, warm = runs.cold(spec), runs.warm(spec)

    assert "warm" == warm.start
    assert (cold.log, cold.ending) == (warm.log, warm.ending)


def test_a_working_directory_behind_a_link_has_its_own_name(runs: WarmRuns, tmp_path: Path) -> None:
    """A warm job has the same paths as a cold one if its working directory is behind a link.

    The kernel reports the directory without links, and Python takes the script's path from there.
    """
    (tmp_path / "link").symlink_to(runs.place)
    spec = runs.spec("import os; print(__file__, os.getcwd(), os.environ.get('PWD'))", cwd=str(tmp_path / "link"))

    cold, warm = runs.cold(spec), runs.warm(spec)

    assert "warm" == warm.start
    assert (cold.log, cold.ending) == (warm.log, warm.ending)


def test_a_command_that_is_longer_than_the_placeholder_is_shown_whole(runs: WarmRuns) -> None:
    """/proc shows the whole command line of a warm job.

    A long command line used to be cut off, and a shorter one used to have six thousand empty arguments at its end.
    """
    script = "print(len(open('/proc/self/cmdline').read()), open('/proc/self/cmdline').read()[-20:])"
    spec = runs.spec(script, "x" * 20_000, "last")

    cold, warm = runs.cold(spec), runs.warm(spec)

    assert "warm" == warm.start
    assert (cold.log, cold.ending) == (warm.log, warm.ending)


#: Scripts that use torch. Each takes seconds, most of them for the cold import of torch.
WITH_TORCH = {
    "training": """
        import torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(64, 8); y = x.sum(1, keepdim=True)
        for _ in range(20):
            loss = (model(x) - y).square().mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(f"{loss.item():.6f}", torch.get_num_threads(), torch.cuda.is_initialized(), torch.cuda.is_available())
        """,
    "threads": "import torch; torch.set_num_interop_threads(2); print(torch.get_num_interop_threads())",
    "workers of a loader": """
        import torch
        class Squares(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, index): return torch.tensor(index * index)
        if __name__ == "__main__":
            for method in "fork", "spawn":
                loader = torch.utils.data.DataLoader(Squares(), num_workers=2, multiprocessing_context=method)
                print(method, [int(x) for x in loader])
        """,
    "processes": """
        import torch, torch.multiprocessing as mp
        def work(rank, results): results[rank] = torch.ones(3).sum() + rank
        if __name__ == "__main__":
            results = torch.zeros(2).share_memory_()
            mp.spawn(work, args=(results,), nprocs=2)
            print(results)
        """,
    "saved": """
        import torch
        class Net(torch.nn.Module):
            def __init__(self): super().__init__(); self.a = torch.nn.Linear(2, 2)
        torch.save(Net(), "net.pt"); print(torch.load("net.pt", weights_only=False))
        raise RuntimeError("after all")
        """,
}


@pytest.fixture(scope="module")
def torch_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRuns]:
    """Return a place to run scripts with warm interpreters that have loaded torch."""
    pytest.importorskip("torch", reason="torch is not installed")
    runs = WarmRuns(tmp_path_factory.mktemp("torch"), "torch")
    yield runs
    runs.close()


@pytest.mark.full
@pytest.mark.parametrize("name", WITH_TORCH)
def test_a_script_with_torch_does_the_same_cold_and_warm(torch_runs: WarmRuns, name: str) -> None:
    """The losses, the processes and the errors are the same."""
    spec = torch_runs.spec(text_of(WITH_TORCH[name]))

    cold, warm = torch_runs.cold(spec), torch_runs.warm(spec)

    assert "warm" == warm.start
    assert (cold.log, cold.ending) == (warm.log, warm.ending)


@pytest.mark.full
def test_two_warm_jobs_draw_different_tensors(torch_runs: WarmRuns) -> None:
    """Two warm jobs draw different random tensors.

    Torch seeds its generator at import, so forks of one process would all draw the same.
    """
    spec = torch_runs.spec("import torch\nprint(torch.rand(3))\n")

    assert torch_runs.warm(spec).log != torch_runs.warm(spec).log


@pytest.mark.parametrize(
    "drawn",
    [
        "random.random()",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("numpy.random.rand()", "hash('x')", "uuid.uuid4()")),
        pytest.param("id(object())", marks=pytest.mark.full),
    ],
)
def test_two_warm_jobs_draw_different_numbers(runs: WarmRuns, drawn: str) -> None:
    """Two warm jobs draw different random numbers.

    Forks of one process would all draw the same; a warm interpreter is used once.
    """
    spec = runs.spec(f"import random, uuid, numpy\nprint({drawn})\n")

    assert runs.warm(spec).log != runs.warm(spec).log
    seeded = runs.spec(
        "import random, numpy\nrandom.seed(1); numpy.random.seed(1)\nprint(random.random(), numpy.random.rand())"
    )
    assert runs.cold(seeded).log == runs.warm(seeded).log


@pytest.mark.full
def test_the_output_of_the_imports_is_in_the_log(tmp_path: Path) -> None:
    """Output of the imports is in the log of a warm job, as in that of a cold one."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "talkative.py").write_text("import os, sys\nprint('loaded')\nos.environ['TALKED'] = 'yes'\n")
    runs = WarmRuns(tmp_path / "here", "talkative")
    spec = runs.spec("import talkative, os\nprint('script', os.environ['TALKED'])\n")
    spec = runs.spec((runs.place / "train.py").read_text(), env={**spec.env, "PYTHONPATH": str(tmp_path / "lib")})

    cold, warm = runs.cold(spec), runs.warm(spec)

    runs.close()
    assert ("loaded\nscript yes\n", "warm") == (warm.log, warm.start)
    assert cold.log == warm.log
