"""Kills everything at random moments while jobs run, then compares what was acknowledged with what happened.

python -m benchmarks.chaos --short                              under a minute
python -m benchmarks.chaos --jobs 2000 --kills 200 --seed 7     the record
python -m benchmarks.chaos --database postgres …                with a private PostgreSQL for the history

Exit code 0 if nothing was lost, doubled, orphaned, wrong or left behind, else 1. Each finding is printed with its job.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.chaos import report
from benchmarks.chaos.database import Database, open_database
from benchmarks.chaos.effects import read_effects
from benchmarks.chaos.evidence import Watch, files_left, keys_left, processes_left, read_history
from benchmarks.chaos.judge import Evidence, judge
from benchmarks.chaos.kills import Killer
from benchmarks.chaos.plan import FOR_EVER_S, Breaks, plan_jobs, plan_kills
from benchmarks.chaos.site import Operator, Site
from benchmarks.chaos.traffic import Traffic

SHORT_JOBS, SHORT_KILLS = 40, 12
#: How long the longest jobs and the longest outages of a short run last, in seconds.
SHORT_S = 4.0
#: How long the queue may take to become quiet after the last kill, in seconds.
QUIET_S = 240.0


def main(words: list[str]) -> int:
    """Kill, compare and print the result; return the exit code."""
    options = _options(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as for Ctrl-C: all child processes are ended
    place = Path(tempfile.mkdtemp(prefix="gq-chaos-", dir="/tmp"))
    began = time.monotonic()
    try:
        with open_database(options.database, place) as database:
            evidence, signs = _break(options, place, database)
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(place, ignore_errors=True)
        raise
    except BaseException:
        print(f"everything of this run is in {place}", file=sys.stderr)
        raise
    verdict = judge(evidence)
    recovered = report.recoveries(evidence.kills, signs)
    if options.json:
        print(json.dumps(report.as_plain(verdict, evidence.kills, recovered), indent=2))
    else:
        print("\n".join(report.table(verdict, evidence, recovered)))
        took_s = time.monotonic() - began
        print(f"\nseed {options.seed}, {options.database}, {took_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    for finding in verdict.findings:
        print("\n" + "\n".join(report.story(finding, evidence)), file=sys.stderr)
    if verdict.findings or options.keep:
        print(f"\neverything of this run is in {place}", file=sys.stderr)
    else:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if verdict.findings else 0


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", default="", metavar="TEXT", help='only kills with this in their name: "shim"')
    parser.add_argument("--short", action="store_true", help=f"{SHORT_JOBS} jobs, {SHORT_KILLS} kills, two devices")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--devices", default="sim:4x24G", help="simulated ones only")
    parser.add_argument("--lease", type=float, default=20.0, metavar="S")
    parser.add_argument("--heartbeat", type=float, default=1.0, metavar="S")
    parser.add_argument("--longest", type=float, default=30.0, metavar="S", help="what the longest jobs last")
    parser.add_argument(
        "--hold",
        type=float,
        default=FOR_EVER_S,
        metavar="S",
        help="hold nothing away for longer: store, database, worker",
    )
    parser.add_argument("--most", type=float, default=2400.0, metavar="S", help="stop submitting and killing then")
    parser.add_argument("--keep", action="store_true", help="keep the directory with all logs and files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if not any(options.only in each.value for each in Breaks):
        parser.error(f"nothing that is broken here has {options.only!r} in its name: see docs/internals/reliability.md")
    if options.short:
        options.jobs, options.kills, options.devices = SHORT_JOBS, SHORT_KILLS, "sim:2x24G"
        options.longest = options.hold = SHORT_S
    return options


def _break(options: argparse.Namespace, place: Path, database: Database) -> tuple[Evidence, report.Signs]:
    site = Site(place, database.url, devices=options.devices, lease_s=options.lease, heartbeat_s=options.heartbeat)
    operator = Operator(site)
    job_plans = plan_jobs(options.seed, options.jobs, longest_s=options.longest)
    traffic = Traffic(site, job_plans, lambda: killer.behind)
    among = [each for each in Breaks if options.only in each.value]
    grace_s = site.settings.shim_grace_s
    kill_plans = plan_kills(
        *(options.seed, options.kills, options.jobs), grace_s=grace_s, longest_hold_s=options.hold, among=among
    )
    killer = Killer(site, operator, database, kill_plans, lambda: traffic.acknowledged)
    watch = Watch(site)
    wall_minus_monotonic_s = time.time() - time.monotonic()
    try:
        site.up()
        for part in (watch, operator, traffic, killer):
            part.start()
        deadline = time.monotonic() + options.most
        while not (traffic.done and killer.done) and time.monotonic() < deadline:
            _report(f"{traffic.acknowledged} jobs acknowledged, {len(killer.kills)} kills")
            time.sleep(0.5)
        quiet = watch.until_quiet(QUIET_S)
        _report("quiet" if quiet else "it does not become quiet")
        for part in (killer, traffic, operator, watch):
            part.stop()
        if not (quiet and traffic.done):
            traffic.reported.surprises.append(
                f"it did not come to its end: {traffic.acknowledged} of {options.jobs} jobs submitted, "
                f"{len(killer.kills)} of {options.kills} kills, {'quiet' if quiet else 'not quiet'}"
            )
        left = processes_left(site), keys_left(site), files_left(site)
        records, stories = read_history(site)
        site.down()
    finally:
        operator.drop()  # otherwise the operator would restart what is ended here
        site.end_everything()
    reported = traffic.reported
    evidence = Evidence(
        acks=reported.acks,
        unsure=reported.unsure,
        records=records,
        stories=stories,
        traces=read_effects(site.effects, wall_minus_monotonic_s=wall_minus_monotonic_s),
        kills=killer.kills,
        dropped=len(killer.dropped),
        ups=operator.calls,
        ups_failed=operator.failures,
        released=len(reported.releases),
        resumed=reported.resumes,
        unknown=sorted(reported.unknown),
        surprises=reported.surprises,
        processes=left[0],
        keys=left[1],
        files=left[2],
    )
    events = sorted((event for story in stories.values() for event in story), key=lambda event: event.at)
    return evidence, report.Signs(events=events, moves=watch.moves)


def _report(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
