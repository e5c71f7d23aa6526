from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.queue.scripts import source
from gpuqueue.settings.settings import Settings
from gpuqueue.settings.sources import LONGEST_HEARTBEAT_S, embedded_socket, unknown_variables
from gpuqueue.text.units import GIB

HERE = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s"}


def test_defaults_are_one_private_machine() -> None:
    """Without settings, the store is a socket and the history a file below the state directory."""
    settings = Settings.load(HERE)

    assert "unix:///s/store/store.sock" == settings.redis_url
    assert "sqlite:////s/history.db" == settings.database_url
    assert socket.gethostname() == settings.host
    assert settings.embedded


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    """The environment has precedence over the file, and each value names its origin."""
    file = tmp_path / "config.toml"
    file.write_text('host_lost_after = "1m"\nslots = 2\nheadroom = "1G"\n')

    settings = Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file), "GPUQUEUE_HOST_LOST_AFTER": "90s"})

    assert (90.0, 2, GIB) == (settings.lease_s, settings.slots, settings.headroom_bytes)
    assert "environment GPUQUEUE_HOST_LOST_AFTER" == settings.origins["host_lost_after_s"]
    assert f"file {file}" == settings.origins["slots"]
    assert "default" == settings.origins["heartbeat_s"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GPUQUEUE_HOST_LOST_AFTER", "soon"),
        ("GPUQUEUE_SLOTS", "0"),
        ("GPUQUEUE_HEADROOM", "-1G"),
        ("GPUQUEUE_HOST", "a b"),
        ("GPUQUEUE_CAP", "maybe"),
        ("GPUQUEUE_MPS", "/tmp/nvidia-mps"),
        ("GPUQUEUE_MPS_PIPE_DIRECTORY", "nvidia-mps"),
        ("GPUQUEUE_MPS_THREAD_PERCENTAGE", "0"),
        ("GPUQUEUE_MPS_THREAD_PERCENTAGE", "101"),
        ("GPUQUEUE_MPS_THREAD_PERCENTAGE", "50%"),
        ("GPUQUEUE_DEFAULT_DEVICE", "tpu"),
        ("GPUQUEUE_LOG_LIMIT", "1000K"),
        ("GPUQUEUE_LOG_LIMIT", "0"),
        ("GPUQUEUE_KEEP_LOGS", "0"),
        ("GPUQUEUE_KEEP_LOGS", "a month"),
        ("GPUQUEUE_RUN_AS", "root"),
        ("GPUQUEUE_LAUNCHER", "launcher.sock"),
        ("GPUQUEUE_RUNS_DIR", "runs"),
    ],
)
def test_a_bad_value_names_its_origin(variable: str, value: str) -> None:
    """The one-line error names the setting, its origin and the fault."""
    with pytest.raises(BadRequest, match=variable):
        Settings.load({**HERE, variable: value})


@pytest.mark.parametrize(
    ("variable", "value", "output"),
    [
        ("GPUQUEUE_SLOTS", "1001", "'1001' is no whole number from 1 to 1000"),
        ("GPUQUEUE_MEM_RETRIES", "101", "'101' is no whole number from 0 to 100"),
        ("GPUQUEUE_MAX_FAILURES", "0", "'0' is no whole number from 1 to 1000"),
        ("GPUQUEUE_WARM_INTERPRETERS", "-1", "'-1' is no number from 0 to 99"),
        ("GPUQUEUE_SNAPSHOT_FILES", "0", "'0' is no number of files: give a whole number from 1 to 9999999"),
        ("GPUQUEUE_REQUEST_RATE", "1e3", "'1e3' is no number of requests per second: write 200, or none"),
        ("GPUQUEUE_ON_PARTITION", "wait", "'wait' is neither stop nor keep"),
        ("GPUQUEUE_LEARN_MEMORY", "always", "'always' is unknown here: write suggest, default, auto"),
        ("GPUQUEUE_IDLE_ACTION", "kill", "'kill' is unknown here: write mark, lower-priority, end"),
    ],
)
def test_the_message_about_a_bad_value_says_what_to_write(variable: str, value: str, output: str) -> None:
    """The error for a value that is no number in the range, or no known word, says what to write instead."""
    with pytest.raises(BadRequest, match=re.escape(output)):
        Settings.load({**HERE, variable: value})


def test_caps_are_on_unless_the_site_says_no(tmp_path: Path) -> None:
    """Memory caps are on by default. The environment and the file, with its TOML boolean, can turn them off."""
    file = tmp_path / "config.toml"
    file.write_text("cap = false\n")

    assert Settings.load(HERE).cap
    assert not Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file)}).cap
    assert Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file), "GPUQUEUE_CAP": "true"}).cap


def test_a_log_may_grow_and_stay_for_ever(tmp_path: Path) -> None:
    """The value `none` removes the limits on size and age of logs, in the environment and in the file."""
    file = tmp_path / "config.toml"
    file.write_text('log_limit = "none"\nkeep_logs = "none"\n')

    found = Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file)})
    assert (None, None) == (found.log_limit_bytes, found.keep_logs_s)
    found = Settings.load({**HERE, "GPUQUEUE_LOG_LIMIT": "1M", "GPUQUEUE_KEEP_LOGS": "7d"})
    assert (2**20, 7 * 86400.0) == (found.log_limit_bytes, found.keep_logs_s)


def test_results_may_be_large_and_stay_for_ever() -> None:
    """The value `none` removes the limit on size and age of results. By default they have 10 GiB and 30 days."""
    found = Settings.load(HERE)
    assert (10 * 2**30, 30 * 86400.0) == (found.results_limit_bytes, found.keep_results_s)
    found = Settings.load({**HERE, "GPUQUEUE_RESULTS_LIMIT": "none", "GPUQUEUE_KEEP_RESULTS": "none"})
    assert (None, None) == (found.results_limit_bytes, found.keep_results_s)
    with pytest.raises(BadRequest, match="at least 1M"):
        Settings.load({**HERE, "GPUQUEUE_RESULTS_LIMIT": "1K"})


def test_the_budget_of_reservations_is_a_percentage() -> None:
    """It needs its sign, and 0 % is refused: `reserve_after` turns reservations off."""
    texts = {"3 %": 0.03, "0.5%": 0.005, "100 %": 1.0, "none": None}
    for text, budget in texts.items():
        assert budget == Settings.load({**HERE, "GPUQUEUE_RESERVE_BUDGET": text}).reserve_budget
    for text in ("3", "0 %", "101 %", "-1 %", "%"):
        with pytest.raises(BadRequest, match="is no percentage: write 3 %, or none for no bound"):
            Settings.load({**HERE, "GPUQUEUE_RESERVE_BUDGET": text})


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path) -> None:
    """An unknown key is refused, so that a misspelled setting is not ignored silently."""
    file = tmp_path / "config.toml"
    file.write_text('leese = "1m"\n')

    with pytest.raises(BadRequest, match="leese"):
        Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file)})


def test_a_long_path_gets_a_short_socket() -> None:
    """A long state directory gets a short socket path.

    The kernel limits the path of a unix socket to about 107 bytes.
    """
    deep = Path("/" + "x" * 200)

    assert 100 > len(str(embedded_socket(deep)))
    assert embedded_socket(deep) == embedded_socket(deep) != embedded_socket(deep / "another")


def test_the_shim_lets_go_before_the_lease_does() -> None:
    """The shim's grace period is shorter than the lease, so a run is over before another worker can claim the job."""
    settings = Settings.load(HERE)

    assert settings.shim_grace_s < settings.lease_s


def test_addresses_stay_out_of_repr() -> None:
    """Addresses are not in the repr, because they may contain passwords."""
    assert "hunter2" not in repr(Settings.load({**HERE, "GPUQUEUE_REDIS_URL": "redis://:hunter2@h"}))


@pytest.mark.parametrize("path", ["relative", "/a?b", "/a#b", "/a%20b", "/a;b", "/a\nb", "/a\udcff"])
def test_a_state_directory_that_no_address_can_hold_is_refused(path: str) -> None:
    """A state directory that a URL cannot contain is refused.

    Otherwise a part of it would be lost, and two processes would use two directories.
    """
    with pytest.raises(BadRequest, match="GPUQUEUE_STATE_DIR"):
        Settings.load({**HERE, "GPUQUEUE_STATE_DIR": path})


@pytest.mark.parametrize("url", ["redis://h:6379/0", "rediss://h/0"])
def test_a_store_across_a_network_may_be_away_for_an_hour(url: str) -> None:
    """By default an outage of an hour ends no run. Regression: after 3.5 minutes all runs of all hosts were ended."""
    settings = Settings.load({**HERE, "GPUQUEUE_REDIS_URL": url})

    assert 3600 <= settings.shim_grace_s < settings.lease_s
    assert settings.shim_grace_s + settings.fence_grace_s < settings.lease_s


@pytest.mark.parametrize("environ", [{}, {"GPUQUEUE_REDIS_URL": "unix:///run/store.sock"}])
def test_on_one_machine_a_lease_is_five_minutes(environ: dict[str, str]) -> None:
    """Without a network, a host without heartbeats has no workers."""
    settings = Settings.load({**HERE, **environ})

    assert (300, 210, 10) == (settings.lease_s, settings.shim_grace_s, settings.fence_grace_s)


def test_a_lease_must_hold_several_heartbeats() -> None:
    """A lease must span several heartbeats.

    With a lease of 5 s and a heartbeat of 10 s, every job was lost three times without an error.
    """
    with pytest.raises(BadRequest, match="too short for a heartbeat"):
        Settings.load({**HERE, "GPUQUEUE_HOST_LOST_AFTER": "5s"})


def test_a_heartbeat_comes_before_a_device_counts_as_silent() -> None:
    """The heartbeat must be shorter than the silence limit.

    With 40 s, `queue` and `why` called healthy devices silent, and `gpus` called them ready.
    """
    with pytest.raises(
        BadRequest, match=r"heartbeat \(environment GPUQUEUE_HEARTBEAT\): 11 s is.*silent.*at most 10 s"
    ):
        Settings.load({**HERE, "GPUQUEUE_HEARTBEAT": "11s", "GPUQUEUE_HOST_LOST_AFTER": "10m"})

    assert LONGEST_HEARTBEAT_S == Settings.load({**HERE, "GPUQUEUE_HEARTBEAT": "10s"}).heartbeat_s
    (seen_ms,) = re.findall(r"^local SEEN_MS = (\d+)", source("core"), re.MULTILINE)
    assert int(seen_ms) >= 1.5 * LONGEST_HEARTBEAT_S * 1000


def test_all_faults_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    """`salvage` reports every fault at once and keeps the valid settings."""
    file = tmp_path / "config.toml"
    file.write_text('leese = "1m"\nslots = 0\npool = "a"\n')

    settings, faults = Settings.salvage({**HERE, "GPUQUEUE_CONFIG": str(file), "GPUQUEUE_HEARTBEAT": "soon"})

    assert {"slots", "heartbeat", "'leese'"} == {
        word for fault in faults for word in ("slots", "heartbeat", "'leese'") if word in str(fault)
    }
    assert 3 == len(faults)
    assert ("a", 8, 10.0) == (settings.pool, settings.slots, settings.heartbeat_s)
    assert "default" == settings.origins["heartbeat_s"]


@pytest.mark.parametrize("content", [b"poll = ", b"\xff\xfe"])
def test_a_file_that_is_no_toml_says_so(tmp_path: Path, content: bytes) -> None:
    """A file that is not TOML gives one line. Regression: bytes that are not text gave a traceback."""
    file = tmp_path / "config.toml"
    file.write_bytes(content)

    with pytest.raises(BadRequest, match="is not TOML"):
        Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file)})


def test_targets_are_a_table_in_the_file_and_words_in_the_environment(tmp_path: Path) -> None:
    """Targets are a table in the file and a list of words in the environment. Their secrets are not in the repr."""
    file = tmp_path / "config.toml"
    file.write_text('[notify]\nteam = "slack://a/b/hunter2"\nmail = "mailto://q:hunter2@h?from=x@y.org"\n')
    both = {"team": "slack://a/b/hunter2", "mail": "mailto://q:hunter2@h?from=x@y.org"}
    words = " ".join(f"{name}={url}" for name, url in both.items())

    from_file = Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file)})

    assert both == from_file.notify == Settings.load({**HERE, "GPUQUEUE_NOTIFY": words}).notify
    assert "hunter2" not in repr(from_file)


@pytest.mark.parametrize(
    "toml", ['notify = ["team=slack://secret"]', 'notify = "secret"', '[notify]\na = "json://h secret"']
)
def test_a_target_that_makes_no_sense_is_refused_without_its_secret(tmp_path: Path, toml: str) -> None:
    """The error for an invalid target names the setting, and does not contain its secret."""
    file = tmp_path / "config.toml"
    file.write_text(toml)

    with pytest.raises(BadRequest, match="setting notify") as refused:
        Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file)})

    assert "secret" not in str(refused.value)


def test_environments_are_a_table_in_the_file_and_words_in_the_environment(tmp_path: Path) -> None:
    """The Python programs of a host have names, and a name has one program."""
    file = tmp_path / "config.toml"
    file.write_text('[environments]\n"torch-2.6" = "/opt/t26/bin/python"\njax = "/opt/jax/bin/python3"\n')
    both = {"torch-2.6": "/opt/t26/bin/python", "jax": "/opt/jax/bin/python3"}
    words = " ".join(f"{name}={path}" for name, path in both.items())

    from_file = Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file)})

    assert both == from_file.environments == Settings.load({**HERE, "GPUQUEUE_ENVIRONMENTS": words}).environments
    assert {} == Settings.load(HERE).environments


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("torch", "'torch' is no environment: write torch-2.6="),
        ("to/rch=/opt/python", "'to/rch=/opt/python' is no environment"),
        ("torch=bin/python", "environment torch: 'bin/python' is no absolute path"),
        ("torch=/opt/torch/", "'/opt/torch/' is no absolute path of a .*: write torch=/opt/torch/bin/python"),
        ("a=/x/python a=/y/python", "environment a is named twice"),
        ("a=/my envs/python", "'envs/python' is no environment: .* without spaces"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(words: str, said: str) -> None:
    """The error names the setting, the entry and the right form."""
    with pytest.raises(BadRequest, match=rf"setting environments .*{said}"):
        Settings.load({**HERE, "GPUQUEUE_ENVIRONMENTS": words})


def test_a_misspelled_variable_is_reported_with_what_was_meant() -> None:
    """``GPUQUEUE_HOST_LOST_AFTR=1h`` had no effect and no message."""
    found = unknown_variables(
        {**HERE, "GPUQUEUE_HOST_LOST_AFTR": "1h", "GPUQUEUE_CONFIG": "/dev/null", "HOME": "/root"}
    )

    assert {"GPUQUEUE_HOST_LOST_AFTR": "did you mean GPUQUEUE_HOST_LOST_AFTER?"} == found


def test_a_job_that_submits_jobs_gets_no_warning_of_its_variables() -> None:
    """A job has GPUQUEUE_JOB_ID, GPUQUEUE_RUN_DIR and more, which are no settings."""
    assert {} == unknown_variables({**HERE, "GPUQUEUE_JOB_ID": "7", "GPUQUEUE_RUN_DIR": "/r"})


def test_jobs_run_as_the_worker_unless_the_site_says_otherwise() -> None:
    """By default no launcher is used, and the runs lie below the state directory."""
    single = Settings.load(HERE)
    team = Settings.load({**HERE, "GPUQUEUE_RUN_AS": "submitter", "GPUQUEUE_RUNS_DIR": "/var/lib/runs"})

    assert (None, Path("/s/runs")) == (single.launcher_in_use, single.runs_dir)
    assert ("/run/gpuqueue-launcher/launcher.sock", Path("/var/lib/runs")) == (team.launcher_in_use, team.runs_dir)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://gpu.example.org", "plain HTTP shows the access token to the network"),
        ("https://ann:secret@gpu.example.org", "the URL of a service has no password"),
    ],
)
def test_a_worker_host_reaches_the_service_only_by_https(url: str, words: str) -> None:
    """The token of a host goes to its service by TLS, or within this machine, and the URL has no secrets."""
    with pytest.raises(BadRequest, match=words):
        Settings.load({**HERE, "GPUQUEUE_SERVICE_URL": url})
    assert "https://h:8443" == Settings.load({**HERE, "GPUQUEUE_SERVICE_URL": "https://h:8443/"}).service_url


def test_a_store_that_other_hosts_reach_has_long_leases_on_every_host() -> None:
    """The service's host may reach the store over a socket, and has the leases of the others all the same."""
    here = Settings.load({**HERE, "GPUQUEUE_HOSTS_REDIS_URL": "rediss://u:p@h:6379/0"})
    there = Settings.load({**HERE, "GPUQUEUE_REDIS_URL": "rediss://u:p@h:6379/0"})

    assert here.embedded
    assert here.lease_s == there.lease_s > Settings.load(HERE).lease_s
    assert "u:p" not in repr(here)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("unix:///run/store.sock", "other hosts cannot reach a store at 'unix:///run/store.sock'"),
        ("rediss://", "other hosts cannot reach a store"),
        ("https://u:hunter2@h", "other hosts cannot reach a store"),
        ("rediss://u:hunter2@h:port", "is no address of a store"),
    ],
)
def test_the_store_of_other_hosts_has_a_network_address(url: str, says: str) -> None:
    """An address that only this machine can use is refused, and no message shows a password."""
    with pytest.raises(BadRequest, match=says) as refused:
        Settings.load({**HERE, "GPUQUEUE_HOSTS_REDIS_URL": url})
    assert "hunter2" not in str(refused.value)


def test_workers_reach_the_service_safely() -> None:
    """Over TLS, or over the socket of their machine. Plain HTTP and a password are refused."""
    found = Settings.load({**HERE, "GPUQUEUE_SERVICE_URL": "https://h:8443/", "GPUQUEUE_RECORD": "false"})
    assert ("https://h:8443", False, True) == (found.service_url, found.record, Settings.load(HERE).record)
    socket = "unix:///run/gpuqueue/api.sock"
    assert socket == Settings.load({**HERE, "GPUQUEUE_SERVICE_URL": socket}).service_url
    for bad in ("unix://run/api.sock", "http://h", "https://u:p@h"):
        with pytest.raises(BadRequest, match="GPUQUEUE_SERVICE_URL"):
            Settings.load({**HERE, "GPUQUEUE_SERVICE_URL": bad})
