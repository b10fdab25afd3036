"""The OpenAPI document against the table of routes."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.fake_engine import FakeEngine

from naiad.access.restricted_apis import Api
from naiad.frontends.rest.api import build_routes
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.long_work import LongWork
from naiad.frontends.rest.openapi import build_document, expand_template
from naiad.frontends.rest.options import RestOptions
from naiad.frontends.rest.router import Route


def routes() -> list[Route]:
    options = RestOptions()
    return build_routes(FakeEngine(), options, LongWork(options.max_input_bytes))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return build_document(routes(), "1.2")


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_route_is_there_with_its_methods(document: dict[str, Any]) -> None:
    found = {(path, method) for path, method, _ in operations(document)}
    expected = {
        (path, method.lower())
        for route in routes()
        for path in expand_template(route.template)
        for method in route.handlers
    }
    assert found == expected
    assert len(found) > 40
    assert document["info"]["version"] == "1.2"


def test_every_path_reaches_its_own_route(document: dict[str, Any]) -> None:
    for path in document["paths"]:
        asked = path.replace("{version}", "7")
        first = next(route for route in routes() if route.path.fullmatch(asked))
        assert path in expand_template(first.template)


def test_operations_tell_apart_and_say_something(document: dict[str, Any]) -> None:
    found = [operation for _, _, operation in operations(document)]
    names = [operation["operationId"] for operation in found]
    assert len(set(names)) == len(names)
    assert all(len(operation["summary"]) > 8 for operation in found)


def test_every_reference_leads_somewhere_and_everything_is_used(
    document: dict[str, Any],
) -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if "$ref" in node:
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    known = {
        f"#/components/{kind}/{name}"
        for kind, entries in document["components"].items()
        for name in entries
    }
    assert set(references(document)) == known


def handler(exchange: Exchange) -> None:
    """Nothing."""


def test_a_route_without_its_entry() -> None:
    with pytest.raises(KeyError, match="GET /v2/new"):
        build_document([*routes(), Route("/v2/new", {"GET": handler}, api=Api.METADATA)], "1")


def test_an_entry_without_its_route() -> None:
    with pytest.raises(ValueError, match="no route for"):
        build_document(routes()[:-1], "1")


def test_templates() -> None:
    assert expand_template("/a") == ["/a"]
    assert expand_template("/a[/b/{c}]/d") == ["/a/d", "/a/b/{c}/d"]
