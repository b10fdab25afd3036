"""URLs of object storage and the keys that go with them."""

import json
from pathlib import Path

import pytest

from naiad.errors import InvalidArgumentError
from naiad.repository.storage_location import (
    StorageLocation,
    is_storage_url,
    parse_storage_url,
    storage_config,
)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket", ("s3", "bucket", "", "", "")),
        ("s3://bucket/a/b/", ("s3", "bucket", "a/b", "", "")),
        ("s3://my.bucket.name/a//b", ("s3", "my.bucket.name", "a/b", "", "")),
        ("s3://localhost:9000/bucket/a", ("s3", "bucket", "a", "http://localhost:9000", "")),
        ("s3://http://10.0.0.1:80/bucket", ("s3", "bucket", "", "http://10.0.0.1:80", "")),
        ("s3://https://s3.example.com:443/b/a", ("s3", "b", "a", "https://s3.example.com:443", "")),
        ("s3://https://s3.example.com/b/a/c", ("s3", "b", "a/c", "https://s3.example.com", "")),
        ("gs://bucket/models", ("gs", "bucket", "models", "", "")),
        ("as://account/container/models", ("as", "container", "models", "", "account")),
    ],
)
def test_forms(url: str, location: tuple[str, str, str, str, str]) -> None:
    assert is_storage_url(url)
    assert parse_storage_url(url) == StorageLocation(url, *location)


@pytest.mark.parametrize("text", ["models", "/s3/x", "./s3:", "http://host/x", "C:/models"])
def test_folders_are_no_urls(text: str) -> None:
    assert not is_storage_url(text)


@pytest.mark.parametrize("url", ["s3://", "gs:///", "as://account", "as://account/"])
def test_a_bucket_is_needed(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="names no bucket; write s3://bucket/path"):
        parse_storage_url(url)


def test_keys_of_the_environment() -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AZURE_STORAGE_ACCOUNT": "me",
        "AZURE_STORAGE_KEY": "key",
        "GOOGLE_APPLICATION_CREDENTIALS": "/key.json",
    }
    assert storage_config(parse_storage_url("s3://https://host:1/b"), environment) == {
        "aws_access_key_id": "id",
        "aws_secret_access_key": "secret",
        "aws_region": "eu-west-1",
        "aws_endpoint": "https://host:1",
    }
    assert storage_config(parse_storage_url("gs://b"), environment) == {
        "google_application_credentials": "/key.json"
    }
    # The URL's account is the one that is read.
    assert storage_config(parse_storage_url("as://other/c"), environment) == {
        "azure_storage_account_name": "other",
        "azure_storage_account_key": "key",
    }


def test_keys_of_a_credential_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    entries = {
        "s3": {
            "": {"key_id": "any", "secret_key": "s"},
            "s3://mine": {"key_id": "mine", "secret_key": "t", "region": "r", "profile": "p"},
        },
        "gs": {"": "/any.json", "gs://b/x": "/x.json"},
        "as": {"": {"account_str": "a", "account_key": "k"}},
    }
    file.write_text(json.dumps(entries))
    environment = {"TRITON_CLOUD_CREDENTIAL_PATH": str(file), "AWS_ACCESS_KEY_ID": "unused"}

    def config(url: str) -> dict[str, str]:
        return storage_config(parse_storage_url(url), environment)

    assert config("s3://other") == {"aws_access_key_id": "any", "aws_secret_access_key": "s"}
    assert config("s3://mine/x")["aws_access_key_id"] == "mine"
    assert config("s3://mine/x")["aws_region"] == "r"
    assert config("gs://b/x/y") == {"google_application_credentials": "/x.json"}
    assert config("as://a/c")["azure_storage_account_key"] == "k"


@pytest.mark.parametrize("content", [None, "no json", "[]", '{"s3": {"": 3}}'])
def test_a_credential_file_that_is_none(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    environment = {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)}
    with pytest.raises(InvalidArgumentError, match="which is no credential file"):
        storage_config(parse_storage_url("s3://b"), environment)
