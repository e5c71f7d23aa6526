"""The name of an image and the binds of a job: what is accepted, and what is refused in which words."""

from __future__ import annotations

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest
from gpuqueue.model.container import MAX_BINDS, bind_of, check_bind, check_image


@pytest.mark.parametrize(
    "image", ["torch", "nvcr.io/nvidia/pytorch:25.01-py3", "torch@sha256:" + "a" * 64, "/images/torch.sif", "../tree"]
)
def test_names_and_paths_are_images(image: str) -> None:
    """Each engine has names of its own, so only what cannot be one is refused."""
    check_image(image)


@pytest.mark.parametrize("image", ["", "--privileged", "-v/:/host", "torch --privileged", "torch\n", "x" * 513])
def test_options_and_lines_are_no_images(image: str) -> None:
    """The image is a word of a command line of the engine."""
    with pytest.raises(BadRequest, match="no image"):
        check_image(image)


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("/data", "/data:/data"),
        ("/data:/mnt", "/data:/mnt"),
        ("/data:/mnt:ro", "/data:/mnt:ro"),
        ("/data:ro", "/data:/data:ro"),
        ("/data:/mnt:rw", "/data:/mnt"),
        ("sets/mnist", "/srv/ada/sets/mnist:/srv/ada/sets/mnist"),
        ("..:/up", "/srv:/up"),
    ],
)
def test_binds_become_absolute(text: str, bind: str) -> None:
    """A source is taken from the working directory, and is bound at its own path by default."""
    assert bind == bind_of(text, "/srv/ada")
    check_bind(bind)


@pytest.mark.parametrize(
    "text", ["", ":", ":/mnt", "/data:mnt", "/data:/mnt:exec", "/a:/b:/c", "/a,b", "/data:/a/../b"]
)
def test_other_binds_are_refused(text: str) -> None:
    """An option of the engine, such as an unsafe mode, is none, nor are the commas that separate binds."""
    with pytest.raises(BadRequest, match="no bind"):
        bind_of(text, "/srv/ada")


def test_the_root_of_an_image_is_not_replaced() -> None:
    """There would be nothing left of the image."""
    with pytest.raises(BadRequest, match="below it"):
        bind_of("/data:/", "/srv")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"binds": ("/a:/a",)}, "--bind is for containers"),
        ({"container": "torch", "environment": "torch-2.6"}, "leave out --environment"),
        ({"container": "torch", "warm": True}, "leave out --warm"),
        ({"container": "torch", "cwd": "/"}, "--cwd"),
        ({"container": "torch", "binds": ("/a",)}, "no bind"),
        ({"container": "torch", "binds": ("/a:/a",) * (MAX_BINDS + 1)}, f"at most {MAX_BINDS} binds"),
        ({"container": "-v"}, "no image"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], words: str) -> None:
    """The message says what to leave out."""
    with pytest.raises(BadRequest, match=words):
        make_spec(**changes)
