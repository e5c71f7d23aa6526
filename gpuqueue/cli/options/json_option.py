"""The option ``--json``, which says everywhere alike where its answer is explained.

It names a page and no file: whoever has installed gpuqueue has none of the files of docs/.
"""

from __future__ import annotations

import click

json_option = click.option("--json", "as_json", is_flag=True, help='As JSON ("JSON and CSV" in the documentation).')
