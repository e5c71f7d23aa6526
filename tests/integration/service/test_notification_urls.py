"""URLs for notifications that reach the service from accounts other than its own."""

from __future__ import annotations

from service_fixtures import ServedSite, ask, mine

OPENS_FILE = "tgram://1:abc/5?verify=no;template=/etc/passwd"


def _submitted(served: ServedSite, who: str, to: str) -> tuple[int, str]:
    """Submit as *who*, and return the status and the URL that the job has, which no answer has, or the error."""
    notifications = [{"to": to, "when": "end"}]
    body = {"argv": ["true"], "cwd": "/", "env": {}, "mem_bytes": 2**26, "notifications": notifications}
    status, answer = ask(served, "/jobs", mine(served, who), method="POST", body=body)
    if status != 201:
        return status, str(answer["detail"])
    assert f"{to.partition(':')[0].lower()}://…" == answer["spec"]["notifications"][0]["to"].lower()
    job = served.queue.jobs.get(answer["id"])
    assert job is not None
    return status, job.spec.notifications[0].to


def test_urls_of_other_accounts_are_made_anew(served: ServedSite) -> None:
    """The account of the service sends them, so it keeps none of their text. Its own account may write any URL."""
    refused, why = _submitted(served, "bobs", OPENS_FILE)

    assert 400 == refused
    assert "the query of this URL is not permitted in a job: write tgram://BOT-TOKEN/CHAT…" in why
    assert (201, "tgram://1:abc/%40chat") == _submitted(served, "bobs", "TGRAM://1:abc/@chat")
    assert (201, OPENS_FILE) == _submitted(served, "mine", OPENS_FILE)


def test_an_edit_and_a_retry_make_them_anew_too(served: ServedSite) -> None:
    """What a job is changed to is judged as what it was submitted with, and the audit log has no secret."""
    body = {"argv": ["true"], "cwd": "/", "env": {}, "mem_bytes": 2**26, "waits": {"hold": True}}
    _, job = ask(served, "/jobs", mine(served, "bobs"), method="POST", body=body)
    path = f"/jobs/{job['id']}"

    refused, _ = ask(served, path, mine(served, "bobs"), method="PATCH", body={"on_end": OPENS_FILE})
    unknown, why = ask(served, path, mine(served, "bobs"), method="PATCH", body={"on_end": ["nobody"]})
    edited, _ = ask(served, path, mine(served, "bobs"), method="PATCH", body={"on_fail": "TGRAM://1:abc/@chat"})
    ask(served, f"{path}/cancel", mine(served, "bobs"), method="POST")
    again = {"changes": {"on_end": OPENS_FILE}}
    retried, _ = ask(served, f"{path}/retry", mine(served, "bobs"), method="POST", body=again)

    assert (400, 400, 200, 400) == (refused, unknown, edited, retried)
    assert "nobody" in why["detail"]
    kept = served.queue.jobs.get(job["id"])
    assert kept is not None
    assert ["tgram://1:abc/%40chat"] == [each.to for each in kept.spec.notifications]
    with served.client("unix") as owner:
        details = [each.detail for each in owner.access.audit() if each.action == "edit"]
    assert "tgram://…" in str(details)
    assert "abc" not in str(details)
