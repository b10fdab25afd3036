"""Requests that schemathesis makes up from the OpenAPI document, against ``naiad serve``.

Whatever comes, the status is one that the document names, the body is what it promises for that
status, and the server goes on.
"""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.support.fake_engine import FakeEngine

from naiad.frontends.rest.api import build_routes
from naiad.frontends.rest.long_work import LongWork
from naiad.frontends.rest.openapi import build_document
from naiad.frontends.rest.options import RestOptions
from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "conformance" / "recorded" / "repository"
MODELS = ("simple", "id_fp32", "id_bytes")
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]


def local_document() -> dict[str, Any]:
    options = RestOptions()
    long_work = LongWork(options.max_input_bytes)
    return build_document(build_routes(FakeEngine(), options, long_work), "0")


SCHEMA = schemathesis.openapi.from_dict(local_document())
OPERATIONS = sorted(
    f"{method.upper()} {path}"
    for path, methods in SCHEMA.raw_schema["paths"].items()
    for method in methods
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    repository = tmp_path_factory.mktemp("repository")
    for model in MODELS:
        shutil.copytree(RECORDED / model, repository / model)
    options = ("--allow-client-shm=true", "--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(repository, options=options) as server:
        yield server.address


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=500) as answer:
        return json.load(answer)


def test_the_server_gives_the_document(address: str) -> None:
    served = get(address, "/v2/openapi.json")
    assert served.pop("info")["version"] == get(address, "/v2")["version"]
    expected = local_document()
    expected.pop("info")
    assert served == expected


def fuzz(address: str, operation: str, examples: int) -> None:
    method, path = operation.split(" ")
    names = st.one_of(st.none(), st.sampled_from(MODELS))
    strategy = SCHEMA[path][method].as_strategy()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy, names)
    def ask(case: Any, name: str | None) -> None:
        # Names that are made up alone would find no model.
        if name is not None and "model" in case.path_parameters:
            case.path_parameters["model"] = name
            if "version" in case.path_parameters:
                case.path_parameters["version"] = "1"
        response = case.call(base_url=f"http://{address}", timeout=500)
        case.validate_response(response, checks=CHECKS)

    ask()
    assert get(address, "/v2")["name"] == "triton"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_sample(address: str, operation: str) -> None:
    fuzz(address, operation, 12)


@pytest.mark.full
@pytest.mark.parametrize("operation", OPERATIONS)
def test_many(address: str, operation: str) -> None:
    fuzz(address, operation, 250)
