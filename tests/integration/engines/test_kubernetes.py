"""Kubernetes as an engine, with the official client and a fake cluster: the conformance tests, and its own traps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from bounded import until
from engine_conformance import Bench, EngineConformance, asking, status_of, until_phase
from fake_cluster import FakeCluster, running_cluster
from forked_command import BIN

from gpuqueue.engines.engine import EngineUnreachable, NotAccepted, Phase, Ref, Uncertain, new_key
from gpuqueue.engines.kubernetes import NAME, Kubernetes, KubernetesAccess
from gpuqueue.model.burst import PilotSettings

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    """Return a cluster with one node of four GPUs. The tests of the module share it."""
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    with running_cluster(tmp_path_factory.mktemp("cluster"), environ) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client reach this machine."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(autouse=True)
def _calm(cluster: FakeCluster) -> Iterator[None]:
    """Leave nothing in the cluster to the next test."""
    yield
    cluster.clear()


def settings_of(cluster: FakeCluster, **more: object) -> PilotSettings:
    """Return how the cluster is reached."""
    plain = {"image": "gpuqueue:1", "namespace": "lab", "kubeconfig": str(cluster.kubeconfig)}
    return PilotSettings(**{**plain, **more})  # type: ignore[arg-type]


def engine_on(cluster: FakeCluster, *, ask_s: float = 10.0, search_s: float = 3.0, **more: object) -> Kubernetes:
    """Return a new engine."""
    return Kubernetes(settings_of(cluster, **more), KubernetesAccess(ask_s=ask_s, search_s=search_s))


class KubernetesBench(Bench):
    """The fake cluster."""

    visible = "NVIDIA_VISIBLE_DEVICES"

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def engine(self) -> Kubernetes:
        """Return a new engine."""
        return engine_on(self._cluster)

    def unreachable(self) -> Kubernetes:
        """Return an engine whose API server takes each request, and does not answer."""
        self._cluster.api.faults += [(method, "jobs", "hang") for method in ("GET", "POST") for _ in range(9)]
        return engine_on(self._cluster, ask_s=0.3, search_s=0.1)

    def reuse_id(self, ref: Ref) -> None:
        """Do nothing: no uid comes again, and the test has a ref with that of another Job."""


@pytest.fixture
def bench(cluster: FakeCluster) -> KubernetesBench:
    """Return the fake cluster."""
    return KubernetesBench(cluster)


class TestConformance(EngineConformance):
    """What each engine promises, of Kubernetes."""


# ---- submit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "resource"), [("POST", "jobs"), ("POST", "secrets"), ("PATCH", "jobs")])
@pytest.mark.parametrize("how", ["lose", "drop", 500])
def test_a_lost_answer_makes_one_job_with_its_script(
    cluster: FakeCluster, tmp_path: Path, method: str, resource: str, how: str | int
) -> None:
    """The API has done it, or not, and does not say. The allocation is found and complete, or known to be unsure."""
    engine, key, seen = engine_on(cluster), new_key(), tmp_path / "seen"
    request = asking(f"echo x >> {seen}")
    cluster.api.faults.append((method, resource, how))
    try:
        ref = engine.submit(request, key)
    except Uncertain:
        ref = engine.submit(request, key)

    until_phase(engine, ref, Phase.ENDED)
    assert "x\n" == seen.read_text()
    assert [NAME + key] == [job["metadata"]["name"] for job in cluster.api.of_kind("jobs")]


def test_a_submit_that_dies_in_the_middle_holds_no_gpu(cluster: FakeCluster) -> None:
    """The Job has no script, so it stays suspended: no pod waits on a node. It can be cancelled as any other."""
    cluster.api.faults += [("POST", "secrets", "drop") for _ in range(9)]
    engine, key = engine_on(cluster, search_s=0.1), new_key()
    with pytest.raises(Uncertain, match=f"not known whether {NAME}{key} may start"):
        engine.submit(asking("true"), key)

    (ref,) = engine.find([key])
    assert (Phase.WAITING, "suspended") == (status_of(engine, ref).phase, status_of(engine, ref).word)
    assert [] == cluster.api.of_kind("pods")
    engine.cancel(ref)
    until_phase(engine, ref, Phase.ENDED)


def test_a_job_without_its_script_never_runs_and_is_taken_back(cluster: FakeCluster) -> None:
    """The account may not make Secrets. The line names the right that is missing, and nothing is left."""
    cluster.api.allowed = {("jobs", "create"), ("jobs", "list"), ("pods", "list"), ("jobs", "delete")}
    key = new_key()
    with pytest.raises(NotAccepted, match=r'cannot create resource "secrets".*Role of docs/howto/kubernetes-pilots'):
        engine_on(cluster).submit(asking("true"), key)

    until(lambda: not cluster.api.of_kind("jobs"), what="an empty namespace")


def test_a_job_of_somebody_else_with_the_name_is_not_ours(cluster: FakeCluster) -> None:
    """It has no key of ours. It is neither found nor touched."""
    key = new_key()
    ref = engine_on(cluster).submit(asking("sleep 600"), key)
    with cluster.api.lock:
        del cluster.api.objects["jobs", NAME + key]["metadata"]["labels"]["gpuqueue/key"]

    assert {} == engine_on(cluster).find([key])
    with pytest.raises(Uncertain, match="already exists"):
        engine_on(cluster, search_s=0.1).submit(asking("true"), key)
    engine_on(cluster).cancel(ref, now=True)
    assert ("jobs", NAME + key) in cluster.api.objects


def test_neither_job_nor_pod_has_the_secret(cluster: FakeCluster) -> None:
    """It is in a Secret of mode 0400 that goes with its Job, and in no list of processes."""
    engine = engine_on(cluster)
    ref = engine.submit(asking("stat -L -c %a /run/gpuqueue-pilot/script; : gq_secret; sleep 600"), new_key())
    until(lambda: "400" in cluster.log(NAME + ref.key), what="the mode")

    shown = str([cluster.api.of_kind("jobs"), cluster.api.of_kind("pods")])
    words = [*_command_lines()]
    assert "gq_secret" not in shown
    assert not [line for line in words if "gq_secret" in line]
    (secret,) = cluster.api.of_kind("secrets")
    assert [ref.id] == [each["uid"] for each in secret["metadata"]["ownerReferences"]]
    engine.cancel(ref, now=True)
    until_phase(engine, ref, Phase.ENDED)
    assert [] == cluster.api.of_kind("secrets")


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_text(errors="replace")


# ---- states ----------------------------------------------------------------------------------------------------------


def test_what_kueue_holds_waits_and_what_it_preempts_waits_again(cluster: FakeCluster, tmp_path: Path) -> None:
    """The Job begins suspended, has the label of its queue, and gets SIGTERM when Kueue suspends it again."""
    engine = engine_on(cluster, queue="team-a")
    script = f"trap 'echo told >> {tmp_path}/told; exit 1' TERM; touch {tmp_path}/began; sleep 600 & wait"
    ref = engine.submit(asking(script), new_key())
    found = status_of(engine, ref)
    assert (Phase.WAITING, "suspended: it waits for Kueue in team-a") == (found.phase, found.word)
    assert "team-a" == cluster.api.objects["jobs", NAME + ref.key]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]

    cluster.change(NAME + ref.key, suspend=False)
    until_phase(engine, ref, Phase.RUNNING)
    until((tmp_path / "began").exists, what="the script")
    cluster.change(NAME + ref.key, suspend=True)
    until_phase(engine, ref, Phase.WAITING)
    assert "told\n" == (tmp_path / "told").read_text()
    engine.cancel(ref)
    until_phase(engine, ref, Phase.ENDED)


def test_the_list_says_why_a_pod_waits(cluster: FakeCluster) -> None:
    """No image, or no free GPU."""
    engine = engine_on(cluster, image="missing:1")
    ref = engine.submit(asking("true"), new_key())
    until(lambda: "ImagePullBackOff: Back-off pulling" in status_of(engine, ref).word, what="the reason")
    many = engine.submit(asking("true", gpus=8), new_key())
    until(lambda: "Unschedulable: 0/1 nodes" in status_of(engine, many).word, what="the reason")

    assert {Phase.WAITING} == {each.phase for each in engine.states([ref, many]).values()}


def test_the_list_says_why_a_job_has_failed(cluster: FakeCluster) -> None:
    """The last line of the script, or what the node says of it."""
    engine = engine_on(cluster)
    failed = engine.submit(asking("echo 'gpuqueue: no service' >&2; exit 4"), new_key())
    assert "failed (Error: gpuqueue: no service)" == until_phase(engine, failed, Phase.ENDED).word

    evicted = engine.submit(asking("sleep 600 & wait"), new_key())
    until_phase(engine, evicted, Phase.RUNNING)
    cluster.evict(NAME + evicted.key)
    cluster.kill(NAME + evicted.key)
    assert "failed (Evicted" in until_phase(engine, evicted, Phase.ENDED).word


def test_a_node_that_is_gone_ends_nothing(cluster: FakeCluster) -> None:
    """The pod was deleted long ago, and nobody says that its processes have ended."""
    engine = engine_on(cluster)
    ref = engine.submit(asking("sleep 600"), new_key())
    until_phase(engine, ref, Phase.RUNNING)
    cluster.lose_node(NAME + ref.key)

    found = status_of(engine, ref)
    assert (Phase.UNKNOWN, "node node-1 does not answer") == (found.phase, found.word)


def test_a_job_that_somebody_deletes_has_ended_after_five_minutes_without_it(cluster: FakeCluster) -> None:
    """One time without an answer begins them anew."""
    clock = [0.0]
    engine = Kubernetes(settings_of(cluster), KubernetesAccess(ask_s=2.0), clock=lambda: clock[0])
    ref = engine.submit(asking("sleep 600"), new_key())
    until_phase(engine, ref, Phase.RUNNING)
    cluster.delete(NAME + ref.key)
    cluster.kill(NAME + ref.key)
    until(lambda: not cluster.api.of_kind("jobs"), what="its deletion")

    assert Phase.UNKNOWN is status_of(engine, ref).phase
    clock[0] = 200.0
    cluster.api.faults.append(("GET", "jobs", 503))
    assert "the server is tired" in status_of(engine, ref).word
    clock[0] = 310.0
    assert "there has been no such Job for 0 s" == status_of(engine, ref).word
    clock[0] = 611.0
    assert (Phase.ENDED, "deleted") == (status_of(engine, ref).phase, status_of(engine, ref).word)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_a_missing_right_is_named(cluster: FakeCluster) -> None:
    """Nothing is taken for ended because of it."""
    engine = engine_on(cluster)
    cluster.api.allowed = set()
    ref = Ref(new_key(), "1")
    for act in (
        lambda: engine.find([ref.key]),
        lambda: engine.cancel(ref),
        lambda: engine.submit(asking("true"), ref.key),
    ):
        with pytest.raises(EngineUnreachable, match=r'cannot (get|list) resource "(jobs|pods)".*: give the account'):
            act()
    assert Phase.UNKNOWN is status_of(engine, ref).phase


def test_a_server_that_is_no_cluster_is_named(cluster: FakeCluster, tmp_path: Path) -> None:
    """Neither a closed port nor a missing file is taken for an answer."""
    closed = tmp_path / "config"
    closed.write_text(cluster.kubeconfig.read_text().replace(cluster.api.url, "http://127.0.0.1:9"))
    with pytest.raises(EngineUnreachable, match=r"at http://127\.0\.0\.1:9 does not answer"):
        engine_on(cluster, kubeconfig=str(closed)).submit(asking("true"), new_key())
    with pytest.raises(EngineUnreachable, match=r"no usable configuration.*set kubeconfig and context"):
        engine_on(cluster, kubeconfig="/nowhere").find([new_key()])


def test_only_the_rights_of_the_page_are_used(cluster: FakeCluster) -> None:
    """The Role on the page has all verbs that the engine needs, and no more."""
    import yaml  # noqa: PLC0415 - the client has it

    page = (Path(__file__).parents[3] / "docs/howto/kubernetes-pilots.md").read_text()
    (text,) = [part.partition("```")[0] for part in page.split("```yaml\n")[1:] if "kind: Role\n" in part]
    role = next(each for each in yaml.safe_load_all(text) if each["kind"] == "Role")
    rights = {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}
    api = cluster.api
    api.allowed = rights
    api.used.clear()
    engine = engine_on(cluster)
    running, waiting = (
        engine.submit(asking("sleep 600 & trap 'kill $!; exit' TERM; wait", n), new_key()) for n in (1, 9)
    )
    until_phase(engine, running, Phase.RUNNING)
    assert Phase.WAITING is status_of(engine, waiting).phase
    for ref in (running, waiting):
        engine.cancel(ref)
        until_phase(engine, ref, Phase.ENDED)
    stubborn = engine.submit(asking("sleep 600"), new_key())
    until_phase(engine, stubborn, Phase.RUNNING)
    engine.cancel(stubborn, now=True)
    until_phase(engine, stubborn, Phase.ENDED)

    assert rights == api.used
