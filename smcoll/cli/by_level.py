"""``smcoll compare --by-level``: MPI's collectives in a loop over hardware levels (GJMM 7.2)."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from .. import launch
from . import jobs, output
from .by_level_job import ALGORITHMS, COLLECTIVES, LevelsTask, environment


def compare_by_level(counts: list[int], where: jobs.Where, topology: str, sizes: list[int],
                     settings: dict) -> dict:
    """A job for each number of ranks and algorithm; prints the tables. Returns the record."""
    if launch.under_mpiexec():
        raise typer.BadParameter("--by-level starts jobs of its own: not under mpiexec")
    mpi = launch.mpi_info()
    if mpi.family != launch.OPEN_MPI:
        raise typer.BadParameter("--by-level names algorithms of Open MPI's tuned component; "
                                 f"mpi4py loads {mpi.title}")
    tasks = {name: LevelsTask(name, list(COLLECTIVES), sizes, settings, topology)
             for name in ALGORITHMS}
    meta = jobs.describe(tasks["linear"], mpi) | {"layout": where.title}
    record: dict = {"meta": meta, "rows": []}
    console = output.wide_console()
    for count in counts:
        rows: list[dict] = []
        total = sum(task.rows() for task in tasks.values())
        with jobs.progress_bar(f"{count} ranks", total) as advance:
            for name, task in tasks.items():
                found, job = jobs.run_job(task, count, where, environment(name), advance)
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
            output.ratio(row["ratio"], row["ratio_low"]),
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
