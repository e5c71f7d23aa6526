"""The page and its files. They hold no data: the page asks the API, as its user."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.service.problems import NotHere
from gpuqueue.service.routes.described import route_of
from gpuqueue.service.web.answers import negotiated
from gpuqueue.service.web.files import PAGE_HEADERS, NoPage, PageFile, PageFiles

_FILES = PageFiles()
_YEAR_S = 365 * 86400
#: The answer for a browser at a service without the files of the page.
NO_PAGE = """This service has no web page, because its third-party parts are not installed.

Install a released wheel of gpuqueue, or install gpuqueue again where Node.js 20 or newer is.
The command line and the API at /api/v1 work without them.
"""


def page(request: Request) -> Response:
    """Return the page. A browser asks each time whether it has changed."""
    try:
        found = _FILES.current()["index.html"]
    except NoPage:
        return Response(NO_PAGE, 503, PAGE_HEADERS, "text/plain; charset=utf-8")
    return _sent(request, found, "no-cache")


def file(request: Request) -> Response:
    """Return a file of the page. With the hash of old files in its path the newest file is sent, uncached."""
    tree, name = request.path_params["tree"], request.path_params["name"]
    try:
        found = _FILES.known().get(name)
    except NoPage:
        found = None
    if found is None:
        raise NotHere("there is no such file of the page: load the page again")
    return _sent(request, found, f"public, max-age={_YEAR_S}, immutable" if tree == _FILES.tree else "no-cache")


def _sent(request: Request, found: PageFile, caching: str) -> Response:
    headers = {**PAGE_HEADERS, "Cache-Control": caching, "ETag": f'"{_FILES.tree}"', "Vary": "Accept-Encoding"}
    return negotiated(request, found.content, found.compressed, found.media_type, headers)


ROUTES = (
    route_of("/", page, "GET", "HEAD"),
    route_of("/static/{tree}/{name:path}", file, "GET", "HEAD"),
)
