"""The texts of the files that ``gpuqueue install`` writes. Pure."""

from __future__ import annotations

from gpuqueue.installation.site import CONFIG, LAUNCHER_RUN, RUN, RUNS, STATE, TICKET_KEY, SystemSite

#: What only the service and the launcher have in their environments. A drop-in with another ExecStart keeps that.
_SIGNS, _CHECKS = f"GPUQUEUE_TICKET_KEY_FILE={TICKET_KEY}", f"GPUQUEUE_TICKET_KEY={TICKET_KEY}"

_CONFIG = """\
# Settings of gpuqueue on this machine: of its host process, workers, recorder and service.
# Written once by `gpuqueue install`, then yours. After a change: systemctl restart gpuqueue gpuqueue-serve
state_dir = "{state}"
runs_dir = "{runs}"
run_as = "submitter"
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
Before=gpuqueue.service

[Service]
{checks}RuntimeDirectory={launcher_run}
RuntimeDirectoryPreserve=yes
ExecStart={programs}/gpuqueue-worker launcher --account {account} --group {group}{pam}
Restart=always
# For control groups of the runs here, where gpuqueue-runs cannot have them.
Delegate=yes
# The guards of running jobs are in this unit, and survive a restart.
KillMode=process
OOMPolicy=continue
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""

_HOST = """\
# Written by `gpuqueue install`. For changes: systemctl edit gpuqueue
[Unit]
Description=gpuqueue: {parts} of this GPU server
After=network-online.target gpuqueue-launcher.service
Wants=network-online.target gpuqueue-launcher.service
StartLimitIntervalSec=0

[Service]
User={account}
Environment=GPUQUEUE_CONFIG={config}
ExecStart={programs}/gpuqueue up --foreground
Restart=on-failure
RestartSec=2
# Only the main process is asked to stop. The shims of running jobs are in this unit, and survive a restart.
KillMode=process
OOMPolicy=continue
TimeoutStopSec=120
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""

_SERVICE = """\
# Written by `gpuqueue install`. For changes: systemctl edit gpuqueue-serve
[Unit]
Description=gpuqueue: HTTP service for the people of this machine
After=network-online.target gpuqueue.service
Wants=network-online.target gpuqueue.service
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
NoNewPrivileges=yes
ProtectSystem=full
ProtectHome=read-only

[Install]
WantedBy=multi-user.target
"""


def config_text() -> str:
    """Return the settings file."""
    return _CONFIG.format(state=STATE, runs=RUNS)


def unit_texts(site: SystemSite) -> dict[str, str]:
    """Return the text of each unit of this machine by its name."""
    words = {
        "account": site.account,
        "group": site.group,
        "programs": site.programs,
        "config": CONFIG,
        "run": RUN.name,
        "launcher_run": LAUNCHER_RUN.name,
        "pam": _pam_words(site),
        "checks": f"Environment={_CHECKS}\n" if site.has_ticket_key else "",
        "signs": f"Environment={_SIGNS}\n" if site.has_ticket_key else "",
        "parts": "store, recorder and workers" if site.serves else "workers",
    }
    texts = (_RUNS, _LAUNCHER, _HOST, *((_SERVICE,) if site.serves else ()))
    return {name: text.format(**words) for name, text in zip(site.units, texts, strict=True)}


def by_hand(site: SystemSite) -> tuple[str, ...]:
    """Return the commands that start the processes of the units on a machine without systemd."""
    account, programs = site.account, site.programs
    become = f"setpriv --reuid={account} --regid={account} --init-groups env HOME={STATE} GPUQUEUE_CONFIG={CONFIG}"
    signs, checks = (f" {_SIGNS}", f"{_CHECKS} ") if site.has_ticket_key else ("", "")
    words = f"--account {account} --group {site.group}{_pam_words(site)}"
    service = (f"install -d -o {account} {RUN}", f"{become}{signs} {programs}/gpuqueue serve &")
    return (
        f"install -d {LAUNCHER_RUN}",
        f"{checks}{programs}/gpuqueue-worker launcher {words} &",
        f"{become} {programs}/gpuqueue up --foreground &",
        *(service if site.serves else ()),
    )


def _pam_words(site: SystemSite) -> str:
    return f" --pam-service {site.pam_service}" if site.pam_service else ""
