"""BYTES as the golden cases hold them, from what libraries make of text."""

import numpy as np

from naiad.inference.comparison import Array


def text_as_bytes(array: Array) -> Array:
    """An object array of ``str`` or ``bytes`` as one of ``bytes``; any other as it is."""
    if not array.dtype.hasobject:
        return array
    flat = [e.encode() if isinstance(e, str) else bytes(e) for e in array.reshape(-1).tolist()]
    encoded = np.empty(len(flat), dtype=object)
    encoded[:] = flat
    return encoded.reshape(array.shape)
