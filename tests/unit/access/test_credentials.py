"""What a client is let in by, as far as it needs no server."""

import ssl
from pathlib import Path

import pytest

from naiad.access.credentials import Credentials, advise_certificate, parse_headers
from naiad.errors import InvalidArgumentError


def test_headers_are_written_with_a_colon() -> None:
    given = ["admin-key: a:b c", "Authorization:Bearer xyz"]
    assert parse_headers(given) == {"admin-key": "a:b c", "Authorization": "Bearer xyz"}


@pytest.mark.parametrize(
    "given", [["secret"], [": secret"], ["key:"], ["a key: secret"], ["k: secret\nx: y"]]
)
def test_what_is_no_header_is_refused_without_its_secret(given: list[str]) -> None:
    with pytest.raises(ValueError, match="of the form 'KEY: VALUE'") as caught:
        parse_headers(given)
    assert str(caught.value).count("secret") == 1, "of our own example"


def test_a_header_is_given_once() -> None:
    with pytest.raises(ValueError, match="'Key' is given twice"):
        parse_headers(["key: 1", "Key: 2"])


def test_the_secret_is_not_shown() -> None:
    assert "sesame" not in repr(Credentials({"admin-key": "sesame"}))


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing", encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=r"ca\.pem' of --cacert can not be used"):
        Credentials(ca_certificate=file).tls_context()
    with pytest.raises(InvalidArgumentError, match=r"client's certificate '.*ca\.pem' and its key"):
        Credentials(certificate=file).tls_context()


def test_only_a_certificate_that_is_not_trusted_gets_the_advice() -> None:
    assert "--cacert FILE" in advise_certificate(ssl.SSLCertVerificationError("self-signed"))
    assert advise_certificate(ConnectionRefusedError()) == ""
    assert advise_certificate(None) == ""
