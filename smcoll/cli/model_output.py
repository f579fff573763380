"""The model's figures for the eye: tables, and plots as LHS's Figures 18 and 19."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from smcoll.cli.output import STYLES, microseconds, plot_panels


def predictions_table(rows: list[dict], title: str) -> Table:
    """A line for each algorithm, a column for each size; * marks the fastest of a collective."""
    sizes = sorted({row["bytes"] for row in rows if row["collective"] != "barrier"})
    times = {(row["collective"], row["algorithm"], row["bytes"]): row["predicted_us"]
             for row in rows}
    table = Table("collective", "algorithm", title=title, title_justify="left")
    for nbytes in sizes or [0]:
        table.add_column(str(nbytes), justify="right")
    previous = None
    for collective, name in dict.fromkeys((row["collective"], row["algorithm"]) for row in rows):
        if previous not in (None, collective):
            table.add_section()
        previous = collective
        cells = []
        for nbytes in [0] if collective == "barrier" else sizes:
            known = [us for (kind, _, size), us in times.items()
                     if kind == collective and size == nbytes and us is not None]
            us = times[collective, name, nbytes]
            cells.append(microseconds(us) + ("*" if us is not None and us == min(known) else ""))
        table.add_row(collective, name, *cells)
    return table


def print_unknown(console: Console, rows: list[dict]) -> None:
    """Which parameters were missed, and for how many predictions."""
    missing: dict[str, int] = {}
    for row in rows:
        if row["unknown"]:
            missing[row["unknown"]] = missing.get(row["unknown"], 0) + 1
    for reason, count in missing.items():
        console.print(f"{count} predictions could not be made: {reason}", soft_wrap=True)


def fastest_variants(rows: list[dict]) -> list[dict]:
    """Of each algorithm at each size the variant (radices, section size) that measured fastest."""
    best: dict[tuple, dict] = {}
    for row in rows:
        key = row["ranks"], row["collective"], row["bytes"], row["algorithm"]
        if key not in best or row["measured_us"] < best[key]["measured_us"]:
            best[key] = row
    return [row for row in rows if row is best[row["ranks"], row["collective"], row["bytes"],
                                               row["algorithm"]]]


def compared_table(rows: list[dict], title: str) -> Table:
    """Predicted beside measured. The last column: best, default and chosen ones of all variants."""
    table = Table(title=title, title_justify="left")
    for name in ("collective", "bytes", "algorithm", "variant", "measured us", "predicted us",
                 "error", ""):
        left = name in ("collective", "algorithm", "variant", "")
        table.add_column(name, justify="left" if left else "right")
    shown = fastest_variants(rows)
    shown = [row for row in rows if any(row is one for one in shown) or row["chosen"]
             or row["default"]]
    previous = None
    for row in shown:
        if previous not in (None, (row["collective"], row["bytes"])):
            table.add_section()
        previous = row["collective"], row["bytes"]
        variant = ", ".join(f"{name}={row[name]}" for name in (
            "fan_in", "fan_out", "section_bytes") if name in row)
        marks = ", ".join(name for name in ("best", "default", "chosen") if row[name])
        error = Text(f"{100 * row['error']:+.0f} %",
                     style="" if abs(row["error"]) <= 0.25 else "red")
        table.add_row(row["collective"], str(row["bytes"]), row["algorithm"], variant,
                      microseconds(row["measured_us"]), microseconds(row["predicted_us"]), error,
                      marks)
    return table


def print_crossovers(console: Console, rows: list[dict]) -> None:
    """One line each."""
    for row in rows:
        at = "not between these sizes" if row["bytes"] is None else f"{row['bytes']} bytes"
        by = f" ({row['by']})" if "by" in row else ""
        console.print(f"{row['ranks']} ranks, {row['collective']}: {row['from']} -> {row['to']} "
                      f"at {at}{by}", soft_wrap=True)


def plot(file: Path, rows: list[dict], title: str) -> None:
    """Time against size, as LHS's Figures 18 and 19 (21 to 24 of the long version).

    Predictions are lines, what was measured are points. One panel per rank count and collective.
    """
    rows = [row for row in rows if row["collective"] != "barrier"
            and row["predicted_us"] is not None]
    if not rows:
        raise typer.BadParameter("--plot draws time against size: a barrier has none")
    plot_panels(file, rows, title, draw)


def draw(panel, rows: list[dict]) -> None:
    """One colour per algorithm."""
    for number, name in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        style = STYLES[number % len(STYLES)]
        points = sorted((row["bytes"], row["predicted_us"], row.get("measured_us"))
                        for row in rows if row["algorithm"] == name)
        panel.plot([point[0] for point in points], [point[1] for point in points], label=name,
                   color=style["color"], linestyle=style["linestyle"])
        measured = [point for point in points if point[2] is not None]
        panel.plot([point[0] for point in measured], [point[2] for point in measured],
                   color=style["color"], marker=style["marker"], linestyle="", markersize=4)
    panel.set(xscale="log", yscale="log", xlabel="bytes", ylabel="µs per call")
    panel.grid(True, which="major", linewidth=0.4)
    panel.legend(fontsize="x-small")
