"""Results for the eye and for other programs: table, JSON, CSV, figure."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from smcoll.cli.words import counted
from smcoll.launch import launch

# Okabe and Ito's colours, which the colour-blind can tell apart; markers and dashes for print.
STYLES = [
    {"color": color, "marker": marker, "linestyle": line} for color, marker, line in (
        ("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", ":"),
        ("#CC79A7", "D", "-."), ("#E69F00", "v", "-"), ("#56B4E9", "P", "--"),
        ("#000000", "x", ":"), ("#F0E442", "*", "-."))
]

MOST_BANDS = 6
NOTHING_TO_DRAW = "--plot draws time against size: a barrier has none"
DASHES = ("-", "--", ":", "-.")


def style_of(number: int) -> dict[str, str]:
    """Of the so-manieth series: beyond eight, colours come back with other markers and dashes."""
    again = number // len(STYLES)
    return {"color": STYLES[number % len(STYLES)]["color"],
            "marker": STYLES[(number + again) % len(STYLES)]["marker"],
            "linestyle": DASHES[(number + again) % len(DASHES)]}


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


def check_files(**files: Path | None) -> None:
    """Whether files can be written, before hours are spent on what they are for.

    The names are those of the options: ``json=...`` is ``--json``.
    """
    for option, file in files.items():
        if file is None:
            continue
        if option == "plot":
            require_matplotlib()
            from matplotlib.figure import Figure

            known = sorted(Figure().canvas.get_supported_filetypes())
            if file.suffix[1:].lower() not in known:
                raise typer.BadParameter(f"--plot {file}: its name ends in none of "
                                         f".{', .'.join(known)}")
        try:
            _try_to_write(file)
        except OSError as error:
            raise typer.BadParameter(f"--{option} {file}: {error.strerror}") from None


def check_figure(plot_file: Path | None, collectives: Sequence[str]) -> None:
    """Whether there will be something to draw, before it is measured."""
    if plot_file is not None and set(collectives) == {"barrier"}:
        raise typer.BadParameter(NOTHING_TO_DRAW)


def _try_to_write(file: Path) -> None:
    """OSError where it can't be. What is there stays as it is."""
    if file.exists() and not file.is_file() and not file.is_dir():
        return                         # a device or a pipe: opening one may do something
    new = not file.exists()
    with open(file, "ab"):
        pass
    if new:
        file.unlink(missing_ok=True)


def finish(record: dict, json_file: Path | None, csv_file: Path | None, plot_file: Path | None,
           draw: Callable[[Path, list[dict], str], None]) -> None:
    """Write the files that were asked for; exit code 1 when a result of smcoll's was wrong.

    What was stopped is written as well, and marked: ``partial`` in the JSON's meta, and in each
    row.
    """
    stopped = record["meta"].get("partial")
    if stopped:
        record["rows"] = [row | {"partial": True} for row in record["rows"]]
    if json_file is not None:
        write_json(json_file, record)
    if csv_file is not None:
        write_csv(csv_file, record["rows"])
    if plot_file is not None:
        try:
            draw(plot_file, record["rows"], title_of(record["meta"]))
        except typer.BadParameter as error:
            # Stopped too early, or all results were wrong: the other files are written.
            typer.echo(f"smcoll: no figure: {error.message}", err=True)
    if stopped:
        tell_partial(record["meta"], len(record["rows"]), json_file, csv_file, plot_file)
    if any(row["valid"] is False for row in record["rows"]):
        raise typer.Exit(1)


def tell_partial(meta: dict, rows: int, *files: Path | None) -> NoReturn:
    """That, and where, only a part was measured; ends with a shell's code for the signal."""
    named = [str(file) for file in files if file is not None]
    typer.echo(f"smcoll: stopped by {meta['partial']}: {rows} rows were measured"
               + (f"; {', '.join(named)}: partial" if named else ""), err=True)
    raise typer.Exit(meta["exit_code"])


def microseconds(value: float | None) -> str:
    """Three digits that mean something."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


FASTER, SLOWER, UNDECIDED = "faster", "slower", "undecided"
STANDING_STYLES = {FASTER: "green", SLOWER: "red", UNDECIDED: ""}


def standing(low: float, high: float) -> str:
    """What the 95 % bounds of a ratio say: only one that leaves 1 out decides."""
    return FASTER if low > 1 else SLOWER if high < 1 else UNDECIDED


def ratio(value: float | None, low: float | None, high: float | None) -> Text:
    """A ratio and its bounds, green or red where they leave no doubt."""
    if value is None or low is None or high is None:
        return Text("-")
    return Text(f"{value:.2f} ({low:.2f}-{high:.2f})", style=STANDING_STYLES[standing(low, high)])


def ranks_and_nodes(job: dict) -> str:
    """``8 ranks on 2 cores (ranks outnumber cores)``, ``8 ranks on 2 nodes (4, 4) of 2 cores``."""
    nodes = job["nodes"]
    if not nodes:                      # a job that was stopped has not told
        return counted(job["ranks"], "rank")
    cores = [node["cores"] for node in nodes]
    crowded = any(len(node["ranks"]) > node["cores"] for node in nodes)
    crowd = " (ranks outnumber cores)" if crowded else ""
    numbers = " or ".join(map(str, sorted(set(cores))))
    if len(nodes) == 1:
        return (f"{counted(job['ranks'], 'rank')} on {numbers} "
                f"core{'' if cores == [1] else 's'}{crowd}")
    shares = ", ".join(str(len(node["ranks"])) for node in nodes)
    return f"{job['ranks']} ranks on {len(nodes)} nodes ({shares}) of {numbers} cores{crowd}"


def algorithm_cell(row: dict) -> str:
    """The algorithm; over several nodes with those of its stages."""
    stages = row.get("parameters", {}).get("stages")
    return f"{row['algorithm']}: {', '.join(stages)}" if stages else row["algorithm"]


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


def title_of(meta: dict) -> str:
    """One line above a figure."""
    mpi = [meta["mpi"]["title"]] if "mpi" in meta else []
    partial = ["partial"] if meta.get("partial") else []
    return ", ".join([*mpi, meta["machine"]["processor"], meta["date"][:10], *partial])


def curves_of(rows: list[dict]) -> dict[str, list[dict]]:
    """Per contender its points ``{bytes, us, min, max}``, in the order of the legend."""
    curves: dict[str, list[dict]] = {}

    def add(name: str, row: dict, prefix: str) -> None:
        if row.get(f"{prefix}_us") is None:
            return
        us = row[f"{prefix}_us"]
        curves.setdefault(name, []).append({
            "bytes": row["bytes"], "us": us, "min": row.get(f"{prefix}_us_min", us),
            "max": row.get(f"{prefix}_us_max", us)})

    several = len({row["algorithm"] for row in rows if row["bytes"] == rows[0]["bytes"]}) > 1
    for row in rows:
        add(f"smcoll {row['algorithm']}" if several else "smcoll", row, "smcoll")
    for row in rows:
        if "peers" in row:
            for peer, figures in row["peers"].items():
                add(peer, {"bytes": row["bytes"], **figures}, "mpi")
        else:
            add("MPI", row, "mpi")
            add("MPI, point-to-point (another job)", row, "point_to_point")
    return {name: one_for_each_size(points) for name, points in curves.items()}


def one_for_each_size(points: list[dict]) -> list[dict]:
    """Points by size: a curve has one, where the same was measured several times their median."""
    sizes = sorted({point["bytes"] for point in points})
    found = []
    for nbytes in sizes:
        same = [point for point in points if point["bytes"] == nbytes]
        found.append({"bytes": nbytes, "us": median(point["us"] for point in same),
                      "min": min(point["min"] for point in same),
                      "max": max(point["max"] for point in same)})
    return found


def draw_curves(panel, curves: dict[str, list[dict]], names: Sequence[str] = ()) -> None:
    """Time against size, log-log; bands, where curves are few: slowest and fastest block.

    ``names``: of all panels' curves, so that a name looks the same in each.
    """
    names = list(dict.fromkeys([*names, *curves]))
    for name, points in curves.items():
        style = style_of(names.index(name))
        sizes = [point["bytes"] for point in points]
        panel.plot(sizes, [point["us"] for point in points], label=name, markersize=4, **style)
        if len(curves) > MOST_BANDS:
            continue
        panel.fill_between(sizes, [point["min"] for point in points],
                           [point["max"] for point in points], alpha=0.2, linewidth=0,
                           color=style["color"])
    panel.set(xscale="log", yscale="log", xlabel="bytes", ylabel="µs per call")
    panel.grid(True, which="major", linewidth=0.4)
    add_legend(panel)


def add_legend(panel) -> None:
    """In the panel; many names stand below it."""
    if len(panel.get_legend_handles_labels()[0]) <= MOST_BANDS:
        panel.legend(fontsize="small")
    else:
        panel.legend(fontsize="x-small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))


MOST_SIDE_BY_SIDE = 4


def columns_for(panels: int) -> int:
    """As many side by side as keep a figure readable: a row of four, or about a square."""
    return panels if panels <= MOST_SIDE_BY_SIDE else max(MOST_SIDE_BY_SIDE,
                                                          math.ceil(math.sqrt(panels)))


def new_figure(rows_of_panels: int, columns: int, title: str):
    """(figure, its panels)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * columns, 3.4 * rows_of_panels + 0.4), layout="constrained")
    # A long title breaks rather than widen a figure of one panel.
    figure.suptitle(title, fontsize="medium", wrap=True)
    return figure, figure.subplots(rows_of_panels, columns, squeeze=False)


def plot(file: Path, rows: list[dict], title: str) -> None:
    """Time against size, one panel per rank count and collective."""
    rows = [row for row in rows if row["collective"] != "barrier"]
    if not rows:
        raise typer.BadParameter(NOTHING_TO_DRAW)
    plot_panels(file, rows, title, lambda panel, chosen: draw_curves(panel, curves_of(chosen)))


def plot_panels(file: Path, rows: list[dict], title: str,
                draw: Callable[[object, list[dict]], None]) -> None:
    """A figure with ``draw(panel, rows)`` for each rank count and collective."""
    counts = sorted({row["ranks"] for row in rows})
    collectives = list(dict.fromkeys(row["collective"] for row in rows))
    cases = list(itertools.product(counts, collectives))
    # Few collectives: one below the other with more ranks.
    columns = (len(collectives) if len(collectives) <= MOST_SIDE_BY_SIDE
               else columns_for(len(cases)))
    figure, panels = new_figure(math.ceil(len(cases) / columns), columns, title)
    for panel, (ranks, collective) in zip(panels.flat, cases, strict=False):
        draw(panel, [row for row in rows
                     if row["ranks"] == ranks and row["collective"] == collective])
        panel.set_title(f"{collective}, {ranks} ranks", fontsize="small")
    for panel in list(panels.flat)[len(cases):]:
        panel.remove()
    figure.savefig(file, dpi=150)


def plot_sweep(file: Path, rows: list[dict], title: str) -> None:
    """Above: each algorithm at its best radices and segment size, against message size, beside MPI.
    Below: time against radix at the message sizes swept, relative to the best radix.
    """
    rows = [row for row in rows if row["valid"] is not False]
    cases = list(dict.fromkeys((row["collective"], row["ranks"], row["layout"]) for row in rows
                               if row["collective"] != "barrier"))
    if not cases:
        raise typer.BadParameter(NOTHING_TO_DRAW)
    columns = columns_for(len(cases))
    # The lower row only where somebody has several radices.
    high = 2 if radix_curves(rows) else 1
    figure, panels = new_figure(high * math.ceil(len(cases) / columns), columns, title)
    places = [(panels[high * (number // columns)][number % columns],
               panels[high * (number // columns) + high - 1][number % columns])
              for number in range(len(panels) // high * columns)]
    for (above, below), (collective, ranks, layout) in zip(places, cases, strict=False):
        chosen = [row for row in rows if (row["collective"], row["ranks"], row["layout"])
                  == (collective, ranks, layout)]
        best: dict[tuple, dict] = {}
        for row in sorted(chosen, key=lambda row: -row["smcoll_us"]):
            best[row["bytes"], row["algorithm"]] = row
        draw_curves(above, curves_of(sorted(best.values(), key=lambda row: row["bytes"])))
        above.set_title(f"{collective}, {ranks} ranks, {layout}", fontsize="small")
        if below is not above:
            draw_radices(below, chosen)
    for place in places[len(cases):]:
        for panel in dict.fromkeys(place):
            panel.remove()
    figure.savefig(file, dpi=150)


# What an algorithm's parameters are called in figures.
RADIX_NAMES = {"fan_in": "fan-in", "fan_out": "fan-out", "arity": "n of n-ary tree"}


def draw_radices(panel, rows: list[dict]) -> None:
    """Time against radix, for trees, at the best segment size; 1 is each message size's best."""
    curves = radix_curves(rows)
    if not curves:
        panel.set_axis_off()
        panel.text(0.5, 0.5, "no tree with several radices was swept", ha="center", va="center",
                   fontsize="small")
        return
    for number, ((name, nbytes), times) in enumerate(curves.items()):
        best = min(times.values())
        panel.plot(list(times), [us / best for us in times.values()],
                   label=f"{RADIX_NAMES[name]}, {nbytes} B", markersize=4, **style_of(number))
    panel.set(xlabel="radix", ylabel="time / time of the best radix",
              xticks=sorted({radix for times in curves.values() for radix in times}))
    panel.grid(True, which="major", linewidth=0.4)
    add_legend(panel)


def radix_curves(rows: list[dict]) -> dict[tuple[str, int], dict[int, float]]:
    """(parameter, bytes) -> radix -> µs of the best variant. One radix alone is no curve."""
    curves: dict[tuple[str, int], dict[int, float]] = {}
    for name in RADIX_NAMES:
        for nbytes in sorted({row["bytes"] for row in rows if name in row}):
            times: dict[int, float] = {}
            for row in rows:
                if row["bytes"] == nbytes and name in row:
                    times[row[name]] = min(row["smcoll_us"], times.get(row[name], math.inf))
            if len(times) > 1:
                curves[name, nbytes] = dict(sorted(times.items()))
    return curves
