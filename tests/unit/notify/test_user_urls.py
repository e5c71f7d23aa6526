"""URLs of users are read by one parser, and Apprise gets only what is made of their fields."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest
from gpuqueue.notify.targets import SCHEMES, made_of

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
