"""What ``gpuqueue join`` writes on a worker host."""

from __future__ import annotations

from pathlib import Path

import pytest
from joining_hosts import HOST, STORE, URL, make_joining
from unit_files import service_of

from gpuqueue.errors import Refused
from gpuqueue.installation.plan import Record, refuse_other_installation, removals
from gpuqueue.installation.site import CONFIG
from gpuqueue.installation.steps import (
    SERVICE_CA,
    STORE_CA,
    TOKEN,
    host_config_text,
    redis_url,
    steps_of,
    steps_of_host,
)
from gpuqueue.installation.units import by_hand, unit_texts
from gpuqueue.model.joining import SHARED
from gpuqueue.settings.settings import Settings


def loaded(text: str, tmp_path: Path) -> Settings:
    """Return the settings in a file with *text*."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    return Settings.load({"GPUQUEUE_CONFIG": str(path)})


def test_a_host_that_joins_gets_all_settings_and_no_database(tmp_path: Path) -> None:
    """The file names the host, the store, the service, and no history. A password with quotes arrives as it is."""
    found = loaded(host_config_text(make_joining()), tmp_path)

    assert f"{STORE}?ssl_ca_certs={STORE_CA}" == found.redis_url
    assert ("nodeB", URL, TOKEN, SERVICE_CA) == (
        found.host, found.service_url, found.service_token_file, found.service_ca,
    )  # fmt: skip
    assert (False, False) == (found.record, found.has_history)
    assert found.launcher_in_use is not None
    assert ("/var/lib/gpuqueue", "/var/lib/gpuqueue-runs") == (str(found.state_dir), str(found.runs_dir))


@pytest.mark.parametrize(
    "shared",
    [
        {"host_lost_after_s": 300.0, "heartbeat_s": 0.5},
        {"host_lost_after_s": 86400.0, "loss_limit": 7, "on_partition": "keep"},
        {"log_limit_bytes": None},
        {"log_limit_bytes": 2**20 + 1},
    ],
)
def test_what_all_hosts_have_in_common_arrives_exactly(shared: dict[str, object], tmp_path: Path) -> None:
    """Each value that the service names is the value that the host then has."""
    joining = make_joining(shared=shared)
    found = loaded(host_config_text(joining), tmp_path)

    for name in SHARED:
        assert str(getattr(joining.found.settings, name)) == str(getattr(found, name)), name


def test_certificates_are_named_only_if_there_are_some(tmp_path: Path) -> None:
    """Without them the machine's own authorities count. A path of the service's machine is replaced by that here."""
    plain = make_joining(ca=None, redis_ca=None)
    there = make_joining(store="rediss://u:p@h:6379/0?ssl_ca_certs=/there.pem&ssl_check_hostname=true")

    assert (STORE, None) == (redis_url(plain.found), loaded(host_config_text(plain), tmp_path).service_ca)
    assert {CONFIG, TOKEN} == {
        Path(each.name) for each in steps_of_host(HOST, plain) if each.name.startswith("/etc/gp")
    }
    assert f"rediss://u:p@h:6379/0?ssl_check_hostname=true&ssl_ca_certs={STORE_CA}" == redis_url(there.found)


def test_a_worker_host_has_no_service() -> None:
    """It has the units of launcher and workers, and the commands to type are those of the units."""
    assert ["gpuqueue-runs", "gpuqueue-launcher", "gpuqueue"] == list(unit_texts(HOST))
    assert "recorder" not in unit_texts(HOST)["gpuqueue"]
    assert "User=gpuqueue\n" in unit_texts(HOST)["gpuqueue"]
    assert not any("serve" in line for line in by_hand(HOST))
    typed = by_hand(HOST)[-1]
    assert "GPUQUEUE_CONFIG=/etc/gpuqueue/config.toml" in typed
    assert service_of(unit_texts(HOST)["gpuqueue"])["ExecStart"][0] in typed


def test_only_the_account_reads_the_token_and_the_password() -> None:
    """The token is the account's alone, and the settings are root's and its group's."""
    owned = {Path(each.name): str(each.owned) for each in steps_of_host(HOST, make_joining()) if hasattr(each, "owned")}

    assert ("gpuqueue:gpuqueue 0600", "root:gpuqueue 0640") == (owned[TOKEN], owned[CONFIG])
    assert "gq_secret" not in repr(make_joining())
    assert "p%40ss" not in repr(make_joining())


def test_nothing_of_the_site_stays_on_a_host_that_leaves() -> None:
    """Token, certificates and changed settings are removed without --purge; state and accounts stay."""
    made = [each.name for each in steps_of_host(HOST, make_joining())]
    removed, kept = removals(Record("gpuqueue", "lab", made, URL), HOST, purge=False)

    names = {each.name for each in removed}
    assert {*map(str, (TOKEN, SERVICE_CA, STORE_CA, CONFIG))} < names
    assert {"account gpuqueue", "group lab", "/var/lib/gpuqueue", "/var/lib/gpuqueue-runs"} == {
        each.name for each in kept
    }


@pytest.mark.parametrize(
    ("there", "joined", "says"),
    [
        ("", URL, "this machine runs a service of its own: gpuqueue uninstall first"),
        (URL, "", f"this machine has joined the service at {URL}: gpuqueue uninstall first"),
        (URL, "https://other", f"this machine has joined the service at {URL}: gpuqueue uninstall first"),
    ],
)
def test_a_machine_is_of_one_site(there: str, joined: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install and join refuse a machine that has the other, and join refuses another service."""
    made = [each.name for each in (steps_of_host(HOST, make_joining()) if there else steps_of(HOST))]
    monkeypatch.setattr(Record, "load", classmethod(lambda _: Record("gpuqueue", "lab", made, there)))

    with pytest.raises(Refused, match=says):
        refuse_other_installation(HOST, joined)
    refuse_other_installation(HOST, there)
