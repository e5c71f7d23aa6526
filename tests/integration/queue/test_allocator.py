"""The embedded server's allocator: with many jobs, memory fragmentation slows claims down."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from fake_driver.fake_driver import compiler

from gpuqueue.embedded import server as server_program
from gpuqueue.embedded.server import VARIABLE, environment_for, installed, loaded_by
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity


def server_with(folder: Path, malloc: str) -> Path:
    """Return a program that reports its version and allocator like a server."""
    program = folder / f"server-{malloc}"
    program.write_text(f"#!/bin/sh\necho 'Server v=9.1.2 sha=0:0 malloc={malloc} bits=64'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_a_server_of_the_c_library_loads_what_is_installed(tmp_path: Path) -> None:
    """A server with the allocator of the C library, such as that of our wheel, loads an installed allocator."""
    library = tmp_path / "libmimalloc.so.3"
    library.touch()

    environ = environment_for(server_with(tmp_path, "libc"), {"HOME": "/h"}, [tmp_path / "not there", tmp_path])

    assert environ == {"HOME": "/h", VARIABLE: str(library)}


def test_jemalloc_comes_first_wherever_it_lies(tmp_path: Path) -> None:
    """The preferred library is jemalloc, in any directory, because these servers are tested with it."""
    for place in ("first/libmimalloc.so.3", "second/libjemalloc.so.2"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).touch()

    assert installed([tmp_path / "first", tmp_path / "second"]) == tmp_path / "second/libjemalloc.so.2"


@pytest.mark.parametrize("chosen", ["", "/usr/lib/libmine.so"])
def test_who_has_chosen_is_left_alone(tmp_path: Path, chosen: str) -> None:
    """A user's own setting of the variable stays, even an empty one: that is the way out if the library is broken."""
    (tmp_path / "libjemalloc.so.2").touch()

    environ = environment_for(server_with(tmp_path, "libc"), {VARIABLE: chosen}, [tmp_path])

    assert environ == {VARIABLE: chosen}


def test_a_server_with_an_allocator_of_its_own_keeps_it(tmp_path: Path) -> None:
    # Servers of distributions have jemalloc built in.
    (tmp_path / "libjemalloc.so.2").touch()

    assert VARIABLE not in environment_for(server_with(tmp_path, "jemalloc-5.3.0"), {}, [tmp_path])


def test_nothing_installed_or_no_answer_changes_nothing(tmp_path: Path) -> None:
    """Nothing changes without an installed allocator or without an answer from the server."""
    # A store must start on any machine.
    assert environment_for(server_with(tmp_path, "libc"), {}, [tmp_path]) == {}
    (tmp_path / "libjemalloc.so.2").touch()
    assert environment_for(tmp_path / "no server", {}, [tmp_path]) == {}


def test_the_server_that_we_start_has_loaded_it(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real server that we start has loaded the library, here an empty one, and doctor finds it in the process."""
    cc = compiler()
    if cc is None:
        pytest.skip("needs a C compiler")
    library = tmp_path / "libjemalloc.so.2"
    subprocess.run([cc, "-shared", "-x", "c", os.devnull, "-o", str(library)], check=True)
    monkeypatch.setattr(server_program, "places", lambda: (tmp_path,))
    monkeypatch.setattr(server_program, "_of_the_c_library", lambda _server: True)
    monkeypatch.delenv(VARIABLE, raising=False)
    state = tmp_path_factory.mktemp("s")
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(state), "GPUQUEUE_CONFIG": os.devnull})
    store = EmbeddedStore(settings)
    store.start()
    try:
        server = ProcessIdentity.parse((state / "store" / "pid").read_text())
        assert loaded_by(server.pid) == library
    finally:
        store.stop()


def test_a_process_that_is_gone_has_loaded_nothing() -> None:
    # Doctor examines a store that may end meanwhile.
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()

    assert loaded_by(ended.pid) is None
