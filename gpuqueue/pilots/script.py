"""The batch script of a pilot. Pure.

It makes a private directory, writes the token and the certificate there, runs ``gpuqueue burst serve``, passes on the
engine's SIGTERM, and removes the directory whatever happens but SIGKILL. The token is in the text, because nothing else
reaches the engine's machine without a shared disk; no other user reads the text, and it is worth nothing once the pilot
is over.
"""

from __future__ import annotations

import shlex
from dataclasses import field

from gpuqueue.lazy.frozen import dataclass

_SCRIPT = """\
#!/bin/bash
# A pilot of gpuqueue: see gpuqueue burst --help
umask 077
signalled=
trap signalled=1 TERM
{prepare}
place=$(mktemp -d {directory}/gpuqueue-{key}-XXXXXX) || exit 1
cat > "$place/token" <<'END'
{token}
END
{ca}trap '' TERM
{program} burst serve --place "$place" {words} &
child=$!
trap signalled=1 TERM
while kill -0 "$child" 2>/dev/null; do
  # Again and again: it ignores the signal until it is ready for it.
  if [ -n "$signalled" ]; then kill -TERM "$child" 2>/dev/null; sleep 1; else wait "$child"; fi
done
wait "$child"
code=$?
rm -rf -- "$place"
exit "$code"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PilotScript:
    """What differs between pilots. ``directory`` may name variables of the engine's machine; empty: a temporary one."""

    key: str
    token: str = field(repr=False)
    ca: str | None
    program: str
    prepare: str
    directory: str
    words: tuple[str, ...]

    def text(self) -> str:
        """Return the script."""
        ca = "" if self.ca is None else f"cat > \"$place/ca.pem\" <<'END'\n{self.ca.strip()}\nEND\n"
        return _SCRIPT.format(
            key=self.key,
            token=self.token,
            ca=ca,
            program=shlex.quote(self.program),
            prepare=self.prepare,
            directory=f'"{self.directory}"' if self.directory else '"${TMPDIR:-/tmp}"',
            words=shlex.join(self.words),
        )
