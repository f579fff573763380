"""``smcoll compare``: smcoll beside MPI's own collectives, a table for each opponent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console

from smcoll.bench import lower_bound
from smcoll.bench.compare_job import CompareTask
from smcoll.cli import compare_output, guard, jobs, options, output, peers, selection
from smcoll.cli.page import page_console, prose
from smcoll.cli.words import counted
from smcoll.launch import launch, mpi_settings


def compare_command(
    ranks: options.Counts = "",
    hosts: options.Hosts = "",
    host_file: options.HostFile = None,
    layout: options.Layout = None,
    yes: options.Yes = False,
    collectives: Annotated[str, typer.Option(
        metavar="NAME,...", rich_help_panel=options.WORK,
        help="Which; all: every one of the interface.",
        )] = "barrier,bcast,reduce,allreduce",
    sizes: options.MessageSize = "8:4194304",
    factor: options.Factor = 4,
    size_list: options.SizeList = "",
    algorithms: Annotated[str, typer.Option(
        metavar="NAME,...", rich_help_panel=options.WORK,
        help="A row for each of these; auto: smcoll's choice.")] = "auto",
    element: options.Element = "float64",
    root: options.Root = "rotate",
    memory: Annotated[str, typer.Option(
        "-M", "--memory", metavar="BYTES", show_default="half of what is free",
        rich_help_panel=options.WORK,
        help="For all buffers; larger rows are left out.")] = "",
    setting: Annotated[str, typer.Option(
        "--mpi-setting", metavar="NAME", rich_help_panel=options.OPPONENTS,
        help="How MPI is set. Open MPI: coll_sm; over several hosts han, tuned. MPICH: "
        "serialized.")] = "default",
    thread_level: Annotated[str, typer.Option(
        metavar="LEVEL", rich_help_panel=options.OPPONENTS,
        help="MPI's: single, funneled, serialized or multiple.")] = "multiple",
    peer_environments: Annotated[str, typer.Option(
        "--peers", metavar="ENV,...", show_default=False, rich_help_panel=options.OPPONENTS,
        help="Python environments with other MPIs: measure in all of them, in each setting.")] = "",
    limits_file: Annotated[Path | None, typer.Option(
        "--limits", metavar="FILE", rich_help_panel=options.OPPONENTS,
        help="Of bench/limits.py --json: show the least time possible.")] = None,
    budget: Annotated[float, typer.Option(
        min=0.01, metavar="SECONDS", rich_help_panel=options.PRECISION,
        help="For each collective and size.")] = 0.8,
    repetitions: options.Repetitions = 15,
    iterations: options.Iterations = 0,
    warmup: options.Warmup = 0,
    offset: options.Offset = 16,
    full: Annotated[bool, typer.Option(
        "-f", "--full", metavar=options.FLAG, show_default=False,
        rich_help_panel=options.SWITCHES, help="Show the slowest and the fastest block, too.",
        )] = False,
    validate: options.Validate = True,
    read: Annotated[bool, typer.Option(
        "--read", metavar=options.FLAG, show_default=False, rich_help_panel=options.SWITCHES,
        help="Read results behind each call, as programs do.")] = False,
    point_to_point: Annotated[bool, typer.Option(
        metavar=options.FLAG, show_default="on", rich_help_panel=options.SWITCHES,
        help="Also against MPI forced onto point-to-point messages.")] = True,
    heap: Annotated[bool, typer.Option(
        "--heap", metavar=options.FLAG, show_default=False, rich_help_panel=options.SWITCHES,
        help="Arrays in shared heaps: direct access beside staging.")] = False,
    json_file: options.JSONFile = None,
    csv_file: options.CSVFile = None,
    plot_file: options.PlotFile = None,
) -> None:
    """Measure smcoll beside MPI's own collectives, on this machine.

    Ratios say how many times faster smcoll is, with 95 % bounds. The
    exit code is 1 when a result of smcoll's was wrong. Under mpiexec it
    measures with the ranks of that job, on however many nodes they are.
    """
    where = jobs.Where(layout, selection.hosts(hosts, host_file))
    output.check_files(json=json_file, csv=csv_file, plot=plot_file)
    names = selection.collectives(collectives)
    output.check_figure(plot_file, names)
    dtype = selection.element_type(element)
    limit = selection.bytes_list("-M", memory)[0] if memory else (
        psutil.virtual_memory().available // 2)
    task = CompareTask(
        names, selection.sizes(sizes, factor, size_list, dtype.itemsize),
        {"budget": budget, "repetitions": repetitions, "iterations": iterations, "warmup": warmup,
         "validate": validate, "dtype": dtype.name, "root": selection.root(root),
         "offset": offset, "read": read},
        selection.algorithms(algorithms, names), limit, selection.thread_level(thread_level),
        heap=heap)
    limits = selection.limits(limits_file) if limits_file else None
    console = page_console()
    if peer_environments:
        if launch.under_mpiexec():
            raise typer.BadParameter("--peers starts jobs of its own: not under mpiexec")
        counts = selection.rank_counts(ranks, where.hosts)
        guard.check_ranks(counts, where.hosts, yes)
        record = peers.compare_peers(
            console, task, selection.names(peer_environments), counts, where)
        add_limits(record["rows"], limits)
        peers.print_record(console, record, full)
    elif launch.under_mpiexec():
        if ranks or where.is_chosen or setting != "default":
            raise typer.BadParameter("this is a rank of a job already: leave -n, --hosts, --layout "
                                     "and --mpi-setting out")
        if launch.is_first_rank():
            announce(console, task, [], 0)
        record = jobs.inside_job(task)
        if record is None:
            return  # not rank 0
        record["meta"]["point_to_point"] = None
        add_limits(record["rows"], limits)
        print_table(console, record["meta"], record["meta"]["jobs"][0], record["rows"], full)
        print_notes(console, record)
    else:
        counts = selection.rank_counts(ranks, where.hosts)
        guard.check_ranks(counts, where.hosts, yes)
        record = outside_jobs(console, task, counts, where, setting, point_to_point, full, limits)
        print_notes(console, record)
    output.finish(record, json_file, csv_file, plot_file, output.plot)


# ---------------------------------------------------------------------- measuring


def announce(console: Console, task: CompareTask, counts: list[int], number: int) -> None:
    """What will be measured, and how long it takes; ``number`` of jobs, 0 inside of one."""
    points = len(list(task.points()))
    jobs.announce(console, f"Comparing {counted(points, 'point')} (collective and size)",
                  counts, number, max(1, number) * points * task.settings["budget"])


def outside_jobs(console: Console, task: CompareTask, counts: list[int], where: jobs.Where,
                 setting: str, point_to_point: bool, full: bool, limits: dict | None) -> dict:
    """Start the jobs of each rank count, show each table when it is done. Returns the record."""
    mpi = launch.mpi_info()
    known = mpi_settings.settings(mpi.family, several_nodes=bool(where.hosts))
    if setting not in known:
        places = "over several hosts" if where.hosts else "on one host"
        raise typer.BadParameter(f"--mpi-setting {setting}: {mpi.title} has {', '.join(known)} "
                                 f"{places}")
    if known[setting].thread_level:
        task = replace(task, thread_level=known[setting].thread_level)
    forced = mpi_settings.point_to_point_settings(mpi.family) if point_to_point else None
    meta = jobs.describe(task, mpi) | {
        "layout": where.title, "mpi_setting": setting, "point_to_point": forced}
    record: dict = {"meta": meta, "rows": []}
    each = 2 if forced else 1
    announce(console, task, counts, each * len(counts))
    for count in counts:
        total = task.rows() * each
        with jobs.progress_bar(f"{count} ranks", total) as advance:
            rows, job = jobs.run_until_stopped(
                task, count, where, known[setting].environment, advance, meta)
            if forced and not meta.get("partial"):
                others, _ = jobs.run_until_stopped(task, count, where, forced, advance, meta)
                for row, other in zip(rows, others, strict=not meta.get("partial")):
                    compare_output.add_forced(row, other)
        add_limits(rows, limits)
        record["rows"] += rows
        meta["jobs"].append(job)
        if rows:
            print_table(console, meta, job, rows, full)
        if any("point_to_point_us" in row for row in rows):
            print_table(console, meta, job, rows, full, forced=True)
        if meta.get("partial"):
            break
    return record


def add_limits(rows: list[dict], limits: dict | None) -> None:
    """Into rows the least time that this machine allows, as far as it is known."""
    if limits is not None:
        for row in rows:
            row["limit_us"] = lower_bound.lower_bound(
                limits, row["collective"], row["bytes"], row["ranks"], statistic="median")


# ---------------------------------------------------------------------- showing


def print_table(console: Console, meta: dict, job: dict, rows: list[dict], full: bool,
                forced: bool = False) -> None:
    """The table of one job."""
    title = f"{output.ranks_and_nodes(job)}, {meta['mpi']['title']}"
    setting = meta.get("mpi_setting", "default")
    title += " forced onto point-to-point messages" if forced else (
        f" ({setting})" if setting != "default" else " as it comes")
    console.print(compare_output.table(compare_output.against_forced(rows) if forced else rows,
                                       title, launch.TITLES[meta["mpi"]["family"]], full))


def print_notes(console: Console, record: dict) -> None:
    """How it was measured, and what was found wrong."""
    meta, settings = record["meta"], record["meta"]["point_to_point"]
    compare_output.print_how(console, record["rows"], meta["task"]["settings"]["read"])
    forced = settings or mpi_settings.point_to_point_settings(meta["mpi"]["family"])
    text = " ".join(f"{name}={value}" for name, value in forced.items())
    prose(console, f"point-to-point: a second job with {text}" if settings else
          f"point-to-point: not measured (MPI can be forced by {text})")
    for job in meta["jobs"]:
        for text in job["left_out"]:
            prose(console, f"left out: {job['ranks']} ranks: {text} (-M allows more)")
    compare_output.print_problems(console, record["rows"])
