"""TLS of a port, with clients' certificates where they are asked for."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from naiad.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS of a port; files are PEM and are read when the server starts.

    Attributes:
        certificate: of the server, with its chain.
        key: of the certificate.
        root_certificate: who signs clients' certificates; with it, a client needs one.
    """

    certificate: Path
    key: Path
    root_certificate: Path | None = None


def build_context(tls: Tls, protocol: str) -> ssl.SSLContext:
    """The TLS settings of a port; the files are read once, here.

    Args:
        tls: the files.
        protocol: what the port speaks, by its name in ALPN: ``h2`` or ``http/1.1``.

    Raises:
        InvalidArgumentError: a file is missing, or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgumentError(
            f"the server's certificate '{tls.certificate}' and key '{tls.key}' can not be used: "
            f"{error}"
        ) from error
    if tls.root_certificate is not None:
        try:
            context.load_verify_locations(tls.root_certificate)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgumentError(
                f"the root certificate '{tls.root_certificate}' can not be used: {error}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
