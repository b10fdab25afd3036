from hypothesis import given
from hypothesis import strategies as st

from naiad.backends.onnxruntime.text import to_bytes, to_text


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_every_element_comes_back(element: bytes) -> None:
    text = to_text(element)
    text.encode()
    assert to_bytes(text) == element
