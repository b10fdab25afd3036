"""The decorator ``naiad.model``: what a function or class needs to be served as a model."""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BF16, BY_NAME, Datatype

# Names of folders, of tensors in JSON, and of Python's own variables.
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
# The argument that gets what a client sends besides tensors.
PARAMETERS: Final = "parameters"


@dataclass(frozen=True, slots=True)
class TensorDefinition:
    """One input or output.

    Attributes:
        name: an argument of the function, or what clients know an output by.
        datatype: of the elements; BYTES are object arrays of ``bytes``.
        dims: without the batch axis; -1 for any length.
    """

    name: str
    datatype: Datatype
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A function or class that ``naiad serve`` makes a model of; calling it calls that.

    Attributes:
        target: what was decorated.
        name: of the model.
        inputs: in the order of the declaration.
        outputs: the same.
        max_batch_size: rows of a call; 0 where a call is one request without a batch axis.
        max_delay_us: that a request waits for others to share a call.
        instances: processes.
        concurrency: requests that a process answers at once.
    """

    target: Callable[..., Any]
    name: str
    inputs: tuple[TensorDefinition, ...]
    outputs: tuple[TensorDefinition, ...]
    max_batch_size: int = 0
    max_delay_us: int = 0
    instances: int = 1
    concurrency: int = 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever the function or class does."""
        return self.target(*args, **kwargs)

    @property
    def function(self) -> Callable[..., Any]:
        """What is called for a request: the function, or the class's ``__call__``."""
        if inspect.isclass(self.target):
            called: Callable[..., Any] = self.target.__call__
            return called
        return self.target

    @property
    def is_streaming(self) -> bool:
        """Whether it yields its answers one by one."""
        function = self.function
        return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)

    @property
    def is_async(self) -> bool:
        """Whether it runs on an event loop."""
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)

    @property
    def takes_parameters(self) -> bool:
        """Whether it wants what a client sends besides tensors."""
        return PARAMETERS in inspect.signature(self.function).parameters


def model(  # noqa: PLR0913 - what users write, by name alone
    *,
    inputs: Iterable[str],
    outputs: Iterable[str],
    name: str = "",
    max_batch_size: int = 0,
    max_delay_ms: float = 0,
    instances: int = 1,
    concurrency: int = 1,
) -> Callable[[Callable[..., Any]], ServedModel]:
    """Decorate a function, or a class with ``__call__``, that answers requests.

    It is called with a numpy array for each input, by name, and returns one array, a tuple in the
    order of ``outputs``, or a dict by name; or it yields any number of these. It may be ``async``.
    A class is made once in each process. An argument called ``parameters`` gets the request's
    parameters as a dict.

    Args:
        inputs: ``NAME:DATATYPE:DIMS``, for example ``image:FP32:3,224,224``; without dims, any
            length.
        outputs: the same.
        name: of the model; the function's where it is empty.
        max_batch_size: rows of all requests that one call answers, joined along the first axis;
            0 calls it for each request, without that axis.
        max_delay_ms: that a request waits for others to share a call.
        instances: processes that it runs in.
        concurrency: requests, or streams, that each process answers at once: in so many threads,
            or as so many tasks of one event loop where the function is ``async``.

    Raises:
        InvalidArgumentError: it can't be served so; the text says why.
    """
    given = tuple(map(_parse_tensor, inputs))
    answered = tuple(map(_parse_tensor, outputs))

    def decorate(target: Callable[..., Any]) -> ServedModel:
        served = ServedModel(
            target,
            name or target.__name__,
            given,
            answered,
            max_batch_size,
            int(max_delay_ms * 1000),
            instances,
            concurrency,
        )
        _check(served)
        return served

    return decorate


def _parse_tensor(text: str) -> TensorDefinition:
    name, _, rest = text.partition(":")
    datatype, _, dims = rest.partition(":")
    # numpy has no BF16, and these are numpy's arrays.
    if not _NAME.fullmatch(name) or datatype not in BY_NAME or datatype == BF16.name:
        raise InvalidArgumentError(
            f"'{text}' is no tensor: expected NAME:DATATYPE:DIMS, for example image:FP32:3,224,224 "
            f"with a datatype of {', '.join(n for n in BY_NAME if n != BF16.name)}"
        )
    try:
        lengths = tuple(int(dim) for dim in dims.split(",")) if dims else (-1,)
    except ValueError:
        lengths = (0,)
    if any(length < 1 and length != -1 for length in lengths):
        raise InvalidArgumentError(f"'{text}': dims are positive numbers, or -1 for any length")
    return TensorDefinition(name, BY_NAME[datatype], lengths)


def _check(served: ServedModel) -> None:
    where = f"model '{served.name}'"
    if not _NAME.fullmatch(served.name):
        raise InvalidArgumentError(f"{where}: the name must be letters, digits and '_'")
    has_processes = served.instances >= 1 and served.concurrency >= 1
    if not served.outputs or not has_processes or served.max_batch_size < 0:
        raise InvalidArgumentError(
            f"{where} needs an output, a max_batch_size of at least 0, an instance and a "
            "concurrency of at least 1"
        )
    if served.max_batch_size and served.concurrency > 1:
        raise InvalidArgumentError(
            f"{where}: with a max_batch_size, requests share a call; leave concurrency out"
        )
    if served.max_batch_size and (served.is_streaming or served.takes_parameters):
        raise InvalidArgumentError(
            f"{where}: a function that yields, or takes '{PARAMETERS}', answers one request a "
            "call; leave max_batch_size out"
        )
    signature = inspect.signature(served.function)
    try:
        signature.bind(
            *([None] if inspect.isclass(served.target) else []),
            **dict.fromkeys(tensor.name for tensor in served.inputs),
            **({PARAMETERS: None} if served.takes_parameters else {}),
        )
    except TypeError as error:
        raise InvalidArgumentError(
            f"{where}: its inputs don't fit the arguments {signature}: {error}"
        ) from error
