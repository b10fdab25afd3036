"""TLS for the gRPC port: HTTP/2 by ALPN, and clients' certificates where they are asked for."""

import ssl

from naiad.errors import InvalidArgumentError
from naiad.frontends.grpc.options import Tls


def build_context(tls: Tls) -> ssl.SSLContext:
    """The TLS settings of the port; the files are read once, here.

    Raises:
        InvalidArgumentError: a file is missing, or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
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
