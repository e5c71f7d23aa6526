"""The group ``client.access`` over the service."""

from __future__ import annotations

from gpuqueue.client.access import Access
from gpuqueue.client.remote.link import Link
from gpuqueue.client.remote.operations import asking
from gpuqueue.model.access_token import MadeToken, TokenRequest


@asking("access")
class RemoteAccess(Access):
    """Identity at the site of a service."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def make_token(self, wanted: TokenRequest | None = None) -> MadeToken:
        """Make an access token. Its text is in the answer and nowhere else."""
        return self._link.send("POST", "/tokens", wanted or TokenRequest(), kind=MadeToken)
