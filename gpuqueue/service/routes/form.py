"""Routes behind the form of the web page: what it begins with, and jobs from what people type into it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client.devices import uuids_of
from gpuqueue.model.access import Action
from gpuqueue.model.api import RetryRequest
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import Job
from gpuqueue.model.page import FormStart, JobForm
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.service.call import Call
from gpuqueue.service.new_jobs import retried, spec_of_retry, submitted
from gpuqueue.service.routes.described import Operations, operation
from gpuqueue.service.routes.jobs import Key, keyed_request, new_job_answer
from gpuqueue.service.web.job_form import form_of, new_job_of, retry_of, tags_in
from gpuqueue.words.values import code_of_retry

router = Operations("page")


@operation(router, "GET /web/form", may=Action.SUBMIT)
def start_form(call: Call, again: str | None = None) -> FormStart:
    """Return what the form for a job begins with. With the name of an ended job as *again*, that is what it asked for.

    The answer is an error if the caller may not submit, or may not run that job again.
    """
    call.must_run()
    devices = call.connection.queue.devices.all()
    shown = devices if call.may(Action.SEE_SITE) else []
    start = FormStart(
        form=JobForm(),
        file_bytes=call.connection.settings.snapshot_file_limit_bytes,
        devices=tuple(sorted(_name(each) for each in shown if each.device.kind is not DeviceKind.CPU)),
        pools=tuple(sorted({each.pool for each in shown if each.pool})),
        environments=tuple(sorted({name for each in shown for name in each.environments or ()})),
    )
    return start if again is None else _with_job(call, start, again, devices)


def _with_job(call: Call, start: FormStart, name: str, devices: Sequence[DeviceStatus]) -> FormStart:
    warnings: list[str] = []
    job = call.client.jobs.get(name)
    spec_of_retry(call, name, RetryRequest(), warnings.append)  # raises what a retry would raise
    return replace(
        start,
        form=_form(job, devices),
        label=job.label,
        command=job.spec.command,
        again=code_of_retry(job.spec),
        has_script=job.spec.script is not None,
        warnings=tuple(warnings),
    )


def _form(job: Job, devices: Iterable[DeviceStatus]) -> JobForm:
    names = {each.device.uuid: _name(each) for each in devices}
    return form_of(replace(job.spec, tags=job.tags), names)


def _name(status: DeviceStatus) -> str:
    return f"{status.host}:{status.device.index}"


@operation(router, "POST /web/jobs", answer=Job, status=201)
def submit_form(call: Call, request: Request, body: JobForm, key: Key = None) -> Response:
    """Submit the script of the form, whose snapshot the caller has sent."""
    wanted = new_job_of(body, lambda names: uuids_of(call.connection, names))
    return new_job_answer(call, *submitted(call, wanted, keyed_request(request, key), call.warnings.append))


@operation(router, "POST /web/jobs/{name}/retry", answer=Job, status=201)
def retry_form(call: Call, request: Request, name: str, body: JobForm, key: Key = None) -> Response:
    """Submit the request of an ended job as a new job of the caller, with what the form has in other words."""
    before = _form(call.client.jobs.get(name), call.connection.queue.devices.all())
    tags = None if body.tags == before.tags else tags_in(body.tags)
    sent = keyed_request(request, key)
    return new_job_answer(call, *retried(call, name, retry_of(body, before), sent, call.warnings.append, tags))
