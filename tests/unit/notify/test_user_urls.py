"""URLs of users are read by one parser, and Apprise gets only what is made of their fields."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest
from gpuqueue.model.notification import Notification
from gpuqueue.notify.child import Guard
from gpuqueue.notify.targets import SCHEMES, made_of, networks_of, url_of
from gpuqueue.settings.settings import Settings

SLACK = "T1AAAAAAA/B2BBBBBBB/abcdefghijabcdefghij1234"
#: A URL of each kind, as people write it and as it is made.
PERMITTED = {
    "json://host": "json://host",
    "JSON://host:8080/path/x/": "json://host:8080/path/x/",
    "jsons://u:p%40s%3As%2Fw%25%3F@h.org/a/b=c+d": "jsons://u:p%40s%3As%2Fw%25%3F@h.org/a/b%3Dc%2Bd",
    "json://[2001:db8::1]:80/x": "json://[2001:db8::1]:80/x",
    "mailto://ann:se;c#ret@e.org?to=b@c.org&from=q@e.org": "mailto://ann:se%3Bc%23ret@e.org?to=b%40c.org&from=q%40e.org",
    "mailtos://ann%40x.org:pw@smtp.x.org:465/bob@x.org": "mailtos://ann%40x.org:pw@smtp.x.org:465/bob%40x.org",
    f"slack://{SLACK}/#training": f"slack://{SLACK}/%23training",
    f"slack://bot@{SLACK}": f"slack://bot@{SLACK}",
    "slack://xoxb-1234-1234-4ddbc191d40e/#general": "slack://xoxb-1234-1234-4ddbc191d40e/%23general",
    "discord://me@4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js": "discord://me@4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
    "workflows://h.azure.com:443/643e69f83c89/iWJ3_x?pa=yes": "workflows://h.azure.com:443/643e69f83c89/iWJ3_x?pa=yes",
    "tgram://123456789:abcdefg_hij/-12315544/@chan?topic=5": "tgram://123456789:abcdefg_hij/-12315544/%40chan?topic=5",
    "ntfy://my_topic": "ntfy://my_topic",
    "ntfys://tk_abcdefghijk@ntfy.example.org:8443/a_b/c": "ntfys://tk_abcdefghijk@ntfy.example.org:8443/a_b/c",
    "ntfy://ntfy.sh/x": "ntfy://ntfy.sh/x",
    "gotify://host:80/sub/Axxxxxxxxxxxxxx": "gotify://host:80/sub/Axxxxxxxxxxxxxx",
    "gotifys://host/Axxxxxxxxxxxxxx": "gotifys://host/Axxxxxxxxxxxxxx",
    "matrix://user:pass@host:8008/#room:e.org": "matrix://user:pass@host:8008/%23room%3Ae.org",
    "matrixs://token@host/!room": "matrixs://token@host/%21room",
    f"pover://{'u' * 30}@{'t' * 30}/phone": f"pover://{'u' * 30}@{'t' * 30}/phone",
    f"mmost://h:8065/sub/{'x' * 24}?channel=town": f"mmost://h:8065/sub/{'x' * 24}?channel=town",
    f"mmosts://bot@h/{'x' * 24}": f"mmosts://bot@h/{'x' * 24}",
    "gchat://work/key/tok-en_%3D": "gchat://work/key/tok-en_%3D",
}
#: The path of a file, and URLs that have had, or might have, Apprise open it.
FILE = "/etc/gpuqueue/ticket-key"
ATTACKS = [
    each.replace("PATH", FILE)
    for each in (
        "tgram://1:a/5?template=PATH",
        "tgram://1:a/5?Template=PATH",
        "tgram://1:a/5?TEMPLATE=PATH",
        "tgram://1:a/5?verify=no;template=PATH",
        "tgram://1:a/5?topic=1;template=PATH",
        "tgram://1:a/5?topic=1&%20template=PATH",
        "tgram://1:a/5?topic=1&+template=PATH",
        "tgram://1:a/5?topic=1&template%20=PATH",
        "tgram://1:a/5?topic=1%26template=PATH",
        "tgram://1:a/5?topic=1%3Btemplate=PATH",
        "tgram://1:a/5?%74emplate=PATH",
        "tgram://1:a/5?%2574emplate=PATH",
        "tgram://1:a/5?topic=1%2526template%253DPATH",
        "tgram://1:a/5?topic=1&topic=2",
        "tgram://1:a/5?topic",
        "tgram://1:a/5?topic=",
        "tgram://1:a/5?:name=value",
        "tgram://1:a/5??template=PATH",
        "tgram://1:a/5/?template=PATH",
        "tgram://1:a/5#?template=PATH",
        "tgram://1:a/#5?template=PATH",
        "tgram://1:a/5%3Ftemplate=PATH",
        "tgram://1:a/5%253Ftemplate=x",
        "tgram://1:a/5;template=x",
        "tgram://1:a/5&template=x",
        "tgram://1:a?template=PATH/5",
        "tgram://x@1:a/5",
        "tgram://1:a%3Ftemplate=x/5",
        "tgram://1:a\\5?template=PATH",
        "tgram://1:a/\uff15",
        "tgram://1:a/5?\uff54emplate=PATH",
        f"slack://{SLACK}?template=PATH",
        f"slack://{SLACK}/#c?template=PATH",
        f"slack://{SLACK}/%23c%3Ftemplate=x",
        "discord://417/abc?avatar=no;template=PATH",
        "workflows://h/w/s?pa=yes&template=PATH",
        "workflows://h/w/s?pa=yes;template=PATH",
        "ntfy://ntfy.sh/x?attach=file://PATH",
        "ntfy://ntfy.sh/x?attach=http://127.0.0.1/",
        "mailto://a:b@h?pgp=sign&pgpprv=PATH",
        "mailto://a:b@h?to=b@c.org&keyfile=PATH",
        "mailto://a:b@h?to=b@c.org%2Cx@y.org",
        "mailto://a:b@h?to=b@c.org%0d%0aBcc:x@y.org",
        "mailto://a:b@h?smtp=file:PATH",
        "mailto://a:b@h/b@c.org?smtp=h%3Ftemplate=x",
        "json://u:p@h?+X-Header=a",
        "json://u:p@h?-x=a",
        "json://h/..",
        "json://h/%2e%2e/x",
        "json://h/a%2Fb",
        "json://h//x",
        "json://h/%",
        "json://h/%4",
        "json://h?",
        "json://",
        "json:///x",
        "json://@",
        "json://u:p@",
        "json://h:0/x",
        "json://h:65536/x",
        "json://h:/x",
        "json://h:80:90/x",
        "json://h%00/x",
        "json://h%2Fx",
        "json://[::1/x",
        "json://[::1%25lo]/x",
        "json://h\\@other/x",
        "json://h#@other/x",
        "json://ﬀ.org/x",
        "json://h/ü",
        f"json://h/{'a/' * 17}",
        "file://PATH",
        "form://h/x?attach-as=file&attach=PATH",
        "forms://h/x",
        "xml://h/x",
        "http://h/x",
        "https://hooks.slack.com/services/T1/B2/x",
        "syslog://",
        "apprise://h/x",
        "sfr://h",
        "signal://h",
        "FiLe://PATH",
        " json://h",
        "json:/h",
        "json",
        "",
    )
]


@pytest.mark.parametrize("text", PERMITTED)
def test_a_permitted_url_is_made_of_its_fields(text: str) -> None:
    """The fields are encoded again, and what was made is made of itself."""
    assert PERMITTED[text] == made_of(text) == made_of(made_of(text))


def test_each_scheme_has_an_example() -> None:
    """The list of schemes is that of the examples."""
    assert set(SCHEMES) == {made.partition("://")[0] for made in PERMITTED.values()}


@pytest.mark.parametrize("text", ATTACKS)
def test_a_url_with_anything_else_is_refused(text: str) -> None:
    """The error is one line without a part of the URL, and names the permitted fields or schemes."""
    with pytest.raises(BadRequest) as refused:
        made_of(text)

    line = str(refused.value)
    scheme = text.partition("://")[0].lower()
    assert 1 == len(line.splitlines())
    assert (f"write {scheme}://" if scheme in SCHEMES else ", ".join(SCHEMES)) in line
    assert FILE not in line


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_apprise_reads_the_same_fields_and_no_file() -> None:
    """Apprise reads what was made as it reads the text of an honest user, and no template is loaded."""
    apprise = pytest.importorskip("apprise")
    asset = apprise.AppriseAsset(async_mode=False, pgp_autogen=False, pem_autogen=False)

    for text, made in PERMITTED.items():
        wanted, got = (apprise.Apprise.instantiate(each, asset=asset) for each in (text.replace("se;c#ret", "x"), made))
        assert got is not None, made
        if "se;c#ret" not in text:
            assert wanted.url() == got.url()
        assert not getattr(got, "template", None)
    odd = apprise.Apprise.instantiate(made_of("mailto://ann:se;c#ret@e.org?to=b@c.org"), asset=asset)
    assert "se;c#ret" == odd.password


@given(
    scheme=st.sampled_from(SCHEMES),
    rest=st.text(alphabet="ab1.:/@?&;=#%~+[] \\\n2534temploé", max_size=60),
)
def test_whatever_is_made_has_no_more_than_the_permitted_parameters(scheme: str, rest: str) -> None:
    """No text has a result with a second query, a fragment, or a parameter that its scheme does not have."""
    try:
        made = made_of(f"{scheme}://{rest}")
    except BadRequest:
        return

    assert made == made_of(made)
    assert re.fullmatch(r"[A-Za-z0-9._~%:/@?&=\[\]-]+", made)
    _, _, query = made.partition("?")
    names = [each.partition("=")[0] for each in query.split("&")] if query else []
    assert set(names) <= {"channel", "from", "mode", "pa", "smtp", "to", "topic"}
    assert "?" not in query


# ---- The URLs to which notifications are sent, and the process that sends them ---------------------------------------

OPENS_FILE = "tgram://1:abc/5?verify=no;template=/etc/own.json"


def _settings(**given: str) -> Settings:
    environ = {f"GPUQUEUE_{name.upper()}": value for name, value in given.items()}
    return Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_NOTIFY": f"team={OPENS_FILE}", **environ})


def test_where_jobs_have_other_accounts_their_urls_are_made_anew() -> None:
    """The account that sends must open no file for a user. A target of the site may name one, with Apprise in full."""
    site = _settings(run_as="submitter")

    with pytest.raises(BadRequest, match="the query of this URL is not permitted in a job: write tgram://BOT-TOKEN"):
        url_of(Notification(OPENS_FILE), site)
    assert "tgram://1:abc/%40chat" == url_of(Notification("TGRAM://1:abc/@chat"), site)
    assert OPENS_FILE == url_of(Notification("team"), site)


def test_a_persons_own_account_opens_any_url() -> None:
    """Without other accounts, a URL reaches Apprise as it was written, and this account sends it."""
    own = _settings()

    for to in (OPENS_FILE, "form://host/x?attach=/etc/own.json"):
        assert to == url_of(Notification(to), own)
        assert networks_of(Notification(to), own) is None


def test_the_notifier_sends_only_urls_of_users() -> None:
    """It gets the networks of the setting. Targets and mail addresses are sent with the accounts of the site."""
    site = _settings(run_as="submitter")
    with_networks = _settings(run_as="submitter", notify_networks="10.1.0.0/16, 127.0.0.1")

    assert () == networks_of(Notification("json://host"), site)
    assert ("10.1.0.0/16", "127.0.0.1/32") == networks_of(Notification("json://host"), with_networks)
    assert [None, None] == [networks_of(Notification(to), with_networks) for to in ("team", "ann@e.org")]


# ---- The addresses that the process which sends to URLs of users connects to -----------------------------------------

CLOSED = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",  # noqa: S104 - an address to refuse
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "224.0.0.1",
    "239.1.2.3",
    "255.255.255.255",
    "240.0.0.1",
    "192.0.2.1",
    "::1",
    "::",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.1.2.3",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "fc00::1",
    "fd12:3456::1",
    "ff02::1",
    "2001:db8::1",
    "localhost",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "",
]
OPEN = ["9.9.9.9", "203.0.114.1", "2620:fe::fe", "::ffff:9.9.9.9", "64:ff9b::909:909"]


@pytest.mark.parametrize("host", CLOSED)
def test_what_is_not_public_is_refused(host: str) -> None:
    """Also where an address of IPv6 stands for one of IPv4, and a name, which is resolved after the check."""
    assert not Guard([]).permits(host)


@pytest.mark.parametrize("host", OPEN)
def test_what_is_public_is_permitted(host: str) -> None:
    """Public addresses need no setting."""
    assert Guard([]).permits(host)


def test_the_site_permits_networks() -> None:
    """Each network of the setting is permitted, in each form of its addresses, and no other one."""
    guard = Guard(["10.1.0.0/16", "fd00::/8"])

    assert [True, True, True, False, False] == [
        guard.permits(each) for each in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1", "10.2.0.1", "127.0.0.1")
    ]


def test_an_address_of_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public address of this machine leads to what listens here, past its firewall."""
    monkeypatch.setattr("gpuqueue.notify.child._is_public", lambda _: True)

    assert not Guard([]).permits("127.0.0.1")


@pytest.mark.parametrize(
    "act",
    [
        "socket.create_connection(('localhost', {port}), 5)",
        "socket.create_connection(('127.1', {port}), 5)",
        "socket.socket().connect(('localhost', {port}))",
        "socket.socket().connect_ex(('127.0.0.1', {port}))",
        "socket.socket(socket.AF_INET6).connect(('::ffff:127.0.0.1', {port}))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
        "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', {port}))",
        "socket.socket(socket.AF_UNIX).connect('/run/dbus/system_bus_socket')",
        "__import__('http.client').client.HTTPConnection('localhost', {port}).request('GET', '/')",
        "__import__('_socket').socket().connect(('127.0.0.1', {port}))",
    ],
)
def test_no_way_of_python_leads_past_the_guard(act: str) -> None:
    """The guard is called below all modules, with the address that the kernel gets. Nothing arrives."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        script = (
            "import socket, sys; from gpuqueue.notify.child import Guard; guard = Guard([]); sys.addaudithook(guard)\n"
            f"try:\n    {act.format(port=server.getsockname()[1])}\n"
            "except PermissionError:\n    print('refused', guard.has_refused)"
        )

        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

        assert "refused True\n" == done.stdout
        with pytest.raises(BlockingIOError):
            server.accept()
