"""Open MPI's Bcast and Reduce by each algorithm, as one call and in a loop over hardware levels.

    python examples/papers/by_level.py -n 8 --topology "package:2 l3:2 core:2"

Goglin, Jeannot, Mansouri & Mercier 2018, section 7.2: the algorithms are those of Open MPI's tuned
component, the predictions are by Hockney's model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from by_level_job import ALGORITHMS, COLLECTIVES, LevelsTask, environment
from rich.console import Console
from rich.table import Table

from smcoll.cli import jobs, options, output, selection
from smcoll.launch import launch

FOLDER = Path(__file__).resolve().parent


def by_level_command(
    ranks: options.Counts = "",
    sizes: options.MessageSize = "8:4194304",
    factor: options.Factor = 4,
    size_list: options.SizeList = "",
    iterations: options.Iterations = 0,
    warmup: options.Warmup = 0,
    validate: options.Validate = True,
    repetitions: Annotated[int, typer.Option(
        "-r", "--repetitions", min=1, help="Blocks of each, by turns.")] = 15,
    budget: Annotated[float, typer.Option(
        min=0.01, help="Seconds for each collective and size, validation apart.")] = 0.8,
    topology: Annotated[str, typer.Option(
        metavar="DESCRIPTION", show_default="this machine, or one made up where it has no levels",
        help='A made-up machine such as "package:2 l3:2 core:2", rank i on CPU i.')] = "",
    json_file: options.JSONFile = None,
    csv_file: options.CSVFile = None,
    plot_file: options.PlotFile = None,
) -> None:
    """Measure each algorithm on all ranks at once and level by level, beside smcoll."""
    if plot_file is not None:
        output.require_matplotlib()
    record = compare_by_level(
        selection.rank_counts(ranks, ()), jobs.Where(), topology,
        selection.sizes(sizes, factor, size_list),
        {"budget": budget, "repetitions": repetitions, "iterations": iterations,
         "warmup": warmup, "validate": validate, "root": 0})
    output.finish(record, json_file, csv_file, plot_file, plot)


def compare_by_level(counts: list[int], where: jobs.Where, topology: str, sizes: list[int],
                     settings: dict) -> dict:
    """A job for each number of ranks and algorithm; prints the tables. Returns the record."""
    if launch.under_mpiexec():
        raise typer.BadParameter("this starts jobs of its own: not under mpiexec")
    mpi = launch.mpi_info()
    if mpi.family != launch.OPEN_MPI:
        raise typer.BadParameter("these are algorithms of Open MPI's tuned component; mpi4py loads "
                                 f"{mpi.title}")
    tasks = {name: LevelsTask(name, list(COLLECTIVES), sizes, settings, topology)
             for name in ALGORITHMS}
    meta = jobs.describe(tasks["linear"], mpi) | {"layout": where.title, "command": sys.argv}
    record: dict = {"meta": meta, "rows": []}
    console = output.wide_console()
    for count in counts:
        rows: list[dict] = []
        total = sum(task.rows() for task in tasks.values())
        with jobs.progress_bar(f"{count} ranks", total) as advance:
            for name, task in tasks.items():
                variables = environment(name) | {"PYTHONPATH": os.pathsep.join(
                    filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))}
                found, job = jobs.run_job(task, count, where, variables, advance)
                rows += found
                meta["jobs"].append(job | {"algorithm": name})
        print_table(console, meta, meta["jobs"][-1], rows)
        record["rows"] += rows
    for row in record["rows"]:
        for problem in row["problems"]:
            console.print(f"[bold red]wrong:[/bold red] {row['ranks']} ranks: {problem}",
                          soft_wrap=True)
    return record


def print_table(console: Console, meta: dict, job: dict, rows: list[dict]) -> None:
    """Of one number of ranks: for each algorithm both forms, measured and predicted."""
    table = Table(title=f"{output.ranks_and_nodes(job)}, {meta['mpi']['title']}; {job['levels']}",
                  title_justify="left")
    names = ("collective", "bytes", "algorithm", "native us", "by level us", "times faster",
             "predicted native us", "predicted by level us", "predicted times", "smcoll us")
    for name in names:
        left = name in ("collective", "algorithm")
        table.add_column(name, justify="left" if left else "right")
    previous = None
    for row in sorted(rows, key=lambda row: (row["collective"], row["bytes"])):
        point = row["collective"], row["bytes"]
        if previous not in (None, point):
            table.add_section()
        previous = point
        times = "-" if row["predicted_ratio"] is None else f"{row['predicted_ratio']:.2f}"
        table.add_row(
            row["collective"], str(row["bytes"]), row["algorithm"],
            output.microseconds(row["native_us"]), output.microseconds(row["by_level_us"]),
            output.ratio(row["ratio"], row["ratio_low"], row["ratio_high"]),
            output.microseconds(row["predicted_native_us"]),
            output.microseconds(row["predicted_by_level_us"]), times,
            output.microseconds(row["smcoll_us"]))
    console.print(table)
    console.print("us: median over blocks of the slowest rank's mean per call, root 0. predicted: "
                  "by Hockney's model, with latency and bandwidth of each level as a ping-pong "
                  "in the same job found them.", soft_wrap=True)


def plot(file: Path, rows: list[dict], title: str) -> None:
    """How many times faster the loop over levels is, against size, measured and predicted."""
    output.plot_panels(file, rows, title, draw_factors)


def draw_factors(panel, rows: list[dict]) -> None:
    """A curve for each algorithm; hollow markers without a line: predicted."""
    for number, algorithm in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        points = [row for row in rows if row["algorithm"] == algorithm and row["ratio"] is not None]
        style = output.STYLES[number % len(output.STYLES)]
        sizes = [row["bytes"] for row in points]
        panel.plot(sizes, [row["ratio"] for row in points], label=algorithm, markersize=4, **style)
        panel.plot(sizes, [row["predicted_ratio"] or float("nan") for row in points],
                   **style | {"linestyle": "none"}, markersize=6, markerfacecolor="none")
    panel.axhline(1, color="#888888", linewidth=0.8)
    panel.set(xscale="log", yscale="log", xlabel="bytes",
              ylabel="native / by level (hollow: predicted)")
    panel.grid(True, which="major", linewidth=0.4)
    panel.legend(fontsize="x-small")


if __name__ == "__main__":
    typer.run(by_level_command)
