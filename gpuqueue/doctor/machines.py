"""Runs ``gpuqueue-worker doctor``, which checks the driver, the devices and the runs. ``workers`` is never imported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuqueue.codec.wire import from_plain
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Finding, problem, unknown
from gpuqueue.system.process import installed

#: Time limit of the program, in seconds. Each part inside it has a far lower limit.
ASK_S = 30.0
#: Additional time limit with ``--deep``, in seconds, because that imports torch.
DEEP_S = 65.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Output of ``gpuqueue-worker doctor``. ``repairs`` are texts. ``broken`` says why the output ended early."""

    findings: tuple[Finding, ...]
    repairs: tuple[str, ...] = ()
    broken: str = ""

    def of(self, section: str) -> Iterator[Finding]:
        """Yield the findings of *section*, and a finding that some are missing if the program failed."""
        yield from (each for each in self.findings if each.section == section)
        if self.broken:
            missing = unknown(f"the rest of this section could not be checked: {self.broken}", "gpuqueue-worker doctor")
            yield replace(missing, section=section, check="machines")


def ask(environ: Mapping[str, str], *, deep: bool, fix: bool = False) -> Answer:
    """Return the output of ``gpuqueue-worker doctor``. If the program hangs or dies, return its output until then.

    Raises:
        GpuQueueError: ``gpuqueue-worker`` is not installed.

    """
    words = [installed("gpuqueue-worker"), "doctor", *(["--deep"] if deep else []), *(["--fix"] if fix else [])]
    limit_s = ASK_S + (DEEP_S if deep else 0.0)
    try:
        done = subprocess.run(
            words, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        return _read(error.stdout or b"", f"it took longer than {limit_s:g} s")
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return _read(done.stdout, f"it ended with {done.returncode}: {next(iter(lines[-1:]), 'without a word')}")
    return _read(done.stdout, "")


def _read(out: bytes, broken: str) -> Answer:
    lines = out.decode(errors="replace").splitlines()
    findings = tuple(finding for line in lines if (finding := from_line(line)) is not None)
    return Answer(findings=findings, repairs=tuple(_repairs(lines)), broken=broken)


def from_line(line: str) -> Finding | None:
    """Return the finding in one line of JSON, or None if the line is incomplete, since its writer may be killed."""
    try:
        found: Finding = from_plain(Finding, json.loads(line))
    except (ValueError, Unreadable):
        return None
    return found


def _repairs(lines: list[str]) -> Iterator[str]:
    for line in lines:
        try:
            plain = json.loads(line)
        except ValueError:
            continue  # an incomplete line of a program that was killed
        if isinstance(plain, dict) and isinstance(plain.get("repair"), str):
            yield plain["repair"]


def absent(why: str) -> Finding:
    """Return the finding that ``gpuqueue-worker`` cannot be run, for the reason *why*."""
    return problem(why, "install gpuqueue-server whole again: gpuqueue and gpuqueue-worker belong together")
