"""``smcoll model``: times and crossovers from the performance model, also of other machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from smcoll import config
from smcoll.cli import info, model_output, options, output, selection
from smcoll.cli.page import announce, page_console
from smcoll.topology import hardware, node, synthetic
from smcoll.tuning import tables
from smcoll.tuning.model import machine as machines
from smcoll.tuning.model import parameters, predict

COLLECTIVES = ("barrier", "bcast", "reduce", "allreduce", "gather", "scatter", "allgather",
               "alltoall", "reduce_scatter", "scan", "exscan")


def model_command(
    ranks: Annotated[str, typer.Option(
        "-n", "-np", "--ranks", show_default="one a core", metavar="N,...",
        rich_help_panel=options.MACHINE, help="The first on the first core and so on.")] = "",
    topology: Annotated[str, typer.Option(
        metavar="LEVELS", show_default="this machine", rich_help_panel=options.MACHINE,
        help='A made-up one: "package:4 numa:1 l3:1 core:8".')] = "",
    params: Annotated[str, typer.Option(
        metavar="FILE", show_default="this machine's, by tune", rich_help_panel=options.MACHINE,
        help="Of each level: TOML, JSON of `smcoll tune`, or westmere.")] = "",
    collectives: Annotated[str, typer.Option(
        metavar="NAME,...", rich_help_panel=options.PREDICTED,
        help="Which; all: every one of the model's.")] = "barrier,bcast,reduce,allreduce",
    sizes: Annotated[str, typer.Option(
        "-m", "--message-size", metavar="MIN:MAX", rich_help_panel=options.PREDICTED,
        help="Bytes.")] = "8:4M",
    factor: Annotated[int, typer.Option(
        min=2, metavar="N", rich_help_panel=options.PREDICTED, help="From size to size.")] = 4,
    size_list: Annotated[str, typer.Option(
        "--sizes", metavar="BYTES,...", show_default=False, rich_help_panel=options.PREDICTED,
        help="These sizes, instead of -m and --factor.")] = "",
    heap: Annotated[bool, typer.Option(
        "--heap", metavar=options.FLAG, show_default=False, rich_help_panel=options.PREDICTED,
        help="Also direct access to arrays in shared heaps.")] = False,
    json_file: options.JSONFile = None,
    csv_file: options.CSVFile = None,
    plot_file: options.PlotFile = None,
) -> None:
    """Predict every algorithm's time, and where the fastest one changes.

    By the equations of Li, Hoefler & Snir 2013 and what staging adds to
    them (docs/model.md). Nothing is measured: with --topology and
    --params for machines that one does not have.
    """
    names = collectives_of(collectives)
    chosen = selection.sizes(sizes, factor, size_list, 8)
    output.check_files(json=json_file, csv=csv_file, plot=plot_file)
    output.check_figure(plot_file, names)
    rows, changes = [], []
    counts = selection.rank_counts(ranks) if ranks or not topology else [cores_of(topology)]
    console = page_console()
    announced = False
    for count in counts:
        machine = machine_of(topology, params, count)
        if not announced:
            announced = True
            announce(console, f"Predicting {', '.join(names)}; nothing is measured", 1)
        rows += predictions(machine, names, chosen, heap)
        changes += crossovers_of(machine, names, chosen, heap)
    for count in counts:
        console.print(model_output.predictions_table(
            [row for row in rows if row["ranks"] == count],
            f"{machine.parameters.name}, {topology or 'this machine'}, {count} ranks: "
            "predicted µs"))
    model_output.print_unknown(console, rows)
    model_output.print_crossovers(console, changes)
    meta = {"topology": topology or "this machine", "parameters": machine.parameters.as_dict(),
            "machine": info.machine_facts()}
    if json_file is not None:
        output.write_json(json_file, {"meta": meta, "rows": rows, "crossovers": changes})
    if csv_file is not None:
        output.write_csv(csv_file, rows)
    if plot_file is not None:
        model_output.plot(plot_file, rows, f"{machine.parameters.name}: model")


def collectives_of(text: str) -> list[str]:
    """Names of collectives that the model knows."""
    return selection.known_names("--collectives", text, COLLECTIVES)


def measured_here(topology: str) -> parameters.Parameters:
    """What `smcoll tune` wrote for this machine."""
    content = None if topology else tables.load(config.Config().table)
    if content is None:
        raise typer.BadParameter(
            "--params: which parameters? (a TOML file, JSON of smcoll tune, or one that is "
            f"shipped: {', '.join(parameters.shipped())}; for this machine, smcoll tune measures "
            "them)")
    return parameters.from_dict(content["parameters"])


def load(params: str) -> parameters.Parameters:
    """From TOML, by name, or from what `smcoll tune` wrote: its --json, or its table."""
    file = Path(params)
    if file.suffix != ".json":
        return parameters.load(params)
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise parameters.ParameterError(
            f"{file}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
        raise parameters.ParameterError(f"{file}: no parameters as smcoll tune writes them")
    return parameters.from_dict(content["parameters"], str(file))


def root_of(topology: str) -> hardware.HardwareObject:
    """The described machine, or this one."""
    try:
        if topology:
            return hardware.build_tree(synthetic.parse(topology))
        return hardware.read_machine()
    except (ValueError, OSError) as error:
        option = f"--topology: {error}" if topology else str(error)
        raise typer.BadParameter(option) from None


def cores_of(topology: str) -> int:
    """One rank for each core, at least 2."""
    kinds = [thing.type for thing in root_of(topology).walk()]
    return max(2, kinds.count("Core") or kinds.count("PU"))


def machine_of(topology: str, params: str, ranks: int) -> machines.Machine:
    """What the options describe."""
    try:
        known = load(params) if params else measured_here(topology)
    except parameters.ParameterError as error:
        raise typer.BadParameter(f"--params: {error}") from None
    try:
        cpus = () if topology or hardware.is_made_up() else node.allowed_cpus()
        return machines.of_hardware(root_of(topology), ranks, known, cpus)
    except ValueError as error:
        raise typer.BadParameter(f"-n: {error}") from None
    except parameters.UnknownParameter as error:
        raise typer.BadParameter(f"--params: {error}") from None


def predictions(machine: machines.Machine, names: list[str], sizes: list[int],
                heap: bool) -> list[dict]:
    """A row for each algorithm and size."""
    plan = predict.plan_for(machine, config.Config())
    rows = []
    for collective in names:
        for name in predict.algorithms_of(collective, heap):
            for nbytes in [0] if collective == "barrier" else sizes:
                us, unknown = predict.microseconds(collective, name, machine, nbytes, plan)
                rows.append({"collective": collective, "algorithm": name, "bytes": nbytes,
                             "ranks": machine.ranks, "predicted_us": us, "unknown": unknown})
    return rows


def crossovers_of(machine: machines.Machine, names: list[str], sizes: list[int],
                  heap: bool) -> list[dict]:
    """Where the fastest algorithm changes."""
    plan = predict.plan_for(machine, config.Config())
    found = []
    for collective in names:
        if collective == "barrier":
            continue
        rows = predict.crossovers(
            collective, predict.algorithms_of(collective, heap),
            lambda name, nbytes, kind=collective: predict.microseconds(
                kind, name, machine, nbytes, plan)[0], sizes)
        found += [row | {"ranks": machine.ranks} | tie_of(row, machine, sizes, plan)
                  for row in rows]
    return found


def tie_of(row: dict, machine: machines.Machine, sizes: list[int], plan) -> dict:
    """That two algorithms take the same time, where that is why no size is named."""
    if row["bytes"] is not None:
        return {}
    known = [predict.microseconds(row["collective"], row[name], machine, nbytes, plan)[0]
             is not None for name in ("from", "to") for nbytes in sizes]
    return {"tie": all(known)}
