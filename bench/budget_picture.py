"""Draws curves of time against memory as SVG, one panel per model, for compare_budget.py. Measures nothing."""

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 340
LEFT, TOP, RIGHT, BOTTOM = 58, 44, 16, 46
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600;font-size:14px}.back{fill:#fff}"
    ".grid{stroke:#ddd}.line{fill:none;stroke-width:2}.c0{stroke:#d1495b;fill:#d1495b}.c1{stroke:#0067b1;fill:#0067b1}"
    ".line.c0,.line.c1{fill:none}.label{stroke:none}@media(prefers-color-scheme:dark){text{fill:#ccc}.back{fill:#16181d}"
    ".grid{stroke:#333}.c1{stroke:#6cb8ff;fill:#6cb8ff}}"
)


@dataclass(frozen=True)
class Curve:
    """Points are MiB and times relative to the curve's fastest."""

    label: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    title: str
    curves: list[Curve]


def picture(panels: list[Panel]) -> str:
    """Panels side by side, in light and dark."""
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{HEIGHT}"/>',
    ]
    for number, one in enumerate(panels):
        parts += [f'<g transform="translate({number * WIDTH} 0)">', *drawn(one), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def drawn(panel: Panel) -> list[str]:
    points = [point for curve in panel.curves for point in curve.points]
    memory_most, time_most = max(x for x, _ in points) or 1.0, max(1.05, max(y for _, y in points))

    def x(memory: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * memory / memory_most

    def y(time: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (time - 1.0) / (time_most - 1.0)

    parts = [f'<text class="title" x="{LEFT}" y="24">{escape(panel.title)}</text>']
    for memory in ticks(0.0, memory_most):
        at = f"{x(memory):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{memory:g}</text>')
    for time in ticks(1.0, time_most):
        at = f"{y(time):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(time) + 4:.1f}" text-anchor="end">{time:.2f}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">saved activations, MiB</text>')
    parts.append(f'<text x="6" y="{TOP - 6}">step, relative to the fastest</text>')
    for number, curve in enumerate(panel.curves):
        line = " ".join(f"{x(memory):.1f},{y(time):.1f}" for memory, time in curve.points)
        parts.append(f'<polyline class="line c{number}" points="{line}"/>')
        parts += [f'<circle class="c{number}" cx="{x(m):.1f}" cy="{y(t):.1f}" r="3"/>' for m, t in curve.points]
        row = TOP + 14 + 18 * number
        parts.append(f'<circle class="c{number}" cx="{WIDTH - RIGHT - 110}" cy="{row - 4}" r="4"/>')
        parts.append(f'<text class="label" x="{WIDTH - RIGHT - 100}" y="{row}">{escape(curve.label)}</text>')
    return parts


def ticks(least: float, most: float) -> list[float]:
    """Four to ten round numbers in this range."""
    rough = (most - least) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(least / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(most / step + 1e-9) + 1)]
