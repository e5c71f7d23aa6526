"""The command lines of the container engines, and what a job in a container finds inside. Standard library only.

The job's first process calls :func:`prepared` as the submitter, right before it starts the program: in the shim, or in
the child of a guard. So the engine never has more rights than the person. Values of variables are never words of a
command line, which every account can read.

An engine is one class here and one entry of ENGINES. Paths are the same inside and outside. Nothing is pulled at the
start: a device would wait for the network.
"""

from __future__ import annotations

import errno
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Protocol

    class Engine(Protocol):
        """A container engine.

        ``program`` is the name of its program. With ``forwards`` that stays beside the job and passes signals on; else
        it becomes the job. ``pins``: the container has only the job's devices. ``advice`` is how an image comes to a
        host.
        """

        program: str
        forwards: bool
        pins: bool
        advice: str

        def image_variables(self, inside: Inside) -> dict[str, str]:
            """Return the variables that the image sets, as far as the engine says.

            Raises:
                OSError: the image is not on this host, or the engine does not work here.

            """

        def command(self, inside: Inside) -> tuple[list[str], dict[str, str]]:
            """Return the command line of the engine and its own environment.

            Raises:
                OSError: the engine cannot do what the job asks for.

            """

        def removal(self, program: str, name: str) -> list[str] | None:
            """Return the command line that removes the container *name*. None: nothing is left of one."""


#: The directory of the hook that runs inside the job's own Python (``workers/run/signed_environment.py``).
HOOK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inside", "site")
#: Where the home directory is if it is not bound: a place that each account may write to.
NO_HOME = "/tmp"  # noqa: S108 - inside the container
#: The PATH of an image that names none.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Shared memory, which is the host's: the usual 64 MiB of a container are too little for data loaders.
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - data loaders use it
#: The file that says that the kernel has the unified control groups.
UNIFIED = "/sys/fs/cgroup/cgroup.controllers"
#: The variable that names the directory of NVIDIA's MPS daemon, and those of the devices.
MPS_PIPES, VISIBLE, NVIDIA = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"
#: Variables of one host for the engines that hand their own environment on, besides those that configure them.
OF_ENGINE = frozenset({"HOME", "PATH", "USER", "LOGNAME", "XDG_RUNTIME_DIR"})
#: Variables that hold paths and names of the host, beside those that the worker knows of. The launcher sets some.
OF_HOST = frozenset({*OF_ENGINE, "SHELL", "PWD", "PYTHONPATH", "BASH_ENV", NVIDIA})
#: Longest message of an engine, in characters.
MAX_WORDS = 300
#: The fields of a container in the spec of a run.
FIELDS = frozenset({"engine", "program", "image", "binds", "devices", "outside"})
_UUID = re.compile(r"[\w./-]{1,128}", re.ASCII)
_TOKEN = re.compile(r"[0-9]{1,9}\.[0-9a-z]{1,64}")


class Bind:
    """A file or directory of the host in the container."""

    __slots__ = ("source", "target", "writable")

    def __init__(self, source: str, target: str | None = None, *, writable: bool = True) -> None:
        self.source, self.target, self.writable = source, target or source, writable

    def __str__(self) -> str:
        return f"{self.source}:{self.target}{'' if self.writable else ':ro'}"


class Inside:
    """What a job in a container finds inside: its command, its directory, its variables, its binds and its devices."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        container: Mapping[str, Any],
        code: str | None,
        *,
        pty: bool,
        typed: bool,
    ) -> None:
        self.argv, self.cwd, self.pty, self.typed = list(argv), cwd, pty, typed
        self.env = dict(env)
        self.program: str = container["program"]
        self.image: str = container["image"]
        self.devices: list[str] = list(container["devices"])
        self.name = container_name(env)
        self.binds = _binds(env, code or cwd, [_bind_of(text) for text in container["binds"]])
        outside = {*container["outside"], *OF_HOST}
        #: The names of the variables that go in. Their values are in ``env``.
        self.variables = [name for name in env if name not in outside]
        home = env.get("HOME", "")
        self.home = home if home and any(_is_within(home, bind.target) for bind in self.binds) else NO_HOME

    def count_devices(self) -> None:
        """Number the devices from 0 for a program that reads numbers: the container has no others."""
        numbers = self.env.get(VISIBLE, "").split(",")
        if all(number.isdigit() for number in numbers):
            self.env[VISIBLE] = ",".join(map(str, range(len(numbers))))

    def add_hook(self, image: Mapping[str, str]) -> None:
        """Let the job's Python find the hook, if it has one, before what the *image* names. The host's paths end."""
        if self.env.get("PYTHONPATH", "").split(os.pathsep)[0] == HOOK:
            own = image.get("PYTHONPATH", "")
            self.env["PYTHONPATH"] = f"{HOOK}{os.pathsep}{own}" if own else HOOK
            self.variables.append("PYTHONPATH")
            self.binds.append(Bind(HOOK, writable=False))


def container_name(env: Mapping[str, str]) -> str:
    """Return the name of the container of a run, which has its token.

    Raises:
        OSError: the run has none.

    """
    token, job = env.get("GPUQUEUE_TOKEN", ""), env.get("GPUQUEUE_JOB_ID", "")
    if not _TOKEN.fullmatch(token) or not job.isdigit():
        raise OSError(errno.EINVAL, "the run has no token")
    return f"gpuqueue-{job}-{token}"


def _bind_of(text: str) -> Bind:
    source, target, *options = text.split(":")
    return Bind(source, target, writable="ro" not in options)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _binds(env: Mapping[str, str], directory: str, given: list[Bind]) -> list[Bind]:
    """Return the binds of a job, the outer ones first. Those of the submitter win over ours at the same place."""
    run_dir, pipes = env.get("GPUQUEUE_RUN_DIR", ""), env.get(MPS_PIPES, "")
    ours = [Bind(path) for path in (SHARED_MEMORY, run_dir, directory, pipes) if path and os.path.isdir(path)]
    named = {bind.target for bind in given}
    binds = [*{bind.target: bind for bind in ours if bind.target not in named}.values(), *given]
    return sorted(binds, key=lambda bind: bind.target.count("/"))


def check_binds(binds: Iterable[Bind]) -> None:
    """Check that this account can read the sources. An engine with a daemon of root would read them as root.

    Raises:
        OSError: one is missing, or is not for this account.

    """
    for bind in binds:
        os.stat(bind.source)  # its error has the path
        if not os.access(bind.source, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), bind.source)


def prepared(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    container: Mapping[str, Any],
    code: str | None = None,
    *,
    pty: bool = False,
    typed: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of the engine for the job *argv*, which runs in *container*.

    *code* is the directory of the code that came with the job.

    Raises:
        OSError: the image, a bind or the engine is missing on this host, or the engine cannot do it.

    """
    engine = ENGINES[container["engine"]]
    inside = Inside(argv, env, cwd, container, code, pty=pty, typed=typed)
    try:
        check_binds(inside.binds)
    except OSError as error:
        raise OSError(error.errno, f"cannot bind {error.filename}: {error.strerror}") from error
    inside.add_hook(engine.image_variables(inside))
    if engine.pins:
        inside.count_devices()
    return engine.command(inside)


def of_spec(spec: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment for the shim's *spec* of a run, as :func:`prepared` does."""
    code = None if spec["code"] is None else spec["code"]["directory"]
    is_terminal, is_typed = spec["pty"] is not None, bool(spec["typed"])
    return prepared(spec["argv"], spec["env"], spec["cwd"], spec["container"], code, pty=is_terminal, typed=is_typed)


def removal(container: Mapping[str, Any] | None, env: Mapping[str, str]) -> list[str] | None:
    """Return the command line that removes the container of a run whose engine was killed. None: nothing is left."""
    if container is None:
        return None
    return ENGINES[container["engine"]].removal(container["program"], container_name(env))


def forwards(container: Mapping[str, Any] | None) -> bool:
    """Return whether the first process of a job passes the signals on, so that no other process gets them from us."""
    return container is not None and ENGINES[container["engine"]].forwards


def _asked(program: str, words: Sequence[str], env: Mapping[str, str]) -> str:
    """Return what the engine prints.

    Raises:
        OSError: it fails; with its last words.

    """
    reader, writer = os.pipe()
    errors = os.memfd_create("errors")
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_DUP2, errors, 2)]
    try:
        pid = os.posix_spawn(program, [program, *words], dict(env), file_actions=actions)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read().decode(errors="replace")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        printed = os.pread(errors, 65536, 0).decode(errors="replace").strip().splitlines()
    finally:
        os.close(errors)
        os.close(null)
    if status != 0:
        lines = " ".join(printed[-1:]) or f"exit code {status}"
        lacks_helper = "newuidmap" in "".join(printed) and no_new_privileges()
        raise OSError(errno.EPERM if lacks_helper else errno.ENOENT, _NO_HELPER if lacks_helper else lines[:MAX_WORDS])
    return text


#: Why rootless Podman does not work where jobs must not start set-user-ID programs.
_NO_HELPER = (
    "rootless Podman needs newuidmap, and jobs must not start set-user-ID programs here: set container_engine to "
    "charliecloud, or start the launcher with --allow-setuid"
)


def no_new_privileges() -> bool:
    """Return whether this process can start no set-user-ID program."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return "NoNewPrivs:\t1" in file.read()


def _image_variables(inside: Inside, advice: str) -> dict[str, str]:
    """Return the variables of an image of Docker or Podman.

    Raises:
        OSError: it is not here, or the engine does not work.

    """
    words = ("image", "inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", inside.image)
    try:
        lines = _asked(inside.program, words, inside.env).splitlines()
    except OSError as error:
        reason = str(error.strerror)
        if any(each in reason.lower() for each in ("no such image", "not known", "no such object")):
            reason = f"the image {inside.image} is not on this host: {advice.format(image=inside.image)}"
        raise OSError(error.errno, reason) from error
    return dict(line.split("=", 1) for line in lines if "=" in line)


# ---- the engines -----------------------------------------------------------------------------------------------------


class Podman:
    """Podman without root. Its monitor, conmon, is a child of nobody, so it becomes one of the shim."""

    program, forwards, pins = "podman", True, True
    advice = "podman pull {image}, as the account of the job"

    def image_variables(self, inside: Inside) -> dict[str, str]:
        """Return the variables of the image."""
        return _image_variables(inside, self.advice)

    def command(self, inside: Inside) -> tuple[list[str], dict[str, str]]:
        """Return the command line. The pids are the host's: a first process with pid 1 would ignore SIGTERM."""
        words = [inside.program, "--log-level=error", "run", "--rm", f"--name={inside.name}", "--pull=never"]
        words += [f"--log-driver={'none' if inside.pty else 'passthrough'}", "--network=host", "--pid=host"]
        # Podman would move the container out of the control group of the run.
        words += ["--cgroups=disabled"] if os.path.exists(UNIFIED) else []
        words += ["--userns=keep-id"] if has_subordinate_ids(os.getuid(), inside.env.get("USER", "")) else []
        words += ["--security-opt=label=disable"]  # SELinux would refuse the directories of the submitter
        words += [f"--volume={bind}" for bind in inside.binds]
        words += [f"--device=nvidia.com/gpu={uuid}" for uuid in inside.devices]  # CDI
        words += [f"--env={NVIDIA}=void"]  # an image that asks for all devices must not get them from an old hook
        return [*words, *_of_docker(inside)], inside.env

    def removal(self, program: str, name: str) -> list[str]:
        """Return the command line that removes the layers of a container whose monitor was killed."""
        return [program, "--log-level=error", "rm", "--force", "--ignore", "--time=0", name]


class Docker:
    """Docker. Its daemon starts the container, so its processes are no descendants of the shim."""

    program, forwards, pins = "docker", True, True
    advice = "docker pull {image}"

    def image_variables(self, inside: Inside) -> dict[str, str]:
        """Return the variables of the image."""
        return _image_variables(inside, self.advice)

    def command(self, inside: Inside) -> tuple[list[str], dict[str, str]]:
        """Return the command line. The daemon is root's, so user and groups are named."""
        words = [inside.program, "run", "--rm", f"--name={inside.name}", "--pull=never", "--log-driver=none", "--init"]
        words += ["--network=host", f"--user={os.getuid()}:{os.getgid()}", "--security-opt=no-new-privileges"]
        words += [f"--group-add={gid}" for gid in sorted({*os.getgroups()} - {os.getgid()})]
        for bind in inside.binds:  # --volume would make a missing directory, as root
            read_only = "" if bind.writable else ",readonly"
            words += [f"--mount=type=bind,source={bind.source},target={bind.target}{read_only}"]
        names = ",".join(inside.devices)  # the option is a line of CSV
        words += [f'--gpus="device={names}"'] if inside.devices else [f"--env={NVIDIA}=void"]
        return [*words, *_of_docker(inside)], inside.env

    def removal(self, program: str, name: str) -> list[str]:
        """Return the command line that ends the container."""
        return [program, "rm", "--force", name]


def _of_docker(inside: Inside) -> list[str]:
    """Return the words that Docker and Podman have in common, the last of their command lines."""
    words = [f"--workdir={inside.cwd}", f"--env=HOME={inside.home}"]
    words += [f"--env={name}" for name in inside.variables]  # with the value of the engine's own environment
    words += ["--tty"] if inside.pty else []
    words += ["--interactive"] if inside.typed else []
    return [*words, inside.image, *inside.argv]


class Apptainer:
    """Apptainer, once Singularity, with an image that is a file or a directory."""

    program, forwards, pins = "apptainer", True, False
    advice = "apptainer pull FILE docker://NAME, and name the FILE"

    def image_variables(self, inside: Inside) -> dict[str, str]:
        """Return nothing: the image sets its variables by scripts."""
        if not os.path.exists(inside.image):
            raise OSError(errno.ENOENT, f"there is no image {inside.image} on this host: {self.advice}")
        return {}

    def command(self, inside: Inside) -> tuple[list[str], dict[str, str]]:
        """Return the command line. Variables go in by its own environment, without PATH, which is the image's."""
        words = [inside.program, "exec", "--contain", f"--pwd={inside.cwd}"]
        words += ["--nv"] if inside.devices else []
        words += [f"--bind={bind}" for bind in inside.binds]
        return [*words, inside.image, *inside.argv], _handed_on(inside, ("APPTAINER_", "SINGULARITY_"))

    def removal(self, program: str, name: str) -> None:
        """Return None: its processes are descendants of the shim, and nothing is stored."""


class Charliecloud:
    """Charliecloud, which needs no helper of root: it becomes the job in a user namespace."""

    program, forwards, pins = "ch-run", False, False
    advice = "ch-image pull NAME, and ch-convert NAME DIRECTORY"

    def image_variables(self, inside: Inside) -> dict[str, str]:
        """Return nothing: the engine sets the variables of the image itself."""
        if not os.path.exists(inside.image) and not os.path.isdir(_stored(inside.image, inside.env)):
            raise OSError(errno.ENOENT, f"there is no image {inside.image} on this host: {self.advice}")
        return {}

    def command(self, inside: Inside) -> tuple[list[str], dict[str, str]]:
        """Return the command line. What lies below /tmp is there only if the whole directory is the host's."""
        image = inside.image if os.path.exists(inside.image) else _stored(inside.image, inside.env)
        binds = [bind for bind in inside.binds if not _is_within(bind.target, "/dev")]  # /dev is the host's
        shares_tmp = any(_is_within(bind.target, NO_HOME) for bind in binds)
        if shares_tmp:
            binds = [bind for bind in binds if bind.target != bind.source or not _is_within(bind.target, NO_HOME)]
        words = [inside.program, f"--cd={inside.cwd}", *([] if shares_tmp else ["--private-tmp"])]
        if os.path.isfile(os.path.join(image, "ch", "environment")):
            words += ["--set-env"]
        for bind in binds:
            if not bind.writable and bind.source != HOOK:
                raise OSError(errno.EPERM, f"Charliecloud cannot bind {bind.source} read-only: leave out :ro")
            _make_mount_point(image, bind)
            words += [f"--bind={bind.source}:{bind.target}"]
        env = {**_handed_on(inside, ("CH_",)), "PATH": PATH, "HOME": inside.home}
        env.pop("TMPDIR", None)  # it would be bound in place of /tmp
        return [*words, image, "--", *inside.argv], env

    def removal(self, program: str, name: str) -> None:
        """Return None: it has become the job, and nothing is stored."""


def _handed_on(inside: Inside, own: tuple[str, ...]) -> dict[str, str]:
    """Return the environment of an engine that hands it on: what goes in, and what it needs itself."""
    goes_in = {*inside.variables, *OF_ENGINE}
    return {name: value for name, value in inside.env.items() if name in goes_in or name.startswith(own)}


def _stored(image: str, env: Mapping[str, str]) -> str:
    """Return where Charliecloud stores the image of this name."""
    storage = env.get("CH_IMAGE_STORAGE") or f"/var/tmp/{env.get('USER', '')}.ch"  # noqa: S108 - its default
    return os.path.join(storage, "img", image.replace("/", "%").replace(":", "+"))


def _make_mount_point(image: str, bind: Bind) -> None:
    """Make the place of *bind* in the directory *image* if it is missing: Charliecloud makes none.

    Raises:
        OSError: it is missing, and cannot be made.

    """
    place = os.path.join(image, bind.target.lstrip("/"))
    if os.path.lexists(place) or not os.path.isdir(image):
        return
    try:
        if os.path.isdir(bind.source):
            os.makedirs(place, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.close(os.open(place, os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        words = f"the image has no {bind.target} to bind there, and it cannot be made ({error.strerror}): mkdir {place}"
        raise OSError(errno.ENOENT, words) from error


def has_subordinate_ids(uid: int, name: str) -> bool:
    """Return whether the account may use further user ids, without which Podman maps its own one only, to root."""
    try:
        with open("/etc/subuid", encoding="utf-8", errors="replace") as file:
            return any(line.split(":")[0] in {name, str(uid)} for line in file)
    except OSError:
        return False


#: The engines, by the values of the setting ``container_engine``.
ENGINES: Mapping[str, Engine] = {
    "podman": Podman(),
    "docker": Docker(),
    "apptainer": Apptainer(),
    "charliecloud": Charliecloud(),
}


def is_valid(container: object) -> bool:
    """Return whether *container* has the fields of a container, with values of the right types."""
    if type(container) is not dict or container.keys() != FIELDS:
        return False
    words = [container["engine"], container["program"], container["image"]]
    words += [word for name in ("binds", "devices", "outside") for word in container[name]]
    are_words = all(type(word) is str and word for word in words)
    are_words = are_words and all(_UUID.fullmatch(uuid) for uuid in container["devices"])
    return are_words and container["engine"] in ENGINES and not container["image"].startswith("-")
