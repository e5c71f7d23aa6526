"""One suite for both clients of the store (the redis library and the small client): they are interchangeable."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from bounded import until
from factories import make_offer, make_spec, serve
from link import stop_accepting
from own_store import OwnStore
from private_store import StartStore
from relay import Relay

from gpuqueue.errors import StoreLoading, StoreNotOpen, StoreNotReady, StoreUnreachable, Unreadable
from gpuqueue.model.job import JobState
from gpuqueue.queue import keys
from gpuqueue.queue.connect import Connect, connect, connect_at_once, translated
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.resp.client import RespClient
from gpuqueue.queue.wakeup import Subscriber

BY: dict[str, Connect] = {"library": connect, "small": connect_at_once}


@pytest.fixture(params=BY)
def by(request: pytest.FixtureRequest) -> Connect:
    """Return the connect function under test."""
    return BY[request.param]


@pytest.fixture
def relayed(start_store: StartStore) -> Iterator[Callable[..., tuple[Relay, str]]]:
    """Return a function that starts a store behind a relay and returns the relay and its URL."""
    relays = []

    def start(tls: ssl.SSLContext | None = None) -> tuple[Relay, str]:
        relay = Relay(start_store(), tls=tls)
        relays.append(relay)
        return relay, f"{'rediss' if tls else 'redis'}://127.0.0.1:{relay.port}"

    yield start
    for each in relays:
        each.close()


@pytest.fixture
def resp_client(by: Connect, start_store: StartStore) -> Iterator[Any]:
    """Return a connection to a private store."""
    opened = by(start_store())
    yield opened
    opened.close()


def _open(url: str) -> None:
    """Open a store."""
    queue = JobQueue(url)
    queue.recovery.open(0)
    queue.close()


# ---- every kind of store URL -----------------------------------------------------------------------------------------


def certificate(directory: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    """Return a self-signed certificate and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl program to make a certificate with")
    made, key = directory / "cert.pem", directory / "key.pem"
    what = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=store")
    where = ("-addext", f"subjectAltName=IP:{name}", "-out", str(made), "-keyout", str(key))
    subprocess.run([openssl, "req", *what, *where], check=True, capture_output=True)
    return made, key


def _tcp(start_store: StartStore, *words: str) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_store("--port", str(port), *words)
    return f"127.0.0.1:{port}"


def _let_in_only_gq(url: str) -> None:
    admin = connect(url)
    admin.execute_command("ACL", "SETUSER", "gq", "on", ">secret", "~*", "&*", "+@all")
    admin.execute_command("ACL", "SETUSER", "default", "off")
    admin.close()


def _account(start_store: StartStore) -> str:
    place = _tcp(start_store)
    _let_in_only_gq(f"redis://{place}")
    return f"redis://gq:secret@{place}"


def _in_the_query(start_store: StartStore) -> str:
    url = start_store()
    _let_in_only_gq(url)
    return f"{url}?username=gq&password=secret&db=1&client_name=me"


_PLAIN: dict[str, Callable[[StartStore], str]] = {
    "unix": lambda start: start(),
    "database": lambda start: f"{start()}?db=3",
    "tcp": lambda start: f"redis://{_tcp(start)}/2",
    "password": lambda start: f"redis://:a%40b%2Fc@{_tcp(start, '--requirepass', 'a@b/c')}/1",
    "account": _account,
    "query": _in_the_query,
}


@pytest.fixture(params=[*_PLAIN, "tls"])
def address(
    request: pytest.FixtureRequest, start_store: StartStore, relayed: Callable[..., tuple[Relay, str]], tmp_path: Path
) -> str:
    """Return the URL of a store, one of each kind."""
    if request.param != "tls":
        return _PLAIN[request.param](start_store)
    made, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    _, url = relayed(context)
    return f"{url}/1?ssl_ca_certs={made}"


def test_a_job_goes_its_way(by: Connect, address: str) -> None:
    """A job is submitted, claimed, started, ended and reported over each kind of URL."""
    queue = JobQueue(address, by=by)
    with pytest.raises(StoreNotOpen):
        queue.requests.submit(make_spec())
    assert queue.recovery.open(0)
    offer = make_offer()
    serve(queue, offer)
    spec = make_spec(name="Größe \udcff", argv=("echo", "x" * 100_000))

    first, second = queue.requests.submit(spec), queue.requests.submit(make_spec())
    claim = queue.runs.claim(offer, worker="w", lease_s=30, nonce="n")
    assert claim is not None
    state = queue.runs.started(claim.job_id, claim.token, lease_s=30, log_path="/l", devices=())
    with Subscriber(address, keys.END, by=by) as wakeups:
        assert wakeups.wait(0.01) is None
        assert JobState.CANCELLED is queue.jobs.cancel(second.id)
        wake = until(lambda: wakeups.wait(1.0))

    assert JobState.RUNNING is state
    assert second.id == wake.job_id
    assert spec == claim.spec
    assert [first.id] == [job.id for job in queue.jobs.live() if not job.state.is_end]
    assert queue.jobs.get(99) is None
    assert (0, 1) == queue.jobs.counts()
    assert queue.jobs.why(first.id) is not None
    assert [offer.device] == [each.device for each in queue.devices.all()]
    assert ["submit", "submit"] == [event.act.value for event in queue.outbox.events("0-0", most=2, wait_s=0.01)]
    assert queue.outbox.backlog()[0] == len(queue.outbox.events("0-0"))
    assert [] == queue.outbox.events(queue.outbox.events("0-0")[-1].id, wait_s=0.01)
    queue.close()


def test_the_small_client_is_used_wherever_possible(address: str) -> None:
    # Otherwise this suite would test the same client twice.
    resp_client = connect_at_once(address)

    assert isinstance(resp_client, RespClient)
    assert not isinstance(connect(address), RespClient)


# ---- one command -----------------------------------------------------------------------------------------------------


def test_each_command_gives_what_the_library_gives(start_store: StartStore) -> None:
    """Both clients return the same values for each command, in the library's shapes."""
    url = start_store()
    admin = connect(url)
    admin.hset("h", mapping={"a": "1", "b": "ü\udcfe"})
    admin.sadd("m", "p", "q")
    admin.zadd("z", {"x": 1, "y": 2, "w": 3})
    admin.xadd("s", {"f": "v", "g": ""}, id="1-1")
    admin.set("k", "")
    asked: dict[str, Callable[[Any], Any]] = {
        "exists": lambda resp_client: (
            resp_client.exists("k"),
            resp_client.exists("none"),
            resp_client.exists("k", "h"),
        ),
        "get": lambda resp_client: (resp_client.get("k"), resp_client.get("none")),
        "hget": lambda resp_client: (
            resp_client.hget("h", "b"),
            resp_client.hget("h", "none"),
            resp_client.hget("none", "x"),
        ),
        "hmget": lambda resp_client: resp_client.hmget("h", "a", "none", "b"),
        "hgetall": lambda resp_client: (resp_client.hgetall("h"), resp_client.hgetall("none")),
        "hvals": lambda resp_client: (resp_client.hvals("h"), resp_client.hvals("none")),
        "hkeys": lambda resp_client: resp_client.hkeys("h"),
        "hlen": lambda resp_client: resp_client.hlen("h"),
        "hset": lambda resp_client: (
            resp_client.hset("new", "f", 1.5),
            resp_client.hset("new", "f", "x"),
            resp_client.hdel("new", "f", "g"),
        ),
        "smembers": lambda resp_client: (resp_client.smembers("m"), resp_client.smembers("none")),
        "zcard": lambda resp_client: resp_client.zcard("z"),
        "zrange": lambda resp_client: (
            resp_client.zrange("z", 0, -1),
            resp_client.zrange("z", "(1", "+inf", byscore=True, offset=0, num=1),
        ),
        "xlen": lambda resp_client: resp_client.xlen("s"),
        "xrange": lambda resp_client: (
            resp_client.xrange("s"),
            resp_client.xrange("s", min="(1-1", count=1),
            resp_client.xrange("none"),
        ),
        "xread": lambda resp_client: [
            list(dict(resp_client.xread({"s": "0"}, count=5) or {}).values()),
            resp_client.xread({"s": "9"}, block=1) or None,
        ],
    }
    library, small = connect(url), connect_at_once(url)
    for name, ask in asked.items():
        assert _plain(ask(library)) == _plain(ask(small)), name
    assert abs(library.time()[0] - small.time()[0]) <= 2
    for pipe in (library.pipeline(transaction=True), small.pipeline(transaction=True)):
        pipe.get("k")
        pipe.hgetall("h")
        pipe.zcard("none")
        assert ["", {"a": "1", "b": "ü\udcfe"}, 0] == pipe.execute()
        assert [] == pipe.execute()
    for each in (admin, library, small):
        each.close()


def _plain(answer: Any) -> Any:
    """Return *answer* with tuples as lists: the queue unpacks both in the same way."""
    if isinstance(answer, (list, tuple)):
        return [_plain(each) for each in answer]
    return answer


def test_answers_of_every_kind(resp_client: Any) -> None:
    """Both clients read every kind of answer: nil, numbers, texts, nested lists and status replies."""
    script = "return {1, false, 'x', '', {2, {}, {'y', {'z'}}}, redis.status_reply('FINE')}"

    answer = resp_client.register_script(script)()

    assert [1, None, "x", "", [2, [], ["y", ["z"]]], "FINE"] == answer


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 2**20])
def test_texts_longer_than_any_buffer_on_the_way_arrive_completely(resp_client: Any, size: int) -> None:
    word = "é" * (size // 2) + "\r\n"[: size % 2]
    echo = resp_client.register_script("return {ARGV[1], KEYS[1]}")

    assert [word, "k"] == echo(keys=["k"], args=[word])


def test_answers_in_pieces(by: Connect, relayed: Callable[..., tuple[Relay, str]]) -> None:
    """Answers may be split anywhere, also between carriage return and line feed."""
    relay, url = relayed()
    queue = JobQueue(url, by=by)
    relay.in_pieces = True

    queue.recovery.open(0)
    job = queue.requests.submit(make_spec(name="ü"))

    assert job == queue.jobs.get(job.id)
    queue.close()


def test_a_script_is_known_again_after_the_store_forgot_it(resp_client: Any) -> None:
    """A script is loaded again without an error after the store lost it, by a restart or a script flush."""
    script = resp_client.register_script("return ARGV[1]")
    assert ["1", "2"] == [script(args=["1"]), script(args=["2"])]

    resp_client.execute_command("SCRIPT", "FLUSH")

    assert ["3", "4"] == [script(args=["3"]), script(args=["4"])]


def test_many_runs_of_a_script_are_sent_together(resp_client: Any) -> None:
    # A refused run keeps its place and does not affect the others. It is done twice, because the store may lose the
    # script in between.
    script = resp_client.register_script(
        "if ARGV[1] == '2' then return redis.error_reply('BADARGS two') end return ARGV[1]"
    )
    for _ in range(2):
        pipe = resp_client.pipeline(transaction=False)
        for each in ("1", "2", "3"):
            script(args=[each], client=pipe)

        first, second, third = pipe.execute(raise_on_error=False)

        assert ("1", "3") == (first, third)
        assert isinstance(second, Exception)
        assert "BADARGS" in str(second)
        resp_client.execute_command("SCRIPT", "FLUSH")


def test_what_fails_in_a_pipeline_is_raised(by: Connect, start_store: StartStore) -> None:
    """A failed command in a pipeline, with or without a transaction, is raised, and later answers are right."""
    url = start_store()
    resp_client = by(url)
    resp_client.hset("h", "f", "v")
    for transaction in (True, False):
        pipe = resp_client.pipeline(transaction=transaction)
        pipe.hlen("h")
        pipe.zcard("h")
        pipe.hlen("h")
        with pytest.raises(Unreadable, match=r"WRONGTYPE|wrong kind of value"), translated(url):
            pipe.execute()
        assert "v" == resp_client.hget("h", "f")
    resp_client.close()


# ---- errors of the store ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        ("LOADING Redis is loading the dataset in memory", StoreLoading, "still loading"),
        ("MISCONF Errors writing to the AOF file: No space left on device", StoreNotReady, "write to its disk"),
        ("READONLY You can't write against a read only replica.", StoreNotReady, "read-only replica"),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreNotReady, "reached its maxmemory"),
        ("NOAUTH Authentication required.", StoreNotReady, "password"),
        ("WRONGPASS invalid username-password pair or user is disabled.", StoreNotReady, "password"),
        ("NOPERM User gq has no permissions to run the 'eval' command", StoreNotReady, "access rules"),
        ("BUSY Redis is busy running a script.", StoreNotReady, "long script"),
        ("NOREPLICAS Not enough good replicas to write.", StoreNotReady, "replicas that it requires"),
        ("MASTERDOWN Link with MASTER is down", StoreNotReady, "without its primary"),
        ("CLUSTERDOWN The cluster is down", StoreNotReady, "cluster is down"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StoreNotReady, "being moved"),
        ("NOTOPEN", StoreNotOpen, "never opened"),
        ("REBUILDING", StoreNotOpen, "being rebuilt"),
        ("MOVED 3999 127.0.0.1:6381", Unreadable, "127.0.0.1:6381"),
        ("ASK 3999 127.0.0.1:6381", Unreadable, "127.0.0.1:6381"),
        ("CROSSSLOT Keys in request don't hash to the same slot", Unreadable, "hash to the same slot"),
        ("EXECABORT Transaction discarded because of previous errors.", Unreadable, "discarded"),
        ("ERR something new", Unreadable, "something new"),
        ("BADARGS argument 3 is no end", Unreadable, "argument 3 is no end"),
    ],
)
def test_an_error_of_the_store_means_the_same(resp_client: Any, output: str, kind: type[Exception], words: str) -> None:
    """Both clients map store errors to the same class, which decides the worker's reaction, and to the same message."""
    script = resp_client.register_script("return redis.error_reply(ARGV[1])")

    with pytest.raises(kind, match=words) as caught, translated("unix:///x"):
        script(args=[output])

    assert kind is type(caught.value)


def test_a_wrong_password_is_reported(by: Connect, start_store: StartStore) -> None:
    # A store answers a long command without a password in its own way.
    guarded = _tcp(start_store, "--requirepass", "right")
    for address in (f"redis://:wrong@{guarded}", f"redis://{guarded}", f"redis://gq:right@{guarded}"):
        queue = JobQueue(address, by=by)

        with pytest.raises(StoreNotReady, match="password"):
            queue.requests.submit(make_spec())

        queue.close()


def test_a_password_that_nobody_wants_keeps_nobody_out(start_store: StartStore) -> None:
    """A needless password is no error, as with the library: the site removed it, and the settings still have it."""
    queue = JobQueue(f"redis://:hush@{_tcp(start_store)}", by=connect_at_once)

    assert queue.recovery.open(0)

    queue.close()


def test_no_command_runs_after_a_refused_password_or_database(by: Connect, start_store: StartStore) -> None:
    # If it were sent along, database 0 would get the job.
    url = start_store("--databases", "4")
    _open(url)
    for bad in (f"{url}?db=99", f"{url}?username=nobody&password=x"):
        queue = JobQueue(bad, by=by)

        with pytest.raises((StoreNotReady, Unreadable)):
            queue.requests.submit(make_spec())

        queue.close()
    queue = JobQueue(url)
    assert (0, 0) == queue.jobs.counts()
    queue.close()


def test_a_port_that_is_no_store(by: Connect) -> None:
    """A port of another program, such as a web server, is unreadable, and the message does not say to start a store."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve_pages() -> None:
        for _ in range(2):
            try:
                met, _ = listener.accept()
            except OSError:
                return
            with met:
                met.recv(1000)
                met.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=serve_pages, daemon=True)
    thread.start()
    url = f"redis://127.0.0.1:{listener.getsockname()[1]}"

    with pytest.raises(Unreadable, match="gave an unexpected answer"), translated(url):
        by(url).get("x")

    stop_accepting(listener, thread)


# ---- connection failures ---------------------------------------------------------------------------------------------


def test_a_store_that_is_not_there(by: Connect, tmp_path: Path) -> None:
    """A missing socket, port or host gives one error that says what to do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for url in (f"unix://{tmp_path / 'none'}", f"redis://127.0.0.1:{port}", "redis://no-such-host.invalid"):
        with (
            pytest.raises(StoreUnreachable, match="correct GPUQUEUE_REDIS_URL"),
            closing(JobQueue(url, by=by)) as other,
        ):
            other.epoch()


@pytest.mark.parametrize("passed", [0, 1, 2, 40])
def test_a_connection_that_breaks_within_an_answer(
    by: Connect, relayed: Callable[..., tuple[Relay, str]], passed: int
) -> None:
    # The next command gets its own answer.
    relay, url = relayed()
    resp_client = by(url)
    echo = resp_client.register_script("return ARGV[1]")
    assert ["warm", "warmer"] == [echo(args=["warm"]), echo(args=["warmer"])]
    relay.left = passed
    with pytest.raises(StoreUnreachable), translated(url):
        echo(args=["a long word that does not come whole, since the connection breaks off"])

    relay.left = None

    assert "again" == echo(args=["again"])
    resp_client.close()


def test_a_store_that_says_nothing(by: Connect, monkeypatch: pytest.MonkeyPatch, start_store: StartStore) -> None:
    """A store that takes a command and hangs is unreachable, and its late answer does not go to the next command."""
    monkeypatch.setattr("gpuqueue.queue.connect.COMMAND_TIMEOUT_S", 0.3)
    url = start_store()
    resp_client = by(url)
    resp_client.execute_command("CLIENT", "PAUSE", "1000", "ALL")
    with pytest.raises(StoreUnreachable), translated(url):
        resp_client.get("x")

    assert "late" == until(lambda: _patiently(resp_client, url), what="the store's next answer")

    resp_client.close()


def _patiently(resp_client: Any, url: str) -> str | None:
    try:
        with translated(url):
            return str(resp_client.register_script("return 'late'")())
    except StoreUnreachable:
        return None


@pytest.mark.full
def test_a_store_that_is_killed_between_sending_and_answering(by: Connect, own_store: OwnStore) -> None:
    """A submit that is repeated with the same nonce after the store was killed makes one job."""
    # That holds whether the first submit was done or not.
    _open(own_store.url)
    relay = Relay(own_store.url)
    queue = JobQueue(f"redis://127.0.0.1:{relay.port}", by=by)
    queue.epoch()
    relay.left = 0
    with pytest.raises(StoreUnreachable):
        queue.requests.submit(make_spec(), nonce="n1")
    own_store.kill()
    relay.left = None
    with pytest.raises(StoreUnreachable):
        queue.requests.submit(make_spec(), nonce="n1")
    own_store.start()

    job = queue.requests.submit(make_spec(), nonce="n1")

    assert [job.id] == [each.id for each in queue.jobs.live()]
    queue.close()
    relay.close()


def test_a_store_that_was_started_anew_is_not_noticed(by: Connect, own_store: OwnStore) -> None:
    """A restarted store is not noticed by callers: the dead connection is replaced before anything is sent."""
    _open(own_store.url)
    queue = JobQueue(own_store.url, by=by)
    first = queue.requests.submit(make_spec()).id
    own_store.kill()
    own_store.start()

    assert first + 1 == queue.requests.submit(make_spec()).id

    queue.close()


def test_a_broken_subscription_raises_an_error_as_its_reader_would_wait_for_ever(
    by: Connect, own_store: OwnStore
) -> None:
    # So does one that cannot connect.
    wakeups = Subscriber(own_store.url, keys.END, by=by)
    assert wakeups.wait(0.01) is None
    own_store.kill()

    with pytest.raises(StoreUnreachable):
        until(lambda: wakeups.wait(0.1))

    wakeups.close()
    with pytest.raises(StoreUnreachable):
        Subscriber(own_store.url, by=by).wait(0.1)


# ---- shared connections ----------------------------------------------------------------------------------------------


def test_threads_share_a_connection_and_each_gets_its_own_answers(resp_client: Any) -> None:
    echo = resp_client.register_script("return ARGV[1]")
    wrong: list[str] = []

    def ask(name: str) -> None:
        for number in range(50):
            output = f"{name}-{number}"
            try:
                if echo(args=[output]) != output:
                    wrong.append(output)
            except Exception as error:  # noqa: BLE001 - a thread reports its error to the test
                wrong.append(repr(error))

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcdef"]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)

    assert [] == wrong


def test_a_connection_in_use_is_closed_after_its_answer(start_store: StartStore) -> None:
    """Regression: a thread that was still asking kept its connection in a closed client, which nobody closed again."""
    url = start_store()
    with closing(connect_at_once(url)) as other:
        asking = connect_at_once(url)
        thread = threading.Thread(target=asking.xread, args=({"stream": "$"},), kwargs={"block": 30_000})
        thread.start()
        until(lambda: other.execute_command("CLIENT", "LIST").count("cmd=xread"), what="the thread to ask")

        asking.close()
        other.execute_command("XADD", "stream", "*", "field", "value")
        thread.join(30)

        until(lambda: 1 == other.execute_command("CLIENT", "LIST").count("cmd="), what="the connection to close")
    assert not thread.is_alive()


def test_a_child_does_not_talk_on_its_parents_line(resp_client: Any) -> None:
    """A forked child does not use its parent's connection, as both would read each other's answers."""
    echo = resp_client.register_script("return ARGV[1]")
    echo(args=["warm"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about a fork with threads
        pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if all(echo(args=[str(each)]) == str(each) for each in range(200)) else 1)
        finally:
            os._exit(2)

    output = [echo(args=[f"parent {each}"]) for each in range(200)]

    assert [f"parent {each}" for each in range(200)] == output
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_tls_problems_are_reported_as_such(
    by: Connect, relayed: Callable[..., tuple[Relay, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: each was reported as a store that does not run, with the advice to start one.
    monkeypatch.setattr("gpuqueue.queue.connect.COMMAND_TIMEOUT_S", 5)  # one answer never comes
    made, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    _, secure = relayed(context)
    _, plain = relayed()

    def output(url: str) -> str:
        with pytest.raises(StoreUnreachable) as raised, closing(JobQueue(url, by=by)) as other:
            other.epoch()
        return str(raised.value)

    assert "its certificate is not trusted: name the authority that signed it in the address" in output(secure)
    assert "a file that its address names as ssl_… does not exist" in output(
        f"{secure}?ssl_ca_certs={tmp_path / 'none'}"
    )
    assert "Does it speak TLS?" in output(plain.replace("redis://", "rediss://"))
    assert "does it want TLS? Then its address begins with rediss://" in output(secure.replace("rediss://", "redis://"))


def test_tls_options_in_a_url_without_tls_are_refused() -> None:
    # Regression: the library took them, and its first command was a traceback.
    for url in ("redis://127.0.0.1:1/0?ssl_min_version=3", "unix:///tmp/none?ssl_ca_certs=x"):
        with pytest.raises(StoreUnreachable, match="is no usable address"):
            connect_at_once(url)


def test_a_certificate_without_an_authority(
    by: Connect, relayed: Callable[..., tuple[Relay, str]], tmp_path: Path
) -> None:
    """Nothing is sent to a store with an untrusted certificate, or with that of another host."""
    made, key = certificate(tmp_path, name="127.0.0.2")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    _, url = relayed(context)
    for address in (url, f"{url}?ssl_ca_certs={made}", f"{url}?ssl_ca_certs={tmp_path / 'none'}"):
        with pytest.raises(StoreUnreachable), closing(JobQueue(address, by=by)) as other:
            other.epoch()


def test_the_library_has_what_the_small_client_lacks(start_store: StartStore) -> None:
    """A URL with an option that the small client does not support goes to the library."""
    # No option is ignored silently.
    url = start_store()

    for more in ("?ssl_min_version=TLSv1_3", "?db=x", "?db=1&db=2", "?username=ann"):
        try:
            assert not isinstance(connect_at_once(url.replace("unix://", "rediss://h") + more), RespClient), more
        except StoreUnreachable:
            continue


def test_an_address_keeps_its_password_to_itself(by: Connect) -> None:
    """Error messages do not contain the password of the URL, because other people may see them."""
    with closing(JobQueue("redis://gq:hush@127.0.0.1:1/0", by=by)) as other, pytest.raises(StoreUnreachable) as caught:
        other.epoch()

    assert "hush" not in str(caught.value)
    assert urlsplit("redis://gq:hush@127.0.0.1:1/0").hostname in str(caught.value)
