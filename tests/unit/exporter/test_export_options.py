from typing import Any

import pytest

from naiad.errors import InvalidArgumentError
from naiad.exporter.options import ExportOptions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch_size": -1}, "max_batch_size is -1; it must be 0 or more"),
        ({"version": 0}, "version is 0; it must be 1 or more"),
        ({"instance_count": 0}, "instance_count is 0"),
        ({"golden_batch_sizes": (1, 0)}, "a golden batch size is 0"),
        ({"ranges": {"x": (1.0, 0.0)}}, "the range of input 'x' ends at 0.0, below its start 1.0"),
        ({"torchscript": "both"}, "torchscript is 'both'; it must be auto, script or trace"),
    ],
)
def test_what_no_export_can_do_is_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ExportOptions(**settings)
