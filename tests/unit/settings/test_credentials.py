from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.settings import credentials

URL, TOKEN = "https://gpu.example.org", "gq_abcdefgh_" + "x" * 43


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a configuration directory of its own."""
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_a_token_is_found_by_the_address_of_its_service(home: dict[str, str]) -> None:
    """A token goes to the scheme, host and port that it was stored for, whatever the path, and nowhere else."""
    credentials.store(URL, TOKEN, home)
    credentials.store("https://other.example.org:8443/", "gq_other", home)

    for same in (URL, "https://GPU.example.org:443/", "https://gpu.example.org/queue"):
        assert TOKEN == credentials.token_for(same, home)
    assert "gq_other" == credentials.token_for("https://other.example.org:8443", home)
    for other in ("https://gpu.example.org:8443", "https://gpu.example.org.evil.org", "http://localhost:443"):
        assert credentials.token_for(other, home) is None
    assert credentials.token_for("unix:///run/gpuqueue/api.sock", home) is None


def test_a_login_is_deleted(home: dict[str, str]) -> None:
    """A logout deletes one token, and leaves those of other services."""
    credentials.store(URL, TOKEN, home)
    credentials.store("https://other.example.org", "gq_other", home)

    assert credentials.forget(URL, home)
    assert not credentials.forget(URL, home)
    assert credentials.token_for(URL, home) is None
    assert "gq_other" == credentials.token_for("https://other.example.org", home)


def test_only_the_user_reads_the_file(home: dict[str, str]) -> None:
    """The file is 0600 in a directory that is 0700, under any umask, and no other file is left beside it."""
    before = os.umask(0)
    try:
        path = credentials.store(URL, TOKEN, home)
    finally:
        os.umask(before)

    assert (0o600, 0o700) == (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)
    assert [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_file_that_others_may_use_is_refused(home: dict[str, str], mode: int) -> None:
    """Tokens are not taken from a file that others may read or write."""
    path = credentials.store(URL, TOKEN, home)
    path.chmod(mode)

    with pytest.raises(BadRequest, match=r"others may use the tokens in .*: chmod 600"):
        credentials.token_for(URL, home)
    with pytest.raises(BadRequest, match="others may use"):
        credentials.store(URL, TOKEN, home)


def test_a_link_in_the_place_of_the_file_is_not_followed(home: dict[str, str], tmp_path: Path) -> None:
    """A symbolic link, a directory or damaged JSON is refused, with what to do."""
    path = credentials.store(URL, TOKEN, home)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadRequest, match="cannot be read"):
        credentials.token_for(URL, home)

    path.unlink()
    path.write_text('["gq"]')
    path.chmod(0o600)
    with pytest.raises(BadRequest, match="is damaged: delete it, and log in again"):
        credentials.token_for(URL, home)


def test_a_token_of_another_account_is_not_taken(home: dict[str, str]) -> None:
    """A file that another account has put there is refused."""
    if os.geteuid() != 0:
        pytest.skip("only root gives a file away")
    path = credentials.store(URL, TOKEN, home)
    os.chown(path, 12345, 12345)

    with pytest.raises(BadRequest, match="is no file of yours"):
        credentials.token_for(URL, home)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://gpu.example.org", "plain HTTP shows the access token to the network: write https://gpu.example.org"),
        ("http://127.0.0.1.evil.org", "plain HTTP"),
        ("https://ada:secret@gpu.example.org", "no user and no password"),
        ("https://gpu.example.org@evil.org", "no user and no password"),
        ("ftp://gpu.example.org", "is no address of a service"),
        ("gpu.example.org", "is no address of a service"),
        ("https://", "is no address of a service"),
        ("https://[::1", "is no address of a service"),
        ("https://host:99999", "is no address of a service"),
    ],
)
def test_a_token_is_never_stored_for_an_unsafe_address(home: dict[str, str], url: str, says: str) -> None:
    """A token goes nowhere without TLS except to this machine, and an address has no password in it or in messages."""
    with pytest.raises(BadRequest, match=says) as refused:
        credentials.store(url, TOKEN, home)
    assert "secret" not in str(refused.value)
    assert not credentials.credentials_file(home).exists()


def test_a_full_disk_keeps_the_earlier_tokens(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the new file cannot be written, the old one stays, and nothing half-written."""
    path = credentials.store(URL, TOKEN, home)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))

    with pytest.raises(GpuQueueError, match=r"the token cannot be stored in .*: No space left"):
        credentials.store("https://other.example.org", TOKEN, home)

    assert [path] == list(path.parent.iterdir())
    assert TOKEN == credentials.token_for(URL, home)
