"""The rest of a cluster behind ``fake_kubernetes.py``: the Job controller, the scheduler, and the kubelet of one node.

A container is a process of this machine in a pid and mount namespace of its own, so its command is pid 1 there, and
whatever it started ends with it. It has the volumes of its pod at their paths, and no home. The image is this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from fake_kubernetes import FakeApi, Object, gpus_of, now

NODE, GPUS, TICK_S = "node-1", 4, 0.05
#: Makes the namespaces of a container. Without rights for that, a user namespace gives them.
UNSHARE = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child=SIGKILL")
#: Mounts pairs of a source, or tmpfs, and a path; then runs the rest.
MOUNT = """
while [ "$1" != -- ]; do
    [ -d "$2" ] || { mount -t tmpfs tmpfs "$(dirname "$2")" && mkdir -p "$2"; } || exit 125
    if [ "$1" = tmpfs ]; then mount -t tmpfs tmpfs "$2"; else mount --bind "$1" "$2"; fi || exit 125
    shift 2
done
shift
exec "$@"
"""


class Container:
    """The process of one pod."""

    def __init__(self, command: list[str], mounts: Mapping[str, str], environ: Mapping[str, str], log: Path) -> None:
        self.log = log
        pairs = [word for path, source in mounts.items() for word in (source, path)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*_unshare(), "sh", "-c", MOUNT, "sh", *pairs, "--", *command],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                start_new_session=True,
            )

    def code(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Signal pid 1 of the container, as a kubelet does."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                os.kill(int(child), number)

    def kill(self) -> None:
        """End all of it, and wait for that."""
        self.signal(signal.SIGKILL)
        self._process.kill()
        self._process.wait(30)


class FakeCluster:
    """A namespace of a cluster with one node of four GPUs. ``logs`` has what containers write."""

    def __init__(self, place: Path, environ: Mapping[str, str]) -> None:
        if (
            sys.platform != "linux"
            or subprocess.run([*_unshare(), "true"], check=False, capture_output=True).returncode
        ):
            pytest.skip("this account may not make namespaces, which stand for containers")
        self.api = FakeApi()
        self.place = place
        self.kubeconfig = place / "kubeconfig"
        self.kubeconfig.write_text(self.api.kubeconfig())
        self._environ = environ
        self._containers: dict[str, Container] = {}
        self._gpus: dict[str, list[int]] = {}
        self._stopping = threading.Event()
        #: Of pods: by when they are killed, by uid; on a monotonic clock.
        self._kill_at_s: dict[str, float] = {}
        #: Of pods: those whose node nobody reaches, by uid.
        self._lost: set[str] = set()
        self.trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End everything."""
        self._stopping.set()
        self._thread.join(30)
        for container in self._containers.values():
            container.kill()
        self.api.stop()
        assert self.trouble is None, self.trouble

    # ---- what a test does ------------------------------------------------------------------------------------------

    def pod_of(self, job: str) -> Object | None:
        """Return the pod of a Job."""
        with self.api.lock:
            pods = (pod for pod in self.api.of_kind("pods") if pod["metadata"]["labels"].get("job-name") == job)
            return next(pods, None)

    def log(self, job: str) -> str:
        """Return what the pods of a Job have written."""
        return "".join(path.read_text(errors="replace") for path in self.place.glob(f"{job}-*.log"))

    def change(self, job: str, **spec: Any) -> None:
        """Change fields of a Job as a controller of the cluster does, such as Kueue."""
        with self.api.lock:
            found = self.api.objects["jobs", job]
            found["spec"] |= spec
            self.api.store("jobs", found)

    def delete(self, job: str) -> None:
        """Delete a Job as an admin does, with all that belongs to it."""
        with self.api.lock:
            self.api.objects["jobs", job]["metadata"].setdefault("deletionTimestamp", now())

    def evict(self, job: str) -> None:
        """End the pod of a Job, as for lack of memory of the node."""
        pod = self.pod_of(job)
        assert pod is not None
        with self.api.lock:
            pod["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
            self._end(pod)

    def lose_node(self, job: str) -> None:
        """Have the node of a Job's pod gone for long: the pod was deleted, and nobody says that it has ended."""
        pod = self.pod_of(job)
        assert pod is not None
        late = datetime.now(timezone.utc) - timedelta(minutes=10)
        with self.api.lock:
            pod["metadata"]["deletionTimestamp"] = late.strftime("%Y-%m-%dT%H:%M:%SZ")
            self._lost.add(pod["metadata"]["uid"])

    def clear(self) -> None:
        """Delete all Jobs, kill their containers, and wait until the namespace is empty."""
        with self.api.lock:
            self._lost.clear()
            self.api.faults.clear()
            self.api.allowed = None
            for job in self.api.of_kind("jobs"):
                self.delete(job["metadata"]["name"])
                self.kill(job["metadata"]["name"])
        until(lambda: not self.api.objects, what="an empty namespace")

    def kill(self, job: str) -> None:
        """Kill the container of a Job's pod, as the kernel does for lack of memory."""
        pod = self.pod_of(job)
        if pod is not None and pod["metadata"]["uid"] in self._containers:
            self._containers[pod["metadata"]["uid"]].kill()

    # ---- controllers -----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping.wait(TICK_S):
            try:
                with self.api.lock:
                    for job in self.api.of_kind("jobs"):
                        self._control(job)
                    for pod in self.api.of_kind("pods"):
                        self._run(pod)
            except BaseException as error:
                self.trouble = error
                raise

    def _control(self, job: Object) -> None:
        """Do what the Job controller does, and the garbage collector."""
        meta, spec, status = job["metadata"], job["spec"], job["status"]
        pods = [pod for pod in self.api.of_kind("pods") if pod["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]]
        alive = [pod for pod in pods if pod["status"]["phase"] not in {"Succeeded", "Failed"}]
        if "deletionTimestamp" in meta:
            self._collect(job, pods, alive)
            return
        if status.get("conditions") and status["conditions"][0]["type"] in {"Complete", "Failed"}:
            return
        reason = self._end_of(job, pods)
        if reason or spec.get("suspend"):
            for pod in alive:
                self._end(pod, delete=True)
            if spec.get("suspend"):
                status.pop("startTime", None)
        elif not pods:
            status.setdefault("startTime", now())
            self._make_pod(job)
        if reason and not alive:
            kind = "Complete" if reason == "Complete" else "Failed"
            status["conditions"] = [{"type": kind, "status": "True", "reason": reason, "lastTransitionTime": now()}]
            self.api.store("jobs", job)

    def _collect(self, job: Object, pods: list[Object], alive: list[Object]) -> None:
        """Drop a Job that is being deleted, after its pods."""
        for pod in alive:
            self._end(pod, delete=True)
        if not alive:
            for pod in pods:
                self.api.remove("pods", pod["metadata"]["name"])
            self.api.remove("jobs", job["metadata"]["name"])

    @staticmethod
    def _end_of(job: Object, pods: list[Object]) -> str:
        """Return why a Job is over; empty: it is not."""
        began = job["status"].get("startTime")
        if began is not None and _since_s(began) >= job["spec"].get("activeDeadlineSeconds", 1 << 31):
            return "DeadlineExceeded"
        phases = {pod["status"]["phase"] for pod in pods}
        if "Succeeded" in phases:
            return "Complete"
        return "BackoffLimitExceeded" if "Failed" in phases and not job["spec"].get("suspend") else ""

    def _make_pod(self, job: Object) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        labels = {**template["metadata"].get("labels", {}), "job-name": meta["name"]}
        name = f"{meta['name']}-{uuid.uuid4().hex[:5]}"
        made = {
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "spec": dict(template["spec"]),
        }
        self.api.add("pods", made)["status"] = {"phase": "Pending", "conditions": []}

    # ---- scheduler and kubelet -------------------------------------------------------------------------------------

    def _run(self, pod: Object) -> None:
        """Do the next step of a pod."""
        uid, status = pod["metadata"]["uid"], pod["status"]
        if uid in self._lost:
            return
        container = self._containers.get(uid)
        if "deletionTimestamp" in pod["metadata"] and status["phase"] not in {"Succeeded", "Failed"}:
            self._end(pod)
        if status["phase"] in {"Succeeded", "Failed"}:
            if "deletionTimestamp" in pod["metadata"]:
                self.api.remove("pods", pod["metadata"]["name"])
        elif container is None:
            if "nodeName" not in pod["spec"]:
                self._schedule(pod)
            else:
                self._begin(pod)
        elif container.code() is not None:
            self._note_end(pod, container)
        elif _since_s(status["startTime"]) >= pod["spec"].get("activeDeadlineSeconds", 1 << 31):
            status["reason"] = "DeadlineExceeded"
            self._end(pod)
        if uid in self._kill_at_s and time.monotonic() >= self._kill_at_s[uid] and container is not None:
            container.signal(signal.SIGKILL)

    def _schedule(self, pod: Object) -> None:
        wanted = gpus_of(pod["spec"])
        free = [number for number in range(GPUS) if not any(number in used for used in self._gpus.values())]
        if wanted > len(free):
            why = f"0/1 nodes are available: 1 Insufficient nvidia.com/gpu: {len(free)} free"
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        else:
            condition = {"type": "PodScheduled", "status": "True"}
            self._gpus[pod["metadata"]["uid"]] = free[:wanted]
            pod["spec"]["nodeName"] = NODE
            pod["status"]["startTime"] = now()
        pod["status"]["conditions"] = [condition]
        self.api.store("pods", pod)

    def _begin(self, pod: Object) -> None:
        """Start the container, once its image and volumes are there."""
        (spec,) = pod["spec"]["containers"]
        waiting = {"reason": "ContainerCreating"}
        if spec["image"].startswith("missing"):
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{spec["image"]}"'}
        sources = self._volumes(pod) if waiting["reason"] == "ContainerCreating" else None
        if sources is None:
            pod["status"]["containerStatuses"] = [{"name": spec["name"], "state": {"waiting": waiting}}]
            return
        uid = pod["metadata"]["uid"]
        environ = {
            "PATH": self._environ["PATH"],
            "NVIDIA_VISIBLE_DEVICES": ",".join(f"GPU-{number}" for number in self._gpus[uid]),
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "GPUQUEUE_STATE_DIR": "/var/lib/gpuqueue",  # our image sets it
            **{each["name"]: each["value"] for each in spec.get("env", [])},
        }
        mounts = {each["mountPath"]: sources[each["name"]] for each in spec.get("volumeMounts", [])}
        log = self.place / f"{pod['metadata']['name']}.log"
        self._containers[uid] = Container(spec["command"], mounts, environ, log)
        pod["status"]["phase"] = "Running"
        pod["status"]["containerStatuses"] = [{"name": spec["name"], "state": {"running": {"startedAt": now()}}}]
        self.api.store("pods", pod)

    def _volumes(self, pod: Object) -> dict[str, str] | None:
        """Return where the volumes of a pod are; None if a Secret is not there yet."""
        found: dict[str, str] = {}
        for volume in pod["spec"].get("volumes", []):
            if "secret" not in volume:
                found[volume["name"]] = "tmpfs"
                continue
            secret = self.api.objects.get(("secrets", volume["secret"]["secretName"]))
            if secret is None:
                return None
            place = self.place / f"{pod['metadata']['uid']}-{volume['name']}"
            place.mkdir()
            for name, text in secret["stringData"].items():
                (place / name).write_text(text)
                (place / name).chmod(volume["secret"]["defaultMode"])
            found[volume["name"]] = str(place)
        return found

    def _end(self, pod: Object, *, delete: bool = False) -> None:
        """Have the container end by itself until its grace is over."""
        meta, grace_s = pod["metadata"], pod["spec"].get("terminationGracePeriodSeconds", 30)
        if delete and "deletionTimestamp" not in meta:
            by = datetime.now(timezone.utc) + timedelta(seconds=grace_s)
            meta |= {"deletionTimestamp": by.strftime("%Y-%m-%dT%H:%M:%SZ"), "deletionGracePeriodSeconds": grace_s}
        if meta["uid"] not in self._containers:
            pod["status"]["phase"] = "Failed"
            self._free(pod)
            return
        if meta["uid"] not in self._kill_at_s:
            self._containers[meta["uid"]].signal(signal.SIGTERM)
        by_s = time.monotonic() + meta.get("deletionGracePeriodSeconds", grace_s)
        self._kill_at_s[meta["uid"]] = min(by_s, self._kill_at_s.get(meta["uid"], by_s))

    def _note_end(self, pod: Object, container: Container) -> None:
        code = container.code()
        (spec,) = pod["spec"]["containers"]
        pod["status"]["phase"] = "Failed" if code or pod["status"].get("reason") else "Succeeded"
        gone = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
        if code and spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            gone["message"] = container.log.read_text(errors="replace")[-2048:]
        pod["status"]["containerStatuses"] = [{"name": spec["name"], "state": {"terminated": gone}}]
        self._free(pod)
        self.api.store("pods", pod)

    def _free(self, pod: Object) -> None:
        self._gpus.pop(pod["metadata"]["uid"], None)
        for path in self.place.glob(f"{pod['metadata']['uid']}-*"):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running_cluster(place: Path, environ: Mapping[str, str] | None = None) -> Iterator[FakeCluster]:
    """Run a cluster with its files in *place*. Its containers have the programs of *environ*."""
    made = FakeCluster(place, environ or os.environ)
    try:
        yield made
    finally:
        made.stop()


def _unshare() -> list[str]:
    return [*UNSHARE] if os.getuid() == 0 else [*UNSHARE, "--user", "--map-root-user"]


def _since_s(text: str) -> float:
    return (datetime.now(timezone.utc) - datetime.fromisoformat(text.replace("Z", "+00:00"))).total_seconds()
