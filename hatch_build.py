"""Brings the third-party parts of the web page before an archive is built. Without npm the archive has no page."""

from __future__ import annotations

import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageParts(BuildHookInterface):  # type: ignore[type-arg] # hatchling does not export the parameter
    """Runs page_parts.py."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Bring the parts. An editable installation does without: ``dev.py`` brings them where they are wanted."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        import page_parts  # noqa: PLC0415 - from the directory that is built

        try:
            page_parts.bring()
        except page_parts.NoParts as error:
            self.app.display_warning(str(error))
