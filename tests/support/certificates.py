"""Certificates for tests of TLS, made by openssl when they are needed."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str, subject: str) -> tuple[Path, Path]:
    """A self-signed certificate of two days; skips the test where openssl is not installed.

    Returns:
        The files of the certificate and of its key.
    """
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-keyout", key, "-out", certificate, "-subj", f"/CN={subject}",
         "-addext", f"subjectAltName=DNS:{subject}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
