"""Operators that have no ONNX form: which one, where in the user's code, and what to do."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from torch.export import ExportedProgram
from torch.fx import Node

from naiad.exporter.source_lines import find_traced_line

_MISSING: Final = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
_NODE: Final = re.compile(r"translating node %(\w+) ")
_TORCHS_OWN: Final = frozenset({"aten", "prims", "prim"})
_OTHER_FORMATS: Final = "use the format pt2 or torchscript, which run it as PyTorch does"


def explain_conversion(error: BaseException, program: ExportedProgram) -> str:
    """What keeps a captured model from becoming ONNX, in sentences.

    Args:
        error: what torch.onnx raised; its causes are read.
        program: that was to be converted.
    """
    causes = list(_causes(error))
    texts = [str(cause).strip() for cause in causes if str(cause).strip()]
    operator = next((found[1] for text in texts if (found := _MISSING.search(text))), "")
    place = _find_place(texts, operator, program)
    where = f" ({place})" if place else ""
    if not operator:
        reason = texts[-1].splitlines()[0].rstrip(".") if texts else type(error).__name__
        return (
            f"the model cannot become ONNX: {reason}{where}. Replace what that line does, or "
            f"{_OTHER_FORMATS}"
        )
    if operator.partition(".")[0] not in _TORCHS_OWN:
        return (
            f"the operator {operator} is not one of torch's own and has no ONNX form{where}. Give "
            "it one: ExportOptions(translations={torch.ops."
            f"{operator}.default: an onnxscript function}}). The formats pt2 and torchscript need "
            "the library that registers it on the server"
        )
    return (
        f"the operator {operator} has no ONNX form{where}. Compute it with other operators, give "
        f"it one with ExportOptions(translations=...), or {_OTHER_FORMATS}"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _find_place(texts: list[str], operator: str, program: ExportedProgram) -> str:
    names = [found[1] for text in texts if (found := _NODE.search(text))]
    if not names:
        return ""
    node = _find_node(program, lambda node: node.name == names[-1])
    if node is None:
        # torch.onnx converts the program with its composed operators taken apart.
        node = _find_node(program.run_decompositions(), lambda node: node.name == names[-1])
    if node is None:
        # aten.special_bessel_j0 is taken apart into prims.bessel_j0, and only by torch.onnx.
        word = operator.rpartition(".")[2]
        node = _find_node(program, lambda node: bool(word) and word in node.name)
    return "" if node is None else find_traced_line(node.meta.get("stack_trace"))


def _find_node(program: ExportedProgram, is_meant: Callable[[Node], bool]) -> Node | None:
    return next((node for node in program.graph.nodes if is_meant(node)), None)
