"""Routes by which a browser signs in and out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.errors import BadRequest
from gpuqueue.model.access import Action, Forbidden
from gpuqueue.model.api import DownloadCode, DownloadRequest, SignedIn, SignIn, SignInCode
from gpuqueue.model.caller import Via
from gpuqueue.service.call import Call
from gpuqueue.service.identity.browser_sessions import CODE_S, LONGEST_S
from gpuqueue.service.routes.described import Operations, operation, route
from gpuqueue.service.site import answered, body_of, credentials_of, is_tls, site_of
from gpuqueue.service.web.cookie import check_own_page, cookie_name, session_of, set_cookie

router = Operations("page")


@operation(router, "access.sign_in_code", may=Action.SEE_SITE)
def make_sign_in_code(call: Call, request: Request) -> SignInCode:
    """Make a one-time code with which a browser signs in as the caller within a minute."""
    site = site_of(request)  # the sign-in is recorded, with the same account
    return SignInCode(code=site.identity.new_code(call.caller), url=site.page_url, valid_s=CODE_S)


@route(router, "POST /web/session", answer=SignedIn, body=SignIn)
async def sign_in(request: Request) -> Response:
    """Begin the session of a browser with a one-time code or an access token.

    The answer sets a cookie, and has the key that the page sends with each request beside it: browsers send cookies to
    all ports of a host.
    """
    check_own_page(request)
    wanted = await body_of(request, SignIn)
    word = wanted.code or wanted.token
    if not word or (wanted.code and wanted.token):
        raise BadRequest("send a code or a token, and not both")
    address = request.client.host if request.client is not None else ""
    made = await site_of(request).in_pool(lambda site: site.identity.sign_in(word.strip(), address))
    return _with_cookie(request, answered(SignedIn(key=made.key)), made.cookie, LONGEST_S)


@route(router, "DELETE /web/session")
async def sign_out(request: Request) -> Response:
    """End the session of a browser, and delete its cookie."""
    check_own_page(request)
    session = session_of(request, is_tls=is_tls(request), port=request.url.port)
    if session is not None:
        site_of(request).identity.sign_out(session)
    return _with_cookie(request, answered(None), "", 0)


@operation(router, "POST /web/downloads")
def make_download_code(call: Call, request: Request, body: DownloadRequest) -> DownloadCode:
    """Make a one-time code with which a browser downloads a file, for it sends no header then."""
    if call.caller.via not in {Via.SESSION, Via.ANONYMOUS}:
        raise Forbidden("only a browser needs a code for a download: programs use an access token")
    session = credentials_of(request).session or ""
    return DownloadCode(code=site_of(request).identity.new_download(session, body.path), valid_s=CODE_S)


def _with_cookie(request: Request, answer: Response, secret: str, age_s: float) -> Response:
    name = cookie_name(is_tls=is_tls(request), port=request.url.port)
    answer.headers["Set-Cookie"] = set_cookie(name, secret, is_tls=is_tls(request), age_s=age_s)
    answer.headers["Cache-Control"] = "no-store"
    return answer
