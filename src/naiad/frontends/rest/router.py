"""Routes: paths as Triton matches them.

A path is compared as it was sent: no percent-decoding, no trailing slash, and a version is digits.
Source: the regular expressions in Triton's http_server.cc.
"""

import re
from enum import Enum
from typing import TYPE_CHECKING, Final

from naiad.frontends.rest.response import JSON, TEXT, Response, error_response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from naiad.access.restricted_apis import Api, RestrictedApis
    from naiad.frontends.rest.exchange import Exchange, Handler
    from naiad.frontends.rest.head import RequestHead

MODEL: Final = "/v2/models/{model}[/versions/{version}]"

_MAX_VERSION: Final = (1 << 63) - 1


# Bodies that only name and set things; they are parsed on the event loop, in a few milliseconds.
_SETTINGS_JSON_BYTES: Final = 1 << 20


class BodyKind(Enum):
    """What a route's request bodies carry, which says how large they may be."""

    SETTINGS = "names and settings"
    JSON_TENSORS = "tensors as JSON"
    TENSORS = "tensors as JSON, or in a binary tail behind it"
    FILES = "files in base64"


class Route:
    """A path and who answers on it.

    Attributes:
        template: of the path, where ``{name}`` stands for one segment and ``[...]`` may be left
            out. A ``{model}`` or ``{region}``, and a ``{version}``, go into the head.
        path: the regular expression of the whole path.
        handlers: by method.
        content_type: of the error for another method, which Triton does not give one type.
        body: what its requests carry.
        api: what restricts it.
    """

    __slots__ = (
        "api",
        "body",
        "content_type",
        "handlers",
        "path",
        "template",
    )

    def __init__(
        self,
        template: str,
        handlers: "Mapping[str, Handler]",
        content_type: bytes = JSON,
        *,
        body: BodyKind = BodyKind.SETTINGS,
        api: "Api",
    ) -> None:
        self.template = template
        self.path = _compile(template)
        self.handlers = handlers
        self.content_type = content_type
        self.body = body
        self.api = api


def _compile(template: str) -> re.Pattern[str]:
    pattern = re.escape(template).replace(r"\[", "(?:").replace(r"\]", ")?")
    pattern = pattern.replace(r"\{version\}", "(?P<version>[0-9]+)")
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", pattern))


class Router:
    """Finds the handler of a request; the first route that matches decides."""

    def __init__(self, routes: list[Route], restrictions: "RestrictedApis") -> None:
        self._routes = routes
        self._restrictions = restrictions

    def resolve(self, method: str, path: str, head: "RequestHead") -> None:
        """Put handler, model name and version into ``head``, whose headers are there already."""
        for route in self._routes:
            match = route.path.fullmatch(path)
            if match is None:
                continue
            key = self._restrictions.missing_key(route.api, head.headers)
            if key is not None:
                head.denial = _denial(key)
                head.handler = _respond(head.denial)
                return
            groups = match.groupdict()
            head.model_name = groups.get("model") or groups.get("region") or ""
            head.is_large = route.body is BodyKind.FILES
            head.has_tail = route.body is BodyKind.TENSORS
            head.max_json_bytes = _SETTINGS_JSON_BYTES if route.body is BodyKind.SETTINGS else None
            version = groups.get("version")
            if version is not None and int(version) > _MAX_VERSION:
                head.handler = _bad_version(version, route.content_type)
                return
            head.version = -1 if version is None else int(version)
            head.handler = route.handlers.get(method) or _wrong_method(route.content_type)
            return
        head.handler = _not_found


def _not_found(exchange: "Exchange") -> None:
    exchange.respond(error_response(404, "Not Found", TEXT))


def _wrong_method(content_type: bytes) -> "Handler":
    return _respond(error_response(405, "Method Not Allowed", content_type))


def _bad_version(version: str, content_type: bytes) -> "Handler":
    return _respond(
        error_response(
            400,
            f"failed to get model version from specified version string '{version}' (details: "
            "stol), version should be an integral value > 0",
            content_type,
        )
    )


def _denial(key: str) -> Response:
    return error_response(403, f"This API is restricted, expecting header '{key}'", TEXT)


def _respond(response: Response) -> "Handler":
    def respond(exchange: "Exchange") -> None:
        exchange.respond(response)

    return respond
