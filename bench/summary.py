"""Markdown of what ``smcoll compare --peers ... --json FILE`` measured, for docs/performance.md.

    python bench/summary.py FILE...

For each number of ranks: how many times faster than the fastest peer smcoll is, collectives x
sizes, then the geometric means beside each peer. Rows whose lower bound is below 0.95 are losses.
Of a file measured with ``--heap``, first without and then with direct access.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

LOSS = 0.95  # "not below 1" means that the lower bound is not below this


def size_name(nbytes: int) -> str:
    """``32768`` -> ``32K``."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit}{name}"
    return str(nbytes)


def is_direct(row: dict) -> bool:
    """Whether it is one that ``--heap`` adds: arrays used where they lie."""
    return row["algorithm"] == "shared_heap" or row["algorithm"].endswith(", in place")


def cell(row: dict | None) -> str:
    """The ratio; bold where it is a loss."""
    if row is None:
        return ""
    if row["ratio"] is None:
        return "wrong"
    text = f"{row['ratio']:.2f}"
    return f"**{text}**" if row["ratio_low"] < LOSS else text


def table(rows: list[dict]) -> list[str]:
    """Collectives x sizes of one number of ranks."""
    sizes = sorted({row["bytes"] for row in rows if row["bytes"]})
    found = {(row["collective"], row["bytes"]): row for row in rows}
    lines = ["| | " + " | ".join(map(size_name, sizes)) + " |", "|---" * (len(sizes) + 1) + "|"]
    for collective in dict.fromkeys(row["collective"] for row in rows):
        if collective == "barrier":
            lines.append(f"| barrier | {cell(found['barrier', 0])}" + " |" * len(sizes))
        else:
            cells = [cell(found.get((collective, nbytes))) for nbytes in sizes]
            lines.append(f"| {collective} | " + " | ".join(cells) + " |")
    return lines


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def means(rows: list[dict]) -> list[str]:
    """Beside each peer: the geometric mean of the ratios, and how many rows it won or lost."""
    lines = ["| beside | geometric mean | rows | losses |", "|---|---|---|---|"]
    for peer in dict.fromkeys(name for row in rows for name in row["peers"]):
        figures = [row["peers"][peer] for row in rows if peer in row["peers"]]
        valid = [one for one in figures if one["ratio"] is not None]
        losses = sum(one["ratio_low"] < LOSS for one in valid)
        mean = geometric_mean([one["ratio"] for one in valid])
        lines.append(f"| {peer} | {mean:.2f} | {len(valid)} | {losses} |")
    valid = [row for row in rows if row["ratio"] is not None]
    lines.append(f"| the fastest of them | {geometric_mean([row['ratio'] for row in valid]):.2f} "
                 f"| {len(valid)} | {sum(row['ratio_low'] < LOSS for row in valid)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    for file in parser.parse_args().files:
        rows = json.loads(file.read_text())["rows"]
        for ranks in sorted({row["ranks"] for row in rows}):
            for direct, title in ((False, ""), (True, ", arrays in shared heaps")):
                chosen = [row for row in rows
                          if row["ranks"] == ranks and is_direct(row) == direct]
                if chosen:
                    print(f"### {ranks} ranks{title}\n")
                    print("\n".join(table(chosen)) + "\n")
                    print("\n".join(means(chosen)) + "\n")


if __name__ == "__main__":
    main()
