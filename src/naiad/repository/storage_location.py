"""Where a model repository in object storage is, and with whose keys it is read.

The forms are Triton's (model_repository.md, "Cloud Storage"): ``s3://bucket/path``,
``s3://host:port/bucket/path``, ``s3://https://host:port/bucket/path``, ``gs://bucket/path`` and
``as://account/container/path``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from naiad.errors import InvalidArgumentError

S3: Final = "s3"
GCS: Final = "gs"
AZURE: Final = "as"

# What is read of the environment: the names of the providers' own tools, and Triton's.
CREDENTIAL_FILE: Final = "TRITON_CLOUD_CREDENTIAL_PATH"
_VARIABLES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        S3: {
            "AWS_ACCESS_KEY_ID": "aws_access_key_id",
            "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
            "AWS_SESSION_TOKEN": "aws_session_token",
            "AWS_DEFAULT_REGION": "aws_region",
            "AWS_REGION": "aws_region",
            "AWS_ENDPOINT_URL": "aws_endpoint",
        },
        GCS: {
            "GOOGLE_APPLICATION_CREDENTIALS": "google_application_credentials",
            # What Google's own clients read, and every emulator is documented with.
            "STORAGE_EMULATOR_HOST": "google_base_url",
        },
        AZURE: {
            "AZURE_STORAGE_ENDPOINT": "azure_storage_endpoint",
            "AZURE_STORAGE_ACCOUNT": "azure_storage_account_name",
            "AZURE_STORAGE_KEY": "azure_storage_account_key",
        },
    }
)
_ENDPOINTS: Final = ("aws_endpoint", "google_base_url", "azure_storage_endpoint")
ENVIRONMENT_NAMES: Final = (
    CREDENTIAL_FILE,
    *(name for names in _VARIABLES.values() for name in names),
)
# Keys of the credential file's entries; gs has a path instead of an object.
_FILE_KEYS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        S3: {
            "key_id": "aws_access_key_id",
            "secret_key": "aws_secret_access_key",
            "session_token": "aws_session_token",
            "region": "aws_region",
        },
        AZURE: {
            "account_str": "azure_storage_account_name",
            "account_key": "azure_storage_account_key",
        },
    }
)
_REMOTE: Final = re.compile(r"(s3|gs|as)://")
_S3_WITH_HOST: Final = re.compile(
    r"s3://(?:(?P<scheme>https?)://)?(?P<host>[\w.-]+(?P<port>:\d+)?)/(?P<rest>.+)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """A folder in object storage.

    Attributes:
        url: as the user wrote it.
        scheme: ``s3``, ``gs`` or ``as``.
        bucket: or container.
        prefix: of the folder in the bucket; empty for all of it.
        endpoint: of a server that speaks S3 and is not Amazon's; else empty.
        account: of Azure, where the URL names it; else empty.
    """

    url: str
    scheme: str
    bucket: str
    prefix: str = ""
    endpoint: str = ""
    account: str = ""


def is_storage_url(text: str) -> bool:
    """Whether a model repository is in object storage and not a folder."""
    return _REMOTE.match(text) is not None


def parse_storage_url(url: str) -> StorageLocation:
    """What the parts of a URL mean.

    Raises:
        InvalidArgumentError: it names no bucket.
    """
    scheme, _, rest = url.partition("://")
    endpoint = account = ""
    if scheme == S3:
        endpoint, rest = _split_endpoint(url, rest)
    elif scheme == AZURE:
        account, _, rest = rest.partition("/")
    bucket, _, prefix = rest.strip("/").partition("/")
    if not bucket or scheme not in _VARIABLES:
        raise InvalidArgumentError(
            f"model repository '{url}' names no bucket; write s3://bucket/path, "
            "s3://host:port/bucket/path, gs://bucket/path or as://account/container/path"
        )
    # "//" and "." mean nothing in a key's path.
    parts = [part for part in prefix.split("/") if part]
    return StorageLocation(url, scheme, bucket, "/".join(parts), endpoint, account)


def _split_endpoint(url: str, rest: str) -> tuple[str, str]:
    """The server of an S3 URL and what follows it.

    A host is one only with a port or with ``http(s)://``, because a bucket's name may have dots.
    """
    match = _S3_WITH_HOST.fullmatch(url)
    if match is None or not (match["scheme"] or match["port"]):
        return "", rest
    return f"{match['scheme'] or 'http'}://{match['host']}", match["rest"]


def storage_config(location: StorageLocation, environment: Mapping[str, str]) -> dict[str, str]:
    """Keys, region and endpoint for a location, by the names of obstore.

    Args:
        location: to be read.
        environment: of the process, as far as `ENVIRONMENT_NAMES` lists it. A credential file,
            where one is named, wins over the single variables, as in Triton.

    Raises:
        InvalidArgumentError: the credential file can't be read.
    """
    config = {
        key: environment[name]
        for name, key in _VARIABLES[location.scheme].items()
        if environment.get(name)
    }
    path = environment.get(CREDENTIAL_FILE)
    if path:
        # The file has the keys; which server they are for, it does not say.
        config = {key: config[key] for key in _ENDPOINTS if key in config}
        config |= _read_credential_file(Path(path), location)
    if location.endpoint:
        config["aws_endpoint"] = location.endpoint
    if location.account:
        config["azure_storage_account_name"] = location.account
    return config


def _read_credential_file(path: Path, location: StorageLocation) -> dict[str, str]:
    """The entry whose name is the longest beginning of the URL; ``""`` fits every one."""
    try:
        entries: Mapping[str, Any] = json.loads(path.read_text("utf-8")).get(location.scheme, {})
        names = [name for name in entries if location.url.startswith(name)]
        entry = entries[max(names, key=len)] if names else {}
        if location.scheme == GCS:
            return {"google_application_credentials": str(entry)} if entry else {}
        known = _FILE_KEYS[location.scheme]
        return {known[key]: value for key, value in entry.items() if key in known and value}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidArgumentError(
            f"{CREDENTIAL_FILE} names '{path}', which is no credential file: {error}"
        ) from error
