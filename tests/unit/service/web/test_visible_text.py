"""Text of the page: characters that change the direction of the text around them are marks, as on the command line."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from gpuqueue.service.web.files import NoPage, PageFiles
from gpuqueue.text.sanitize import plain

#: Prints the nodes that ``html`` makes of the texts on standard input.
SCRIPT = """
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const { html } = await import(pathToFileURL(process.argv[1]));
const [text] = JSON.parse(readFileSync(0, "utf8"));
const made = html`<p title=${text} value=${text}>${text}<b>${[text, [text]]}</b></p>`;
const { title, value, children: [child, inner] } = made.props;
console.log(JSON.stringify([title, child, inner.props.children, value]));
"""
#: Each control of the bidirectional algorithm.
CONTROLS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def test_a_name_cannot_look_like_another_one() -> None:
    """Text and what is read aloud have the marks of the command line. What is edited stays as it is."""
    node = shutil.which("node") or pytest.skip("no Node.js to run the page's modules with")
    try:
        PageFiles().current()
    except NoPage:
        pytest.skip("the third-party parts of the page are missing: python3 page_parts.py")
    library = PageFiles()._directory / "lib.js"
    text = f"train{CONTROLS}gpj.exe"

    done = subprocess.run(
        [node, "--input-type=module", "-e", SCRIPT, str(library)],
        input=json.dumps([text]),
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    title, child, inner, value = json.loads(done.stdout)
    assert [plain(text)] * 2 == [title, child]
    assert plain(text) == "train" + "\ufffd" * len(CONTROLS) + "gpj.exe"
    assert [plain(text), [plain(text)]] == inner
    assert text == value
