"""A backend of Naiad for classifiers of scikit-learn: five methods.

A model version holds ``model.joblib``. It is a pickle, which can run any code when it is loaded, so
serve only files that you wrote yourself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import joblib
import numpy as np
from sklearn.base import ClassifierMixin

from naiad.backends.base import ModelSource
from naiad.backends.model_file import find_model_file
from naiad.errors import InternalError, UnsupportedError
from naiad.inference.datatypes import FP32, INT64
from naiad.inference.tensor import Tensor
from naiad.model_config.complete import (
    ArtifactSignature,
    ArtifactTensor,
    check_against_artifact,
    complete_config,
)


class SklearnBackend:
    """One for each server; reads models."""

    def complete_config(self, source: ModelSource) -> None:
        """Fill what the model's config.pbtxt leaves open."""
        complete_config(source.config, _signature(_read(source)))

    def load(self, source: ModelSource) -> "SklearnModel":
        """Read the model and hold its config against it."""
        classifier = _read(source)
        check_against_artifact(source.config, _signature(classifier))
        return SklearnModel(classifier)


class SklearnModel:
    """A classifier that fits its config."""

    def __init__(self, classifier: Any) -> None:
        self._classifier = classifier

    def create_instance(self, index: int) -> "SklearnInstance":
        """What one thread uses; a classifier that only predicts can be shared."""
        return SklearnInstance(self._classifier)

    def close(self) -> None:
        """Nothing is held that Python does not free."""


class SklearnInstance:
    """Executes batches."""

    def __init__(self, classifier: Any) -> None:
        self._classifier = classifier

    def execute(
        self, inputs: Mapping[str, np.ndarray], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Classify the rows of one batch."""
        try:
            scores = self._classifier.predict_proba(inputs["features"])
        except ValueError as error:  # such as NaN, which most of scikit-learn refuses
            raise InternalError(f"scikit-learn: {error}") from error
        labels = self._classifier.classes_[scores.argmax(axis=1)].astype(np.int64)
        outputs = {
            "scores": (FP32, scores.astype(np.float32)),
            "label": (INT64, labels.reshape(-1, 1)),
        }
        return [
            Tensor(name, outputs[name][0], outputs[name][1].shape, outputs[name][1])
            for name in output_names
        ]

    def close(self) -> None:
        """Nothing is held that Python does not free."""


def _read(source: ModelSource) -> Any:
    classifier = joblib.load(find_model_file(source, "model.joblib"))
    if not isinstance(classifier, ClassifierMixin) or not hasattr(classifier, "predict_proba"):
        raise UnsupportedError(f"model '{source.name}' is no classifier with predict_proba")
    return classifier


def _signature(classifier: Any) -> ArtifactSignature:
    return ArtifactSignature(
        [ArtifactTensor("features", FP32, (-1, classifier.n_features_in_))],
        [
            ArtifactTensor("scores", FP32, (-1, len(classifier.classes_))),
            ArtifactTensor("label", INT64, (-1, 1)),
        ],
    )
