"""A small API server of Kubernetes for Jobs, Pods and Secrets, of which ``fake_cluster.py`` runs the pods.

There was no real API server to test with. This one is written from the OpenAPI document of batch/v1 and v1: the models
of the official client are generated from it, and each body is checked against them. The rules that the document has
only in words are in ``_check_job``. Answers can be lost, late or errors.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

Object = dict[str, Any]

_PATH = re.compile(r"/(api/v1|apis/batch/v1)/namespaces/([^/]+)/(jobs|pods|secrets)(?:/([^/]+))?")
_MODELS = {"jobs": ("batch/v1", "Job"), "pods": ("v1", "Pod"), "secrets": ("v1", "Secret")}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_SET = re.compile(r"(\S+) in \(([^)]*)\)")
_REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
#: The fields of a Job that may change after it was made.
_MUTABLE = {"activeDeadlineSeconds", "backoffLimit", "parallelism", "suspend", "ttlSecondsAfterFinished"}
#: The most GPUs of a Job that the admission policy of this cluster allows.
MAX_GPUS = 32


class Failure(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.reason = code, reason or _REASONS[code]


def now() -> str:
    """Return the time as Kubernetes writes it, in whole seconds."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeApi:
    """The objects of one namespace, and the requests for them. Use ``lock`` around what looks at ``objects``."""

    def __init__(self, namespace: str = "lab") -> None:
        self.namespace = namespace
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str], Object] = {}
        #: The verbs that were used, and those that are allowed: (resource, verb). None: all.
        self.used: set[tuple[str, str]] = set()
        self.allowed: set[tuple[str, str]] | None = None
        #: What happens to the next requests: (verb, resource, how), where how is lose, drop, hang or a code.
        self.faults: list[tuple[str, str, str | int]] = []
        self.stopping = threading.Event()
        self._version = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        """End the server, and let go of requests that hang."""
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self) -> str:
        """Return the text of the file with which the client reaches this server."""
        named = {"cluster": {"server": self.url}, "user": {"token": "of-the-service"}}
        context = {"cluster": "here", "user": "gpuqueue", "namespace": self.namespace}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "here", "cluster": named["cluster"]}],
                "users": [{"name": "gpuqueue", "user": named["user"]}],
                "contexts": [{"name": "here", "context": context}],
                "current-context": "here",
            }
        )

    # ---- objects -------------------------------------------------------------------------------------------------

    def of_kind(self, resource: str) -> list[Object]:
        """Return the objects of a kind."""
        return [found for (kind, _), found in self.objects.items() if kind == resource]

    def store(self, resource: str, found: Object) -> Object:
        """Keep an object, with a new version."""
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self.objects[resource, found["metadata"]["name"]] = found
        return found

    def add(self, resource: str, body: Object) -> Object:
        """Keep a new object."""
        meta = body["metadata"]
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "namespace": self.namespace}
        return self.store(resource, {**body, "status": {}} if resource != "secrets" else body)

    def remove(self, resource: str, name: str) -> None:
        """Drop an object, and what belongs to it alone."""
        gone = self.objects.pop((resource, name), None)
        for (kind, other), found in [*self.objects.items()]:
            owners = found["metadata"].get("ownerReferences", [])
            if gone is not None and kind == "secrets" and [each["uid"] for each in owners] == [gone["metadata"]["uid"]]:
                del self.objects[kind, other]

    # ---- requests ------------------------------------------------------------------------------------------------

    def fault(self, method: str, url: str) -> str | int | None:
        """Return what is to happen to a request, and forget it."""
        for number, (verb, resource, how) in enumerate(self.faults):
            if verb == method and f"/{resource}" in url:
                del self.faults[number]
                return how
        return None

    def answered(self, how: str | int | None, method: str, url: str, body: Any) -> tuple[int, bytes]:
        """Return the code and the text of the answer to a request, to which *how* happens."""
        with self.lock:
            try:
                if isinstance(how, int):
                    raise Failure(how, "the server is tired")  # noqa: TRY301 - as all errors
                code, found = self.answer(method, url, body)
            except Failure as error:
                code = error.code
                found = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
                found |= {"message": str(error), "reason": error.reason}
            return code, json.dumps(found).encode()

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Object]:
        """Return the code and the body of the answer to a request."""
        parts = urlsplit(url)
        found = _PATH.fullmatch(parts.path)
        if found is None:
            raise Failure(404, "the server could not find the requested resource")
        group, namespace, resource, name = found.groups()
        if (group == "apis/batch/v1") != (resource == "jobs"):
            raise Failure(404, "the server could not find the requested resource")
        verb = {"POST": "create", "GET": "get" if name else "list", "PATCH": "patch", "DELETE": "delete"}[method]
        with self.lock:
            self.used.add((resource, verb))
            if self.allowed is not None and (resource, verb) not in self.allowed:
                raise Failure(403, f'{resource} is forbidden: User "gpuqueue" cannot {verb} resource "{resource}"')
            if verb == "list":
                selector = parse_qs(parts.query).get("labelSelector", [""])[0]
                items = [each for each in self.of_kind(resource) if _selects(selector, each["metadata"])]
                items = items if namespace == self.namespace else []
                return 200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}
            if verb == "create":
                return 201, self._create(resource, namespace, body)
            known = self.objects.get((resource, name)) if namespace == self.namespace else None
            if known is None:
                raise Failure(404, f'{resource} "{name}" not found')
            act = {
                "get": lambda: known,
                "patch": lambda: self._patch(known, body),
                "delete": lambda: self._delete(resource, known, body or {}),
            }
            return 200, act[verb]()

    def _create(self, resource: str, namespace: str, body: Object) -> Object:
        if namespace != self.namespace:
            raise Failure(404, f'namespaces "{namespace}" not found')
        expected = _MODELS[resource]
        if (body.get("apiVersion"), body.get("kind")) != expected:
            raise Failure(400, f"the body is no {expected}")
        for fault in _wrong(body, "V1" + expected[1], expected[1]):
            raise Failure(400, f"strict decoding error: {fault}")
        faults = [*_check_meta(body.get("metadata") or {}), *(_check_job(body) if resource == "jobs" else [])]
        name = (body.get("metadata") or {}).get("name", "")
        if faults:
            raise Failure(422, f'{expected[1]} "{name}" is invalid: {"; ".join(faults)}')
        if (resource, name) in self.objects:
            raise Failure(409, f'{resource} "{name}" already exists', "AlreadyExists")
        if resource == "jobs" and gpus_of(body["spec"]["template"]["spec"]) > MAX_GPUS:
            raise Failure(403, f'jobs "{name}" is forbidden: admission policy "gpus" denied it: too many GPUs')
        return self.add(resource, body)

    def _patch(self, known: Object, body: Object) -> Object:
        if body.get("metadata", {}).get("uid", known["metadata"]["uid"]) != known["metadata"]["uid"]:
            raise Failure(409, "the uid in the precondition does not match")
        changed = {*body.get("spec", {})} - _MUTABLE
        if changed:
            raise Failure(422, f"spec: Invalid value: {sorted(changed)}: field is immutable")
        known["spec"] |= body.get("spec", {})
        return self.store("jobs", known)

    def _delete(self, resource: str, known: Object, options: Object) -> Object:
        for fault in _wrong(options, "V1DeleteOptions", "DeleteOptions"):
            raise Failure(400, f"strict decoding error: {fault}")
        meta = known["metadata"]
        if options.get("preconditions", {}).get("uid", meta["uid"]) != meta["uid"]:
            raise Failure(409, "the uid in the precondition does not match")
        if resource == "pods":
            grace_s = options.get("gracePeriodSeconds", known["spec"].get("terminationGracePeriodSeconds", 30))
            meta["deletionGracePeriodSeconds"] = min(grace_s, meta.get("deletionGracePeriodSeconds", grace_s))
        elif options.get("propagationPolicy") == "Foreground":
            meta["finalizers"] = ["foregroundDeletion"]
        else:
            raise Failure(400, "this cluster deletes Jobs in the foreground only")
        meta.setdefault("deletionTimestamp", now())
        return self.store(resource, known)


def _handler_of(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            how = api.fault(self.command, self.path)
            code, text = (0, b"") if how == "drop" else api.answered(how, self.command, self.path, body)
            if how == "hang":
                api.stopping.wait(60)
            if how in {"drop", "hang", "lose"}:
                self.close_connection = True
                return
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _do  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            pass

    return Handler


# ---- the OpenAPI document --------------------------------------------------------------------------------------------


_PLAIN = {"str": str, "int": int, "bool": bool, "datetime": str}
_LIST, _MAP = re.compile(r"[lL]ist\[(.*)\]"), re.compile(r"(?:dict\(|Dict\[)str, (.*)[\])]")


def _wrong(value: Any, kind: str, where: str) -> Iterator[str]:
    """Yield where *value* is not of *kind*, a type of the document as the official client writes it."""
    many, mapped = _LIST.fullmatch(kind), _MAP.fullmatch(kind)
    if kind == "object" or value is None:
        return
    expected = list if many else _PLAIN.get(kind, dict)
    if not isinstance(value, expected) or (kind == "int" and isinstance(value, bool)):
        yield f"{where} is no {kind}"
    elif many:
        for number, each in enumerate(value):
            yield from _wrong(each, many[1], f"{where}[{number}]")
    elif mapped:
        for name, each in value.items():
            yield from _wrong(each, mapped[1], f"{where}.{name}")
    elif kind not in _PLAIN:
        yield from _wrong_fields(value, getattr(client, kind), where)


def _wrong_fields(value: Mapping[str, Any], model: Any, where: str) -> Iterator[str]:
    fields = {json_name: name for name, json_name in model.attribute_map.items()}
    for name, each in value.items():
        if name not in fields:
            yield f'unknown field "{where}.{name}"'
        else:
            yield from _wrong(each, model.openapi_types[fields[name]], f"{where}.{name}")


def _check_meta(meta: Mapping[str, Any]) -> Iterator[str]:
    if not _NAME.fullmatch(meta.get("name", "")):
        yield "metadata.name: must be a lowercase RFC 1123 label"
    for name, value in {**meta.get("labels", {})}.items():
        if not _LABEL_NAME.fullmatch(name) or not _LABEL.fullmatch(value):
            yield f"metadata.labels: Invalid value: {name}={value}"
    for name in meta.get("annotations", {}):
        if not _LABEL_NAME.fullmatch(name):
            yield f"metadata.annotations: Invalid value: {name}"
    for owner in meta.get("ownerReferences", []):
        if not all(owner.get(each) for each in ("apiVersion", "kind", "name", "uid")):
            yield "metadata.ownerReferences: Required value"


def _check_job(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the validation of Kubernetes says of a Job beyond the document."""
    spec = body.get("spec") or {}
    pod = spec.get("template", {}).get("spec") or {}
    for name in ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"):
        if spec.get(name, 0) < 0:
            yield f"spec.{name}: must be greater than or equal to 0"
    if pod.get("restartPolicy") not in {"Never", "OnFailure"}:
        yield 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
    if pod.get("activeDeadlineSeconds", 1) < 1:
        yield "spec.template.spec.activeDeadlineSeconds: must be between 1 and 2147483647"
    if pod.get("hostPID") and pod.get("shareProcessNamespace"):
        yield "spec.template.spec.shareProcessNamespace: ShareProcessNamespace and HostPID cannot both be enabled"
    volumes = [each.get("name") for each in pod.get("volumes", [])]
    if len({*volumes}) != len(volumes):
        yield "spec.template.spec.volumes: Duplicate value"
    if not pod.get("containers"):
        yield "spec.template.spec.containers: Required value"
    for container in pod.get("containers", []):
        yield from _check_container(container, volumes)


def _check_container(container: Mapping[str, Any], volumes: Collection[str]) -> Iterator[str]:
    if not _NAME.fullmatch(container.get("name", "")) or not container.get("image"):
        yield "spec.template.spec.containers: Required value: name, image"
    paths = [each.get("mountPath") for each in container.get("volumeMounts", [])]
    if len({*paths}) != len(paths):
        yield "volumeMounts.mountPath: Invalid value: must be unique"
    for mount in container.get("volumeMounts", []):
        if mount.get("name") not in volumes:
            yield f"volumeMounts.name: Not found: {mount.get('name')}"
    for name, value in container.get("resources", {}).get("limits", {}).items():
        if "/" in name and not str(value).isdigit():
            yield f"resources.limits[{name}]: must be an integer"


def _selects(selector: str, meta: Mapping[str, Any]) -> bool:
    if not selector:
        return True
    found = _SET.fullmatch(selector)
    if found is None:
        raise Failure(400, f"unable to parse requirement: {selector}")
    return meta.get("labels", {}).get(found[1]) in found[2].split(",")


def gpus_of(pod: Mapping[str, Any]) -> int:
    """Return how many GPUs a pod asks for."""
    return sum(int(each.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0)) for each in pod["containers"])
