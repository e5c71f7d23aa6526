"""What only the machines' side can see (driver, devices, runs): asked as a program, since it is never imported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Finding, from_line, problem, unknown
from gpuqueue.system.process import installed

#: How long all of it may take, in seconds; each of its own looks has a limit far below this.
ASK_S = 30.0
#: How much longer a deep look may take: it imports torch.
DEEP_S = 65.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the machines' side has told: findings, repairs in words, and why it told no more, if it did not end well."""

    findings: tuple[Finding, ...]
    repairs: tuple[str, ...] = ()
    broken: str = ""

    def of(self, room: str) -> Iterator[Finding]:
        """Yield what was found in *room*; where it fell silent before, that as well."""
        yield from (each for each in self.findings if each.room == room)
        if self.broken:
            missing = unknown(f"the rest of this room could not be looked at: {self.broken}", "gpuqueue-worker doctor")
            yield replace(missing, room=room, check="machines")


def ask(environ: Mapping[str, str], *, deep: bool, fix: bool = False) -> Answer:
    """Return what the machines' side tells; if it hangs or dies, what it had told by then.

    Raises:
        GpuQueueError: it is not installed.

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
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return _read(done.stdout, f"it ended with {done.returncode}: {next(iter(said[-1:]), 'without a word')}")
    return _read(done.stdout, "")


def _read(out: bytes, broken: str) -> Answer:
    lines = out.decode(errors="replace").splitlines()
    findings = tuple(finding for line in lines if (finding := from_line(line)) is not None)
    return Answer(findings=findings, repairs=tuple(_repairs(lines)), broken=broken)


def _repairs(lines: list[str]) -> Iterator[str]:
    for line in lines:
        try:
            plain = json.loads(line)
        except ValueError:
            continue  # half a line of a program that was killed
        if isinstance(plain, dict) and isinstance(plain.get("repair"), str):
            yield plain["repair"]


def absent(why: str) -> Finding:
    """Return that there is nobody to ask."""
    return problem(why, "install gpuqueue-server whole again: gpuqueue and gpuqueue-worker belong together")
