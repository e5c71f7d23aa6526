"""The check of the name of an environment at submit."""

from __future__ import annotations

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest
from gpuqueue.model.python_environments import check_known


@pytest.mark.parametrize(
    "hosts", [[["torch-2.6"]], [[], ["jax", "torch-2.6"]], [["jax"], None], []], ids=["one", "some", "unknown", "none"]
)
def test_a_name_that_a_host_has_or_may_have_is_accepted(hosts: list[list[str] | None]) -> None:
    """One host is enough. A host of another version does not say what it has."""
    check_known("torch-2.6", hosts)


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    """A mistyped name gets the one that was meant, and any other the whole list."""
    hosts = [["torch-2.6", "jax"], ["torch-2.5", "jax"]]
    with pytest.raises(BadRequest, match=r"torch-2\.7\. Did you mean torch-2\.\d\? There are jax, torch-2\.5, torch-"):
        check_known("torch-2.7", hosts)
    with pytest.raises(BadRequest, match=r"^no host has the environment x\. There are jax, torch-2\.5, torch-2\.6$"):
        check_known("x", hosts)
    with pytest.raises(BadRequest, match=r"or any other: the setting environments .* --python"):
        check_known("x", [[], ()])


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, 3])
def test_a_name_has_the_form_of_other_names(name: str) -> None:
    """A name that no setting can have is refused, also from a program."""
    with pytest.raises(BadRequest, match="environment"):
        make_spec(environment=name)
