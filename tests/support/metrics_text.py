"""Reads the text of the metrics as Prometheus does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

#: The labels of a series, in the order of their names.
Labels = tuple[tuple[str, str], ...]


@dataclass
class Scrape:
    """The series of one scrape."""

    text: str
    series: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, metric: str, **labels: str) -> float:
        """Return the value of the one series of *metric* with these labels, and maybe others."""
        found = [
            value
            for (name, has), value in self.series.items()
            if name == metric and labels.items() <= dict(has).items()
        ]
        assert 1 == len(found), (metric, labels, found)
        return found[0]

    def changed(self, before: Scrape, metric: str, **labels: str) -> float:
        """Return how much a value has changed since *before*."""
        return self.value(metric, **labels) - before.value(metric, **labels)

    @property
    def names(self) -> Counter[str]:
        """Return the number of series of each name."""
        return Counter(name for name, _ in self.series)

    def labels(self, metric: str) -> list[dict[str, str]]:
        """Return the labels of the series of *metric*."""
        return [dict(has) for name, has in self.series if name == metric]


def parsed(text: str) -> Scrape:
    """Return the series of *text*. Fails if a series comes twice."""
    found = Scrape(text)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found.series, key
            found.series[key] = sample.value
    return found
