"""Trains a classifier of handwritten digits and writes it into a model repository.

python train.py REPOSITORY
"""

import sys
from pathlib import Path

import joblib
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split


def main(repository: Path) -> None:
    """Write the model ``digits``, and print how often it is right on digits it has not seen."""
    images, digits = load_digits(return_X_y=True)
    seen, unseen, wanted, unseen_wanted = train_test_split(images, digits, random_state=0)
    classifier = RandomForestClassifier(n_estimators=50, random_state=0).fit(seen, wanted)
    version = repository / "digits" / "1"
    version.mkdir(parents=True)
    joblib.dump(classifier, version / "model.joblib")
    (repository / "digits" / "config.pbtxt").write_text('backend: "sklearn"\n')
    print(f"right on {classifier.score(unseen, unseen_wanted):.1%} of unseen digits")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
