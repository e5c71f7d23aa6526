"""Where the caches of a user are."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.system.account import cache_directory


def test_the_cache_directory_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As other programs, it obeys ``XDG_CACHE_HOME`` if that is an absolute path."""
    monkeypatch.setenv("HOME", "/home/ann")

    assert Path("/c/gpuqueue") == cache_directory({"XDG_CACHE_HOME": "/c"})
    assert Path("/home/ann/.cache/gpuqueue") == cache_directory({"XDG_CACHE_HOME": "c"}) == cache_directory({})
