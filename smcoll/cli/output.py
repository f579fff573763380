"""Results for the eye and for other programs: table, JSON, CSV, figure."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import launch

# Okabe and Ito's colours, which the colour-blind can tell apart; markers and dashes for print.
STYLES = {
    "smcoll": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "mpi": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "point_to_point": {"color": "#009E73", "marker": "^", "linestyle": ":"},
}


def write_json(file: Path, content: dict) -> None:
    """JSON, indented."""
    file.write_text(json.dumps(content, indent=1) + "\n")


def write_csv(file: Path, rows: list[dict]) -> None:
    """One line per row; the columns are the keys of the JSON's rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(file, "w", newline="") as lines:
        writer = csv.DictWriter(lines, columns)
        writer.writeheader()
        writer.writerows(
            {name: json.dumps(value) if isinstance(value, (dict, list)) else value
             for name, value in row.items()} for row in rows)


def microseconds(value: float | None) -> str:
    """Three digits that mean something."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def ratio(value: float | None, low: float | None) -> Text:
    """A ratio and its lower bound; red where slower beyond doubt of measurement."""
    if value is None or low is None:
        return Text("-")
    style = "green" if low >= 1 else "" if low >= 0.95 else "red"
    return Text(f"{value:.2f} (>= {low:.2f})", style=style)


def verdict(row: dict) -> Text:
    """What validation found."""
    wrong = [name for key, name in (("valid", "smcoll"), ("mpi_valid", "MPI"),
                                    ("point_to_point_valid", "MPI p2p")) if row.get(key) is False]
    if wrong:
        return Text(f"WRONG: {', '.join(wrong)}", style="bold red")
    return Text("-" if row["valid"] is None else "yes")


def compare_table(rows: list[dict], title: str, mpi: str) -> Table:
    """The table of one rank count."""
    table = Table(title=title, title_justify="left")
    for name in ("collective", "bytes", "smcoll us", f"{mpi} us", "times faster",
                 "point-to-point us", "times faster", "algorithm", "path", "valid"):
        left = name in ("collective", "algorithm", "path", "valid")
        table.add_column(name, justify="left" if left else "right")
    previous = None
    for row in rows:
        if previous not in (None, row["collective"]):
            table.add_section()
        previous = row["collective"]
        table.add_row(
            row["collective"], str(row["bytes"]),
            microseconds(row["smcoll_us"]), microseconds(row["mpi_us"]),
            ratio(row["ratio"], row["ratio_low"]),
            microseconds(row.get("point_to_point_us")),
            ratio(row.get("point_to_point_ratio"), row.get("point_to_point_ratio_low")),
            row["algorithm"], row["path"], verdict(row))
    return table


def wide_console(**options) -> Console:
    """A console that does not wrap tables where there is no terminal to fit.

    A rank's terminal is one that mpiexec made up.
    """
    console = Console(highlight=False, **options)
    if not console.is_terminal or launch.under_mpiexec():
        console.width = max(console.width, 160)
    return console


def require_matplotlib() -> None:
    """Fail before measuring, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise typer.BadParameter("--plot needs matplotlib: pip install 'smcoll[plot]'") from None


def plot(file: Path, rows: list[dict], title: str) -> None:
    """Time against size, one panel per rank count and collective; bands: slowest and fastest block.
    """
    from matplotlib.figure import Figure

    counts = sorted({row["ranks"] for row in rows})
    collectives = [name for name in dict.fromkeys(row["collective"] for row in rows)
                   if name != "barrier"]
    if not collectives:
        raise typer.BadParameter("--plot draws time against size: a barrier has none")
    figure = Figure(figsize=(4.2 * len(collectives), 3.4 * len(counts) + 0.4), layout="constrained")
    panels = figure.subplots(len(counts), len(collectives), squeeze=False)
    names = {"smcoll": "smcoll", "mpi": "MPI", "point_to_point": "MPI, point-to-point"}
    for row_of_panels, ranks in zip(panels, counts, strict=True):
        for panel, collective in zip(row_of_panels, collectives, strict=True):
            chosen = [row for row in rows
                      if row["ranks"] == ranks and row["collective"] == collective]
            for key, name in names.items():
                points = [row for row in chosen if row.get(f"{key}_us") is not None]
                if not points:
                    continue
                sizes = [row["bytes"] for row in points]
                panel.plot(sizes, [row[f"{key}_us"] for row in points], label=name, markersize=4,
                           **STYLES[key])
                panel.fill_between(sizes, [row[f"{key}_us_min"] for row in points],
                                   [row[f"{key}_us_max"] for row in points], alpha=0.2, linewidth=0,
                                   color=STYLES[key]["color"])
            panel.set(xscale="log", yscale="log", title=f"{collective}, {ranks} ranks",
                      xlabel="bytes", ylabel="µs per call")
            panel.grid(True, which="major", linewidth=0.4)
            panel.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(file, dpi=150)
