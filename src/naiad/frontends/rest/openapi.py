"""The OpenAPI 3.1 document of the API: paths from the table of routes, bodies from a data file.

A route without its entry in the file, or an entry without its route, is an error, so the document
can not fall behind.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, Final

import orjson

from naiad.access.restricted_apis import Api
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.response import JSON, Response, format_head
from naiad.frontends.rest.router import Route

_DATA: Final = "openapi.json"
_NAME: Final = re.compile(r"\{(\w+)\}")
_OPTIONAL: Final = re.compile(r"\[(.*?)\]")
# Beside those that an operation names: a wrong secret, where the operator asked for one.
_ALWAYS: Final = (403,)
_MEANING: Final[Mapping[int, str]] = {
    400: "The request is wrong.",
    403: "The operator restricts this API to requests with a secret header.",
    404: "No such model, version or region.",
    413: "The body is larger than the server takes.",
    500: "The server or the model failed.",
    501: "This server does not do that, as configured.",
    503: "Not now: loading, stopping, or too much under way.",
}


class OpenApiHandler:
    """Answers what the API is."""

    def __init__(self, routes: Iterable[Route], server_version: str) -> None:
        self._routes = [*routes, *self.routes()]
        self._server_version = server_version
        self._body = b""

    def routes(self) -> list[Route]:
        """The routes of this noun."""
        return [Route("/v2/openapi.json", {"GET": self.document}, api=Api.METADATA)]

    def document(self, exchange: Exchange) -> None:
        """The OpenAPI document of this API."""
        if not self._body:
            self._body = orjson.dumps(build_document(self._routes, self._server_version))
        exchange.respond(Response(format_head(200, JSON), self._body))


def build_document(routes: Iterable[Route], server_version: str) -> dict[str, Any]:
    """The document of ``routes``.

    Raises:
        KeyError: a route has no entry in the data file.
        ValueError: an entry has no route.
    """
    data = orjson.loads(resources.files(__package__).joinpath(_DATA).read_bytes())
    operations: dict[str, Any] = data["operations"]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for method, handler in route.handlers.items():
            operation = operations.pop(f"{method} {route.template}")
            summary = (handler.__doc__ or "").partition("\n")[0]
            for path in expand_template(route.template):
                described = _describe(operation, path, method, summary)
                paths.setdefault(path, {})[method.lower()] = described
    if operations:
        raise ValueError(f"no route for {sorted(operations)}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Naiad: the KServe v2 inference protocol with Triton's extensions",
            "version": server_version,
        },
        "paths": paths,
        "components": data["components"],
    }


def expand_template(template: str) -> list[str]:
    """The paths that a route's template stands for, without and with what may be left out."""
    if _OPTIONAL.search(template) is None:
        return [template]
    return [_OPTIONAL.sub("", template, 1), _OPTIONAL.sub(r"\1", template, 1)]


def _describe(operation: Mapping[str, Any], path: str, method: str, summary: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").rstrip("_"),
        "summary": summary,
        "tags": [operation["tag"]],
        "responses": dict(_responses(operation)),
    }
    parameters = _NAME.findall(path) + ["header_length"] * operation.get("has_tail", False)
    if parameters:
        described["parameters"] = [_reference("parameters", name) for name in parameters]
    if "body" in operation:
        content = {"application/json": _schema(operation["body"])}
        if operation.get("has_tail", False):
            content["application/octet-stream"] = _schema("Binary")
        described["requestBody"] = {
            "content": content,
            "required": operation.get("is_body_required", False),
        }
    return described


def _responses(operation: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if not operation.get("is_refused", False):
        content = {kind: _schema(name) for kind, name in operation["answer"].items()}
        yield "200", {"description": "Done.", **({"content": content} if content else {})}
    for status in sorted({*operation["errors"], *_ALWAYS}):
        # Triton labels some errors as text; their bodies are the same JSON.
        content = {"application/json": _schema("Error"), "text/plain": {"schema": {}}}
        if "text/event-stream" in operation["answer"]:
            content["text/event-stream"] = _schema("Events")
        yield str(status), {"description": _MEANING[status], "content": content}


def _schema(name: str) -> dict[str, Any]:
    return {"schema": _reference("schemas", name)}


def _reference(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}
