"""``smcoll sweep``: algorithm x fan-in x fan-out x segment size x message size x placement."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer
from rich.console import Console

from smcoll.bench.sweep_job import SweepTask, name_of
from smcoll.cli import compare_output, guard, jobs, options, output, selection
from smcoll.cli.output import RADIX_NAMES
from smcoll.cli.page import Column, page_console, sectioned
from smcoll.launch import launch

# Those that have several algorithms.
COLLECTIVES = ("barrier", "bcast", "reduce", "allreduce", "reduce_scatter", "scatter")


def sweep_command(
    ranks: options.Counts = "",
    layout: Annotated[list[str] | None, typer.Option(
        show_default="mpiexec's", metavar="CPUS", rich_help_panel=options.RANKS,
        help="Bind them: compact, spread, or CPUs; repeat it.")] = None,
    yes: options.Yes = False,
    collectives: Annotated[str, typer.Option(
        metavar="NAME,...", rich_help_panel=options.WORK,
        help=f"Of {', '.join(COLLECTIVES)}.")] = "bcast,reduce,allreduce",
    sizes: options.MessageSize = "8:4M",
    factor: options.Factor = 16,
    size_list: options.SizeList = "",
    algorithms: Annotated[str, typer.Option(
        metavar="NAME,...", show_default="all", rich_help_panel=options.WORK,
        help="Which of them.")] = "",
    fan_in: Annotated[str, typer.Option(
        metavar="N,...", rich_help_panel=options.WORK, help="Children in fan-in trees.",
        )] = "2,3,4,5,6,7,8,12,16",
    fan_out: Annotated[str, typer.Option(
        metavar="N,...", rich_help_panel=options.WORK, help="Children in fan-out trees.",
        )] = "2,3,4,5,6,7,8,12,16",
    arity: Annotated[str, typer.Option(
        metavar="N,...", rich_help_panel=options.WORK, help="n of n-ary trees.",
        )] = "2,3,4,5,6,7,8,12,16",
    segment_sizes: Annotated[str, typer.Option(
        metavar="BYTES,...", rich_help_panel=options.WORK,
        help="A rank's data region in one segment.")] = "4K,16K,64K,128K,256K",
    element: options.Element = "float64",
    root: options.Root = "rotate",
    budget: Annotated[float, typer.Option(
        min=0.001, metavar="SECONDS", rich_help_panel=options.PRECISION,
        help="For each variant and message size.")] = 0.1,
    repetitions: options.Repetitions = 7,
    iterations: options.Iterations = 0,
    warmup: options.Warmup = 0,
    offset: options.Offset = 16,
    validate: options.Validate = True,
    json_file: options.JSONFile = None,
    csv_file: options.CSVFile = None,
    plot_file: options.PlotFile = None,
) -> None:
    """Measure every algorithm with every radix and segment size.

    Prints the fastest variant of each message size beside MPI's own
    collective, as in the figures of Graham & Shipman 2008 and Li, Hoefler
    & Snir 2013; the files have them all. Under mpiexec it measures with
    the ranks of that job, which must be on one node (sweep-nodes is for
    several).
    """
    names = selection.collectives(collectives)
    if fixed := [name for name in names if name not in COLLECTIVES]:
        raise typer.BadParameter(f"--collectives: {', '.join(fixed)} (these have a choice of "
                                 f"algorithms: {', '.join(COLLECTIVES)})")
    dtype = selection.element_type(element)
    wanted = selection.algorithms(algorithms, names)
    task = SweepTask(
        names, selection.sizes(sizes, factor, size_list, dtype.itemsize),
        {"budget": budget, "repetitions": repetitions, "iterations": iterations, "warmup": warmup,
         "validate": validate, "dtype": dtype.name, "root": selection.root(root),
         "offset": offset},
        [] if "auto" in wanted else wanted, selection.radices("--fan-in", fan_in),
        selection.radices("--fan-out", fan_out), selection.arities("--arity", arity),
        selection.bytes_list("--segment-sizes", segment_sizes))
    output.check_files(json=json_file, csv=csv_file, plot=plot_file)
    output.check_figure(plot_file, names)
    console = page_console()
    if launch.under_mpiexec():
        if ranks or layout:
            raise typer.BadParameter("this is a rank of a job already: leave -n and --layout out")
        if launch.is_first_rank():
            jobs.announce(console, "Sweeping variants and sizes", [], 0,
                          seconds_of(task, launch.job_size() or 2))
        record = jobs.inside_job(task)
        if record is None:
            return  # not rank 0
        for row in record["rows"]:
            row["layout"] = record["meta"]["layout"]
    else:
        counts = selection.rank_counts(ranks)
        guard.check_ranks(counts, (), yes)
        layouts = layout or [None]
        jobs.announce(console, f"Sweeping {max(map(task.rows, counts))} variants and sizes", counts,
                      len(counts) * len(layouts),
                      len(layouts) * sum(seconds_of(task, count) for count in counts))
        record = outside_jobs(task, counts, layouts)
    print_best(console, record["rows"])
    output.finish(record, json_file, csv_file, plot_file, output.plot_sweep)


def seconds_of(task: SweepTask, ranks: int) -> float:
    """All time budgets: of each variant, and of MPI beside those of a point."""
    return task.settings["budget"] * (task.rows(ranks) + len(list(task.points())))


def outside_jobs(task: SweepTask, counts: list[int], layouts: list[str | None]) -> dict:
    """One job for each number of ranks and layout."""
    meta = jobs.describe(task, launch.mpi_info()) | {"layouts": layouts}
    record: dict = {"meta": meta, "rows": []}
    for count, layout in itertools.product(counts, layouts):
        title = f"{count} ranks" + (f", {layout}" if layout else "")
        with jobs.progress_bar(title, task.rows(count)) as advance:
            rows, job = jobs.run_until_stopped(
                task, count, jobs.Where(layout), {}, advance, meta)
        record["rows"] += [row | {"layout": layout or "mpiexec's own"} for row in rows]
        meta["jobs"].append(job)
        if meta.get("partial"):
            break
    return record


def print_best(console: Console, rows: list[dict]) -> None:
    """For each collective and size: the fastest variant, and how far behind the next algorithm is.
    """
    sections: dict[tuple, list] = {}
    for (ranks, layout, collective, nbytes), group in grouped(rows):
        best, *others = sorted(group, key=lambda row: row["smcoll_us"])
        second = next((row for row in others if row["algorithm"] != best["algorithm"]), None)
        behind = (f"{second['smcoll_us'] / best['smcoll_us']:.2f} x "
                  f"({second['algorithm']})") if second else "-"
        radices = {name: best[name] for name in RADIX_NAMES if name in best}
        sections.setdefault((ranks, layout, collective), []).append([
            str(nbytes), output.microseconds(best["smcoll_us"]),
            output.microseconds(best["mpi_us"]), compare_output.ratio_cells(best)[0],
            name_of({"algorithm": best["algorithm"], **radices}), str(best["segment_size"]),
            behind])
    console.print(sectioned(
        [Column("bytes"), Column("smcoll us"), Column("MPI us"), Column("times faster"),
         Column("fastest variant", left=True, wraps=True), Column("segment size"),
         Column("the next algorithm takes", left=True, wraps=True)],
        [(f"{collective}, {ranks} ranks, binding: {layout}", lines)
         for (ranks, layout, collective), lines in sections.items()]))
    for row in rows:
        if row["valid"] is False:
            console.print(f"[bold red]wrong:[/bold red] {row['ranks']} ranks: {row['collective']} "
                          f"of {row['bytes']} bytes by {row['algorithm']}", soft_wrap=True)


def grouped(rows: list[dict]):
    """((ranks, layout, collective, bytes), its valid rows)."""
    def key(row: dict) -> tuple:
        return row["ranks"], row["layout"], row["collective"], row["bytes"]

    valid = [row for row in rows if row["valid"] is not False]
    return itertools.groupby(sorted(valid, key=key), key=key)
