"""What is asked of Kubernetes, and what its Jobs and pods mean."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from gpuqueue.engines.engine import AllocationRequest, EngineUnreachable, Phase, Ref
from gpuqueue.engines.kubernetes import PULL_S, Kubernetes, job_of, merged, secret_of, status_of
from gpuqueue.engines.named import ENGINE_FILES
from gpuqueue.model.burst import ENGINES, PilotSettings

KEY = "k3v9m2xqab"
NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=timezone.utc)
REQUEST = AllocationRequest(gpus=2, duration_s=7200.0, script="echo gq_secret", warning_s=120.0, wait_s=3600.0)


def settings(**more: Any) -> PilotSettings:
    """Return settings with an image."""
    return PilotSettings(image="gpuqueue:1", **more)


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of its pod."""
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def test_without_the_client_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else needs it."""
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(EngineUnreachable, match=r"client of Kubernetes is missing: .*gpuqueue-server\[kubernetes\]"):
        Kubernetes(settings()).find([KEY])


def test_a_service_in_a_pod_uses_the_account_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the settings name a file."""
    pytest.importorskip("kubernetes", reason="the client of Kubernetes is an extra")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    with pytest.raises(EngineUnreachable, match="no usable configuration of Kubernetes: Service token file does not"):
        Kubernetes(settings()).find([KEY])
    with pytest.raises(EngineUnreachable, match="no usable configuration of Kubernetes: Invalid kube-config file"):
        Kubernetes(settings(kubeconfig="/no/where")).find([KEY])


def test_every_engine_has_a_file() -> None:
    """And each file is of an engine that the settings know."""
    assert [*ENGINES] == [*ENGINE_FILES]


def test_a_job_runs_once_and_has_its_times() -> None:
    """The pod's deadline leaves room for its image and its grace; that of the Job also for waiting."""
    job = job_of(settings(), REQUEST, KEY)
    spec, pod = job["spec"], pod_of(job)

    assert (0, "Never") == (spec["backoffLimit"], pod["restartPolicy"])
    assert 120 == pod["terminationGracePeriodSeconds"]
    assert 7200 + PULL_S == pod["activeDeadlineSeconds"] + pod["terminationGracePeriodSeconds"]
    assert 3600 + 7200 + PULL_S == spec["activeDeadlineSeconds"]
    assert {"nvidia.com/gpu": "2"} == pod["containers"][0]["resources"]["limits"]
    assert spec["suspend"]


def test_a_short_allocation_has_a_deadline_all_the_same() -> None:
    """Its warning is at most half of it."""
    pod = pod_of(job_of(settings(), AllocationRequest(gpus=1, duration_s=60.0, script="x"), KEY))
    assert (30, 30 + PULL_S) == (pod["terminationGracePeriodSeconds"], pod["activeDeadlineSeconds"])


def test_a_pod_gets_no_rights() -> None:
    """It has no token of the cluster, and cannot gain rights. Its script is for one group."""
    pod = pod_of(job_of(settings(), REQUEST, KEY))

    assert pod["automountServiceAccountToken"] is False
    assert {"allowPrivilegeEscalation": False} == pod["containers"][0]["securityContext"]
    assert {"secretName": f"gpuqueue-{KEY}", "defaultMode": 0o400} == pod["volumes"][0]["secret"]


def test_the_script_is_in_the_secret_alone() -> None:
    """The Secret goes with its Job."""
    assert "gq_secret" not in str(job_of(settings(), REQUEST, KEY))
    secret = secret_of(Ref(KEY, "u-1"), REQUEST.script)
    assert {"script": "echo gq_secret"} == secret["stringData"]
    assert [{"apiVersion": "batch/v1", "kind": "Job", "name": f"gpuqueue-{KEY}", "uid": "u-1"}] == secret["metadata"][
        "ownerReferences"
    ]


def test_a_queue_of_kueue_gets_a_suspended_job() -> None:
    """Without Kueue it would wait for ever, and take nothing from anybody. Its pod needs no such label."""
    job = job_of(settings(queue="team-a"), REQUEST, KEY)
    assert ("team-a", True) == (job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], job["spec"]["suspend"])
    assert "kueue.x-k8s.io/queue-name" not in job_of(settings(), REQUEST, KEY)["metadata"]["labels"]
    assert "kueue.x-k8s.io/queue-name" not in job["spec"]["template"]["metadata"]["labels"]


def test_fields_of_the_settings_are_merged() -> None:
    """Tables are merged, lists are added, and other values replaced. The command stays."""
    pod = pod_of(
        job_of(
            settings(
                gpu_resource="amd.com/gpu",
                pod={"hostPID": True, "securityContext": {"runAsUser": 7}, "volumes": [{"name": "data"}]},
                container={"resources": {"limits": {"cpu": "8"}}, "volumeMounts": [{"name": "data"}]},
            ),
            REQUEST,
            KEY,
        )
    )
    (container,) = pod["containers"]

    assert ({"fsGroup": 10001, "runAsUser": 7}, True) == (pod["securityContext"], pod["hostPID"])
    assert ["script", "shm", "data"] == [each["name"] for each in pod["volumes"]]
    assert ["script", "shm", "data"] == [each["name"] for each in container["volumeMounts"]]
    assert {"amd.com/gpu": "2", "cpu": "8"} == container["resources"]["limits"]
    assert {"a": [1, 2], "b": 3} == merged({"a": [1], "b": 2}, {"a": [2], "b": 3})


def stands(
    *pods: dict[str, Any], end: str = "", deleted: bool = False, suspended: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]], datetime]:
    """Return a Job and its pods, as the API lists them."""
    job = job_of(settings(), REQUEST, KEY)
    job["metadata"]["uid"] = "u-1"
    job["spec"]["suspend"] = suspended
    conditions = [{"type": "Suspended", "status": "False"}, {"type": "FailureTarget", "status": "True"}]
    if end:
        conditions.append({"type": end, "status": "True", "reason": "BackoffLimitExceeded"})
    job["status"] = {"conditions": conditions}
    if deleted:
        job["metadata"]["deletionTimestamp"] = "2026-11-30T11:59:00Z"
    return job, [*pods], NOW


def pod(phase: str, *, node: str | None = "n1", deleted: str = "", reason: str = "", **state: Any) -> dict[str, Any]:
    """Return a pod whose container is in *state*."""
    meta = {"name": "p", **({"deletionTimestamp": deleted} if deleted else {})}
    statuses = [{"name": "sidecar", "state": {"running": {"startedAt": "2026-11-30T09:00:00Z"}}}]
    statuses += [{"name": "pilot", "state": state}] if state else []
    status = {"phase": phase, "containerStatuses": statuses, **({"reason": reason} if reason else {})}
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}, "status": status}


RUNS = {"running": {"startedAt": "2026-11-30T11:30:00Z"}}


@pytest.mark.parametrize(
    ("listed", "phase", "word"),
    [
        (stands(), Phase.WAITING, "it has no pod yet: see kubectl describe job"),
        (stands(suspended=True), Phase.WAITING, "suspended"),
        (stands(pod("Pending", node=None)), Phase.WAITING, "pending"),
        (
            stands(pod("Pending", waiting={"reason": "ErrImagePull", "message": "no\nimage"})),
            Phase.WAITING,
            "ErrImagePull: no image",
        ),
        (stands(pod("Running", **RUNS)), Phase.RUNNING, "running"),
        (stands(pod("Running", **RUNS), suspended=True), Phase.RUNNING, "running"),
        (stands(pod("Running", **RUNS), end="Failed"), Phase.RUNNING, "ending"),
        (stands(pod("Running", **RUNS), deleted=True), Phase.RUNNING, "ending"),
        (stands(pod("Running", deleted="2026-11-30T12:01:00Z", **RUNS)), Phase.RUNNING, "running"),
        (stands(pod("Running", deleted="2026-11-30T11:50:00Z", **RUNS)), Phase.UNKNOWN, "node n1 does not answer"),
        (stands(pod("Running", deleted="2026-11-30T11:50:00Z", **RUNS), end="Failed"), Phase.UNKNOWN, "node n1 does"),
        (stands(pod("Unknown", **RUNS)), Phase.UNKNOWN, "node n1 does not answer"),
        (stands(pod("Failed", terminated={"reason": "Error"})), Phase.RUNNING, "ending"),
        (stands(pod("Succeeded", terminated={"reason": "Completed"}), end="Complete"), Phase.ENDED, "complete"),
        (stands(end="Failed"), Phase.ENDED, "failed (BackoffLimitExceeded)"),
        (stands(pod("Failed", terminated={"reason": "OOMKilled"}), end="Failed"), Phase.ENDED, "failed (OOMKilled)"),
        (
            stands(pod("Failed", reason="Evicted", terminated={"reason": "Error", "message": "a\nb\n"}), end="Failed"),
            Phase.ENDED,
            "failed (Evicted: b)",
        ),
    ],
)
def test_what_a_job_and_its_pods_mean(listed: Any, phase: Phase, word: str) -> None:
    """Only a condition of the Job, without a pod that may run, is an end."""
    found = status_of(*listed)
    assert phase is found.phase
    assert found.word.startswith(word)


def test_the_time_left_counts_from_the_start_of_the_container() -> None:
    """By the clock of the API server. It is never less than nothing."""
    assert (5400.0, "n1") == (
        status_of(*stands(pod("Running", **RUNS))).left_s,
        status_of(*stands(pod("Running", **RUNS))).node,
    )
    job, pods, now = stands(pod("Running", **RUNS))
    assert status_of(job, pods, now + timedelta(hours=9)).left_s == 0.0
