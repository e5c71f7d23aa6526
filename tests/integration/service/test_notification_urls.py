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
