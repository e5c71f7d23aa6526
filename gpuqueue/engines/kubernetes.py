"""Kubernetes: allocations as Jobs of batch/v1, by the official client.

- The key is in the name of the Job, and the API has one Job of a name. The engine's id is the Job's uid, which never
  comes again.
- The script is in a Secret that belongs to the Job and goes with it; the Job and its pod say nothing of it. We may make
  Secrets, and need not read them. The Job is made suspended and resumed once its Secret is there, so a submit that
  dies in between holds no device.
- The time of an allocation begins with its container. Pulling the image comes before, and has ``PULL_S``.
- A running allocation is cancelled by its deadline, so that the Job stays for ``KEPT_S`` and says that it has ended.
- With a queue of Kueue it is Kueue that resumes the Job.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from gpuqueue.engines.absence import Absences
from gpuqueue.engines.engine import (
    ABSENT_S,
    AllocationRequest,
    EngineUnreachable,
    NotAccepted,
    Phase,
    Ref,
    Status,
    Uncertain,
    check_key,
    first,
)
from gpuqueue.errors import BadRequest, GpuQueueError, install_extra
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import in_one_line, short

if TYPE_CHECKING:
    from gpuqueue.model.burst import PilotSettings

#: The program of a pilot, if the settings name none: that of the image.
PROGRAM = "gpuqueue"
#: Time limits of connecting and of an answer, in seconds.
CONNECT_S, ASK_S = 10.0, 30.0
#: How often, and for how long, is tried again what had no answer in a submit, in seconds.
AGAIN_S, SEARCH_S = 2.0, 20.0
#: Longest time for pulling the image, and how long a Job stays after its end, in seconds.
PULL_S, KEPT_S = 1800, 3600
#: How long a pilot has that is ended at once, in seconds. With 0 the API would not wait for its end.
NOW_S = 5
#: A pod that should have been gone for so long is on a node that does not answer, in seconds.
LOST_S = 60.0
NAME, KEY, DURATION = "gpuqueue-", "gpuqueue/key", "gpuqueue/duration-s"
QUEUE = "kueue.x-k8s.io/queue-name"
PLACE = "/run/gpuqueue-pilot"
#: The group that reads the script, of whichever account the image has: that of our own image.
GROUP = 10001
_ROLE = "give the account the Role of docs/howto/kubernetes-pilots.md"
#: Answers of the API.
_BAD, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _TOO_MANY, _SERVER = 400, 401, 403, 404, 409, 429, 500


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesAccess:
    """How a cluster is reached, and how long is waited for it. The settings have the rest."""

    ask_s: float = ASK_S
    search_s: float = SEARCH_S
    absent_s: float = ABSENT_S


class Denied(GpuQueueError):
    """The API has answered with an error: it has done nothing. ``status`` is its code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message}: {_ROLE}" if status == _FORBIDDEN and " cannot " in message else message)
        self.status = status


class Unanswered(EngineUnreachable):
    """A request was sent, and there is no answer that says whether it was done."""


class Kubernetes:
    """Kubernetes as an engine. One object watches absences over its life; calls may come from one thread at a time."""

    name = "kubernetes"

    def __init__(
        self,
        settings: PilotSettings,
        access: KubernetesAccess | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._access = access or KubernetesAccess()
        self._clock = clock
        self._absences = Absences(self._access.absent_s)
        self._deleted: set[Ref] = set()
        self._client: Any = None

    # ---- submit --------------------------------------------------------------------------------------------------

    def submit(self, request: AllocationRequest, key: str) -> Ref:
        """Make a Job, and the Secret with its script. See :meth:`gpuqueue.engines.engine.Engine.submit`."""
        if not self._settings.image:
            raise BadRequest("a pilot needs a container image: set image in [burst.kubernetes]")
        job = job_of(self._settings, request, check_key(key))
        ref = first(self.find([key])) or self._make_job(key, job)
        self._complete(
            ref, "core", "create_namespaced_secret", self._settings.namespace, secret_of(ref, request.script)
        )
        if not self._settings.queue:  # else Kueue does it
            patch = {"metadata": {"uid": ref.id}, "spec": {"suspend": False}}
            self._complete(ref, "jobs", "patch_namespaced_job", NAME + key, self._settings.namespace, patch)
        return ref

    def _make_job(self, key: str, job: Mapping[str, Any]) -> Ref:
        try:
            made, _ = self._ask("jobs", "create_namespaced_job", self._settings.namespace, job)
            return Ref(key, made["metadata"]["uid"])
        except Denied as error:
            if error.status != _CONFLICT:
                raise NotAccepted(f"Kubernetes has refused: {error}") from None
            why = str(error)
        except Unanswered as error:
            why = str(error)
        until_s = self._clock() + self._access.search_s
        while True:
            try:
                found = first(self.find([key]))
            except EngineUnreachable:
                found = None
            if found is not None:
                return found
            if self._clock() >= until_s:
                raise Uncertain(f"Kubernetes may have accepted {NAME}{key}: {why}")
            time.sleep(AGAIN_S)

    def _complete(self, ref: Ref, group: str, method: str, *words: Any) -> None:
        """Do a further step for a Job that was made. It is done already if this was asked for before."""
        until_s = self._clock() + self._access.search_s
        while True:
            try:
                self._ask(group, method, *words)
            except Denied as error:
                if error.status == _CONFLICT:
                    return
                try:
                    self._delete(ref)
                except EngineUnreachable:
                    raise Uncertain(f"{NAME}{ref.key} cannot start, and is still there: {error}") from None
                raise NotAccepted(f"Kubernetes has refused: {error}") from None
            except EngineUnreachable as error:
                if self._clock() >= until_s:
                    raise Uncertain(f"it is not known whether {NAME}{ref.key} may start: {error}") from None
            else:
                return
            time.sleep(AGAIN_S)

    # ---- states --------------------------------------------------------------------------------------------------

    def states(self, refs: Collection[Ref]) -> Mapping[Ref, Status]:
        """Return how *refs* stand. See :meth:`gpuqueue.engines.engine.Engine.states`."""
        if not refs:
            return {}
        try:
            jobs, pods, now = self._listed([ref.key for ref in refs])
        except EngineUnreachable as error:
            self._absences.unanswered()
            return {ref: Status(phase=Phase.UNKNOWN, word=str(error)) for ref in refs}
        return {
            ref: self._present(ref, jobs[ref], pods, now)
            if ref in jobs
            else self._absent(ref, is_left=any(_key_of(pod) == ref.key for pod in pods))
            for ref in refs
        }

    def _present(self, ref: Ref, job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], now: datetime) -> Status:
        self._absences.present(ref)
        return status_of(job, [pod for pod in pods if _key_of(pod) == ref.key], now)

    def _absent(self, ref: Ref, *, is_left: bool) -> Status:
        """Return the status of what is not listed: there is no accounting, but a deleted Job goes after its pods."""
        absent_s = self._absences.absent(ref, self._clock())
        if not is_left and (ref in self._deleted or self._absences.is_long(absent_s)):
            return Status(phase=Phase.ENDED, word="deleted")
        return Status(phase=Phase.UNKNOWN, word=f"there has been no such Job for {absent_s:.0f} s")

    def _listed(self, keys: Sequence[str]) -> tuple[dict[Ref, Any], Sequence[Any], datetime]:
        """Return the Jobs and the pods with these *keys*, and the time on the clock of the API server."""
        where = self._settings.namespace
        among = {"label_selector": f"{KEY} in ({','.join(sorted(keys))})"}
        try:
            jobs, _ = self._ask("jobs", "list_namespaced_job", where, **among)
            pods, now = self._ask("core", "list_namespaced_pod", where, **among)
        except Denied as error:
            raise EngineUnreachable(f"Kubernetes does not say: {error}") from None
        return {_ref_of(job): job for job in jobs["items"]}, pods["items"], now

    # ---- cancel and find -----------------------------------------------------------------------------------------

    def cancel(self, ref: Ref, *, now: bool = False) -> None:
        """End a Job by its deadline, or delete it if it has not begun. In both cases the script gets SIGTERM alone."""
        jobs, pods, time_there = self._listed([ref.key])
        if ref not in jobs:
            return
        phase = status_of(jobs[ref], pods, time_there).phase
        if phase is Phase.WAITING or (now and phase is not Phase.ENDED):
            self._delete(ref)
            for pod in pods if now else ():
                meta = pod["metadata"]
                body = {"preconditions": {"uid": meta["uid"]}, "gracePeriodSeconds": NOW_S}
                self._end("core", "delete_namespaced_pod", meta["name"], body)
        elif phase is not Phase.ENDED:
            patch = {"metadata": {"uid": ref.id}, "spec": {"activeDeadlineSeconds": 1}}
            self._end("jobs", "patch_namespaced_job", NAME + ref.key, patch)

    def _delete(self, ref: Ref) -> None:
        """Delete a Job, which goes after its pods."""
        body = {"preconditions": {"uid": ref.id}, "propagationPolicy": "Foreground"}
        self._end("jobs", "delete_namespaced_job", NAME + ref.key, body)
        self._deleted.add(ref)

    def _end(self, group: str, method: str, name: str, body: Mapping[str, Any]) -> None:
        try:
            self._ask(group, method, name, self._settings.namespace, body=body)
        except Denied as error:
            if error.status not in {_NOT_FOUND, _CONFLICT}:  # gone, or another one of this name
                raise EngineUnreachable(f"Kubernetes did not end {name}: {error}") from None

    def find(self, keys: Collection[str]) -> Mapping[Ref, Status]:
        """Find Jobs by the label with their key."""
        if not keys:
            return {}
        try:
            jobs, pods, now = self._listed([*map(check_key, keys)])
        except EngineUnreachable:
            self._absences.unanswered()
            raise
        return {ref: self._present(ref, job, pods, now) for ref, job in jobs.items()}

    # ---- the API -------------------------------------------------------------------------------------------------

    def _ask(self, group: str, method: str, *words: Any, **options: Any) -> tuple[dict[str, Any], datetime]:
        """Call a method of the client; return what the API answers, and the time there.

        Raises:
            Denied: the API refuses, and has done nothing.
            Unanswered: it may have done what was asked.
            EngineUnreachable: nothing was sent.

        """
        api = self._connected()
        import urllib3  # noqa: PLC0415 - the client has it
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415 - slow

        limits = (min(CONNECT_S, self._access.ask_s), self._access.ask_s)
        try:
            answer = getattr(api[group], method)(*words, _preload_content=False, _request_timeout=limits, **options)
            body, date = json.loads(answer.data), answer.headers.get("Date")
        except ApiException as error:
            raise self._trouble(error) from None
        except urllib3.exceptions.ConnectTimeoutError:
            raise EngineUnreachable(f"the API server of Kubernetes at {api['host']} does not answer") from None
        except urllib3.exceptions.HTTPError as error:
            why = "in time" if isinstance(error, urllib3.exceptions.TimeoutError) else f"({type(error).__name__})"
            raise Unanswered(f"the API server of Kubernetes at {api['host']} did not answer {why}") from None
        except json.JSONDecodeError:
            raise Unanswered(f"{api['host']} is no API server of Kubernetes: its answer is no JSON") from None
        except ValueError as error:  # of the client, which checks what it sends
            words_of = short(in_one_line(" ".join(str(error).splitlines()[1:3])), 200)
            raise BadRequest(f"this is no Job for Kubernetes: {words_of}: see [burst.kubernetes]") from None
        return body, datetime.now(timezone.utc) if date is None else parsedate_to_datetime(date)

    def _trouble(self, error: Any) -> GpuQueueError:
        """Return what an error of the API means."""
        try:
            message = json.loads(error.body)["message"]
        except (KeyError, TypeError, ValueError):
            message = f"{error.status} {error.reason}"
            if error.status == _NOT_FOUND:  # not of an API server
                return Unanswered(f"this is no API server of Kubernetes: {in_one_line(message)}")
        text = short(in_one_line(message), 300)
        if error.status == _UNAUTHORIZED:
            self._client = None  # the credentials are read again
            return EngineUnreachable(f"Kubernetes does not know us: {text}", "are the credentials out of date?")
        if error.status == _TOO_MANY:
            return EngineUnreachable(f"Kubernetes is busy: {text}")
        if _BAD <= error.status < _SERVER:
            return Denied(error.status, text)
        return Unanswered(f"Kubernetes has an error: {text}")

    def _connected(self) -> Any:
        """Return the groups of the API, and its address.

        Raises:
            EngineUnreachable: the client is not installed, or there is no usable configuration.

        """
        if self._client is None:
            try:
                from kubernetes import client, config  # noqa: PLC0415 - an extra, and slow
            except ImportError:
                raise EngineUnreachable("the client of Kubernetes is missing", install_extra("kubernetes")) from None
            found, own = client.Configuration(), self._settings
            try:
                if "KUBERNETES_SERVICE_HOST" in os.environ and not (own.kubeconfig or own.context):
                    config.load_incluster_config(client_configuration=found)
                else:
                    path = os.path.expandvars(own.kubeconfig) or None
                    config.load_kube_config(path, own.context or None, client_configuration=found)
            except Exception as error:  # noqa: BLE001 - of the client, of YAML, of the programs that it runs
                raise EngineUnreachable(
                    f"there is no usable configuration of Kubernetes: {short(in_one_line(str(error)), 200)}",
                    "set kubeconfig and context in [burst.kubernetes]",
                ) from None
            found.retries = False  # a second try is ours to decide
            api = client.ApiClient(found)
            self._client = {"jobs": client.BatchV1Api(api), "core": client.CoreV1Api(api), "host": found.host}
        return self._client


# ---- what is asked for -----------------------------------------------------------------------------------------------


def job_of(settings: PilotSettings, request: AllocationRequest, key: str) -> dict[str, Any]:
    """Return the Job for *request*, suspended and without its script."""
    duration_s = math.ceil(request.duration_s)
    grace_s = math.ceil(min(request.warning_s, request.duration_s / 2))
    labels = {"app.kubernetes.io/managed-by": "gpuqueue", KEY: key}
    container = {
        "name": "pilot",
        "image": settings.image,
        "command": ["bash", f"{PLACE}/script"],
        "resources": {"limits": {settings.gpu_resource: str(request.gpus)}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "script", "mountPath": PLACE, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - of the container: its own has 64 MiB
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        "activeDeadlineSeconds": duration_s + PULL_S - grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"fsGroup": GROUP},
        "volumes": [
            {"name": "script", "secret": {"secretName": NAME + key, "defaultMode": 0o400}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": NAME + key,
            "labels": {**labels, **({QUEUE: settings.queue} if settings.queue else {})},
            "annotations": {DURATION: str(duration_s)},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": math.ceil(request.wait_s) + duration_s + PULL_S,
            "ttlSecondsAfterFinished": KEPT_S,
            "suspend": True,
            "template": {
                "metadata": {"labels": labels},
                "spec": {**merged(pod, settings.pod), "containers": [merged(container, settings.container)]},
            },
        },
    }


def secret_of(ref: Ref, script: str) -> dict[str, Any]:
    """Return the Secret with *script* for the Job *ref*, to which it belongs."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": NAME + ref.key, "uid": ref.id}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": NAME + ref.key, "labels": {KEY: ref.key}, "ownerReferences": [owner]},
        "immutable": True,
        "stringData": {"script": script},
    }


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return *ours* with *theirs*: tables are merged, lists are added, and of other values theirs counts."""
    found = dict(ours)
    for name, value in theirs.items():
        own = ours.get(name)
        if isinstance(own, dict) and isinstance(value, dict):
            found[name] = merged(own, value)
        else:
            found[name] = [*own, *value] if isinstance(own, list) and isinstance(value, list) else value
    return found


# ---- what it says ----------------------------------------------------------------------------------------------------


def status_of(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], now: datetime) -> Status:
    """Return how a Job stands with its *pods*, at *now* on the clock of the API server."""
    alive = [pod for pod in pods if pod["status"].get("phase") not in {"Succeeded", "Failed"}]
    conditions = job.get("status", {}).get("conditions") or []
    end = next(
        (each for each in conditions if each["type"] in {"Complete", "Failed"} and each["status"] == "True"), None
    )
    if end is not None and not alive:
        return Status(phase=Phase.ENDED, word=_word_of_end(end, pods))
    lost = next((pod for pod in alive if _is_lost(pod, now)), None)
    if lost is not None:
        return Status(phase=Phase.UNKNOWN, word=f"node {lost['spec'].get('nodeName')} does not answer")
    node = next((found for pod in alive if (found := pod["spec"].get("nodeName"))), None)
    if end is not None or "deletionTimestamp" in job["metadata"]:
        return Status(phase=Phase.RUNNING, word="ending", node=node)
    return _status_of_live(job, alive, node, now, is_over=bool(pods) and not alive)


def _status_of_live(
    job: Mapping[str, Any], alive: Sequence[Mapping[str, Any]], node: str | None, now: datetime, *, is_over: bool
) -> Status:
    """Return how a Job stands that nobody has ended. ``is_over``: its pod has ended, but not yet the Job."""
    for pod in alive:
        began = _began(pod)
        if began is not None:
            left_s = max(0.0, _duration_s(job) - (now - began).total_seconds())
            return Status(phase=Phase.RUNNING, word="running", node=node, left_s=left_s)
    if job["spec"].get("suspend"):
        queue = job["metadata"].get("labels", {}).get(QUEUE, "")
        return Status(phase=Phase.WAITING, word=f"suspended: it waits for Kueue in {queue}" if queue else "suspended")
    if is_over:
        return Status(phase=Phase.RUNNING, word="ending")
    return Status(
        phase=Phase.WAITING, word=_why_waiting(alive[0]) if alive else "it has no pod yet: see kubectl describe job"
    )


def _key_of(thing: Mapping[str, Any]) -> object:
    return thing["metadata"].get("labels", {}).get(KEY)


def _ref_of(job: Mapping[str, Any]) -> Ref:
    return Ref(job["metadata"]["name"].removeprefix(NAME), job["metadata"]["uid"])


def _duration_s(job: Mapping[str, Any]) -> float:
    return float(job["metadata"]["annotations"][DURATION])


def _container(pod: Mapping[str, Any], state: str) -> Mapping[str, Any] | None:
    """Return what a pod says of its container in *state*: ``waiting``, ``running`` or ``terminated``."""
    for each in pod["status"].get("containerStatuses") or ():
        if each["name"] == "pilot" and (found := each.get("state", {}).get(state)) is not None:
            return dict(found)
    return None


def _began(pod: Mapping[str, Any]) -> datetime | None:
    running = _container(pod, "running")
    return None if running is None else _time(running["startedAt"])


def _is_lost(pod: Mapping[str, Any], now: datetime) -> bool:
    """Return whether a pod should be gone: its deletion has the time of its latest end."""
    deleted = pod["metadata"].get("deletionTimestamp")
    is_late = deleted is not None and now - _time(deleted) > timedelta(seconds=LOST_S)
    return is_late or pod["status"].get("phase") == "Unknown"


def _word_of_end(end: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> str:
    """Return how a Job ended, by its pod if it has one still: that says more."""
    if end["type"] == "Complete":
        return "complete"
    why = end.get("reason", "")
    for pod in pods:
        gone = _container(pod, "terminated") or {}
        lines = [line for line in str(gone.get("message", "")).splitlines() if line.strip()]
        why = pod["status"].get("reason") or gone.get("reason") or why
        why += f": {lines[-1]}" if lines else ""
    return f"failed ({short(in_one_line(why), 200)})"


def _why_waiting(pod: Mapping[str, Any]) -> str:
    waiting = _container(pod, "waiting")
    if waiting is None:
        conditions = pod["status"].get("conditions") or ()
        waiting = next((each for each in conditions if each["type"] == "PodScheduled" and each["status"] != "True"), {})
    texts = [waiting.get("reason", "") or "pending", waiting.get("message", "")]
    return short(in_one_line(": ".join(filter(None, texts))), 200)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


# ---- for pilots ------------------------------------------------------------------------------------------------------


def engine_of(settings: PilotSettings) -> Kubernetes:
    """Return the engine of the table ``[burst.kubernetes]``."""
    return Kubernetes(settings)


def left_here_s(_environ: Mapping[str, str]) -> float | None:
    """Return None: the time of an allocation begins with its script, which counts it itself."""
    return None
