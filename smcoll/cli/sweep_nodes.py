"""``smcoll sweep-nodes``: forms of Allreduce and Barrier across nodes, against size and ranks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from smcoll.bench.sweep_nodes_job import COLLECTIVES, FORMS, NodesTask
from smcoll.cli import compare_output, guard, jobs, options, output, selection
from smcoll.cli.page import Column, page_console, sectioned
from smcoll.launch import launch

MOST = 1 << 20  # ranks or nodes: more is a slip of the keyboard


def sweep_nodes_command(
    ranks: options.Counts = "",
    hosts: options.Hosts = "",
    host_file: options.HostFile = None,
    pretended: Annotated[str, typer.Option(
        "--pretend-nodes", metavar="N,...", show_default=False, rich_help_panel=options.RANKS,
        help="Deal them out to so many nodes of smcoll's on this machine.")] = "",
    yes: options.Yes = False,
    collectives: Annotated[str, typer.Option(
        metavar="NAME,...", rich_help_panel=options.WORK, help="Which.")] = ",".join(COLLECTIVES),
    sizes: options.MessageSize = "8:1M",
    factor: options.Factor = 8,
    size_list: options.SizeList = "",
    forms: Annotated[str, typer.Option(
        metavar="NAME,...", rich_help_panel=options.WORK,
        help="By leaders (tree, dissemination), or a slice by each of several ranks (tiled).",
        )] = ",".join(FORMS),
    network_ranks: Annotated[str, typer.Option(
        metavar="N,...", show_default="smcoll's choice", rich_help_panel=options.WORK,
        help="Ranks of a node that exchange slices (tiled).")] = "",
    budget: Annotated[float, typer.Option(
        min=0.001, metavar="SECONDS", rich_help_panel=options.PRECISION,
        help="For each form and message size.")] = 0.3,
    repetitions: options.Repetitions = 9,
    iterations: options.Iterations = 0,
    warmup: options.Warmup = 0,
    validate: options.Validate = True,
    json_file: options.JSONFile = None,
    csv_file: options.CSVFile = None,
    plot_file: options.PlotFile = None,
) -> None:
    """Measure Allreduce and Barrier across nodes in each form.

    Beside MPI's own, as in figures 21 (against vector size) and 25
    (against the number of ranks) of Li, Hoefler & Snir 2013. Under
    mpiexec it measures with the ranks of that job.
    """
    names = selection.known_names("--collectives", collectives, COLLECTIVES)
    task = NodesTask(
        names, selection.sizes(sizes, factor, size_list),
        {"budget": budget, "repetitions": repetitions, "iterations": iterations, "warmup": warmup,
         "validate": validate},
        selection.known_names("--forms", forms, FORMS),
        selection.numbers_of("ranks", "--network-ranks", network_ranks, MOST) if network_ranks
        else [0])
    output.check_files(json=json_file, csv=csv_file, plot=plot_file)
    where = jobs.Where(None, selection.hosts(hosts, host_file))
    counts = selection.rank_counts(ranks, where.hosts)
    nodes = (selection.numbers_of("nodes", "--pretend-nodes", pretended, MOST) if pretended
             else [0])
    console = page_console()
    if launch.under_mpiexec():
        if ranks or where.is_chosen or len(nodes) > 1:
            raise typer.BadParameter("this is a rank of a job already: leave -n and --hosts out, "
                                     "and name one number of nodes to pretend")
        if launch.is_first_rank():
            jobs.announce(console, "Measuring forms across nodes", [], 0, seconds_of(task))
        record = jobs.inside_job(replace(task, pretended_nodes=nodes[0]))
        if record is None:
            return  # not rank 0
    else:
        if pretended and where.hosts:
            raise typer.BadParameter("either --hosts or --pretend-nodes")
        if not pretended and not where.hosts:
            raise typer.BadParameter("several nodes are needed: --hosts, --hostfile or "
                                     "--pretend-nodes")
        if max(nodes) > min(counts):
            raise typer.BadParameter(f"--pretend-nodes {pretended}: a node needs a rank")
        guard.check_ranks(counts, where.hosts, yes)
        number = len(counts) * len(nodes)
        jobs.announce(console, f"Measuring {task.rows()} forms and sizes across nodes", counts,
                      number, number * seconds_of(task))
        record = outside_jobs(task, counts, nodes, where)
    print_times(console, record["rows"])
    output.finish(record, json_file, csv_file, plot_file, plot)


def seconds_of(task: NodesTask) -> float:
    """All time budgets of a job: of each form, and of MPI beside those of a point."""
    return task.settings["budget"] * (task.rows() + len(list(task.points())))


def outside_jobs(task: NodesTask, counts: list[int], nodes: list[int], where: jobs.Where) -> dict:
    """A job for each number of ranks and of pretended nodes."""
    record: dict = {"meta": jobs.describe(task, launch.mpi_info()), "rows": []}
    for count, pretended in itertools.product(counts, nodes):
        one = replace(task, pretended_nodes=pretended)
        with jobs.progress_bar(f"{count} ranks", one.rows()) as advance:
            rows, job = jobs.run_until_stopped(
                one, count, where, {}, advance, record["meta"])
        record["rows"] += rows
        record["meta"]["jobs"].append(job)
        if record["meta"].get("partial"):
            break
    return record


# ---------------------------------------------------------------------- showing


def print_times(console: Console, rows: list[dict]) -> None:
    """A line for each point, a column for each form."""
    forms = list(dict.fromkeys(row["algorithm"] for row in rows))
    sections: dict[tuple, list] = {}
    for (ranks, nodes, collective, nbytes), group in points_of(rows).items():
        times = {row["algorithm"]: row for row in group if row["valid"] is not False}
        best = min(times.values(), key=lambda row: row["smcoll_us"], default=None)
        sections.setdefault((ranks, nodes, collective), []).append([
            str(nbytes), output.microseconds(group[0]["mpi_us"]),
            *(output.microseconds(times[one]["smcoll_us"]) if one in times else "-"
              for one in forms),
            best["algorithm"] if best else "-",
            compare_output.ratio_cells(best)[0] if best else "-"])
    console.print(sectioned(
        [Column("bytes"), Column("MPI us"), *(Column(f"{one} us") for one in forms),
         Column("fastest", left=True, wraps=True), Column("times faster")],
        [(f"{collective}, {ranks} ranks on {nodes} nodes", lines)
         for (ranks, nodes, collective), lines in sections.items()]))
    for row in rows:
        if row["valid"] is False:
            console.print(f"[bold red]wrong:[/bold red] {row['ranks']} ranks: {row['collective']} "
                          f"of {row['bytes']} bytes by {row['algorithm']}", soft_wrap=True)


def points_of(rows: list[dict]) -> dict[tuple, list[dict]]:
    """(ranks, nodes, collective, bytes) -> the rows of its forms."""
    points: dict[tuple, list[dict]] = {}
    for row in rows:
        points.setdefault((row["ranks"], row["nodes"], row["collective"], row["bytes"]),
                          []).append(row)
    return points


def plot(file, rows: list[dict], title: str) -> None:
    """Above: Allreduce against size, for each job. Below: Barrier, and the shortest and the longest
    Allreduce, against the number of ranks.
    """
    rows = [row for row in rows if row["valid"] is not False]
    vectors = [row for row in rows if row["collective"] == "allreduce"]
    jobs_ = list(dict.fromkeys((row["ranks"], row["nodes"]) for row in rows))
    ends = sorted({row["bytes"] for row in vectors})
    against = [("barrier", 0)] if any(row["collective"] == "barrier" for row in rows) else []
    against += [("allreduce", nbytes) for nbytes in dict.fromkeys(ends[:1] + ends[-1:])]
    above = jobs_ if vectors else []
    names = list(output.curves_of(rows))
    figure, panels = output.new_figure(2 if above else 1, max(len(above), len(against)), title)
    for panel in panels.flat:
        panel.set_visible(False)
    for panel, (ranks, nodes) in zip(panels[0], above, strict=False):
        here = [row for row in vectors if (row["ranks"], row["nodes"]) == (ranks, nodes)]
        panel.set_visible(True)
        output.draw_curves(panel, output.curves_of(here), names)
        panel.set_title(f"allreduce, {ranks} ranks on {nodes} nodes", fontsize="small")
    for panel, (collective, nbytes) in zip(panels[-1], against, strict=False):
        panel.set_visible(True)
        here = [row for row in rows if (row["collective"], row["bytes"]) == (collective, nbytes)]
        draw_against_ranks(panel, here, names)
        panel.set_title(collective + (f" of {nbytes} bytes" if nbytes else ""), fontsize="small")
    figure.savefig(file, dpi=150)


def draw_against_ranks(panel, rows: list[dict], names: list[str]) -> None:
    """Time against ranks, log-log, a curve for each form; nodes are named below the ranks."""
    places = sorted({(row["ranks"], row["nodes"]) for row in rows})
    # Ranks alone do not tell jobs apart where the same number is on more nodes.
    against = "ranks" if len({ranks for ranks, _ in places}) == len(places) else "nodes"
    curves = output.curves_of([row | {"bytes": row[against]} for row in rows])
    output.draw_curves(panel, curves, names)
    ticks = {row[against]: f"{row[against]}\n({row['nodes']} nodes)" if against == "ranks"
             else str(row[against]) for row in rows}
    panel.set_xticks(sorted(ticks), [ticks[number] for number in sorted(ticks)])
    panel.minorticks_off()
    panel.set_xlabel(against)
