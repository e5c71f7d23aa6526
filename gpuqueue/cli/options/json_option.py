"""The option ``--json`` of all commands.

Its help names a documentation page and no file, since an installed gpuqueue does not contain docs/.
"""

from __future__ import annotations

import click

json_option = click.option("--json", "as_json", is_flag=True, help='Print JSON ("JSON and CSV" in the documentation).')
