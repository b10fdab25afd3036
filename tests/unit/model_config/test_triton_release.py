"""The table of Triton's releases."""

from itertools import pairwise

import pytest

from naiad.errors import InvalidArgumentError
from naiad.model_config.triton_release import find_release, read_releases


@pytest.mark.parametrize("target", ["triton:24.10", "triton:2.51.0"])
def test_release_by_either_of_its_numbers(target: str) -> None:
    release = find_release(target)

    assert (release.release, release.version) == ("24.10", "2.51.0")
    assert (release.onnxruntime, release.onnx_opset, release.onnx_ir) == ("1.19.2", 21, 10)
    assert release.python == "3.10.12"


@pytest.mark.parametrize("target", ["", "24.10", "triton:", "triton:19.01", "kserve:24.10"])
def test_unknown_target(target: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected triton:<release>.* 24\.01 to "):
        find_release(target)


def test_newer_releases_read_no_less() -> None:
    releases = read_releases()

    assert len({release.release for release in releases}) == len(releases)
    for older, newer in pairwise(releases):
        assert older.release < newer.release
        assert older.onnx_opset <= newer.onnx_opset
        assert older.onnx_ir <= newer.onnx_ir
