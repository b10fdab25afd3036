"""Plots of a verification as SVG, drawn from numbers alone."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from naiad.verify.plots import Plot, decades
from naiad.verify.report import Row

_WIDTH: Final = 560
_CELL_HEIGHT: Final = 24
_LABEL_WIDTH: Final = 200
_BAR_START: Final = 260
_SIDE: Final = 340
_MARGIN: Final = 64
# Distinct for people who see few colours, too (after Okabe and Ito).
_COLOURS: Final = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#bfa500",
    "#332288",
)  # fmt: skip


def error_histogram(plots: Sequence[Plot]) -> str:
    """For each hop the share of elements by decade of their absolute error, darker for more."""
    keys = decades()
    width = (_WIDTH - _LABEL_WIDTH) / len(keys)
    height = (len(plots) + 2) * _CELL_HEIGHT
    parts = []
    for row, plot in enumerate(plots):
        y = row * _CELL_HEIGHT
        parts.append(_text(_LABEL_WIDTH - 8, y + 16, plot.hop, "end"))
        total = sum(plot.histogram.values())
        for column, key in enumerate(keys):
            count = plot.histogram[key]
            x = _LABEL_WIDTH + column * width
            share = count / total
            # From 0.12, so that a single element of a million is still seen.
            opacity = 0.12 + 0.88 * share if count else 0.0
            parts.append(
                f'<rect class="cell" x="{x + 1:.1f}" y="{y + 2}" width="{width - 2:.1f}" '
                f'height="{_CELL_HEIGHT - 4}" fill-opacity="{opacity:.3f}">'
                f"<title>{escape(plot.hop)}: {count} of {total} elements, {_named(key)}</title>"
                "</rect>"
            )
            if count:
                shade = ' class="light"' if opacity > 0.55 else ""
                parts.append(
                    f'<text x="{x + width / 2:.1f}" y="{y + 16}" text-anchor="middle"{shade} '
                    f'font-size="9">{_percent(share)}</text>'
                )
    y = len(plots) * _CELL_HEIGHT + 14
    for column, key in enumerate(keys):
        label = "0" if key == "0" else key.removeprefix("1e")
        parts.append(_text(_LABEL_WIDTH + (column + 0.5) * width, y, label, "middle"))
    caption = "0, or the power of ten of the error; % of all elements"
    parts.append(_text(_LABEL_WIDTH, y + 20, caption, "start"))
    return _svg(_WIDTH, height, parts)


def scatter(plots: Sequence[Plot]) -> str:
    """Answered against expected values, a colour for each hop; right ones lie on the diagonal."""
    values = [value for plot in plots for point in plot.points for value in point]
    if not values:
        return "<p>no finite numbers</p>"
    low, high = min(values), max(values)
    spread = (high - low) or 1.0
    low, high = low - 0.04 * spread, high + 0.04 * spread

    def place(value: float) -> float:
        return _MARGIN + (value - low) / (high - low) * (_SIDE - _MARGIN - 10)

    parts = [
        f'<line class="axis" x1="{_MARGIN}" y1="{_SIDE - _MARGIN}" x2="{_SIDE - 10}" y2="10"/>'
    ]
    for tick in _ticks(low, high):
        x = place(tick)
        y = _SIDE - x
        parts.append(
            f'<line class="grid" x1="{x:.1f}" y1="10" x2="{x:.1f}" y2="{_SIDE - _MARGIN}"/>'
        )
        parts.append(
            f'<line class="grid" x1="{_MARGIN}" y1="{y:.1f}" x2="{_SIDE - 10}" y2="{y:.1f}"/>'
        )
        parts.append(_text(x, _SIDE - _MARGIN + 16, f"{tick:.3g}", "middle"))
        parts.append(_text(_MARGIN - 6, y + 4, f"{tick:.3g}", "end"))
    for index, plot in enumerate(plots):
        colour = _COLOURS[index % len(_COLOURS)]
        # Later hops are drawn smaller, so that equal ones show as rings.
        radius = max(4.2 - 0.4 * index, 1.4)
        parts.append(f'<g fill="{colour}" fill-opacity="0.55">')
        parts.extend(
            f'<circle cx="{place(expected):.1f}" cy="{_SIDE - place(actual):.1f}" '
            f'r="{radius:.1f}"/>'
            for expected, actual in plot.points
        )
        parts.append("</g>")
    parts.append(_text(_SIDE / 2 + 20, _SIDE - 16, "expected (PyTorch eager)", "middle"))
    parts.append(
        f'<text transform="translate(10 {_SIDE / 2 - 20:.0f}) rotate(-90)" '
        'text-anchor="middle">answered</text>'
    )
    parts.extend(_legend(plots, _SIDE + 6))
    return _svg(_SIDE + 220, _SIDE, parts)


def latency(rows: Sequence[Row]) -> str:
    """A bar for each hop at each batch size, on a scale of powers of ten."""
    timed = [row for row in rows if row.latency_ms is not None]
    if not timed:
        return "<p>no request was timed</p>"
    logs = [_log10(row.latency_ms or 0.0) for row in timed]
    low, high = min(logs) - 0.2, max(logs) + 0.1
    scale = (_WIDTH - _BAR_START - 60) / ((high - low) or 1.0)
    parts = []
    hops = list(dict.fromkeys(row.hop for row in timed))
    bar = 11
    y = 0
    for hop in hops:
        own = [(row, log) for row, log in zip(timed, logs, strict=True) if row.hop == hop]
        parts.append(_text(_BAR_START - 56, y + 11, hop, "end"))
        for row, log in own:
            length = max((log - low) * scale, 1.0)
            colour = _COLOURS[hops.index(hop) % len(_COLOURS)]
            parts.append(_text(_BAR_START - 8, y + 10, f"batch {row.batch}", "end", size=9))
            parts.append(
                f'<rect x="{_BAR_START}" y="{y + 1}" width="{length:.1f}" height="{bar - 2}" '
                f'fill="{colour}"/>'
            )
            parts.append(
                _text(_BAR_START + length + 5, y + 10, f"{row.latency_ms:.2f} ms", "start", size=9)
            )
            y += bar
        y += 8
    parts.append(_text(_WIDTH / 2, y + 12, "bars by powers of ten", "middle"))
    return _svg(_WIDTH, y + 22, parts)


def _ticks(low: float, high: float) -> list[float]:
    """Four or more round numbers between two others."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(power * n for n in (5, 2, 1) if (high - low) / (power * n) >= 3)
    first = math.ceil(low / step)
    return [step * n for n in range(first, math.floor(high / step) + 1)]


def _legend(plots: Sequence[Plot], x: float) -> Iterator[str]:
    for index, plot in enumerate(plots):
        y = 24 + index * 20
        yield f'<circle cx="{x}" cy="{y - 4}" r="4.5" fill="{_COLOURS[index % len(_COLOURS)]}"/>'
        yield _text(x + 12, y, plot.hop, "start")


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str, *, size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )


def _named(key: str) -> str:
    return "no error at all" if key == "0" else f"an error of {key} and above, below ten times that"


def _percent(share: float) -> str:
    percent = 100 * share
    if percent >= 99.95:
        return "100"
    return f"{percent:.0f}" if percent >= 1 else "<1"


def _log10(value: float) -> float:
    # Below a microsecond there is nothing to tell apart.
    return math.log10(max(value, 1e-3))
