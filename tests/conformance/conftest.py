"""Options that point the conformance suite at a server of one's own, a real Triton for example."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption(
        "--conformance-http", help="HOST:PORT of a server that serves the recorded models"
    )
    group.addoption("--conformance-grpc", help="HOST:PORT of its gRPC service")
