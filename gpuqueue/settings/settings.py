"""All settings of a process, with their defaults.

A value comes from the environment, else from the settings file, else from the default (see sources.py); ``origins``
names the source of each value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import Device, DeviceFilter
from gpuqueue.model.placement import Preference, Visible
from gpuqueue.settings import sources
from gpuqueue.settings.parsers import IdleAction, LearnMemory, OnMemoryErrors, OnPartition, OnWrongDevice, RunAs
from gpuqueue.text.sanitize import without_password
from gpuqueue.version import VERSION

if TYPE_CHECKING:
    from gpuqueue.model import slots as slotting
    from gpuqueue.model.burst import PilotSettings
    from gpuqueue.model.limits import Limits
else:
    slotting = later("gpuqueue.model.slots")

#: The socket of the HTTP service of this machine. Every account may connect to it.
SYSTEM_SOCKET = "/run/gpuqueue/api.sock"
#: Last part of a lease, as a share and at most so many seconds. A shim without heartbeats ends its run before it.
FENCE_SHARE, FENCE_MOST_S = 0.3, 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """All settings of one process. Durations are seconds, sizes bytes."""

    #: The directory of this machine's store, history database, runs and logs.
    state_dir: Path
    #: The store: ``redis://``, ``rediss://`` or ``unix://``. The default is the embedded store's socket.
    redis_url: str = field(repr=False)
    #: The history database, as an SQLAlchemy URL. The default is a SQLite file in the state directory.
    database_url: str = field(repr=False)
    #: This machine's name in the queue and the history database.
    host: str
    #: The directory that holds one directory for each run. The default is ``runs`` in the state directory.
    runs_dir: Path
    #: The pipe directory of NVIDIA's MPS daemon (:attr:`mps`). The default is ``mps`` in the state directory.
    mps_pipe_directory: Path
    #: The HTTP service that client programs use instead of the store: ``unix:///PATH`` or ``https://HOST``. Empty: the
    #: service of this machine if its socket is there and no store is named, else the store.
    url: str = ""
    #: The file with the access token for ``https://``.
    token_file: Path | None = None
    #: On the machine of the service: the account of the workers here, if it is not that of the service. None: it is.
    workers_account: str | None = None
    #: Where the embedded store listens, in a directory that other accounts may enter. None: in the state directory.
    store_socket: Path | None = None
    #: For workers that do not have the account of the service: the service, to which they send logs and results.
    service_url: str | None = None
    #: The file with the token of this host.
    service_token_file: Path | None = None
    #: The certificate of the authority that signed that of the service. None: one that this machine trusts.
    service_ca: Path | None = None
    #: The key with which the service signs jobs, so that launchers start no others. None: it signs none.
    ticket_key_file: Path | None = None
    #: Whether this host records the history. A host that has joined does not: the host of the service does.
    record: bool = True
    #: Where browsers find the page of the service, such as ``https://gpu.example.org``. None: where it listens.
    web_url: str | None = None
    #: The store as other hosts reach it, with its password: what the service gives to hosts that join. None: none may.
    hosts_redis_url: str | None = field(default=None, repr=False)
    #: The certificate of the store's authority, which hosts that join get. None: they trust one.
    hosts_redis_ca: Path | None = None
    #: The devices that ``up`` serves: ``auto``, ``gpu``, ``cpu``, both (``gpu,cpu``), only some GPUs (``gpu:0,2``), an
    #: engine (``slurm``), or simulated: ``sim:4x24G``.
    devices: str = "auto"
    #: The pool of this machine's devices. Jobs with ``--pool`` run only in their pool. Empty: none.
    pool: str = ""
    #: Headroom on every device: memory that is not allocated to jobs.
    headroom_bytes: int = 512 * 2**20
    #: Time after which half of the memory that an external process has freed still counts; None: none of it counts.
    external_half_life_s: float | None = 60.0
    #: Most jobs at a time on one device.
    slots: int = 8
    #: Like ``slots``, for devices of some models, such as ``T4=2, 1g.5gb=1``; the first that fits a device counts.
    slots_on: str = ""
    #: Temperature in °C from which on a device takes no new job. None: a little below the device's own limit.
    temperature_limit_c: int | None = None
    #: What happens to a device with memory errors that could not be corrected, besides that they are shown.
    on_memory_errors: OnMemoryErrors = OnMemoryErrors.SHOW
    #: Memory that a job asks for when ``submit`` is given no ``--mem``; None makes ``--mem`` required.
    default_mem_bytes: int | None = None
    #: Whether a job without ``--mem`` asks for what its earlier runs needed.
    learn_memory: LearnMemory = LearnMemory.SUGGEST
    #: How often a job that died for lack of device memory runs again with more, if ``submit`` does not say; 0: never.
    mem_retries: int = 2
    #: After how many failed members without a success the rest of an array is held, if ``submit`` does not say.
    max_failures: int | None = None
    #: Device kind of a job when ``submit`` is given no ``--device``; None: a GPU wherever the queue knows of one.
    default_device: DeviceFilter | None = None
    #: How long the jobs of a host without heartbeats are kept for it: the lease of a run. Longer over a network.
    host_lost_after_s: float = sources.HOST_LOST_AFTER_S
    #: Time between two heartbeats of a worker.
    heartbeat_s: float = sources.LONGEST_HEARTBEAT_S
    #: Time between two checks of the queue without a message on the wake-up channel.
    poll_s: float = 2.0
    #: Time that a job has between SIGTERM and SIGKILL.
    kill_grace_s: float = 10.0
    #: Lost runs after which a job is held.
    loss_limit: int = 3
    #: A run that lasts at least this long may ask to be requeued (exit code 75) any number of times; None: five times.
    requeue_free_after_s: float | None = 3600.0
    #: Time after which past usage counts half.
    half_life_s: float = 7 * 86400.0
    #: Shares of users and groups, such as ``ann=2, @vision=3``; the default is 1.
    shares: str = ""
    #: Members of the groups, such as ``vision: ann bob; nlp: eve``.
    groups: str = ""
    #: What users and groups may have at a time, such as ``*: running_gpus=4; @vision: running_mem=200G``.
    limits: str = ""
    #: Limits and defaults for the requests of a pool's jobs, such as ``big: max_time=2d default_time=4h``.
    pool_limits: str = ""
    #: Default placement of a job on one device: where the largest share of the memory is free, the least is, or
    #: where the running jobs are expected to use the device least.
    placement: Preference = Preference.SPREAD
    #: What runs the containers of jobs on this host: ``podman``, ``docker``, ``apptainer`` or ``charliecloud``, or with
    #: its program, ``podman=/opt/bin/podman``. Empty: jobs with ``--container`` do not start here.
    container_engine: str = ""
    #: What CUDA_VISIBLE_DEVICES holds in a job: ``uuid``, or ``index`` for programs that read numbers.
    visible: Visible = Visible.UUID
    #: Users who may use the priority urgent, separated by commas; ``*`` for all users.
    urgent: str = "*"
    #: Users who may change the jobs of others, besides root, separated by commas; ``*`` for all. Empty: none.
    admins: str = ""
    #: How much time the owner of a running job may add to its time limit, in all; None: any. Admins may add any.
    extend_s: float | None = 86400.0
    #: Who may see and do what at the service, where it differs from the default: ``see-logs=everybody``.
    access: str = ""
    #: Most requests of one account to the service, per second, in the long run; None: no limit.
    request_rate: int | None = 200
    #: Whether the metrics of the service have the names of users, with what each has running and waiting.
    metrics_users: bool = False
    #: How many device-hours an account may have reserved by the calendar at a time; admins any. Only for admins, unless
    #: ``access`` says ``reserve=everybody``.
    reserve_hours: int = 24
    #: How long a job that fits nowhere waits before devices are reserved for it; None: no reservations.
    reserve_after_s: float | None = 600.0
    #: Most jobs for which devices of one host are reserved at a time.
    reservations: int = 1
    #: Part of all device time that may be idle because reserved, on average, such as ``3 %``; None: any.
    reserve_budget: float | None = 0.03
    #: How long a job waits at its priority before it is promoted to the next (aging); None: no promotion.
    age_after_s: float | None = 86400.0
    #: Which priorities may preempt which, such as ``urgent: low normal``. Empty: none.
    preempt: str = ""
    #: Shortest time that a run goes on before it may be preempted.
    preempt_after_s: float = 600.0
    #: Time that a preempted run has to end by itself.
    preempt_grace_s: float = 60.0
    #: How long a run may go without using its devices before it is marked as idle; None: it is never marked.
    idle_after_s: float | None = 3600.0
    #: What happens to an idle run besides the mark, after warnings.
    idle_action: IdleAction = IdleAction.MARK
    #: Time from the mark to that action.
    idle_grace_s: float = 3600.0
    #: How long a run may write no output and not use its devices, or stay at the same step, before it is marked; None:
    #: it is never marked for that.
    stalled_after_s: float | None = 1800.0
    #: A run is marked if its disk has less free, or less than 5 %; None: it is never marked for that.
    disk_low_bytes: int | None = 2**30
    #: What happens to a run that uses a device that it was not given, besides the messages.
    on_wrong_device: OnWrongDevice = OnWrongDevice.WARN
    #: What happens to the running jobs of a host that cannot reach the store for longer than their grace.
    on_partition: OnPartition = OnPartition.STOP
    #: Whether jobs are held to the memory that they asked for.
    cap: bool = True
    #: Whether jobs share the GPUs of this host through NVIDIA's MPS, whose control daemon the site starts.
    mps: bool = False
    #: Most of a GPU's threads that a job may use through MPS, in percent, if its environment does not say; None: all.
    mps_thread_percentage: int | None = None
    #: Whether a job gets its share of the processors of its host as the number of threads of numerical libraries.
    limit_threads: bool = True
    #: What is added to the score of jobs by which the kernel chooses a process to kill when host memory runs out.
    oom_score_adj: int = 300
    #: Whether shared memory that a run has used in /dev/shm, and that no process uses at its end, is removed then.
    remove_shared_memory: bool = False
    #: Largest log of a run. A larger log loses its middle; None: no limit.
    log_limit_bytes: int | None = 4 * 2**30
    #: Most disk space of all logs of one user on one host. The oldest logs of ended runs are cut; None: no limit.
    user_log_limit_bytes: int | None = 20 * 2**30
    #: How long the log of an ended run is kept; None: for ever.
    keep_logs_s: float | None = 30 * 86400.0
    #: How long a run's copy of the code, with what the job wrote there, is kept after its end; None: for ever.
    keep_code_s: float | None = 7 * 86400.0
    #: Largest results of a run, the files that its job asked to keep; None: no limit.
    results_limit_bytes: int | None = 10 * 2**30
    #: Most disk space of all results of one user on one host. The oldest are removed; None: no limit.
    user_results_limit_bytes: int | None = 50 * 2**30
    #: How long the results of an ended run are kept; None: for ever.
    keep_results_s: float | None = 30 * 86400.0
    #: How long the snapshot of a job's code is kept at the service after its last use; None: for ever.
    keep_snapshots_s: float | None = 30 * 86400.0
    #: Whether the code of a job travels with it to a service on another machine, if ``submit`` does not say.
    snapshot: bool = True
    #: Largest snapshot of code that travels with a job, largest file in one, and most files.
    snapshot_limit_bytes: int = 200 * 2**20
    snapshot_file_limit_bytes: int = 20 * 2**20
    snapshot_files: int = 20_000
    #: Most that the snapshots of one user may have together.
    snapshot_user_limit_bytes: int = 10 * 2**30
    #: Python programs of this machine, by the names that ``submit --environment`` takes.
    environments: Mapping[str, str] = field(default_factory=dict)
    #: How long the environment of an ended job is kept for ``retry``; None: for ever.
    keep_environments_s: float | None = 30 * 86400.0
    #: Whether the secrets of that environment are kept as long. Otherwise they are removed when the job ends.
    keep_secrets: bool = False
    #: How long an entry of the audit log is kept; None: for ever.
    keep_audit_s: float | None = 365 * 86400.0
    #: Targets of notifications: Apprise URLs, by the names that jobs use for them. Secret.
    notify: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Whether jobs may also name URLs of their own.
    notify_urls: bool = True
    #: With ``run_as = submitter``: the networks that URLs of jobs may reach besides public addresses,
    #: separated by commas.
    notify_networks: str = ""
    #: Whether a job records the commit that its directory had checked out at submission.
    git: bool = True
    #: How many warm interpreters each worker keeps for jobs with ``--warm``.
    warm_interpreters: int = 1
    #: The modules that a warm interpreter imports, separated by commas.
    warm_modules: str = "torch"
    #: How long a warm interpreter waits for a job.
    warm_idle_s: float = 600.0
    #: The account as which jobs run: that of the worker, or that of the submitter.
    run_as: RunAs = RunAs.WORKER
    #: Login shells of people who may run jobs, separated by commas. Empty: those of /etc/shells, less restricted ones.
    login_shells: str = ""
    #: The socket of the launcher, which starts jobs as their submitters.
    launcher: Path = Path("/run/gpuqueue-launcher/launcher.sock")
    #: From which engines devices may be borrowed, and how: ``[burst.slurm]``.
    burst: Mapping[str, PilotSettings] = field(default_factory=dict)
    #: The source of each value.
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def lease_s(self) -> float:
        """Return how long a claim holds without a heartbeat."""
        return self.host_lost_after_s

    @property
    def shim_grace_s(self) -> float:
        """Return how long a shim keeps its job without a worker's heartbeat: less than the lease."""
        return self.lease_s - min(FENCE_SHARE * self.lease_s, FENCE_MOST_S)

    def slots_for(self, device: Device) -> int:
        """Return how many jobs may run on *device* at a time."""
        default = max(self.slots, slotting.ENGINE_SLOTS) if device.kind.is_engine else self.slots
        return slotting.slots_of(device.name, self.slots_on, default)

    @property
    def fence_grace_s(self) -> float:
        """Return the time between SIGTERM and SIGKILL without heartbeats: the job must end before its lease does."""
        return min(self.kill_grace_s, (self.lease_s - self.shim_grace_s) / 3)

    @property
    def embedded(self) -> bool:
        """Return whether the store is the one that ``gpuqueue up`` starts on this machine."""
        return self.origins.get("redis_url", "default") == "default" and not self.store_through_service

    @property
    def store_through_service(self) -> bool:
        """Return whether this host reaches the store through the service of its site, which is on another machine."""
        is_named = self.origins.get("redis_url", "default") != "default"
        return sources.is_far(self.service_url) and not is_named

    @property
    def store_shown(self) -> str:
        """Return where the store is, for people: its address without the password, or the service that leads to it."""
        return f"through {self.service_url}" if self.store_through_service else without_password(self.redis_url)

    @property
    def store_is_here(self) -> bool:
        """Return whether the store runs on this machine."""
        return self.redis_url.startswith("unix:") and not self.store_through_service

    @property
    def socket_path(self) -> Path:
        """Return the path of the embedded store's socket."""
        return self.store_socket or sources.embedded_socket(self.state_dir)

    @property
    def server_socket(self) -> Path | None:
        """Return the socket at which the recorder of this account's own queue answers, or None if it has none.

        It answers where store and history are those of the state directory, so the same directory means the same queue.
        Its name has the version: a command of a newer version does not ask an older recorder.
        """
        names = ("redis_url", "store_socket", "database_url", "service_url", "workers_account")
        is_own = self.record and all(self.origins.get(name, "default") == "default" for name in names)
        return self.socket_path.with_name(f"server-{VERSION}.sock") if is_own else None

    @property
    def own_host(self) -> str | None:
        """Return the name of this host if its workers and runs are of this account, None if they are of another."""
        return self.host if self.workers_account is None else None

    @property
    def launcher_in_use(self) -> str | None:
        """Return the socket of the launcher if jobs run as their submitters, else None."""
        return str(self.launcher) if self.run_as is RunAs.SUBMITTER else None

    @property
    def client_url(self) -> str | None:
        """Return the URL of the HTTP service that clients use, or None to use the store directly.

        A store that the settings name takes precedence over the service of this machine. The directory of its socket is
        there from its first start on, so that nobody gets a queue of their own while it is down.
        """
        if self.url:
            return self.url
        named = [name for name in ("redis_url", "state_dir") if self.origins.get(name, "default") != "default"]
        is_served = not named and sources.is_directory(SYSTEM_SOCKET.rpartition("/")[0])
        return f"unix://{SYSTEM_SOCKET}" if is_served else None

    @property
    def has_history(self) -> bool:
        """Return whether this machine uses a history database. A host that has joined does not."""
        return self.record or self.origins.get("database_url", "default") != "default"

    @property
    def logs_dir(self) -> Path:
        """Return the directory of the logs of gpuqueue's own processes."""
        return self.state_dir / "log"

    @property
    def delivered_dir(self) -> Path:
        """Return the directory of the logs and results that other hosts have delivered to the service here."""
        return self.state_dir / "delivered"

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Return the settings of this process.

        Raises:
            BadRequest: a value cannot be read, or the file has a key that is no setting.

        """
        found, faults = cls.salvage(environ)
        if faults:
            raise faults[0]
        return found

    @classmethod
    def salvage(cls, environ: Mapping[str, str] | None = None) -> tuple[Settings, tuple[BadRequest, ...]]:
        """Return the settings, with defaults for values that cannot be read, and all errors."""
        values, origins, faults = sources.read_values(os.environ if environ is None else environ)
        return cls(**values, origins=origins), faults

    def site_limits(self) -> Limits:
        """Return the limits of this site.

        Raises:
            BadRequest: the limits cannot be read.

        """
        return sources.limits_of(self.limits, self.pool_limits, self.groups)
