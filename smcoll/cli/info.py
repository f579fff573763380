"""``smcoll info``: this machine, this MPI, and what smcoll makes of them."""

from __future__ import annotations

import itertools
import json
import math
import platform
import textwrap
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from smcoll import config as configuration
from smcoll.base import __version__, kernels
from smcoll.cli import guard, info_topology, options
from smcoll.cli.output import check_files, write_json
from smcoll.cli.page import WIDTH, Column, announce, page_console, sectioned
from smcoll.cli.words import counted, size
from smcoll.launch import launch
from smcoll.segment import memory_cost
from smcoll.topology import node, sysfs
from smcoll.tuning import distance, learned, select, tables

FORMULA = "page + ranks * (control + streams + banks * segments * segment_size)"


def info_command(
    ranks: Annotated[int | None, typer.Option(
        "-n", "-np", "--ranks", min=1, metavar="N", show_default="one a core",
        rich_help_panel=options.SHOWN, help="What is shown is for so many.")] = None,
    config: Annotated[bool, typer.Option(
        "--config", metavar=options.FLAG, show_default=False, rich_help_panel=options.SHOWN,
        help="The table of settings instead.")] = False,
    topology: Annotated[bool, typer.Option(
        "--topology", metavar=options.FLAG, show_default=False, rich_help_panel=options.SHOWN,
        help="The machine's levels instead, bindings, and hardware communicators.")] = False,
    learned_rows: Annotated[bool, typer.Option(
        "--learned", metavar=options.FLAG, show_default=False, rich_help_panel=options.SHOWN,
        help="What programs have found on this machine instead.")] = False,
    yes: Annotated[bool, typer.Option(
        "-y", "--yes", metavar=options.FLAG, show_default=False, rich_help_panel=options.SHOWN,
        help="With --topology: don't ask before many ranks.")] = False,
    json_file: options.JSONFile = None,
    dot_file: Annotated[Path | None, typer.Option(
        "--dot", metavar="FILE", rich_help_panel=options.FILES,
        help="With --topology: for Graphviz.")] = None,
    plot_file: Annotated[Path | None, typer.Option(
        "--plot", metavar="FILE", rich_help_panel=options.FILES,
        help="With --topology: a figure; needs matplotlib.")] = None,
) -> None:
    """Show MPI, cores, shared memory, segment layout and algorithms."""
    check_files(json=json_file, dot=dot_file, plot=plot_file)
    if topology + config + learned_rows > 1:
        raise typer.BadParameter("--topology, --config and --learned are different tables")
    if topology:
        if ranks is not None and not launch.under_mpiexec():
            guard.check_ranks([ranks], (), yes)
        info_topology.show(ranks, json_file, dot_file, plot_file)
        return
    if dot_file is not None or plot_file is not None:
        raise typer.BadParameter("--dot and --plot draw what --topology shows: give that, too")
    console = page_console()
    if learned_rows:
        if json_file is not None:
            write_json(json_file, {"learned": learned.read()})
        announce(console, "What communicators have found on this machine (Config(learn=...))", 1)
        print_learned(console)
        return
    if config:
        settings = configuration.describe()
        if json_file is not None:
            write_json(json_file, {"config": settings})
        announce(console, "All settings, as Config(name=...) or by environment variable", 1)
        print_settings(console, settings)
        return
    ranks = ranks or len(launch.cores(node.allowed_cpus()))
    announce(console, f"Looking at this machine and its MPI for {counted(ranks, 'rank')}", 2)
    facts = gather(ranks)
    if json_file is not None:
        write_json(json_file, facts | {"config": configuration.describe()})
    print_facts(console, facts)


def mpi_facts() -> dict:
    """The MPI, or why there is none."""
    try:
        return asdict(launch.mpi_info())
    except launch.LaunchError as error:
        return {"family": None, "problem": str(error)}


def machine_facts() -> dict:
    """The processor, the memory, and the part of both that this process may use."""
    total, free = node.shared_memory()
    quota, headroom = node.cpu_quota(), node.memory_headroom()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "processor": node.processor(),
        **node.processor_numbers(),
        "caches": sysfs.data_caches(),
        "cores": len(launch.cores(node.allowed_cpus())),
        "affinity": node.allowed_cpus(),
        "cpu_quota": None if math.isinf(quota) else quota,
        "memory_headroom": None if math.isinf(headroom) else headroom,
        "shared_memory_total": total,
        "shared_memory_free": free,
        "instruction_set": kernels.instruction_set(),
        "stores": list(kernels.stores_available()),
    }


def versions() -> dict:
    """What is installed here."""
    return {"python": platform.python_version()} | {
        name: metadata.version(name) for name in ("mpi4py", "numpy")} | {
        "smcoll": smcoll_version()}


def smcoll_version() -> str:
    """Version of the smcoll that runs (installed or not)."""
    return __version__


def gather(ranks: int) -> dict:
    """Everything that `smcoll info` shows, for JSON."""
    crowded = launch.crowded(ranks)
    settings = configuration.Config().settled(crowded)
    chosen = tables.for_ranks(settings, ranks, crowded)
    rows_of = select.decide(settings, ranks, crowded, table=chosen,
                            core_cache=0 if crowded else sysfs.core_cache())
    return {
        "versions": versions(),
        "mpi": mpi_facts(),
        "machine": machine_facts(),
        "distances": distance.pairs(node.allowed_cpus()),
        "ranks": ranks,
        "ranks_outnumber_cores": crowded,
        "layout": {
            "formula": FORMULA,
            "banks": settings.internals.banks,
            "segments": settings.segments,
            "segment_size": settings.segment_size,
            "inline_slots": settings.internals.inline_slots,
            **memory_cost(settings, ranks),
        },
        "algorithms": {
            collective: [
                {"up_to": None if row.up_to == select.UNLIMITED else row.up_to,
                 "algorithm": row.algorithm, "fan_in": row.fan_in, "fan_out": row.fan_out,
                 "arity": row.arity,
                 "section_bytes": row.section_bytes, "segments": row.segments,
                 "reason": row.reason}
                for row in rows
            ]
            for collective, rows in rows_of.items()
        },
    }


def print_settings(console: Console, settings: list[dict]) -> None:
    """The table of `smcoll info --config`."""
    console.print(sectioned(
        [Column("setting, environment variable", left=True), Column("default", left=True),
         Column("what it is", left=True, wraps=True)],
        [("", [[f"{row['name']}\n{row['environment']}",
                f"{row['default']} {row['unit']}".strip().replace(" ", "\n"),
                row["documentation"]] for row in settings])]))


def print_learned(console: Console) -> None:
    """The table of `smcoll info --learned`."""
    def words(collective: str, row: dict | None) -> str:
        if row is None:
            return "the table's"
        sections = "" if collective == "barrier" else f", {size(row['section_bytes'])}"
        return row["algorithm"] + sections

    def time(ns: float | None) -> str:
        return "" if ns is None else f"{ns / 1000:.3g}"

    kinds = learned.read()
    if not kinds:
        console.print(f"nothing so far ({learned.file() or 'no home folder'})", soft_wrap=True)
        return
    console.print(sectioned(
        [Column("collective", left=True), Column("bytes", left=True),
         Column("best, section", left=True, wraps=True), Column("us"),
         Column("second, section", left=True, wraps=True), Column("us")],
        [(kind, [[collective, f"up to {size(1 << int(in_class))}",
                  words(collective, entry["best"]), time(entry.get("best_ns")),
                  words(collective, entry["second"]), time(entry.get("second_ns"))]
                 for collective, classes in collectives.items()
                 for in_class, entry in sorted(classes.items(), key=lambda item: int(item[0]))])
         for kind, collectives in kinds.items()]))
    console.print(f"{learned.file()}", soft_wrap=True)


def print_facts(console: Console, facts: dict) -> None:
    """Lines for people."""
    mpi, machine, layout = facts["mpi"], facts["machine"], facts["layout"]
    lines = [("smcoll", facts["versions"]["smcoll"] + "".join(
        f", {name} {facts['versions'][name]}" for name in ("python", "mpi4py", "numpy")))]
    if mpi["family"] is None:
        lines.append(("MPI", f"none: {mpi['problem']}"))
    else:
        lines += [("MPI", f"{launch.TITLES[mpi['family']]} {mpi['version']} ({mpi['library']})"),
                  ("mpiexec", mpi["mpiexec"] or f"none: {mpi['problem']}")]
    quota = "no quota" if machine["cpu_quota"] is None else f"quota {machine['cpu_quota']:g} CPUs"
    lines += [
        ("processor", machine["processor"]),
        ("cores", f"{machine['cores']} (CPUs {json.dumps(machine['affinity'])[1:-1]}; {quota})"),
        ("instructions", f"{machine['instruction_set']}; stores: {', '.join(machine['stores'])}"),
        ("caches", ", ".join(f"L{cache['level']} {size(cache['bytes'])} for "
                             f"{cache['cpus']} CPU{'s' * (cache['cpus'] > 1)}"
                             for cache in machine["caches"]) or "unknown"),
        ("distances", ", ".join(
            f"CPUs {cpu} and {other} {distance.state_of(ns)} ({ns:.0f} ns)"
            for cpu, other, ns in facts["distances"] if ns is not None) or "one CPU"),
        ("/dev/shm", f"{size(machine['shared_memory_free'])} free of "
                     f"{size(machine['shared_memory_total'])}"),
    ]
    if machine["memory_headroom"] is not None:
        lines.append(("memory limit", f"{size(machine['memory_headroom'])} left in this cgroup"))
    crowded = ", more than cores" if facts["ranks_outnumber_cores"] else ""
    lines += [
        ("segment", f"for {facts['ranks']} ranks{crowded}: {size(layout['total'])} = "
                    f"{layout['formula']}"),
        ("", f"= {layout['header']} + {facts['ranks']} x ({layout['control_per_rank']} + "
             f"{layout['streams_per_rank']} + {layout['banks']} x {layout['segments']} x "
             f"{layout['segment_size']}) bytes; "
             f"{size(layout['header'] + layout['control'])} of it before the first large message"),
    ]
    for name, text in lines:
        # A file's name stays in one piece, however long.
        first, *more = textwrap.wrap(text, WIDTH - 14, break_long_words=False,
                                     break_on_hyphens=False) or [""]
        console.print(Text.assemble((f"{name:13}", "bold"), f" {first}"), soft_wrap=True)
        for line in more:
            console.print(Text(f"{'':13} {line}"), soft_wrap=True)
    rows = [(collective, row) for collective, rows in facts["algorithms"].items() for row in rows]
    sections = []
    for reason, group in itertools.groupby(rows, key=lambda item: item[1]["reason"]):
        lines_of = []
        for collective, row in group:
            radices = select.RADICES.get((collective, row["algorithm"]), ())
            lines_of.append([
                collective, "any" if row["up_to"] is None else f"up to {size(row['up_to'])}",
                row["algorithm"],
                *(str(row[name]) if name in radices else "" for name in ("fan_in", "fan_out")),
                *(["", ""] if collective == "barrier" else
                  [size(row["section_bytes"]), str(row["segments"])])])
        sections.append((reason, lines_of))
    console.print()
    console.print(sectioned(
        [Column("collective", left=True), Column("bytes", left=True),
         Column("algorithm", left=True, wraps=True), Column("fan-in"), Column("fan-out"),
         Column("section"), Column("seg- ments")],
        sections, f"algorithms for {facts['ranks']} ranks, and why"))
