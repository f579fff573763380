"""The model's figures for the eye: tables, and plots as LHS's Figures 18 and 19."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console, Group
from rich.text import Text

from smcoll.cli.output import NOTHING_TO_DRAW, microseconds, plot_panels, style_of
from smcoll.cli.page import Column, prose, sectioned

# So many sizes stand side by side in 80 columns, beside an algorithm's name.
SIZES_IN_A_LINE = 7


def predictions_table(rows: list[dict], title: str) -> Group:
    """A line for each algorithm, a column for each size; * marks the fastest of a collective.

    Only those of which something is known: the others are named by ``print_unknown``.
    """
    rows = [row for row in rows if row["predicted_us"] is not None]
    sizes = sorted({row["bytes"] for row in rows if row["collective"] != "barrier"})
    names = list(dict.fromkeys((row["collective"], row["algorithm"]) for row in rows))
    barriers = [name for name in names if name[0] == "barrier"]
    parts: list = [Text(title, style="bold")]
    if barriers:
        parts.append(_predictions(rows, barriers, [0]))
    for first in range(0, len(sizes), SIZES_IN_A_LINE):
        parts += [Text(), _predictions(rows, [name for name in names if name[0] != "barrier"],
                                       sizes[first:first + SIZES_IN_A_LINE])]
    return Group(*parts)


def _predictions(rows: list[dict], names: list[tuple[str, str]], sizes: list[int]) -> Group:
    times = {(row["collective"], row["algorithm"], row["bytes"]): row["predicted_us"]
             for row in rows}
    sections: dict[str, list] = {}
    for collective, name in names:
        cells = []
        for nbytes in sizes:
            known = [us for (kind, _, size), us in times.items()
                     if kind == collective and size == nbytes and us is not None]
            us = times.get((collective, name, nbytes))
            cells.append(microseconds(us) + ("*" if us is not None and us == min(known) else ""))
        sections.setdefault(collective, []).append([name, *cells])
    return sectioned([Column("bytes" if sizes != [0] else "", left=True, wraps=True),
                      *(Column(str(nbytes) if nbytes else "us") for nbytes in sizes)],
                     list(sections.items()))


def print_unknown(console: Console, rows: list[dict]) -> None:
    """Which parameters were missed, for how many predictions, and for which algorithms wholly."""
    missing = [row for row in rows if row["unknown"]]
    if not missing:
        return
    reasons = "; ".join(dict.fromkeys(row["unknown"] for row in missing))
    known = {(row["collective"], row["algorithm"]) for row in rows
             if row["predicted_us"] is not None}
    prose(console, f"{len(missing)} of {len(rows)} predictions could not be made: {reasons}.")
    for collective in dict.fromkeys(row["collective"] for row in missing):
        names = dict.fromkeys(row["algorithm"] for row in missing if row["collective"] == collective
                              and (collective, row["algorithm"]) not in known)
        if names:
            prose(console, f"{collective}: not at any size by {', '.join(names)}.")
    prose(console, "smcoll tune measures what is missing on a machine that one has; --params takes "
          "the JSON that it writes (--json, or the table), or a TOML file (docs/model.md).")


def fastest_variants(rows: list[dict]) -> list[dict]:
    """Of each algorithm at each size the variant (radices, section size) that measured fastest."""
    best: dict[tuple, dict] = {}
    for row in rows:
        key = row["ranks"], row["collective"], row["bytes"], row["algorithm"]
        if key not in best or row["measured_us"] < best[key]["measured_us"]:
            best[key] = row
    return [row for row in rows if row is best[row["ranks"], row["collective"], row["bytes"],
                                               row["algorithm"]]]


VARIANT_WORDS = {"fan_in": "fan-in", "fan_out": "fan-out", "section_bytes": "sections"}


def compared_table(rows: list[dict], title: str) -> Group:
    """Predicted beside measured. The last column: best, default and chosen ones of all variants."""
    shown = fastest_variants(rows)
    shown = [row for row in rows if any(row is one for one in shown) or row["chosen"]
             or row["default"]]
    sections: dict[str, list] = {}
    previous = None
    for row in shown:
        here = row["collective"], row["bytes"]
        variant = ", ".join(f"{words} {row[name]}" for name, words in VARIANT_WORDS.items()
                            if name in row)
        marks = ", ".join(name for name in ("best", "default", "chosen") if row[name])
        error = Text(f"{100 * row['error']:+.0f} %",
                     style="" if abs(row["error"]) <= 0.25 else "red")
        sections.setdefault(row["collective"], []).append([
            str(row["bytes"]) if here != previous else "", row["algorithm"], variant,
            microseconds(row["measured_us"]), microseconds(row["predicted_us"]), error, marks])
        previous = here
    return sectioned(
        [Column("bytes"), Column("algorithm", left=True),
         Column("variant", left=True, wraps=True), Column("measured us"), Column("predicted us"),
         Column("error"), Column("", left=True, wraps=True)], list(sections.items()), title)


def print_crossovers(console: Console, rows: list[dict]) -> None:
    """One line each."""
    for row in rows:
        by = f" ({row['by']})" if "by" in row else ""
        prose(console, f"{row['ranks']} ranks, {row['collective']}: {words_of(row)}{by}")


def words_of(crossover: dict) -> str:
    """Where one algorithm takes the other's place, or why no size can be named."""
    first, second = crossover["from"], crossover["to"]
    if crossover["bytes"] is not None:
        return f"{first} -> {second} at {crossover['bytes']} bytes"
    if crossover.get("tie"):
        return f"{first} and {second} take the same time where they are the fastest"
    return f"{first} -> {second} between two sizes, at one of which only one of them is known"


def plot(file: Path, rows: list[dict], title: str) -> None:
    """Time against size, as LHS's Figures 18 and 19 (21 to 24 of the long version).

    Predictions are lines, what was measured are points. One panel per rank count and collective.
    """
    rows = [row for row in rows if row["collective"] != "barrier"
            and row["predicted_us"] is not None]
    if not rows:
        raise typer.BadParameter(NOTHING_TO_DRAW)
    plot_panels(file, rows, title, draw)


def draw(panel, rows: list[dict]) -> None:
    """One colour per algorithm."""
    anything_measured = any(row.get("measured_us") is not None for row in rows)
    for number, name in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        style = style_of(number)
        points = sorted((row["bytes"], row["predicted_us"], row.get("measured_us"))
                        for row in rows if row["algorithm"] == name)
        panel.plot([point[0] for point in points], [point[1] for point in points], label=name,
                   color=style["color"], linestyle=style["linestyle"])
        measured = [point for point in points if point[2] is not None]
        panel.plot([point[0] for point in measured], [point[2] for point in measured],
                   color=style["color"], marker=style["marker"], linestyle="", markersize=4)
    # What lines and points are, in the legend of each panel.
    panel.plot([], [], color="0.4", linestyle="-", label="line: predicted")
    if anything_measured:
        panel.plot([], [], color="0.4", marker="o", linestyle="", markersize=4,
                   label="point: measured")
    panel.set(xscale="log", yscale="log", xlabel="bytes", ylabel="µs per call")
    panel.grid(True, which="major", linewidth=0.4)
    panel.legend(fontsize="x-small")
