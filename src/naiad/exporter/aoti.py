"""AOTInductor packages: the model compiled to machine code for this machine's kind of CPU."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from naiad.errors import UnsupportedError
from naiad.exporter.failures import first_line
from naiad.exporter.formats import Interface, Runner, Written
from naiad.exporter.observed import observe
from naiad.exporter.plan import ExportPlan
from naiad.exporter.program import capture
from naiad.exporter.torchscript import open_torch
from naiad.repository.golden import GoldenCase
from naiad.source_model.evaluation import evaluation


class AotInductorFormat:
    """One ``model.pt2`` with a shared library in it, which Triton calls ``torch_aoti``."""

    name = "aoti"
    file_name = "model.pt2"
    backend = "pytorch"
    platform = "torch_aoti"
    is_default_file = False

    @property
    def libraries(self) -> Mapping[str, str]:
        """Nothing but torch itself, which brings the compiler's front half."""
        return {}

    def write(self, plan: ExportPlan, path: Path) -> Written:
        """Capture the model and compile it.

        Raises:
            UnsupportedError: there is no C++ compiler, torch cannot capture the model, or it
                cannot compile it.
        """
        compiler = find_compiler()
        program = capture(plan)
        try:
            with evaluation(plan.flat):
                torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        except Exception as error:
            raise UnsupportedError(
                f"torch cannot compile the model with {compiler}: {first_line(error)}. The "
                "formats pt2 and onnx need no compiler"
            ) from error
        inputs, outputs = (
            tuple(f"{kind}__{index}" for index in range(len(names)))
            for kind, names in (("INPUT", plan.input_names), ("OUTPUT", plan.output_names))
        )
        own = zip((*inputs, *outputs), (*plan.input_names, *plan.output_names), strict=True)
        return Written(
            inputs,
            outputs,
            (
                "a package has no names of its own, and Triton's are used: "
                + ", ".join(f"{name} is {meant}" for name, meant in own),
                f"compiled by {Path(compiler).name} for this kind of CPU: other kinds, and other "
                "releases of torch, may not load it",
            ),
        )

    def open(self, path: Path, datatypes: Mapping[str, str]) -> Runner:
        """The package as torch loads it."""
        return open_torch(torch._inductor.aoti_load_package(str(path)), datatypes)

    def describe(self, path: Path, plan: ExportPlan, cases: Sequence[GoldenCase]) -> Interface:
        """What the cases show; the package itself knows no shapes."""
        return observe(plan, cases)


def find_compiler() -> str:
    """Path of the C++ compiler that torch would use.

    Raises:
        UnsupportedError: none is installed.
    """
    from torch._inductor import config  # noqa: PLC0415  # most of a second, for this format only

    wanted = config.cpp.cxx
    names = wanted if isinstance(wanted, tuple | list) else (wanted,)
    for name in names:
        found = shutil.which(name) if name else None
        if found:
            return found
    raise UnsupportedError(
        "the format aoti compiles the model and needs a C++ compiler: none of "
        f"{', '.join(name for name in names if name)} is installed (apt install g++, or name one "
        "in CXX). The formats pt2, torchscript and onnx need none"
    )


FORMAT: Final = AotInductorFormat()
