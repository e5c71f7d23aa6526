"""The Grafana board and the alert rules that docs/monitoring has, held to the metrics of a real service."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from factories import make_offer, make_spec, must_claim, serve
from metrics_text import Scrape, parsed
from ruamel.yaml import YAML
from service_fixtures import ServedSite, serving

from gpuqueue.model.device import Health

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"
ALERTS, TESTS, BOARD = (MONITORING / name for name in ("alerts.yml", "alerts-test.yml", "grafana-board.json"))
HOWTO = MONITORING.parent / "howto" / "monitoring.md"
#: Each scrape of these tests reads anew.
AT_ONCE = {"gpuqueue.service.metrics.exposition:FRESH_S": 0}
#: What Prometheus adds to each scrape by itself.
OF_PROMETHEUS = {"up"}
#: A metric in a query: a name with one of these prefixes that is followed by an operator, a label or the end.
METRIC = re.compile(r"\b((?:gpuqueue|process)_\w+|up)\b(?=\s*(?:[{\[)<>=+*,-]|and\b|or\b|$))")


@pytest.fixture(scope="module")
def scraped() -> Iterator[Scrape]:
    """Return a scrape of a site on which each metric has a value, over the unix socket."""
    with serving(AT_ONCE) as site:
        serve(site.queue, make_offer(health=Health(utilisation=0.5, temperature_c=60.0, power_w=200.0)))
        site.queue.requests.submit(make_spec())
        must_claim(site.queue)
        yield parsed(over_the_socket(site))


def over_the_socket(site: ServedSite) -> str:
    """Return the text of the metrics for this account."""
    for _ in range(2):  # the second scrape has the latency of the first
        with closing(http.client.HTTPConnection("localhost")) as link:
            link.sock = socket.socket(socket.AF_UNIX)
            link.sock.connect(str(site.socket_path))
            link.request("GET", "/metrics")
            answer = link.getresponse()
            assert 200 == answer.status
            text = answer.read().decode()
    return text


def promtool(*words: str, text: str | None = None) -> None:
    """Run promtool, of Debian's package prometheus, and check that it finds no fault."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run(
        [program, *words], input=text, capture_output=True, text=True, check=False, timeout=60, cwd=MONITORING
    )
    assert (0, "") == (done.returncode, done.stderr.strip()), done.stdout


def board_queries() -> list[str]:
    """Return the queries of all panels and variables of the board."""
    board = json.loads(BOARD.read_text())
    panels = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    variables = [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    return [*panels, *variables]


def alert_rules() -> list[dict[str, str]]:
    """Return the alert rules."""
    groups = YAML(typ="safe").load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metrics_in(query: str) -> set[str]:
    """Return the names of the metrics of a query in PromQL."""
    return set(METRIC.findall(re.sub(r'"[^"]*"', '""', query)))


def test_the_board_uses_metrics_that_exist(scraped: Scrape) -> None:
    """Each query of the board names at least one metric, and only metrics of a real scrape."""
    queries = board_queries()

    assert 15 < len(queries)
    assert [] == [query for query in queries if not metrics_in(query)]
    assert set() == {name for query in queries for name in metrics_in(query)} - set(scraped.names)


def test_the_alerts_use_metrics_that_exist_and_are_explained(scraped: Scrape) -> None:
    """Each alert names metrics of a real scrape, and the how-to has a row on it."""
    rules = alert_rules()
    howto = HOWTO.read_text()

    assert [] == [rule["expr"] for rule in rules if not metrics_in(rule["expr"])]
    assert set() == {name for rule in rules for name in metrics_in(rule["expr"])} - set(scraped.names) - OF_PROMETHEUS
    assert [] == [rule["alert"] for rule in rules if f"| `{rule['alert']}` |" not in howto]


def test_promtool_finds_no_fault_in_the_metrics(scraped: Scrape) -> None:
    """Names, units and help texts follow Prometheus' conventions."""
    promtool("check", "metrics", text=scraped.text)


def test_promtool_finds_no_fault_in_the_alerts() -> None:
    """The rules are valid, and fire when they should."""
    promtool("check", "rules", ALERTS.name)
    promtool("test", "rules", TESTS.name)
