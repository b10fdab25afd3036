import logging
import warnings

import pytest

from naiad.exporter.quiet import quiet

LOGGER = logging.getLogger("torch.onnx._internal.exporter._registration")


def test_torchs_harmless_remarks_are_not_heard_and_others_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with quiet(), warnings.catch_warnings(record=True) as heard:
        LOGGER.warning("torchvision is not installed. Skipping %s", "torchvision::nms")
        LOGGER.warning("something that matters")
        warnings.warn("`torch.jit.trace` is deprecated. Please switch", DeprecationWarning, 1)
        with pytest.raises(DeprecationWarning, match="other"):
            warnings.warn("other is deprecated", DeprecationWarning, 1)
    assert [record.getMessage() for record in caplog.records] == ["something that matters"]
    assert heard == []


def test_it_ends_with_the_block(caplog: pytest.LogCaptureFixture) -> None:
    with quiet():
        pass
    LOGGER.warning("torchvision is not installed. Skipping")
    assert len(caplog.records) == 1
    with pytest.raises(DeprecationWarning):
        warnings.warn("`torch.jit.trace` is deprecated. Please switch", DeprecationWarning, 1)
