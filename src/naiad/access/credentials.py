"""What a client shows to be let in: secret headers and certificates; the server's side is beside.

The names of the options that fill it are curl's.
"""

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from naiad.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of one client; files are PEM and are read when a connection is made.

    Attributes:
        headers: sent with every request, as metadata by gRPC; secrets, so not shown.
        ca_certificate: who may sign the server's certificate, in place of those that the system
            trusts.
        certificate: of the client, for a server that wants one.
        key: of that certificate; None where it is in the same file.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_certificate: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def tls_context(self) -> ssl.SSLContext:
        """The TLS settings of a connection.

        Raises:
            InvalidArgumentError: a file is missing, or is not what it should be.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_certificate)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgumentError(
                f"the certificate '{self.ca_certificate}' of --cacert can not be used: {error}"
            ) from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except (OSError, ssl.SSLError) as error:
                raise InvalidArgumentError(
                    f"the client's certificate '{self.certificate}' and its key "
                    f"'{self.key or self.certificate}' can not be used: {error}"
                ) from error
        return context

    def trusted_file(self) -> str | None:
        """The file of the certificates that are trusted; None where the system has no such file."""
        if self.ca_certificate is not None:
            return str(self.ca_certificate)
        return ssl.get_default_verify_paths().cafile


def parse_headers(given: Iterable[str]) -> dict[str, str]:
    """Headers of the form ``KEY: VALUE``, or ``KEY:VALUE``.

    Raises:
        ValueError: one has another form, or comes twice. The text doesn't repeat the value, which
            is a secret.
    """
    headers: dict[str, str] = {}
    for text in given:
        key, colon, value = text.partition(":")
        key, value = key.strip(), value.strip()
        if not (colon and key and value) or not key.isascii() or " " in key or "\n" in value:
            raise ValueError("a header is of the form 'KEY: VALUE', such as 'admin-key: secret'")
        if key.lower() in {other.lower() for other in headers}:
            raise ValueError(f"the header '{key}' is given twice")
        headers[key] = value
    return headers


def advise_certificate(error: BaseException | None) -> str:
    """What a person can do about a certificate that is not trusted; "" for any other error."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return ""
    return ". --cacert FILE names a certificate to trust in place of the system's"
