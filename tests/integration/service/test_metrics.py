"""The metrics of a real service: what they say, who may read them, and that nothing makes them fail or grow."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest
from factories import ADA, make_device, make_offer, make_spec, must_claim, serve
from metrics_text import Scrape, parsed
from service_fixtures import ServedSite, mine, serving

from gpuqueue.model.access_token import TokenRequest
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.device import Health, Xid
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Ending
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.lease import Alive
from gpuqueue.text.units import GIB

#: Each scrape of these tests reads anew, and so does each look at a token.
AT_ONCE = {"gpuqueue.service.metrics.exposition:FRESH_S": 0, "gpuqueue.service.identity.authenticate:CACHE_S": 0}


def get(served: ServedSite, path: str, token: str | None = None, accept: str = "") -> tuple[int, str, str]:
    """Return the status, the content type and the text of an answer over TLS."""
    context = ssl.create_default_context(cafile=served.directory / "cert.pem")
    headers = {"Accept": accept, **({} if token is None else {"Authorization": f"Bearer {token}"})}
    with closing(http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=60)) as link:
        link.request("GET", path, headers=headers)
        answer = link.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def scrape(served: ServedSite) -> Scrape:
    """Return the metrics as Prometheus reads them."""
    status, _, text = get(served, "/metrics", mine(served))
    assert 200 == status, text
    return parsed(text)


@pytest.fixture(scope="module")
def site() -> Iterator[ServedSite]:
    """Return a site whose service reads anew for each scrape."""
    with serving(AT_ONCE) as made:
        yield made


def test_jobs_are_counted_by_state_and_by_reason(site: ServedSite) -> None:
    """Each member of an array counts. Jobs of one queue share their reason, and held jobs have their own."""
    before, add = scrape(site), site.queue.requests.submit
    add(make_spec())
    must_claim(site.queue)
    add(make_spec(waits=Waits(hold=True)))
    add(make_spec(mem_bytes=24 * GIB, array=Array(indexes=Indexes.parse("0-9"))))
    add(make_spec(mem_bytes=24 * GIB))

    found = scrape(site)

    def more(metric: str, **labels: str) -> float:
        return found.changed(before, metric, **labels)

    states = {state: more("gpuqueue_jobs", state=state) for state in ("queued", "held", "starting", "running")}
    assert {"queued": 11, "held": 1, "starting": 1, "running": 0} == states
    assert (11, 1) == tuple(more("gpuqueue_jobs_waiting", reason=reason) for reason in ("memory", "held"))
    assert 0 == found.value("gpuqueue_jobs_not_counted")
    assert 1 == found.value("gpuqueue_store_up") == found.value("gpuqueue_history_up")


def test_devices_and_hosts_have_their_figures(site: ServedSite) -> None:
    """Memory in bytes, utilisation as a share, heat, drains, and the silence of hosts. What is unknown is left out."""
    hot, cold = make_device("GPU-hot", index=1), make_device("GPU-cold", index=2)
    errors = Xid(13, datetime.now(timezone.utc)), Xid(31, datetime.now(timezone.utc))
    health = Health(utilisation=0.25, temperature_c=91.0, power_w=310.0, ecc_uncorrected=2, retired_rows=5, xids=errors)
    serve(
        site.queue,
        make_offer("GPU-hot", device=hot, host="nodeB", trouble="it is hot: 91 °C", health=health, headroom_bytes=GIB),
        make_offer("GPU-cold", device=cold, host="nodeB", external_bytes=3 * GIB),
    )
    site.queue.devices.drain(["GPU-cold"], origin=DrainOrigin.PERSON, why="fan", by="ann")
    site.queue.requests.submit(make_spec(mem_bytes=2 * GIB, pool="", name="measured"))

    found = scrape(site)

    def value(name: str, uuid: str) -> float:
        return found.value(f"gpuqueue_device_{name}", uuid=uuid)

    assert (24 * GIB, GIB, 3 * GIB) == (
        value("memory_capacity_bytes", "GPU-hot"),
        value("memory_headroom_bytes", "GPU-hot"),
        value("memory_external_bytes", "GPU-cold"),
    )
    assert (0.25, 91, 310, 2, 5, 31) == tuple(
        value(name, "GPU-hot")
        for name in (
            *("utilisation_ratio", "temperature_celsius", "power_watts", "memory_errors", "retired_rows", "last_xid"),
        )
    )
    assert "GPU-cold" not in {each["uuid"] for each in found.labels("gpuqueue_device_last_xid")}
    assert [errors, ()] == [each.xids for each in site.queue.devices.all("nodeB")]
    assert [(1, 1, 0), (0, 0, 1)] == [
        tuple(value(name, uuid) for name in ("hot", "in_trouble", "drained")) for uuid in ("GPU-hot", "GPU-cold")
    ]
    assert "GPU-cold" not in {each["uuid"] for each in found.labels("gpuqueue_device_temperature_celsius")}
    assert {"host": "nodeB", "device": "2", "uuid": "GPU-cold"}.items() <= found.labels("gpuqueue_device_info")[
        2
    ].items()
    assert found.value("gpuqueue_host_silence_seconds", host="nodeB") < 60


def test_allocated_memory_differs_from_used(site: ServedSite) -> None:
    """A run that uses less than it asked for shows both figures."""
    serve(site.queue, make_offer("GPU-9", host="nodeC"))
    spec = make_spec(mem_bytes=6 * GIB, account=Account(name="eve", uid=7, host="nodeC"))
    site.queue.requests.submit(spec)
    claimed = must_claim(site.queue, "GPU-9", host="nodeC")
    while claimed.spec.account.name != "eve":
        claimed = must_claim(site.queue, "GPU-9", host="nodeC")
    alive = Alive(job_id=claimed.job_id, token=claimed.token, observed={"GPU-9": 2 * GIB})
    site.queue.devices.heartbeat(make_offer("GPU-9", host="nodeC"), [alive], lease_s=300)

    found = scrape(site)

    assert 2 * GIB == found.value("gpuqueue_device_memory_used_bytes", uuid="GPU-9")
    assert found.value("gpuqueue_device_memory_allocated_bytes", uuid="GPU-9") >= 6 * GIB


def test_counters_follow_what_is_recorded(site: ServedSite) -> None:
    """Submits, claims, waits and endings are counted once each, and a second scrape counts nothing again."""
    before = scrape(site)
    serve(site.queue, make_offer("GPU-c", host="nodeD"))
    jobs = [site.queue.requests.submit(make_spec(account=Account(name="cleo", uid=8, host="x"))) for _ in range(2)]
    for code, state in ((0, JobState.SUCCEEDED), (3, JobState.FAILED)):
        _run(site, code, state)
    site.record()

    found, again = scrape(site), scrape(site)

    assert len(jobs) <= found.changed(before, "gpuqueue_jobs_submitted_total")
    assert 2 <= found.changed(before, "gpuqueue_job_wait_seconds_count")
    assert (1, 1) == tuple(
        found.changed(before, "gpuqueue_runs_ended_total", outcome=outcome) for outcome in ("succeeded", "failed")
    )
    counted = [
        key for key in found.series if key[0].endswith("_total") and "http" not in key[0] and "cpu" not in key[0]
    ]
    assert [found.series[key] for key in counted] == [again.series[key] for key in counted]


def test_the_cost_of_reservations_comes_from_the_store(site: ServedSite) -> None:
    """The store counts for how long devices were idle because they were reserved."""
    before = scrape(site)
    store = connect(site.queue.url)
    store.hincrby(keys.META, "reserved_idle_ms", 90_500)
    store.close()

    assert 90.5 == scrape(site).changed(before, "gpuqueue_reserved_idle_device_seconds_total")


@pytest.mark.full
def test_counters_begin_at_0_with_the_service_and_never_go_backwards(site: ServedSite) -> None:
    """A restart is the reset that Prometheus knows: from 0, and not from another value."""
    scrape(site)  # counting begins with the first one
    site.queue.requests.submit(make_spec())
    site.record()
    assert 1 <= scrape(site).value("gpuqueue_jobs_submitted_total")
    site.kill()
    site.start()

    assert 0 == scrape(site).value("gpuqueue_jobs_submitted_total")
    site.queue.requests.submit(make_spec())
    site.record()
    assert 1 == scrape(site).value("gpuqueue_jobs_submitted_total")


def _run(site: ServedSite, code: int, state: JobState) -> None:
    claimed = must_claim(site.queue, "GPU-c", host="nodeD")
    run = claimed.job_id, claimed.token
    site.queue.runs.started(*run, lease_s=300, log_path="/log", devices=())
    site.queue.runs.finish(*run, state=state, ending=Ending.from_status(code), duration_s=1.0, devices=())


def test_latency_is_by_the_template_of_the_route(site: ServedSite) -> None:
    """Paths that clients choose, and methods that they invent, are no labels."""
    token = mine(site)
    for path in ("/api/v1/jobs/1", "/api/v1/jobs/2", "/api/v1/jobs/<script>", "/nothing/1", "/nothing/2"):
        get(site, path, token)

    found = scrape(site)

    routes = {each["route"] for each in found.labels("gpuqueue_http_request_duration_seconds_count")}
    assert {"/api/v1/jobs/{name}", "/metrics", "none"} <= routes
    assert not [route for route in routes if "script" in route or "nothing" in route]
    assert 2 <= found.value("gpuqueue_http_requests_total", route="none", code="404")


def test_the_number_of_series_does_not_grow_with_jobs_and_users(site: ServedSite) -> None:
    """Neither jobs nor users are labels."""
    scrape(site)
    before = scrape(site).names
    for number in range(60):
        account = Account(name=f"user{number}", uid=2000 + number, host="x")
        site.queue.requests.submit(make_spec(account=account, mem_bytes=GIB + number, name=f"name{number}"))

    found = scrape(site)

    assert before == found.names
    assert "user7" not in found.text


def test_hostile_names_do_not_break_the_format(site: ServedSite) -> None:
    """A model with quotes, line ends and half characters, and one without an end, stay values of one label."""
    evil = 'x"} 1\ngpuqueue_store_up 0\n# \\ \ud800 </script>'
    device = make_device("GPU-evil", index=7, name=evil + "y" * 5000)
    serve(site.queue, make_offer("GPU-evil", device=device, host="nodeE", pool="p"))

    found = scrape(site)

    (model,) = [each["model"] for each in found.labels("gpuqueue_device_info") if each["uuid"] == "GPU-evil"]
    assert model.startswith('x"} 1')
    assert 100 >= len(model)
    assert 1 == found.value("gpuqueue_store_up")
    assert 200 == get(site, "/metrics", mine(site), accept="application/openmetrics-text; version=1.0.0")[0]


def test_only_callers_with_the_right_may_read(site: ServedSite) -> None:
    """Callers without an account, worker hosts and wrong tokens may not; every person may."""
    with site.client("unix") as owner:
        host = owner.access.make_token(TokenRequest(host="nodeZ")).text

    statuses = [get(site, "/metrics", token)[0] for token in (None, host, mine(site, "wrong"), mine(site, "bobs"))]

    assert [401, 401, 401, 200] == statuses


@pytest.mark.full
def test_a_site_may_open_its_metrics_and_name_its_users() -> None:
    """Both are off by default. Anonymous callers then see the metrics, and nothing else."""
    with serving(AT_ONCE, GPUQUEUE_ACCESS="see-metrics=anonymous", GPUQUEUE_METRICS_USERS="true") as site:
        site.queue.requests.submit(make_spec(account=ADA))
        must_claim(site.queue)
        status, content_type, text = get(site, "/metrics")
        assert (200, "text/plain") == (status, content_type.partition(";")[0])
        assert 1 == parsed(text).value("gpuqueue_user_jobs_running", user="ada")
        assert 401 == get(site, "/api/v1/devices")[0]


def test_health_says_what_is_away_and_nothing_else(site: ServedSite) -> None:
    """Strangers learn whether the service lives and can serve. While only the history is away, it can."""
    assert (200, '{"status": "ok"}') == get(site, "/healthz")[::2]
    assert (200, '{"status": "ok", "away": []}') == get(site, "/readyz")[::2]
    with _away(site.settings.state_dir / "history.db"):
        assert (200, '{"status": "ok", "away": ["history"]}') == get(site, "/readyz")[::2]


def test_a_scrape_works_while_the_history_is_away(site: ServedSite) -> None:
    """The metrics say it, and have all figures of the store. A token that was used before is still accepted."""
    before = scrape(site)
    with _away(site.settings.state_dir / "history.db"):
        found = scrape(site)
        assert (1, 0) == (found.value("gpuqueue_store_up"), found.value("gpuqueue_history_up"))
        assert before.names["gpuqueue_jobs"] == found.names["gpuqueue_jobs"]
        assert 0 <= found.changed(before, "gpuqueue_jobs_submitted_total")
        assert 503 == get(site, "/api/v1/devices", mine(site))[0]  # only the metrics accept it
        assert 503 == get(site, "/metrics", mine(site, "wrong"))[0]
    assert 1 == scrape(site).value("gpuqueue_history_up")


@contextmanager
def _away(database: Path) -> Iterator[None]:
    """Put a directory in the place of the history's file, which SQLite cannot open."""
    hidden = database.with_name("hidden.db")
    database.rename(hidden)
    database.mkdir()
    try:
        yield
    finally:
        database.rmdir()
        hidden.rename(database)
