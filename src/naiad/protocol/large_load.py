"""Large load requests, whose files come in base64, read in another process; see ``large_json``."""

import json
from collections.abc import Mapping

from naiad.errors import InvalidArgumentError, NaiadError
from naiad.protocol.json_text import Buffer
from naiad.protocol.large_json import DocumentSplitter, SplitDocument
from naiad.protocol.v2_metadata import decode_load_request


def split_load(text: Buffer) -> SplitDocument:
    """Decode a load request and take its config and files out.

    Args:
        text: the body.
    """
    try:
        config, files = decode_load_request(text)
        splitter = DocumentSplitter()
        return splitter.finish(
            {
                "config": None if config is None else splitter.add(config.encode()),
                "files": {path: splitter.add(content) for path, content in files.items()},
            }
        )
    except NaiadError as error:
        return SplitDocument.of_error(error)


def join_load(head: bytes, payload: memoryview) -> tuple[str | None, Mapping[str, memoryview]]:
    """What ``decode_load_request`` returns, of ``split_load``'s answer.

    Args:
        head: as it came.
        payload: kept by the files, which are views of it.

    Raises:
        InvalidArgumentError: what is wrong with the request.
    """
    joined = json.loads(head)
    error = joined.get("error")
    if error is not None:
        raise InvalidArgumentError(error)
    document = joined["document"]

    def view(reference: Mapping[str, int]) -> memoryview:
        return payload[reference["start"] : reference["start"] + reference["size"]]

    config = document["config"]
    return (
        None if config is None else str(view(config), "utf-8"),
        {path: view(reference) for path, reference in document["files"].items()},
    )
