"""Ports that are taken, seen before anything is loaded."""

import socket

import pytest

from naiad.errors import UnavailableError
from naiad.frontends.listening import check_port


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "0.0.0.0", ""])
def test_a_taken_port_is_refused_and_a_free_one_is_not(address: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError) as caught:
            check_port(address, port)
        assert caught.value.message == f"Socket '{address}:{port}' already in use"
    check_port(address, port)
    check_port(address, port)


def test_a_port_that_the_system_chooses_is_free() -> None:
    check_port("127.0.0.1", 0)


def test_a_port_may_be_shared() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        check_port("127.0.0.1", port, reuse_port=True)
        with pytest.raises(UnavailableError, match="already in use"):
            check_port("127.0.0.1", port)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(
        UnavailableError, match=r"^Socket '192\.0\.2\.1:80' can not be listened on: "
    ):
        check_port("192.0.2.1", 80)
