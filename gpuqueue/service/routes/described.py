"""What the modules of routes declare their operations with, and what serves and describes each of them.

The signature of a function says how its parameters are read, and what OpenAPI says of them. ``operation`` is for a
function of a call, ``route`` for one that makes its own answer.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import wraps
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from gpuqueue.client.remote.operations import OPERATIONS
from gpuqueue.clock import from_iso
from gpuqueue.codec.wire import to_plain, type_named
from gpuqueue.errors import BadRequest
from gpuqueue.model.access import Action
from gpuqueue.model.api import Problem
from gpuqueue.service.call import Call
from gpuqueue.service.responses import PROBLEM_TYPE
from gpuqueue.service.schema import Schema, Schemas
from gpuqueue.service.site import DOWNLOAD, body_of, site_of
from gpuqueue.text.sanitize import brief

#: The schemas of all types that the operations name.
SCHEMAS = Schemas()
_PROBLEM = {"description": "The error.", "content": {PROBLEM_TYPE: {"schema": SCHEMAS.of(Problem)}}}
OCTETS = "application/octet-stream"
_OCTETS = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
#: The words for true and false in a query.
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_MISSING: Any = inspect.Parameter.empty
#: The parameters of an operation that are the request, and its body.
REQUEST, BODY = "request", "body"

T = TypeVar("T")

Function = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is known of a parameter beside its type: another name, a description, and bounds.

    ``max_length`` counts the characters of a text, or the values of a list.
    """

    alias: str | None = None
    description: str = ""
    ge: float | None = None
    le: float | None = None
    max_length: int | None = None

    place = "query"


@dataclass(frozen=True, kw_only=True)
class Header(Query):
    """A parameter in a header."""

    place = "header"


@dataclass(frozen=True, kw_only=True)
class Path(Query):
    """A parameter in the path."""

    place = "path"


@dataclass(frozen=True)
class Depends:
    """A parameter that *function* makes of parameters of its own."""

    function: Callable[..., Any]


def of_fields(
    kind: type[T],
    about: Mapping[str, Query],
    *,
    names: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    make: Callable[..., T] | None = None,
) -> Callable[..., T]:
    """Return a function that makes a value of *kind* of parameters, for :class:`Depends`: one for each of its fields.

    A field that is a tuple may be given several times.

    Args:
        kind: A dataclass.
        about: What is known of a parameter, by the field.
        names: The names of parameters that are not the name of their field, by the field.
        without: Fields that have no parameter.
        make: Makes the value of its fields, if it is not *kind* itself.

    """
    hints, parameters, fields_by_name = get_type_hints(kind), [], {}
    for each in dataclasses.fields(kind):  # type: ignore[arg-type] # mypy knows no type of dataclasses
        if each.name in without:
            continue
        hint, default = hints[each.name], _MISSING if each.default is dataclasses.MISSING else each.default
        if get_origin(hint) is tuple:
            hint, default = list[get_args(hint)[0]] | None, None  # type: ignore[misc] # not a constant
        name = (names or {}).get(each.name, each.name)
        fields_by_name[name] = each.name
        hint = Annotated[hint, about.get(each.name, Query())]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default))

    def made(**given: Any) -> T:
        values = {fields_by_name[name]: value for name, value in given.items()}
        several = {name: tuple(values[name] or ()) for name in values if get_origin(hints[name]) is tuple}
        return (make or kind)(**{**values, **several})

    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what inspect reads
    return made


#: The parameter of an operation that the page lets a browser download. ``site.credentials_of`` uses it.
Download = Annotated[
    str | None,
    Query(alias=DOWNLOAD, description="A code of ``POST /web/downloads``, which stands for the session of the page."),
]


@dataclass(frozen=True, kw_only=True)
class _Parameter:
    """A parameter of a request. ``kind`` is its type, or that of its values if there may be several."""

    name: str
    about: Query
    kind: Any
    is_list: bool
    may_be_none: bool
    default: Any

    @classmethod
    def of(cls, name: str, hint: Any, default: Any, *, in_path: bool) -> _Parameter:
        """Return the parameter for the parameter *name* of a function, with its annotation and its default."""
        marks = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Query)]
        about = marks[0] if marks else Path() if in_path else Query()
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        kinds = get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)
        (known,) = (each for each in kinds if each is not type(None))
        is_list = get_origin(known) is list
        return cls(
            name=about.alias or name,
            about=about,
            kind=get_args(known)[0] if is_list else known,
            is_list=is_list,
            may_be_none=len(kinds) > 1,
            default=default,
        )

    def value(self, request: Request) -> Any:
        """Return the value in *request*, or the default.

        Raises:
            BadRequest: it is missing, is not of its type, or is out of its bounds.

        """
        texts = self._texts(request)
        if not texts:
            if self.default is _MISSING:
                raise BadRequest(f"the parameter {self.name} is missing")
            return self.default
        if not self.is_list:
            return self._read(texts[-1])
        if self.about.max_length is not None and len(texts) > self.about.max_length:
            raise BadRequest(f"{self.name}: there may be at most {self.about.max_length}")
        return [self._read(each) for each in texts]

    def _texts(self, request: Request) -> list[str]:
        if self.about.place == "path":
            return [request.path_params[self.name]]
        if self.about.place == "header":
            return request.headers.getlist(self.name)
        return request.query_params.getlist(self.name)

    def _read(self, text: str) -> Any:
        value = _value_of(self.kind, text)
        if value is None:
            raise BadRequest(f"{self.name}: {brief(text)} is not {_wanted(self.kind)}")
        if self.about.ge is not None and value < self.about.ge:
            raise BadRequest(f"{self.name}: must be at least {self.about.ge:g}, not {brief(text)}")
        if self.about.le is not None and value > self.about.le:
            raise BadRequest(f"{self.name}: must be at most {self.about.le:g}, not {brief(text)}")
        if isinstance(value, str) and self.about.max_length is not None and len(value) > self.about.max_length:
            raise BadRequest(f"{self.name}: a text may have at most {self.about.max_length} characters")
        return value

    def described(self) -> Schema:
        """Return the parameter as OpenAPI describes it."""
        schema = SCHEMAS.of(self.kind)
        bounds = {"minimum": self.about.ge, "maximum": self.about.le}
        if not self.is_list:
            bounds["maxLength"] = self.about.max_length
        schema |= {name: bound for name, bound in bounds.items() if bound is not None}
        if self.is_list:
            schema = {"type": "array", "items": schema}
            schema |= {} if self.about.max_length is None else {"maxItems": self.about.max_length}
        if self.may_be_none:
            schema = {"anyOf": [schema, {"type": "null"}]}
        if self.default is not _MISSING and self.default is not None:
            schema["default"] = to_plain(self.default)
        made: Schema = {
            "name": self.name,
            "in": self.about.place,
            "required": self.default is _MISSING,
            "schema": schema,
        }
        return {**made, "description": self.about.description} if self.about.description else made


@dataclass(frozen=True)
class _Arguments:
    """The arguments of a function: the parameter of each, or the arguments of the function that makes it."""

    function: Callable[..., Any]
    parts: Mapping[str, _Parameter | _Arguments]

    @classmethod
    def of(cls, function: Callable[..., Any], path: str) -> _Arguments:
        """Return the arguments of *function*, less the request, the call and the body. Those in *path* are in it."""
        parts: dict[str, _Parameter | _Arguments] = {}
        for name, each in inspect.signature(function, eval_str=True).parameters.items():
            made = [mark for mark in getattr(each.annotation, "__metadata__", ()) if isinstance(mark, Depends)]
            if made:
                parts[name] = cls.of(made[0].function, path)
            elif each.annotation not in {Request, Call} and name != BODY:
                in_path = f"{{{name}}}" in path
                parts[name] = _Parameter.of(name, each.annotation, each.default, in_path=in_path)
        return cls(function, parts)

    def values(self, request: Request) -> dict[str, Any]:
        """Return the arguments that *request* gives."""
        return {
            name: part.value(request) if isinstance(part, _Parameter) else part.function(**part.values(request))
            for name, part in self.parts.items()
        }

    def parameters(self) -> Iterator[_Parameter]:
        """Yield the parameters, those of the function itself first."""
        yield from (part for part in self.parts.values() if isinstance(part, _Parameter))
        for part in self.parts.values():
            if isinstance(part, _Arguments):
                yield from part.parameters()


@dataclass(frozen=True, kw_only=True)
class ServedOperation:
    """One thing that a request can ask for. *answer* and *body* are types; None means nothing."""

    method: str
    path: str
    function: Function
    tag: str
    answer: Any
    body: Any
    status: int
    media_type: str
    arguments: _Arguments

    def route(self, prefix: str) -> Route:
        """Return the route below *prefix* that serves the operation."""
        known = [each.name for each in self.arguments.parameters() if each.about.place == "query"]

        async def serve(request: Request) -> Response:
            refuse_unknown(request, known)
            return await self.function(request, **self.arguments.values(request))

        return route_of(prefix + self.path, serve, self.method)

    def described(self) -> Schema:
        """Return the operation as OpenAPI describes it."""
        about = inspect.getdoc(self.function) or ""
        done: Schema = {"description": "Done."}
        if self.answer is not None:
            schema = {"type": "string"} if self.answer is bytes else SCHEMAS.of(self.answer)
            done = {"description": "The answer.", "content": {self.media_type: {"schema": schema}}}
        made: Schema = {
            "tags": [self.tag],
            "summary": about.partition("\n")[0],
            "description": about,
            "operationId": self.function.__name__,
            "responses": {str(self.status): done, "default": _PROBLEM},
        }
        if parameters := [each.described() for each in self.arguments.parameters()]:
            made["parameters"] = parameters
        if self.body is not None:
            # A body of bytes may be empty.
            content = {"application/json": {"schema": SCHEMAS.of(self.body)}} if self.body is not bytes else _OCTETS
            made["requestBody"] = {"required": self.body is not bytes, "content": content}
        return made


@dataclass
class Operations:
    """The operations of one module, all with one *tag*, below one *prefix*."""

    tag: str
    prefix: str = ""
    operations: list[ServedOperation] = field(default_factory=list)


def route(
    operations: Operations,
    what: str,
    *,
    answer: Any = None,
    body: Any = None,
    status: int = 200,
    media_type: str = "application/json",
) -> Callable[[Function], Function]:
    """Return a decorator that adds a function to *operations*, which serves *what*.

    That is the name of an operation of the client, or an HTTP method and a path.
    """
    asked = OPERATIONS.get(what)
    if asked is not None and answer != type_named(asked.answer):
        raise TypeError(f"the client expects {asked.answer} of {what}, not {answer}")
    method, path = what.split() if asked is None else (asked.method, asked.path)
    code = status if answer is not None or status != 200 else 204  # noqa: PLR2004 - OK, and no content

    def decorate(function: Function) -> Function:
        operations.operations.append(
            ServedOperation(
                method=method,
                path=operations.prefix + path,
                function=function,
                tag=operations.tag,
                answer=answer,
                body=body,
                status=code,
                media_type=media_type,
                arguments=_Arguments.of(function, path),
            )
        )
        return function

    return decorate


class _Route(Route):
    """A route that serves its methods and no other, and that the scope of a request names as ``route``."""

    def __init__(self, path: str, function: Callable[[Request], Any], methods: tuple[str, ...]) -> None:
        super().__init__(path, function)
        self.methods = set(methods)  # Starlette adds HEAD to GET

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self}


def operation(
    operations: Operations, what: str, *, may: Action | None = None, answer: Any = None, **kinds: Any
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator that adds a function of a call to *operations*, which is called in a thread.

    *what* and *kinds* are those of :func:`route`. The function's return type is that of the answer, or else *answer*:
    the function makes its own response then. It may have two parameters more: ``request``, and ``body``, whose type is
    that of the request's body. A caller without the right *may* is refused; with None, the function says who may ask.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        signature = inspect.signature(function, eval_str=True)
        body = signature.parameters[BODY].annotation if BODY in signature.parameters else None

        @wraps(function)
        async def serve(request: Request, **arguments: Any) -> Response:
            if body is not None:
                arguments[BODY] = await body_of(request, body)
            if REQUEST in signature.parameters:
                arguments[REQUEST] = request

            def work(call: Call) -> T:
                if may is not None:
                    call.must(may)
                return function(call, **arguments)

            return await site_of(request).answer(request, work)

        route(operations, what, answer=answer or signature.return_annotation, body=body, **kinds)(serve)
        return function

    return decorate


def route_of(path: str, function: Callable[[Request], Any], *methods: str) -> Route:
    """Return a route that serves *methods* of *path* by *function*."""
    return _Route(path, function, methods)


def refuse_unknown(request: Request, known: list[str]) -> None:
    """Check that each parameter of the query is *known*. A mistyped filter would find all jobs.

    Raises:
        BadRequest: a parameter is unknown.

    """
    unknown = [each for each in request.query_params if each not in known]
    if unknown:
        there = f"there are {', '.join(known)}" if known else "there are none here"
        raise BadRequest(f"there is no parameter {brief(unknown[0])}: {there}")


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


#: The function that reads a text as a value of a type. It raises ValueError or KeyError for another text.
_READERS: Mapping[type, Callable[[str], Any]] = {
    bool: lambda text: _FLAGS[text.lower()],
    int: _whole,
    float: _finite,
    datetime: from_iso,
}


def _value_of(kind: type, text: str) -> Any:
    """Return the value of the type *kind* that *text* is, None if it is none."""
    try:
        return _READERS.get(kind, kind)(text)
    except (ValueError, KeyError):
        return None


def _wanted(kind: Any) -> str:
    if issubclass(kind, Enum):
        return f"one of {', '.join(str(each.value) for each in kind)}"
    return {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        datetime: "a time such as 2026-01-31T12:00:00Z",
    }.get(kind, "a text")
