"""What jobs report: thinning in a constant amount of memory, limits, and numbers that JSON does not have."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest

from gpuqueue.codec.request import decode_ended, encode_ended
from gpuqueue.codec.wire import from_plain, to_plain, to_stored
from gpuqueue.errors import Unreadable
from gpuqueue.model.job_values import MAX_ALL_POINTS, MAX_NAMES, MAX_POINTS, Collected, JobValues, Metric, metrics_in
from gpuqueue.model.run import Ending


def lines(*reports: Any, collected: Collected | None = None) -> Collected:
    """Return what is collected from these reports, one second after each other."""
    collected = collected or Collected()
    for number, report in enumerate(reports):
        line = report if isinstance(report, bytes) else json.dumps(report).encode()
        collected.add_line(line, 0.0, 100.0 + number)
    return collected


def series(values: list[float], **more: Any) -> Metric:
    """Return the only metric, with these values."""
    (metric,) = lines(*({"metric": {"loss": value}, **more} for value in values)).values().metrics
    return metric


def test_a_metric_has_its_last_least_and_largest_value_with_step_and_time() -> None:
    """The time is that of the job's line, as seconds since the start of the run."""
    reports = [{"metric": {"acc": value}, "step": step, "at_s": 7.5 + step} for step, value in enumerate((3, 1, 9, 5))]

    (metric,) = lines(*reports).values().metrics

    assert (metric.min, metric.max) != (None, None)
    found = [(each.value, each.step, each.after_s) for each in (metric.last, metric.min, metric.max) if each]
    assert [(5.0, 3, 10.5), (1.0, 1, 8.5), (9.0, 2, 9.5)] == found
    assert 4 == metric.count
    assert ((7.5, 0, 3.0), (8.5, 1, 1.0), (9.5, 2, 9.0), (10.5, 3, 5.0)) == metric.curve


@pytest.mark.parametrize("count", [1, 2, MAX_POINTS - 3, MAX_POINTS, MAX_POINTS + 1, 4999])
def test_a_curve_is_bounded_and_keeps_first_last_least_and_largest(count: int) -> None:
    """The extremes lie where no regular point is kept."""
    values = [float(number) for number in range(count)]
    if count > MAX_POINTS:
        values[101], values[1003 if count > 1003 else 301] = -7.0, 1e6

    metric = series(values)

    kept = [value for _, _, value in metric.curve]
    assert len(kept) <= MAX_POINTS
    assert (values[0], values[-1]) == (kept[0], kept[-1])
    assert (min(values), max(values)) == (min(map(float, kept)), max(map(float, kept)))
    assert metric.min is not None
    assert metric.max is not None
    assert (count, min(values), max(values)) == (metric.count, metric.min.value, metric.max.value)
    assert count > MAX_POINTS - 3 or values == kept


def test_points_of_a_thinned_curve_are_evenly_spaced_and_in_order() -> None:
    """Every second point goes when the curve is full."""
    kept = [float(value) for _, _, value in series([float(number) for number in range(4000)]).curve]

    assert sorted(kept) == kept
    assert {16.0} == {after - before for before, after in pairwise(kept[:-1])}


def test_all_curves_of_a_run_are_bounded_together() -> None:
    """A run with many metrics has shorter curves."""
    collected = Collected()
    names = [f"m{number}" for number in range(MAX_NAMES)]
    for number in range(600):
        collected.add_metrics(((name, float(number)) for name in names), float(number), None)

    metrics = collected.values().metrics

    assert MAX_NAMES == len(metrics)
    assert sum(len(metric.curve) for metric in metrics) <= MAX_ALL_POINTS


def test_nan_and_infinity_are_kept_as_what_they_are() -> None:
    """NaN is never the least or the largest value. All of it is valid JSON, and comes back."""
    metric = series([2.0, math.nan, math.inf, -math.inf, math.nan])
    ended = encode_ended(ending=Ending.from_status(0), duration_s=1.0, devices=(), values=JobValues(metrics=(metric,)))

    assert ("NaN", "-Infinity", "Infinity") == (
        metric.last.value,
        metric.min and metric.min.value,
        metric.max and metric.max.value,
    )
    json.loads(ended, parse_constant=pytest.fail)
    assert JobValues(metrics=(metric,)) == decode_ended(ended).values
    assert metric == from_plain(Metric, json.loads(json.dumps(to_plain(metric), allow_nan=False)))
    only = series([math.nan])
    assert (None, None) == (only.min, only.max)


def test_what_is_no_report_is_left_out() -> None:
    """A job writes the file, so a line may be anything."""
    bad: list[Any] = [
        *(b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000, b"null", b"[1]", b'{"metric": {"a": 9', b"metric: a=1"),
        {"metric": [1], "param": "x", "result": 3},
        {"metric": {"a": "x", "b": None, "c": [1], "d": True, "e e": 1, "f" * 65: 1, "": 1, "1a": 1}},
        {"param": {"a": 1, "b": None}},
        {"result": {"deep": [[[[[[[[[[[1]]]]]]]]]]]}},
        {"result": {"long": "x" * 20_000}},
        b'{"result": {"large": 1e999}}',
        {"metric": {"big": 10**400}},
    ]

    assert JobValues() == lines(*bad).values()


def test_a_step_or_a_time_that_is_invalid_is_unknown() -> None:
    """The value counts. Its time is then that of the reading."""
    for more in ({"step": -1, "at_s": -5.0}, {"step": "x", "at_s": "x"}, {"step": 2**80, "at_s": 1e30}):
        metric = series([1.0], **more)
        assert (None, 100.0) == (metric.last.step, metric.last.after_s)


def test_the_log_adds_nothing_to_a_metric_that_the_code_reports() -> None:
    """Both are read now and then, and the log has no times: an older value of it must not become the last one."""
    kept = lines()
    kept.add_metrics({"loss": "0.9", "acc": "0.1"}.items(), 1.0, 1)
    kept.add_line(json.dumps({"metric": {"loss": 0.1}, "step": 9}).encode(), 0.0, 5.0)
    adopted = from_plain(Collected, to_stored(kept))

    adopted.add_metrics({"loss": "0.5", "acc": "0.2"}.items(), 6.0, 5)

    assert {"loss": 0.1, "acc": 0.2} == adopted.values().last()
    assert {"loss": 2, "acc": 2} == {each.name: each.count for each in adopted.values().metrics}


def test_names_are_bounded_and_parameters_are_texts() -> None:
    """The first names count. The last value of a parameter and the last result count."""
    values = lines(
        *({"metric": {f"m{number}": 1}} for number in range(MAX_NAMES + 9)),
        *({"param": {f"p{number}": "x" * 300}} for number in range(MAX_NAMES + 9)),
        {"param": {"p0": "y"}},
        {"result": {"best": 1}},
        {"result": {"best": 2, "at": [1, {"x": None}]}},
    ).values()

    assert [f"m{number}" for number in range(MAX_NAMES)] == [metric.name for metric in values.metrics]
    assert (MAX_NAMES, "y", 200) == (len(values.params), values.params["p0"], len(values.params["p1"]))
    assert {"best": 2, "at": [1, {"x": None}]} == values.result


def test_what_was_collected_goes_on_in_another_worker() -> None:
    """The next worker gets the same values as if it had read all of them."""
    reports: list[Any] = [{"metric": {"a": number, "b": math.nan}, "step": number} for number in range(1300)]
    first = lines(*reports[:700], {"param": {"p": "1"}}, {"result": {"r": 1}})

    stored = json.loads(json.dumps(to_stored(first), allow_nan=False))
    both = lines(*reports[700:], collected=from_plain(Collected, stored))

    whole = lines(*reports, {"param": {"p": "1"}}, {"result": {"r": 1}}).values()
    assert [metric.count for metric in whole.metrics] == [metric.count for metric in both.values().metrics]
    steps = [[step for _, step, _ in metric.curve] for metric in both.values().metrics]
    assert [[step for _, step, _ in metric.curve] for metric in whole.metrics] == steps
    assert (whole.params, whole.result) == (both.values().params, both.values().result)


@pytest.mark.parametrize(
    "damage",
    [{"metrics": []}, {"metrics": {"a": 3}}, {"metrics": {"a": {"count": 1, "stride": 0}}}, {"params": {"a": 1}}],
)
def test_damaged_figures_are_unreadable(damage: dict[str, Any]) -> None:
    """The worker then goes on without them."""
    with pytest.raises(Unreadable):
        from_plain(Collected, damage)


@pytest.mark.parametrize(
    "line",
    [
        *(b"metric: " + b" " * 4000 + b"x" * 5000, b" " * 9000, b"{'" * 4500, b"metric: " + b"a=" * 4500),
        *(b"{'" + b" " * 9000 + b"}", b"metric: " * 1000, b"{'a': '" * 600 + b"}", b"[rank0]: " * 1000),
        *(b"<0:0, 1it/s, " * 700, b"<" + b"1" * 9000, "• 0:00 1it/s ".encode() * 600),
    ],
)
def test_a_log_made_to_be_slow_is_not(line: bytes) -> None:
    """A search whose time grows with the square of a line would hold the worker up."""
    text = (line + b"\n") * (2**18 // len(line))

    assert [] == [values for values, _ in metrics_in(text) if values]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"metric: val_acc=0.91\n", [({"val_acc": "0.91"}, None)]),
        (b"x\nmetric: a=1 b=nan step=12", [({"a": "1", "b": "nan"}, 12)]),
        (b"[rank0]: metric:\ta=1, b=2;\r\nmetric: c=3\r\n", [({"a": "1", "b": "2"}, None), ({"c": "3"}, None)]),
        (
            b"metric: loss=tensor(nan, grad_fn=<NllLossBackward0>) step=7",
            [({"loss": "nan", "grad_fn": "<NllLossBackward0>"}, 7)],
        ),
        (b"{'loss': tensor(0.5), 'epoch': 1}\n", [({"loss": "0.5", "epoch": "1"}, None)]),
        (b"the metric: a=1\nmetric a=1\nmetrics: a=1\nmetric:a=1\n", []),
        (
            b"\r 10%|#   | 1/10\r          \r{'loss': 0.52, 'learning_rate': 5e-05, 'epoch': 1.0}\n 20%|##  |",
            [({"loss": "0.52", "learning_rate": "5e-05", "epoch": "1.0"}, None)],
        ),
        (b"{'loss': '0.52', 'epoch': '1'}\n", [({"loss": "0.52", "epoch": "1"}, None)]),
        (b"{'loss': nan, 'epoch': 0.1}", [({"loss": "nan", "epoch": "0.1"}, None)]),
        (b"{'lr': 0.1, 'batch': 32}\n{'epoch': 1} tail\n", []),
        (
            b"\rEpoch 0:  45%|####  | 45/100 [00:12<00:15,  3.60it/s, v_num=3, loss=0.31, acc=nan]\r",
            [({"loss": "0.31", "acc": "nan"}, None)],
        ),
        (b" 10%|#   | 1/10 [00:01<?, 1.50s/it, loss=2.5e-05]", [({"loss": "2.5e-05"}, None)]),
        (b"100%|####| 5.0k/5.0k [00:01<00:00, 4.1kimg/s, val loss=0.5]", [({"loss": "0.5"}, None)]),
        (
            b"Epoch 2/2 --- 20/20 0:00:00 \xe2\x80\xa2 0:00:00 94.04it/s v_num: 1 val_loss: -5.994\n",
            [({"val_loss": "-5.994"}, None)],
        ),
        (b"100%|####| 5/5 [00:01<00:00, 4.1it/s]\n[1<2, x, a=1]\n", []),
        (  # in the order of the log, so that the last value is the newest
            b"\r 10%|#| 1/10 [00:01<?, 1it/s, a=1]\nmetric: a=2\n 20%|#| 2/10 [00:01<?, 1it/s, a=3]\r",
            [({"a": "1"}, None), ({"a": "2"}, None), ({"a": "3"}, None)],
        ),
    ],
)
def test_lines_of_a_log_report_metrics(text: bytes, wanted: list[Any]) -> None:
    """A line ``metric:``, the dict of the Trainer of Hugging Face, and what a bar has behind its rate."""
    assert wanted == list(metrics_in(text))
