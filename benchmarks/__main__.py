"""Measures everything, each figure with its floor in the same run; prints a table and writes JSON.

python -m benchmarks                                  all of it: about an hour, on a machine that does nothing else
python -m benchmarks --quick                          a few minutes: checks that all parts work; the figures are rough
python -m benchmarks --only claim corridor            some of it
python -m benchmarks --json run.json --write docs/internals/performance.md
python -m benchmarks --from run.json --write docs/internals/performance.md      from an earlier run, measures nothing

Ctrl-C and SIGTERM end all that was started, keep the finished figures in --json, and exit with 130 and 143.

docs/internals/performance.md explains the output. ``python -m benchmarks.peers.install`` installs other queues to
compare with.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.catalogue import BENCHMARKS
from benchmarks.measure.figure import Absent, Figure, Measured, Report
from benchmarks.measure.home import to_the_end
from benchmarks.measure.place import private_store
from benchmarks.measure.report_json import read
from benchmarks.measure.stop import heed, not_now
from benchmarks.measure.table import closing, head, line, load
from benchmarks.measure.whole_file import check_writable, put_whole
from benchmarks.page.runs import merged
from benchmarks.page.write import PageError, check, lacking, write

#: The remedy for a page without all its rows.
WHOLE = "measure all, or give the other parts as well: --from part.json other.json"


def main(words: Sequence[str]) -> int:
    """Measure, print, and write the requested files."""
    options = _options(words)
    try:
        report = _read(options.kept) if options.kept else _measured(options)
        _keep(report, options.json)
        if options.write:
            _write(report, options.write)
    except (OSError, ValueError, PageError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    return 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=BENCHMARKS, help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer jobs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--from", dest="kept", type=Path, nargs="+", metavar="FILE", help="figures of an earlier run")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="fill the tables of this page")
    options = parser.parse_args(words)
    if options.kept and (options.only or options.quick):
        parser.error("--from measures nothing: it goes with --write and --json only")
    if options.json:
        _check_json(options.json, parser)
    if options.write and options.only and set(options.only) != set(BENCHMARKS):
        parser.error(f"--write: some of the rows would be empty; {WHOLE}")
    if options.write:
        _check(options.write, parser)
    return options


def _check_json(path: Path, parser: argparse.ArgumentParser) -> None:
    try:
        if not path.absolute().parent.is_dir():
            parser.error(f"--json: there is no directory {path.absolute().parent}")
        if path.is_dir():
            parser.error(f"--json: {path} is a directory; name a file")
        check_writable(path)
    except OSError as error:
        parser.error(f"--json: {path} cannot be written: {error.strerror}")
    except RuntimeError as error:  # pathlib's error for a cycle of links, before Python 3.13
        parser.error(f"--json: {path} cannot be written: {error}")
    except ValueError as error:  # a zero byte
        parser.error(f"--json: {str(path)!r} cannot be written: {error}")


def _check(page: Path, parser: argparse.ArgumentParser) -> None:
    try:
        if not page.is_file():
            parser.error(f"--write: there is no page {page}")
        check(page)
    except (OSError, ValueError, PageError) as error:
        parser.error(f"--write: {error}")


def _read(paths: Sequence[Path]) -> Report:
    """Return the report of one run, or of several: the first one, with the figures that only the others have."""
    reports = []
    for path in paths:
        try:
            reports.append(read(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return merged(reports) if len(reports) > 1 else reports[0]


def _measured(options: argparse.Namespace) -> Report:
    """Measure what the options name, and report what is kept if the run is stopped."""
    kept: list[Report] = []
    was_there = bool(options.json and options.json.exists())

    def reported() -> str:
        if not options.json:
            return ""
        if kept:
            return f"; what was measured until then is in {options.json}"
        return f"; nothing was measured until then, {options.json} is {'as it was' if was_there else 'not written'}"

    with to_the_end(reported):
        return _measure(options, kept)


def _measure(options: argparse.Namespace, kept: list[Report]) -> Report:
    """Measure part by part, and keep the report after each part, so that a stopped run loses only one part.

    Nothing is written before there is a figure: the file may hold an earlier run.
    """
    report = Report(machine=_machine(), quick=options.quick, took_s=0.0, figures=())
    began_s = time.monotonic()
    print(head())
    for name in options.only or list(BENCHMARKS):
        part_s = time.monotonic()
        measured = _with_reason(name, BENCHMARKS[name](quick=options.quick))
        try:
            with closing(measured):
                for each in measured:
                    print(line(each), flush=True)
                    report = _with(report, each)
        finally:
            report = replace(report, took_s=time.monotonic() - began_s)
            with not_now():
                if report.figures:
                    _keep(report, options.json)
                    kept.append(report)
        print(f"{name}: {time.monotonic() - part_s:.0f} s", file=sys.stderr)
    print(f"{load()}; {report.took_s:.0f} s")
    return report


def _with(report: Report, each: Figure | Absent) -> Report:
    if isinstance(each, Figure):
        return replace(report, figures=(*report.figures, each))
    return replace(report, absent=(*report.absent, each))


def _keep(report: Report, path: Path | None) -> None:
    if path is not None:
        put_whole(path, report.to_json() + "\n")


def _with_reason(name: str, measured: Measured) -> Measured:
    """Yield the figures, or the reason why the benchmark failed: the other figures must not be lost."""
    try:
        yield from measured
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error is reported
        heed()  # the error may be the result of a Ctrl-C
        yield Absent(name=name, why=f"it broke off: {error!r}")


def _write(report: Report, page: Path) -> None:
    missing = lacking(report)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PageError(f"{page} is not written: nothing was measured for {missing[0]!r}{more}; {WHOLE}")
    for row in write(report, page):
        print(f"{page}: {row}", file=sys.stderr)


def _machine() -> dict[str, Any]:
    with private_store() as store:
        server: dict[str, Any] = store.client.info()
        preloaded = store.preloaded()
    product = f"{server.get('server_name', 'redis')} {server.get('valkey_version', server['redis_version'])}"
    allocator = server["mem_allocator"] if preloaded is None else preloaded.name.partition(".")[0]
    return {
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "store": f"{product} with {allocator}",
        "load_before": [round(each, 1) for each in psutil.getloadavg()],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
