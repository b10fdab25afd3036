"""From a folder in the repository to instances that can run: the blocking half of a load.

Nothing here touches the event loop's objects; `engine.lifecycle` calls it in threads.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from naiad.backends.base import LoadedModel, ModelServices, ModelSource, RegroupedModel
from naiad.backends.registry import BackendRegistry
from naiad.engine.batching_parameters import retries_singly
from naiad.engine.config_support import ignored_settings, move_to_cpu
from naiad.engine.instance_starts import MadeInstance, make_instances, takes_requests
from naiad.engine.instances import TensorAdapters
from naiad.engine.load_advice import AdviceOptions, LoadAdvisor, StepModels
from naiad.engine.ragged_tensors import RaggedTensors
from naiad.engine.reshape import Reshaper
from naiad.engine.schedulers import make_scheduler
from naiad.engine.sequence_tensors import SequenceTensors
from naiad.engine.warmup import WarmupSample, make_samples
from naiad.errors import (
    InternalError,
    InvalidArgumentError,
    NaiadError,
    PermissionDeniedError,
)
from naiad.model_config.diagnose import nearest
from naiad.model_config.instances import list_instances
from naiad.model_config.json_format import parse_config_json
from naiad.model_config.normalize import fill_defaults, normalize_config
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup
from naiad.model_config.signature import ModelSignature
from naiad.model_config.validate import validate_config, validate_for_load
from naiad.repository.containment import check_containment, check_environment
from naiad.repository.diagnose_folder import Subject
from naiad.repository.fingerprint import fingerprint_files
from naiad.repository.layout import (
    FolderStamp,
    ModelFolder,
    list_artifacts,
    read_config,
    read_labels,
    scan_model,
)
from naiad.repository.model_id import ModelId
from naiad.repository.paths import check_model_name, resolve_inside
from naiad.repository.repositories import Repositories, Storage
from naiad.repository.temporary_folder import TemporaryFolder
from naiad.repository.version_policy import select_versions
from naiad.scheduling.scheduler import Scheduler

_log = logging.getLogger(__name__)


# By the name that the config has.
Steps = Mapping[str, ModelId | None]


class NoVersionError(InvalidArgumentError):
    """The config is right, and its version policy finds nothing to load."""


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Where models come from and how they are loaded.

    Attributes:
        repositories: folders of model folders.
        storages: repositories that are no folders of this machine.
        config_name: ``--model-config-name``; empty for ``config.pbtxt``.
        is_completion_disabled: ``--disable-auto-complete-config``.
        allow_file_override: whether a load request may bring model files.
        backend_settings: ``--backend-config``, by backend name.
        held_until_count: requests that a batcher waits for before its first batch.
        held_until_backlog_count: the same of sequences that have no slot.
        gpu_ids: the GPUs of this machine, as CUDA counts them.
        core_count: cores that this process may use; shared out over a model's instances.
        policy_cores: ``--host-policy``: the cores of each policy.
        is_gpu_replaced: instances that are meant for GPUs run on the CPU.
        is_namespaced: repositories may have models of the same name.
        is_cache_shared: the response cache is that of other servers too.
        target_latency_ms: of models whose config says nothing of how they batch; 0 for none.
    """

    repositories: tuple[Path, ...]
    storages: tuple[Storage, ...] = ()
    config_name: str = ""
    is_completion_disabled: bool = False
    allow_file_override: bool = False
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    held_until_count: int = 0
    held_until_backlog_count: int = 0
    gpu_ids: tuple[int, ...] = ()
    core_count: int = 1
    policy_cores: Mapping[str, frozenset[int]] = field(default_factory=dict)
    is_gpu_replaced: bool = False
    is_namespaced: bool = False
    is_cache_shared: bool = False
    target_latency_ms: int = 0


@dataclass(frozen=True, slots=True)
class Override:
    """What a load request puts in place of the repository's own files.

    Attributes:
        config_json: a ModelConfig as JSON, or None to read ``config.pbtxt``.
        files: content by path relative to the model folder, for example ``1/model.onnx``.
    """

    config_json: str | None = None
    files: Mapping[str, bytes | memoryview] = field(default_factory=dict)


@dataclass(slots=True)
class ModelPlan:
    """What will be loaded: a model's config and the versions that its policy selects.

    Attributes:
        config: normalized, and after `Loader.complete` complete.
        folder: where the versions lie.
        versions: ascending.
        override: what the load request put in place of the repository's own files.
        stamp: how the model lay in the repository when this was planned.
        files: keeps what was copied to this machine on its disk for as long as the plan lives.
        steps: of an ensemble, the models that its steps' names stand for; None for a name that
            stands for none, or for more than one.
    """

    config: ModelConfig
    folder: ModelFolder
    versions: tuple[int, ...]
    override: Override
    stamp: FolderStamp | None = None
    files: TemporaryFolder | None = None
    steps: Steps = field(default_factory=dict)


@dataclass(slots=True)
class LoadedVersion:
    """One version, loaded and ready to be warmed up and given requests."""

    version: int
    signature: ModelSignature
    scheduler: Scheduler
    labels: dict[str, list[str]]
    loaded: LoadedModel
    instances: list[MadeInstance]
    warmup: list[WarmupSample]
    adapters: TensorAdapters
    fingerprint: str = ""


@dataclass(slots=True)
class AddedInstances:
    """Further instances of a version that serves, and what warms them up."""

    instances: list[MadeInstance]
    warmup: list[WarmupSample]


class Loader:
    """Reads repositories and asks backends for instances."""

    def __init__(self, options: LoaderOptions, backends: BackendRegistry) -> None:
        self._options = options
        self._backends = backends
        self._repositories = Repositories(
            options.repositories, options.storages, is_namespaced=options.is_namespaced
        )
        self._advisor = LoadAdvisor(
            backends,
            AdviceOptions(
                None if options.is_gpu_replaced else options.gpu_ids,
                options.config_name,
                options.backend_settings,
            ),
            self._step_models,
        )

    def check_repositories(self) -> None:
        """Look whether every repository is there.

        Raises:
            InternalError: one is not.
        """
        self._repositories.check()

    def models(self) -> dict[ModelId, str]:
        """All models in the repositories, sorted, each with why it can't be loaded, if it can't."""
        return self._repositories.problems()

    def ids(self, name: str) -> tuple[ModelId, ...]:
        """The models that a name stands for, at least one, be it there or not."""
        return self._repositories.ids(name)

    def stamp(self, model: ModelId) -> FolderStamp | None:
        """How a model lies in its repository; None where it isn't there."""
        return self._repositories.stamp(model)

    def stamps(self) -> dict[ModelId, FolderStamp]:
        """How every model of the repositories that can be loaded lies there."""
        return self._repositories.stamps()

    def plan(self, model: ModelId, override: Override) -> ModelPlan:
        """Find a model and read its config.

        Raises:
            PermissionDeniedError: files are given and the settings do not allow that.
            NaiadError: there is no such model, or its config is not one that Triton would poll.
        """
        check_model_name(model.name)
        folder, files = self._place(model, override)
        try:
            plan = self._plan_from(model, folder, override)
        except BaseException as error:
            if isinstance(error, NaiadError):
                self._advise(error, folder, override)
            if files is not None:
                files.remove()
            raise
        plan.files = files
        return plan

    def complete(self, plan: ModelPlan) -> None:
        """Let the backend fill what the config leaves open, and check the whole."""
        with self._advising(plan, plan.folder.versions):
            self._complete(plan)

    def _complete(self, plan: ModelPlan) -> None:
        config = plan.config
        check_containment(plan.folder, config, plan.versions)
        allowed = self._options.backend_settings.get("python", {}).get("execution-env-directory")
        check_environment(plan.folder, config, Path(allowed) if allowed else None)
        ignored = ignored_settings(config)
        if ignored:
            _log.warning(
                "model '%s': this release does not act on %s yet", config.name, ", ".join(ignored)
            )
        if config.HasField("ensemble_scheduling"):
            validate_for_load(config)
            return
        if self._options.is_gpu_replaced and move_to_cpu(config):
            _log.warning(
                "model '%s': its config asks for GPUs; it runs on the CPU, as --gpu-fallback=cpu "
                "says",
                config.name,
            )
        if not self._options.is_completion_disabled:
            backend = self._backends.get(config.backend)
            backend.complete_config(self._source(plan, plan.versions[-1]))
            fill_defaults(config)
        validate_for_load(config, gpu_ids=self._options.gpu_ids)

    def load(
        self, plan: ModelPlan, version: int, services: ModelServices | None = None
    ) -> LoadedVersion:
        """Load one version and make its instances; all of them or none."""
        with self._advising(plan, (version,)):
            return self._load(plan, version, services)

    def advise(self, plan: ModelPlan, error: NaiadError) -> None:
        """Put advice into an error that this loader did not raise."""
        self._advise(error, plan.folder, plan.override)

    def _load(self, plan: ModelPlan, version: int, services: ModelServices | None) -> LoadedVersion:
        config = plan.config
        backend = self._backends.get(config.backend)
        _log.info("TRITONBACKEND_ModelInitialize: %s (version %d)", config.name, version)
        loaded = backend.load(self._source(plan, version, services))
        instances: list[MadeInstance] = []
        try:
            places = dict(enumerate(list_instances(config)))
            instances = make_instances(loaded, places, self._options.policy_cores)
            labels = read_labels(plan.folder, config)
            signature = ModelSignature.from_config(config)
            self._note_unused(config, instances)
            warmup = make_samples(config, signature, plan.folder.path)
            adapters = TensorAdapters(
                Reshaper(signature),
                SequenceTensors.from_config(config, plan.folder.path),
                RaggedTensors.from_config(config, signature),
                is_retried_singly=retries_singly(config),
            )
            scheduler = self._scheduler(config)
            fingerprint = self._fingerprint(plan, version)
        except BaseException:
            for instance in instances:
                instance.close()
            loaded.close()
            raise
        return LoadedVersion(
            version,
            signature,
            scheduler,
            labels,
            loaded,
            instances,
            warmup,
            adapters,
            fingerprint,
        )

    def load_instances(
        self,
        plan: ModelPlan,
        version: int,
        loaded: LoadedModel,
        indexes: Sequence[int],
        services: ModelServices | None = None,
    ) -> AddedInstances:
        """Make further instances of a version that serves; all of them or none.

        Args:
            plan: complete; differs from that of the load in its instance groups alone.
            version: its number.
            loaded: what it was loaded to.
            indexes: which of the config's instances to make.
            services: for models that ask the server.
        """
        with self._advising(plan, (version,)):
            config = plan.config
            if isinstance(loaded, RegroupedModel):
                loaded.regroup(self._source(plan, version, services))
            warmup = make_samples(config, ModelSignature.from_config(config), plan.folder.path)
            places = list_instances(config)
            made = make_instances(
                loaded, {index: places[index] for index in indexes}, self._options.policy_cores
            )
            return AddedInstances(made, warmup)

    def _fingerprint(self, plan: ModelPlan, version: int) -> str:
        """What a cache that servers share tells the version from others by; else empty."""
        config = plan.config
        if not (self._options.is_cache_shared and config.response_cache.enable):
            return ""
        settings = config.SerializeToString(deterministic=True)
        return fingerprint_files(plan.folder.version_path(version), settings)

    def read_labels(self, plan: ModelPlan) -> dict[str, list[str]]:
        """Class labels by output, for the outputs whose labels the config names a file of."""
        return read_labels(plan.folder, plan.config)

    @contextmanager
    def _advising(self, plan: ModelPlan, versions: tuple[int, ...]) -> Iterator[None]:
        """Put advice into the error that ends what is done here.

        Args:
            plan: of the load.
            versions: that the error is about.
        """
        try:
            yield
        except NaiadError as error:
            self._advise(error, replace(plan.folder, versions=versions), plan.override)
            raise

    def _advise(self, error: NaiadError, folder: ModelFolder, override: Override) -> None:
        error.advice = self._advisor.advise(folder, override.config_json, error)

    def _step_models(self, config: ModelConfig) -> StepModels | None:
        """The models that an ensemble names, and those that it may have meant."""
        folders = self._repositories.folders()
        folders.pop(config.name, None)
        configs = {}
        for step in config.ensemble_scheduling.step:
            name = nearest(step.model_name, list(folders), 1 if step.model_name in folders else 0.5)
            if name is None:
                continue
            try:
                configs[name] = self._config_of(folders[name])
            except NaiadError:
                return None
        return StepModels(configs, {name: folders[name].versions for name in configs})

    def _config_of(self, folder: ModelFolder) -> ModelConfig:
        """A model's config with its tensors, as far as they can be known without loading it."""
        local, files = self._repositories.localize(folder)
        try:
            config = self._read_config(local, Override())
            if local.versions and not (config.input and config.output):
                version = local.versions[-1]
                subject = Subject(
                    folder.name, version, local.version_path(version), tuple(list_artifacts(local))
                )
                config = self._advisor.infer_config(config, subject) or config
            return config
        finally:
            if files is not None:
                files.remove()

    def _place(
        self, model: ModelId, override: Override
    ) -> tuple[ModelFolder, TemporaryFolder | None]:
        """The model as a folder of this machine, and what removes it where it is a copy."""
        if override.files:
            return self._write_override(model.name, override)
        return self._repositories.localize(self._find(model))

    def _find(self, model: ModelId) -> ModelFolder:
        folder = self._repositories.find(model)
        if folder is None:
            _log.error("failed to poll model '%s': model not found in any model repository.", model)
            raise InternalError(f"failed to load '{model}', failed to poll from model repository")
        if folder.problem:
            _log.error("failed to poll model '%s': %s", model, folder.problem)
            raise InternalError(
                f"failed to load '{model}', failed to poll from model repository: {folder.problem}"
            )
        return folder

    def _write_override(self, name: str, override: Override) -> tuple[ModelFolder, TemporaryFolder]:
        self._check_files_are_taken(name, override)
        files = TemporaryFolder("naiad-override-")
        try:
            _write_files(files.path, name, override.files)
            return scan_model(files.path / name), files
        except BaseException:
            files.remove()
            raise

    def _plan_from(self, model: ModelId, folder: ModelFolder, override: Override) -> ModelPlan:
        try:
            config = self._read_config(folder, override)
        except NaiadError as error:
            # Triton's text is the head; it keeps the reason to its log.
            raise InternalError(
                f"failed to load '{model}', failed to poll from model repository: {error.message}"
            ) from error
        _warn_of_versions(model, folder, config)
        try:
            versions = select_versions(config, folder.versions)
        except InvalidArgumentError as error:
            # The line end is Triton's, whose text has a line for each failure.
            raise NoVersionError(f"load failed for model '{model}': {error.message}\n") from error
        return ModelPlan(config, folder, versions, override)

    def _read_config(self, folder: ModelFolder, override: Override) -> ModelConfig:
        if override.config_json is None:
            config = read_config(
                folder,
                self._options.config_name,
                is_required=self._options.is_completion_disabled,
            )
        else:
            config = parse_config_json(override.config_json)
        normalize_config(
            config,
            directory_name=folder.name,
            artifact_names=list_artifacts(folder),
            gpu_ids=self._gpu_ids(config),
        )
        validate_config(config)
        return config

    def _gpu_ids(self, config: ModelConfig) -> tuple[int, ...]:
        """The GPUs for a config that names them.

        A group that leaves the choice runs on the CPU: the framework that is installed may well be
        a build without CUDA, and a machine's GPU must not keep a model from loading.
        """
        groups = config.instance_group
        names_gpus = any(group.kind == ModelInstanceGroup.KIND_GPU for group in groups)
        return self._options.gpu_ids if names_gpus else ()

    def _check_files_are_taken(self, name: str, override: Override) -> None:
        if not self._options.allow_file_override:
            raise PermissionDeniedError(
                f"failed to load '{name}', the request brings model files and this server does "
                "not take them. Start the server with '--allow-file-override=true' to allow it"
            )
        if override.config_json is None:
            raise InvalidArgumentError(
                f"failed to load '{name}', failed to poll from model repository: Load parameter "
                "'config' must be specified for model file override"
            )

    def _scheduler(self, config: ModelConfig) -> Scheduler:
        return make_scheduler(
            config,
            instance_count=len(list_instances(config)),
            held_until_count=self._options.held_until_count,
            held_until_backlog_count=self._options.held_until_backlog_count,
            target_latency_ms=self._options.target_latency_ms,
        )

    def _source(
        self, plan: ModelPlan, version: int, services: ModelServices | None = None
    ) -> ModelSource:
        config = plan.config
        return ModelSource(
            name=config.name,
            version=version,
            config=config,
            version_directory=plan.folder.version_path(version),
            settings=self._options.backend_settings.get(config.backend, {}),
            thread_count=max(1, self._options.core_count // max(1, len(list_instances(config)))),
            services=services,
            core_count=self._options.core_count,
            cores=self._cores(config),
        )

    def _cores(self, config: ModelConfig) -> tuple[frozenset[int] | None, ...]:
        cores = self._options.policy_cores
        if not cores:
            return ()
        return tuple(cores.get(place.host_policy) for place in list_instances(config))

    def _note_unused(self, config: ModelConfig, instances: Sequence[MadeInstance]) -> None:
        named = {group.host_policy for group in config.instance_group} - {""}
        unknown = named.difference(self._options.policy_cores)
        if unknown:
            # Not refused: in Triton such an instance runs where it likes, too.
            _log.warning(
                "model '%s': host_policy '%s' has no effect, as no --host-policy says which cores "
                "that is",
                config.name,
                "', '".join(sorted(unknown)),
            )
        if takes_requests(instances[0]) and (config.batch_input or config.batch_output):
            # As in Triton, whose Python models get requests and not batches.
            _log.warning(
                "model '%s': its backend sees each request as it is, so batch_input and "
                "batch_output have no effect",
                config.name,
            )


def _warn_of_versions(model: ModelId, folder: ModelFolder, config: ModelConfig) -> None:
    """Log in Triton's words what looks like a version and isn't loaded."""
    for name in folder.ignored:
        reason = (
            "contains leading zeros in its directory name"
            if name.startswith("0") and name.isdecimal()
            else "fails to convert to integral number"
        )
        _log.warning("ignore version directory '%s' which %s", name, reason)
    for version in config.version_policy.specific.versions:
        if version not in folder.versions:
            _log.error(
                "version %d is specified for model '%s', but the version directory is not present",
                version,
                model,
            )


def _write_files(repository: Path, name: str, files: Mapping[str, bytes | memoryview]) -> None:
    root = repository / name
    root.mkdir()
    for relative, content in files.items():
        try:
            # Clients of Triton write "file:/1/model.py", too: it joins, so that is the model's
            # folder.
            path = resolve_inside(root, relative.removeprefix("/"))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"failed to load '{name}', failed to poll from model repository: {error.message}"
            ) from error
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:  # a name that is too long, a full disk
            raise InternalError(
                f"failed to load '{name}', failed to poll from model repository: can't write "
                f"'{relative}': {error.strerror}"
            ) from error
