"""The whole proof of a repository: which versions, against which server."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from naiad.access.credentials import Credentials
from naiad.errors import InvalidArgumentError, NaiadError
from naiad.source_model.description import SourceDescription
from naiad.verify.proof import OnHop, OnStep, Proof, Server
from naiad.verify.report import ModelReport, Report
from naiad.verify.server_process import ServerProcess
from naiad.verify.subject import Subject, find_unverified, find_versions
from naiad.verify.wire import Place

if TYPE_CHECKING:
    from naiad.verify.laboratory import Laboratory


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What to verify and against whom.

    Attributes:
        repository: the model repository.
        models: names; all models with golden cases where empty.
        address: ``HOST:PORT``, or ``https://HOST:PORT``, of a server that serves the repository,
            by HTTP; one is started otherwise.
        grpc_address: the same of gRPC; only with ``address``, whose gRPC is left out without it.
        credentials: by which that server lets us in.
        source: where the PyTorch model lies, to ask it again; needs one model. Where it has no
            example inputs, a golden case is one.
        rounds: requests of each concurrent client.
        is_served: ask the engine and a server too; otherwise the file alone.
    """

    repository: Path
    models: Sequence[str] = ()
    address: str | None = None
    grpc_address: str | None = None
    credentials: Credentials = field(default_factory=Credentials)
    source: SourceDescription | None = None
    rounds: int = 2
    is_served: bool = True


def verify_repository(
    options: VerifyOptions,
    on_step: OnStep = lambda _: None,
    on_hop: OnHop = lambda _model, _rows: None,
) -> Report:
    """Run every golden case of a repository through every hop.

    Args:
        options: what to verify.
        on_step: called before each step.
        on_hop: called with the rows of each hop as soon as they are known.

    Returns:
        The report; a model that could not be verified is in it with the reason.

    Raises:
        NaiadError: nothing could be verified: no such repository or model, no golden cases, a
            server that doesn't start, a source that doesn't load.
    """
    versions = find_versions(options.repository, options.models)
    if options.source is not None and len({name for name, _ in versions}) > 1:
        raise InvalidArgumentError(
            "--source is one model's source: name the MODEL that it belongs to"
        )
    with ExitStack() as stack:
        subjects = [_load(options, version) for version in versions]
        # A source that doesn't load is to be known before a server is started.
        laboratories = [_open_source(options, subject, on_step, stack) for subject in subjects]
        server = _find_server(options, subjects, on_step, stack)
        reports = [
            subject
            if isinstance(subject, ModelReport)
            else _prove(options, Proof(subject, server, laboratory, on_step, on_hop))
            for subject, laboratory in zip(subjects, laboratories, strict=True)
        ]
    return Report(reports, () if options.models else find_unverified(options.repository))


def _load(options: VerifyOptions, version: tuple[str, int]) -> Subject | ModelReport:
    """The version, or what there is to say where it can't be read."""
    name, number = version
    try:
        subject = Subject.load(options.repository, name, number)
    except NaiadError as error:
        return ModelReport(name, number, could_not_run=error.message)
    if subject.cases:
        return subject
    return ModelReport(
        name, number, subject.manifest.model_file, problems=subject.problems,
        could_not_run="no golden case could be read",
    )  # fmt: skip


def _open_source(
    options: VerifyOptions, subject: Subject | ModelReport, on_step: OnStep, stack: ExitStack
) -> "Laboratory | None":
    if options.source is None or isinstance(subject, ModelReport):
        return None
    # torch is imported by this module, and only a source needs it.
    from naiad.verify.laboratory import open_laboratory  # noqa: PLC0415

    on_step(f"loading {options.source.source}")
    scratch = stack.enter_context(TemporaryDirectory(prefix="naiad-source-"))
    return open_laboratory(options.source, subject, Path(scratch))


def _find_server(
    options: VerifyOptions,
    subjects: Sequence[Subject | ModelReport],
    on_step: OnStep,
    stack: ExitStack,
) -> Server | None:
    if not options.is_served:
        return None
    if options.address is not None:
        # A mistake in an address is told once, and not by every hop.
        for url in filter(None, (options.address, options.grpc_address)):
            Place.parse(url)
        return Server(
            options.address, options.grpc_address or "", is_ours=False,
            credentials=options.credentials,
        )  # fmt: skip
    on_step("starting a server")
    names = dict.fromkeys(subject.model for subject in subjects)
    flags = [
        # A model that fails stops no other; explicit control, so that models can be reloaded.
        "--exit-on-error=false", "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in names),
    ]  # fmt: skip
    process = stack.enter_context(ServerProcess(options.repository, options=flags))
    return Server(process.address, process.grpc_address, is_ours=True)


def _prove(options: VerifyOptions, proof: Proof) -> ModelReport:
    try:
        proof.run(options.source.source if options.source else "", options.rounds)
    except NaiadError as error:
        return proof.report(could_not_run=error.message)
    return proof.report()
