"""The texts of the files that ``gpuqueue install`` writes. Pure."""

from __future__ import annotations

from pathlib import Path

from gpuqueue.installation.site import (
    CONFIG,
    HOST_UNIT,
    LAUNCHER_RUN,
    NOTIFIER_ACCOUNT,
    NOTIFIER_RUN,
    RUN,
    RUNS,
    STATE,
    STORE,
    TICKET_KEY,
    SystemSite,
)

#: What only the service and the launcher have in their environments. A drop-in with another ExecStart keeps that.
_SIGNS, _CHECKS = f"GPUQUEUE_TICKET_KEY_FILE={TICKET_KEY}", f"GPUQUEUE_TICKET_KEY={TICKET_KEY}"

#: The end of a command that runs in the background without a terminal. On root's terminal, a process of another account
#: could type commands for root (TIOCSTI).
_APART = "</dev/null >/dev/null 2>&1 &"

#: What no process of the queue's own accounts needs. No unit whose settings jobs inherit has it.
_SANDBOX = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
RestrictNamespaces=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
ProtectSystem=full
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @debug @module @mount @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM
"""
#: What only the workers need: the devices, and files in /tmp, where the pipes of an MPS daemon of the site may be.
_WITHOUT_DEVICES = """\
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectHostname=yes
"""

_CONFIG = """\
# Settings of gpuqueue's store, recorder and service. The workers of this machine have others, in workers.toml.
# Written once by `gpuqueue install`, then yours. After a change: systemctl restart gpuqueue-store gpuqueue-serve
state_dir = "{state}"
store_socket = "{socket}"
workers_account = "{runner}"
run_as = "submitter"
"""

_WORKERS_CONFIG = """\
# Settings of gpuqueue's workers on this machine: its devices, and how jobs run. No password belongs here.
# Written once by `gpuqueue install`, then yours. After a change: systemctl restart gpuqueue
state_dir = "{runner_state}"
runs_dir = "{runs}"
run_as = "submitter"
redis_url = "unix://{socket}"
record = false
service_url = "unix://{service}"
"""

_RUNS = """\
# Written by `gpuqueue install`. It holds the control groups of the running jobs, so it is never restarted.
[Unit]
Description=gpuqueue: the running jobs

[Service]
ExecStart=/bin/sleep infinity
# The launcher makes a control group for each run below that of this unit.
Delegate=yes
KillMode=process
OOMPolicy=continue
OOMScoreAdjust=-1000
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""

_LAUNCHER = """\
# Written by `gpuqueue install`. For changes: systemctl edit gpuqueue-launcher
[Unit]
Description=gpuqueue: starts jobs as their submitters
After=gpuqueue-runs.service
Wants=gpuqueue-runs.service
Before={host_unit}.service

[Service]
{checks}RuntimeDirectory={launcher_run}
RuntimeDirectoryPreserve=yes
ExecStart={programs}/gpuqueue-worker launcher --account {runner} --group {group} --runs {runs}{pam}
# The driver's own maximum of each process: off after each start of the driver. A call may hang, so nothing waits.
ExecStartPost=-/bin/sh -c 'timeout 60 nvidia-smi -am 1 >/dev/null 2>&1 &'
Restart=always
# For control groups of the runs here, where gpuqueue-runs cannot have them.
Delegate=yes
# The guards of running jobs are in this unit, and survive a restart.
KillMode=process
OOMPolicy=continue
TasksMax=infinity
# Jobs inherit all of this, so it is only what no job needs (docs/internals/threat-model.md).
CapabilityBoundingSet=~CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_BOOT CAP_SYS_TIME CAP_MAC_ADMIN CAP_MAC_OVERRIDE

[Install]
WantedBy=multi-user.target
"""

_NOTIFIER = """\
# Written by `gpuqueue install`. For changes: systemctl edit gpuqueue-notify
[Unit]
Description=gpuqueue: sends messages to URLs of users
After=network-online.target
Wants=network-online.target
Before=gpuqueue-store.service
StartLimitIntervalSec=0

[Service]
User={notifier}
RuntimeDirectory={notifier_run}
ExecStart={programs}/gpuqueue-worker notify --account {account}
Restart=always
RestartSec=1
# It has no file: Python and its libraries are all that it can read of the queue.
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
InaccessiblePaths=-/etc/gpuqueue -{state} -{store} -{runner_state} -{runs}
PrivateTmp=yes
PrivateDevices=yes
PrivateIPC=yes
# The program checks addresses by the setting notify_networks. IPAddressDeny cannot: it would often cut off the name
# server, too. PrivateUsers would hide the uid of the service, which the program checks.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
CapabilityBoundingSet=
KeyringMode=private
LockPersonality=yes
ProcSubset=pid
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RemoveIPC=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
UMask=0077
MemoryMax=1G
TasksMax=64

[Install]
WantedBy=multi-user.target
"""

_STORE = """\
# Written by `gpuqueue install`. For changes: systemctl edit gpuqueue-store
[Unit]
Description=gpuqueue: store and recorder
After=network-online.target
Wants=network-online.target
Before={host_unit}.service
StartLimitIntervalSec=0

[Service]
User={account}
Environment=GPUQUEUE_CONFIG={config}
ExecStart={programs}/gpuqueue up --foreground
Restart=on-failure
RestartSec=2
# Only the main process is asked to stop. It ends the recorder first, and then the store.
KillMode=mixed
# It holds the queue. Jobs add to their scores (setting oom_score_adj).
OOMScoreAdjust=-500
TimeoutStopSec=120
TasksMax=infinity
{sandbox}{without_devices}
[Install]
WantedBy=multi-user.target
"""

_HOST = """\
# Written by `gpuqueue install`. For changes: systemctl edit {host_unit}
[Unit]
Description=gpuqueue: workers of this GPU server
After=network-online.target gpuqueue-launcher.service{after}
Wants=network-online.target gpuqueue-launcher.service
StartLimitIntervalSec=0

[Service]
User={runner}
Environment=GPUQUEUE_CONFIG={runner_config}
ExecStart={programs}/gpuqueue up --foreground
Restart=on-failure
RestartSec=2
# Only the main process is asked to stop. The shims of running jobs are in this unit, and survive a restart.
KillMode=process
OOMPolicy=continue
TimeoutStopSec=120
TasksMax=infinity
{sandbox}
[Install]
WantedBy=multi-user.target
"""

_SERVICE = """\
# Written by `gpuqueue install`. For changes: systemctl edit gpuqueue-serve
[Unit]
Description=gpuqueue: HTTP service for the people of this machine
After=network-online.target gpuqueue-store.service
Wants=network-online.target gpuqueue-store.service
StartLimitIntervalSec=0

[Service]
User={account}
Environment=GPUQUEUE_CONFIG={config}
{signs}RuntimeDirectory={run}
# The socket stays, so that commands wait for the next service instead of looking for a queue of their own.
RuntimeDirectoryPreserve=yes
ExecStart={programs}/gpuqueue serve
Restart=always
RestartSec=1
{sandbox}{without_devices}
[Install]
WantedBy=multi-user.target
"""


def config_text(site: SystemSite) -> str:
    """Return the settings file of store, recorder and service."""
    return _CONFIG.format(**_words(site))


def workers_config_text(site: SystemSite) -> str:
    """Return the settings file of the workers beside the service."""
    return _WORKERS_CONFIG.format(**_words(site))


def unit_texts(site: SystemSite) -> dict[str, str]:
    """Return the text of each unit of this machine by its name."""
    texts = (_RUNS, _LAUNCHER, *((_NOTIFIER, _STORE, _SERVICE) if site.serves else ()), _HOST)
    return {name: text.format(**_words(site)) for name, text in zip(site.units, texts, strict=True)}


def _words(site: SystemSite) -> dict[str, object]:
    """Return what the texts name."""
    return {
        "account": site.account,
        "group": site.group,
        "programs": site.programs,
        "config": CONFIG,
        "state": STATE,
        "socket": STORE / "store.sock",
        "service": RUN / "api.sock",
        "runner": site.runner,
        "runner_config": site.runner_config,
        "runner_state": site.runner_state,
        "runs": RUNS,
        "run": RUN.name,
        "launcher_run": LAUNCHER_RUN.name,
        "notifier": NOTIFIER_ACCOUNT,
        "notifier_run": NOTIFIER_RUN.name,
        "store": STORE,
        "host_unit": HOST_UNIT,
        "after": " gpuqueue-store.service gpuqueue-serve.service" if site.serves else "",
        "pam": _pam_words(site),
        "sandbox": _SANDBOX,
        "without_devices": _WITHOUT_DEVICES,
        "checks": f"Environment={_CHECKS}\n" if site.has_ticket_key else "",
        "signs": f"Environment={_SIGNS}\n" if site.has_ticket_key else "",
    }


def by_hand(site: SystemSite) -> tuple[str, ...]:
    """Return the commands that start the processes of the units on a machine without systemd."""
    programs = site.programs
    own = _become(site.account, STATE, CONFIG)
    signs, checks = (f" {_SIGNS}", f"{_CHECKS} ") if site.has_ticket_key else ("", "")
    words = f"--account {site.runner} --group {site.group} --runs {RUNS}{_pam_words(site)}"
    notifier = f"setsid setpriv --reuid={NOTIFIER_ACCOUNT} --regid={NOTIFIER_ACCOUNT} --init-groups env -i"
    service = (
        f"install -d -o {NOTIFIER_ACCOUNT} {NOTIFIER_RUN}",
        f"{notifier} {programs}/gpuqueue-worker notify --account {site.account} {_APART}",
        f"{own} {programs}/gpuqueue up --foreground {_APART}",
        f"install -d -o {site.account} {RUN}",
        f"{own}{signs} {programs}/gpuqueue serve {_APART}",
    )
    return (
        f"install -d {LAUNCHER_RUN}",
        f"{checks}{programs}/gpuqueue-worker launcher {words} &",
        *(service if site.serves else ()),
        f"{_become(site.runner, site.runner_state, site.runner_config)} {programs}/gpuqueue up --foreground {_APART}",
    )


def _become(account: str, home: Path, config: Path) -> str:
    who = f"--reuid={account} --regid={account} --init-groups"
    return f"setsid setpriv {who} env HOME={home} GPUQUEUE_CONFIG={config}"


def _pam_words(site: SystemSite) -> str:
    return f" --pam-service {site.pam_service}" if site.pam_service else ""
