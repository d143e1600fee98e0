"""Draws the README's plot (make front-page) from its table in docs/benchmarks.md."""

import re
import sys
from math import log10
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "connection-each.svg"
TABLE = "spooled for RabbitMQ 4.3.6"
"""What only the heading of the table has."""
SERIES = [("directly to RabbitMQ", "#9a9a9a"), ("through the pool", "#2f81f7"), ("with a spool", "#1a9850")]

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 64, 44
BAR, GAP = 34, 4
DECADES = (0, 3)
"""Powers of ten at the ends of the axis."""


def rows(text):
    """The round trip, and messages per second of each series."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith("|") and TABLE in line)
    next(lines)
    found = []
    for line in lines:
        if not line.startswith("|"):
            return found
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found.append((cells[0], [float(re.fullmatch(r"([\d.]+)/s", cell)[1]) for cell in cells[2:5]]))
    return found


def height(rate):
    """The height of a bar in pixels, on a logarithmic axis."""
    low, high = DECADES
    share = (log10(rate) - low) / (high - low)
    return share * (HEIGHT - TOP - BOTTOM)


def picture(rows):
    base = HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12" role="img">',
        "<title>Messages a second with pika, a connection and a confirm for each message</title>",
        "<style>text{fill:#333}.axis{stroke:#ccc}@media(prefers-color-scheme:dark){text{fill:#ddd}.axis{stroke:#444}}</style>",
        f'<text x="{LEFT}" y="18" font-size="14">pika, a connection and a confirm for each message: messages/s (log scale)</text>',
    ]
    for index, (name, colour) in enumerate(SERIES):
        x = LEFT + index * 190
        parts.append(f'<rect x="{x}" y="32" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="42">{name}</text>')
    for power in range(DECADES[0], DECADES[1] + 1):
        y = base - height(10.0**power)
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    step = (WIDTH - LEFT - RIGHT) / len(rows)
    for place, (round_trip, rates) in enumerate(rows):
        begin = LEFT + place * step + (step - len(rates) * (BAR + GAP)) / 2
        for index, rate in enumerate(rates):
            x, tall = begin + index * (BAR + GAP), height(rate)
            parts.append(f'<rect x="{x:.1f}" y="{base - tall:.1f}" width="{BAR}" height="{tall:.1f}" fill="{SERIES[index][1]}"/>')
            figure = f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
            parts.append(f'<text x="{x + BAR / 2:.1f}" y="{base - tall - 4:.1f}" text-anchor="middle" font-size="11">{figure}</text>')
        parts.append(f'<text x="{LEFT + (place + 0.5) * step:.1f}" y="{base + 18}" text-anchor="middle">{round_trip}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">round trip to the broker</text>')
    return "\n".join([*parts, "</svg>", ""])


def drawn():
    return picture(rows((ROOT / "docs" / "benchmarks.md").read_text()))


if __name__ == "__main__":
    PICTURE.write_text(drawn())
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}\n")
