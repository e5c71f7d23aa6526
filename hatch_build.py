"""Adds to an archive the third-party parts of the web page, its bundle, and its commit.

Without npm the archive has no page, and with the parts alone the page is the modules.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageParts(BuildHookInterface):  # type: ignore[type-arg] # hatchling does not export the parameter
    """Runs page_parts.py, and records the commit for `gpuqueue --version`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Bring the parts. An editable installation does without: ``dev.py`` brings them where they are wanted."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        self._record_commit(build_data)
        import page_parts  # noqa: PLC0415 - from the directory that is built

        try:
            page_parts.bring()
            page_parts.bundle()
        except page_parts.NoParts as error:
            self.app.display_warning(str(error))

    def _record_commit(self, build_data: dict[str, Any]) -> None:
        """Add the commit of this checkout as a file. A source archive, which is no checkout, has the file already."""
        from gpuqueue.system.git_checkout import RECORD, commit_of_code  # noqa: PLC0415 - from the directory, as above

        commit, package = commit_of_code(), Path(self.root, "gpuqueue")
        if commit is not None and not (package / RECORD).exists():
            self._file = tempfile.NamedTemporaryFile(mode="w", encoding="ascii")  # noqa: SIM115 - lives as the hook
            self._file.write(f"{commit}\n")
            self._file.flush()
            build_data["force_include"][self._file.name] = f"gpuqueue/{RECORD}"
