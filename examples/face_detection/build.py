"""Build a model repository that finds faces, twice: as an ensemble, and as one model that asks.

pip install --no-deps --target weights facenet-pytorch==2.6.0
python examples/face_detection/build.py weights face-models
"""

import argparse
import shutil
from pathlib import Path

import torch
from nets import ONet, PNet, RNet, load

import naiad
from naiad.exporter.options import ExportOptions

HERE = Path(__file__).parent
# The names of the networks' outputs, in their order.
OUTPUTS = ("PROBABILITIES", "MOVES", "POINTS")


def build(weights: Path, repository: Path) -> None:
    """Export the networks and put the models that join them beside them."""
    pictures = torch.Generator().manual_seed(1)
    for net, size, dynamic in (
        (PNet(), 48, {2: "height", 3: "width"}),
        (RNet(), 24, {0: "faces"}),
        (ONet(), 48, {0: "faces"}),
    ):
        count = 1 if isinstance(net, PNet) else 3
        example = torch.rand(count, 3, size, size, generator=pictures) * 2 - 1
        answers = 3 if isinstance(net, ONet) else 2
        options = ExportOptions(
            dynamic={"INPUT": dynamic},
            max_batch_size=0,
            input_names=["INPUT"],
            output_names=OUTPUTS[:answers],
            overwrite=True,
            version=1,
        )
        name = type(net).__name__.lower()
        naiad.export(
            load(net, weights), (example,), name=name, repository=repository, options=options
        )
    shutil.copytree(HERE / "models", repository, dirs_exist_ok=True)
    for model in (HERE / "models").iterdir():
        version = repository / model.name / "1"
        version.mkdir(exist_ok=True)
        if (version / "model.py").exists():
            shutil.copy(HERE / "cascade.py", version)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("weights", type=Path, help="folder that facenet-pytorch is installed in")
    parser.add_argument("repository", type=Path, help="folder to write the models to")
    arguments = parser.parse_args()
    build(arguments.weights, arguments.repository)
    print(f"naiad serve --model-repository={arguments.repository}")
