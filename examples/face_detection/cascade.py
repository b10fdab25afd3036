"""What lies between the networks: pyramids, boxes and cut-outs, in numpy and Pillow.

A box is a row ``left, top, right, bottom, score`` in pixels of the photograph.
"""

import io

import numpy as np
from PIL import Image

SMALLEST_FACE = 40
SHRINK = 0.709
WINDOW = 12
STRIDE = 2
# Between two levels on the canvas, so that no window sees both.
GAP = 16
PROPOSED, REFINED, ANSWERED = 0.6, 0.7, 0.7


def decode(encoded):
    """The pixels of an encoded photograph, UINT8 of shape ``[height, width, 3]``."""
    with Image.open(io.BytesIO(encoded)) as photo:
        return np.asarray(photo.convert("RGB"))


def make_pyramid(pixels):
    """The photograph at all sizes on one canvas, so that one request finds faces of every size.

    Returns:
        The canvas for PNet, ``[1, 3, height, width]``, and for each level its top on the canvas,
        its height, its width and its scale.
    """
    height, width = pixels.shape[:2]
    levels, parts, top = [], [], 0
    scale = WINDOW / SMALLEST_FACE
    while min(height, width) * scale >= WINDOW:
        size = int(width * scale) + 1, int(height * scale) + 1
        parts.append(_normalize(np.asarray(Image.fromarray(pixels).resize(size, Image.BOX))))
        levels.append((top, size[1], size[0], scale))
        # An even place, for PNet's windows are two pixels apart.
        top += size[1] + GAP + size[1] % 2
        scale *= SHRINK
    canvas = np.zeros((3, max(top, WINDOW), max((p.shape[2] for p in parts), default=WINDOW)))
    for (level_top, level_height, level_width, _), part in zip(levels, parts, strict=True):
        canvas[:, level_top : level_top + level_height, :level_width] = part
    return canvas[None].astype(np.float32), np.array(levels, np.float32).reshape(-1, 4)


def propose(levels, probabilities, moves):
    """The windows that PNet takes for faces, as squares."""
    found, shifts = [np.empty((0, 5))], [np.empty((0, 4))]
    for top, height, width, scale in levels:
        first = int(top) // STRIDE
        rows, columns = (int(size - WINDOW) // STRIDE + 1 for size in (height, width))
        scores = probabilities[0, 1, first : first + rows, :columns]
        row, column = np.nonzero(scores > PROPOSED)
        corner = np.stack([column, row], axis=1) * STRIDE
        boxes = np.concatenate([corner + 1, corner + WINDOW], axis=1) / scale
        boxes = np.column_stack([boxes, scores[row, column]])
        kept = suppress(boxes, 0.5)
        found.append(boxes[kept])
        shifts.append(moves[0, :, first + row, column][kept])
    boxes, shift = np.concatenate(found), np.concatenate(shifts)
    kept = suppress(boxes, 0.7)
    return _square(_move(boxes[kept], shift[kept]))


def refine(boxes, probabilities, moves):
    """The boxes that RNet takes for faces, as squares."""
    boxes, moves = _choose(boxes, probabilities, REFINED, moves)
    kept = suppress(boxes, 0.7)
    return _square(_move(boxes[kept], moves[kept]))


def answer(boxes, probabilities, moves, points):
    """The faces that ONet finds.

    Returns:
        Boxes ``[n, 4]``, scores ``[n]``, and the points of both eyes, the nose and the corners of
        the mouth, ``[n, 5, 2]``.
    """
    boxes, moves, points = _choose(boxes, probabilities, ANSWERED, moves, points)
    corner, size = boxes[:, None, :2], boxes[:, None, 2:4] - boxes[:, None, :2]
    points = corner + size * points.reshape(-1, 2, 5).transpose(0, 2, 1)
    boxes = _move(boxes, moves)
    kept = suppress(boxes, 0.7, by_smaller=True)
    outputs = boxes[kept, :4], boxes[kept, 4], points[kept]
    return tuple(output.astype(np.float32) for output in outputs)


def cut_out(pixels, boxes, size):
    """The squares of the photograph that boxes name, ``[n, 3, size, size]``."""
    photo = Image.fromarray(pixels)
    crops = np.empty((len(boxes), 3, size, size), np.float32)
    for crop, box in zip(crops, boxes, strict=True):
        left, top = (max(int(edge), 0) for edge in box[:2])
        right, bottom = min(int(box[2]), photo.width), min(int(box[3]), photo.height)
        part = (left, top, max(right, left + 1), max(bottom, top + 1))
        crop[:] = _normalize(np.asarray(photo.crop(part).resize((size, size), Image.BOX)))
    return crops


def suppress(boxes, limit, *, by_smaller=False):
    """Which of the boxes that lie on each other stay: the ones with the highest scores.

    Args:
        boxes: to choose from.
        limit: the share of overlap from which two boxes are the same face.
        by_smaller: a share of the smaller box, instead of both together.
    """
    left, top, right, bottom, scores = boxes.T
    areas = (right - left) * (bottom - top)
    order = np.argsort(-scores, kind="stable")
    kept = []
    while order.size:
        best, rest = order[0], order[1:]
        kept.append(best)
        width = np.minimum(right[best], right[rest]) - np.maximum(left[best], left[rest])
        height = np.minimum(bottom[best], bottom[rest]) - np.maximum(top[best], top[rest])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        both = areas[best] + areas[rest] - shared
        whole = np.minimum(areas[best], areas[rest]) if by_smaller else both
        order = rest[shared <= limit * whole]
    return np.array(kept, np.int64)


def _choose(boxes, probabilities, limit, *others):
    scores = probabilities[:, 1]
    chosen = scores > limit
    boxes = np.column_stack([boxes[chosen, :4], scores[chosen]])
    return boxes, *(other[chosen] for other in others)


def _move(boxes, moves):
    """Boxes whose edges have moved by parts of their size."""
    size = boxes[:, 2:4] - boxes[:, :2]
    return np.column_stack([boxes[:, :4] + moves * np.tile(size, 2), boxes[:, 4]])


def _square(boxes):
    """The squares around the middles of boxes, as wide as the longer side."""
    middle = (boxes[:, :2] + boxes[:, 2:4]) / 2
    half = (boxes[:, 2:4] - boxes[:, :2]).max(axis=1, keepdims=True, initial=0) / 2
    return np.column_stack([middle - half, middle + half, boxes[:, 4]])


def _normalize(pixels):
    return ((pixels.astype(np.float32) - 127.5) / 128).transpose(2, 0, 1)
