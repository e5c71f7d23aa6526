#!/usr/bin/env python3
"""Brings commands.md, settings.md, worker-commands.md, job-fields.md and openapi.json up to the code.

    .venv/bin/python docs/reference/generate.py            write what has changed
    .venv/bin/python docs/reference/generate.py --check    write nothing; exit code 1 if something would be written

The code decides which rows and sections there are, names, values, defaults, exit codes, the examples of ``--help`` and
the list of commands at the top. The texts are written by hand and are not changed. A missing text is taken from
``--help`` or from the comment in the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # this checkout's code, whatever else is installed

import from_code  # noqa: E402 - behind the path

EXAMPLES = "<!-- from --help -->"
GROUPS_HEAD = "| for | commands |"
OPTIONS_HEAD = "| option | meaning |"
SETTINGS_HEAD = "| environment | file key | default | unit | meaning |"
CODES_HEAD = "| code | meaning |"
FIELDS_HEAD = "| field | in the store | meaning |"


def main(words: list[str]) -> int:
    """Write the pages; with --check only report which ones differ from the code."""
    pages: dict[Path, Callable[[str], str]] = {
        HERE / "commands.md": commands_page,
        HERE.parent / "internals" / "worker-commands.md": partial(sections_of, program="gpuqueue-worker"),
        HERE.parent / "internals" / "job-fields.md": job_fields_page,
        HERE / "settings.md": settings_page,
        HERE / "openapi.json": lambda _: openapi_document(),
    }
    made = {page: make(page.read_text()) for page, make in pages.items() if page.exists()}
    changed = {page: text for page, text in made.items() if page.read_text() != text}
    for page, text in changed.items():
        name = page.relative_to(HERE.parents[1])
        if "--check" in words:
            print(f"{name} is not what the code says: run .venv/bin/python docs/reference/generate.py")
        else:
            page.write_text(text)
            print(f"{name} written: read what is new, and give it better words")
    return int(bool(changed) and "--check" in words)


def openapi_document() -> str:
    """Return the OpenAPI document of the HTTP service."""
    import json  # noqa: PLC0415 - for one page

    from gpuqueue.service.app import openapi  # noqa: PLC0415 - slow to import, for one page

    return json.dumps(openapi(), indent=1, sort_keys=True) + "\n"


def commands_page(page: str) -> str:
    """Return the page of the user's commands, brought up to the code."""
    head, codes, exits = sections_of(page, "gpuqueue").partition("## Exit codes\n")
    return with_rows(head, GROUPS_HEAD, lambda _: from_code.purposes()) + with_rows(
        codes + exits, CODES_HEAD, codes_table
    )


def sections_of(page: str, program: str) -> str:
    """Return *page* with a section for each command of *program*."""
    head, *parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    texts = {part.splitlines()[0]: part for part in parts}
    own = [command for command in from_code.every_command() if command.name.split()[0] == program]
    known = {f"## `{command.name}`": command for command in own}
    for heading in [each for each in texts if each.startswith("## `gpuqueue") and each not in known]:
        del texts[heading]  # the command is gone
    order = list(texts)
    before = ""
    for heading, command in known.items():
        if heading not in texts:
            texts[heading] = f"{heading}\n\n{command.purpose}\n\n"
            order.insert(order.index(before) + 1 if before else 0, heading)
        texts[heading] = section(texts[heading], command)
        before = heading
    return head + "".join(texts[heading] for heading in order)


def section(text: str, command: from_code.Command) -> str:
    """Return the section of a command, with a row for each option, and the examples of its help."""
    if command.options:
        text = with_rows(text, OPTIONS_HEAD, lambda rows: options_table(rows, command))
    block = f"{EXAMPLES}\n```sh\n" + "\n".join(command.examples) + "\n```\n"
    there = re.compile(rf"{EXAMPLES}\n```sh\n.*?^```\n", re.MULTILINE | re.DOTALL)
    if not command.examples:
        return there.sub("", text)
    return there.sub(lambda _: block, text) if there.search(text) else f"{text.rstrip()}\n\n{block}\n"


def options_table(rows: list[list[str]], command: from_code.Command) -> list[str]:
    """Return a row for each option, in the order of the page, then of the code.

    All options with the text ``As in submit.`` share one row.
    """

    def named(row: list[str], option: str) -> bool:
        return option in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", row[0])

    made: dict[str, str] = {}
    for option in command.options:
        before = next((row for row in rows if named(row, option.opts[-1])), [])
        words = before[-1] if before else (option.help or "")
        if re.fullmatch(r"As in (\w+|\[[^]]+\]\([^)]+\))\.", words):
            names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            above = made[words].split(" | ")[0][2:] + ", " if words in made else ""
            made[words] = f"| {above}{names} | {words} |"
            continue
        shown = before[0] if before else ""
        made[option.opts[-1]] = f"| {from_code.first_cell(option, shown)} | {from_code.with_facts(option, words)} |"
    return in_order(
        made, [row[-1] if row[-1] in made else next((n for n in made if named(row, n)), "") for row in rows]
    )


def codes_table(rows: list[list[str]]) -> list[str]:
    """Return a row for each exit code."""
    words = {row[0].strip("`"): row[1] for row in rows}
    return [f"| `{code}` | {words.get(str(code), text)} |" for code, text in from_code.exit_codes().items()]


def job_fields_page(page: str) -> str:
    """Return the page of a job's fields in the store, brought up to the code."""
    return with_rows(page, FIELDS_HEAD, lambda _: from_code.job_fields())


def settings_page(page: str) -> str:
    """Return the page of the settings, brought up to the code."""

    def table(rows: list[list[str]]) -> list[str]:
        before = {row[1].strip("`"): row for row in rows}
        made = {}
        for name in from_code.settings():
            key = from_code.key_of(name)
            row = from_code.setting_row(name, shown=before[key][2] if key in before else "")
            if key in before:
                row["unit"], row["meaning"] = before[key][3:]
            made[key] = "| " + " | ".join(row.values()).replace("|  |", "| |") + " |"
        return in_order(made, list(before))

    return with_rows(page, SETTINGS_HEAD, table)


def in_order(made: dict[str, str], shown: Iterable[str]) -> list[str]:
    """Return the rows *made* in the order *shown* before; a new one stands behind its neighbour in the code."""
    order = [name for name in dict.fromkeys(shown) if name in made]
    names = list(made)
    for at, name in enumerate(names):
        if name not in order:
            order.insert(order.index(names[at - 1]) + 1 if at else 0, name)
    return [made[name] for name in order]


def with_rows(text: str, head: str, rows: Callable[[list[list[str]]], list[str]]) -> str:
    """Return *text* with new rows in its table below *head*, which is put behind the first paragraph if it is new."""
    if head not in text:
        opening, _, rest = text.partition("\n\n")
        first, _, rest = rest.partition("\n\n")
        text = f"{opening}\n\n{first}\n\n{head}\n{rule(head)}\n\n{rest}"
    before, _, after = text.partition(head + "\n")
    lines = after.split("\n")
    end = next(at for at, line in enumerate(lines) if not line.startswith("|"))
    old = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in lines[1:end]]
    return before + "\n".join([head, rule(head), *rows(old), *lines[end:]])


def rule(head: str) -> str:
    """Return the line below the head of a table."""
    return "|" + "---|" * (head.count("|") - 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
