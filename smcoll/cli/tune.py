"""``smcoll tune``: measure this machine, check the model, write the decision table."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from smcoll import config
from smcoll.bench.tune_job import TuneTask
from smcoll.cli import guard, jobs, model, model_output, options, output, selection
from smcoll.cli.page import page_console, prose
from smcoll.launch import launch
from smcoll.topology import hardware, node
from smcoll.tuning import learned, tables
from smcoll.tuning.model import fit, machine, parameters


def tune_command(
    ranks: options.Counts = "",
    yes: Annotated[bool, typer.Option(
        "-y", "--yes", "--force", metavar=options.FLAG, show_default=False,
        rich_help_panel=options.RANKS,
        help="Don't ask: busy machine, model far off, more than 8 a core.")] = False,
    collectives: Annotated[str, typer.Option(
        metavar="NAME,...", rich_help_panel=options.WORK,
        help="Which; all: every one of the model's.")] = "barrier,bcast,reduce,allreduce",
    sizes: options.MessageSize = "8:4M",
    factor: options.Factor = 8,
    size_list: options.SizeList = "",
    heap: Annotated[bool, typer.Option(
        "--heap", metavar=options.FLAG, show_default=False, rich_help_panel=options.WORK,
        help="Arrays in shared heaps; the table is for Config(heap=True).")] = False,
    rounds: Annotated[int, typer.Option(
        min=1, metavar="N", rich_help_panel=options.PRECISION,
        help="How often everything is measured.")] = 3,
    repetitions: Annotated[int, typer.Option(
        "-r", "--repetitions", min=1, metavar="N", rich_help_panel=options.PRECISION,
        help="Blocks of each variant in a round.")] = 5,
    budget: Annotated[float, typer.Option(
        min=0.0001, metavar="SECONDS", rich_help_panel=options.PRECISION,
        help="For each variant and size in a round.")] = 0.02,
    table_file: Annotated[str, typer.Option(
        "--table", metavar="FILE", envvar=config.environment_name("table"),
        show_default="where smcoll.Comm looks for it", rich_help_panel=options.FILES,
        help="The decision table; off: none.")] = "auto",
    clear: Annotated[bool, typer.Option(
        "--clear", metavar=options.FLAG, show_default=False, rich_help_panel=options.FILES,
        help="Remove the table instead, and what programs have learned.")] = False,
    json_file: options.JSONFile = None,
    csv_file: options.CSVFile = None,
    plot_file: options.PlotFile = None,
) -> None:
    """Measure this machine and every algorithm, and write the decision table.

    Prints predicted beside measured times. Communicators with as many
    ranks use the table from then on (comm.explain says so). Run it while
    nothing else runs.
    """
    if clear:
        clear_table(table_file)
        return
    if launch.under_mpiexec():
        raise typer.BadParameter("tune starts its own jobs: not under mpiexec")
    names = model.collectives_of(collectives)
    chosen = selection.sizes(sizes, factor, size_list, 8)
    counts = selection.rank_counts(ranks)
    guard.check_ranks(counts, (), yes)
    if min(counts) < 2:
        raise typer.BadParameter(f"-n {ranks}: a collective needs 2 ranks")
    output.check_files(json=json_file, csv=csv_file, plot=plot_file)
    output.check_figure(plot_file, names)
    cores = len(launch.cores(node.allowed_cpus()))
    if cores < 2:
        raise typer.BadParameter("one core alone has no distance to measure")
    guard.check_quiet(yes)
    task = TuneTask(names, chosen, {"budget": budget, "repetitions": repetitions,
                                    "validate": False}, rounds, cores, config={"table": "off"},
                    heap=heap)
    meta = jobs.describe(task, launch.mpi_info())
    console = page_console()
    jobs.announce(console, f"Tuning {', '.join(names)}", counts, len(counts),
                  sum(seconds_of(task, count) for count in counts))
    record = tune(task, counts, cores, meta)
    if meta.get("partial"):
        if json_file is not None:
            output.write_json(json_file, record)
        if csv_file is not None:
            output.write_csv(csv_file, record["measured"])
        output.tell_partial(meta, len(record["measured"]), json_file, csv_file)
    for count in counts:
        rows = [row for row in record["rows"] if row["ranks"] == count]
        console.print(model_output.compared_table(rows, f"{count} ranks: predicted beside "
                                                  "measured, each algorithm's fastest variant"))
        print_verdict(console, rows, record["states"][str(count)])
        model_output.print_crossovers(
            console, [row for row in record["crossovers"] if row["ranks"] == count])
    if json_file is not None:
        output.write_json(json_file, record)
    if csv_file is not None:
        output.write_csv(csv_file, record["rows"])
    if plot_file is not None:
        model_output.plot(plot_file, model_output.fastest_variants(record["rows"]),
                          output.title_of(meta))
    problem = guard.doubtful(record["rows"])
    if problem and tables.file_of(table_file) is not None:
        guard.ask(f"{problem}: no table is written", "Write it all the same?", yes)
    write_table(console, table_file, record)


# The model's parameters, once for each collective in a round (docs/model.md has the steps).
PROBING_SECONDS = 0.7


def seconds_of(task: TuneTask, ranks: int) -> float:
    """All time budgets of a job, and its measurements of parameters."""
    return (task.settings["budget"] * task.rows(ranks)
            + PROBING_SECONDS * task.rounds * len(task.collectives))


def tune(task: TuneTask, counts: list[int], cores: int, meta: dict) -> dict:
    """Jobs, parameters, predictions, tables: everything that is not printing."""
    measured = {}
    for count in counts:
        measured[count] = run(task, count, meta)
        if meta.get("partial"):
            return only_measured(measured, meta)
    alone = [count for count in counts if count <= cores]
    if cores in alone or not counts:
        base = measured[cores]
    else:
        # Parameters of all levels need all cores.
        few = TuneTask(["barrier", "bcast", "reduce", "allreduce"], [8, 512, 4096], task.settings,
                       task.rounds, cores, config=task.config)
        base = run(few, cores, meta)
        if meta.get("partial"):
            return only_measured(measured, meta)
    known = parameters_from(base, cores, meta)
    record: dict = {"meta": meta, "rows": [], "crossovers": [], "tables": [], "states": {},
                    "measured": [row for rows, _ in measured.values() for row in rows]}
    for count, (rows, facts) in measured.items():
        rows, record["states"][str(count)] = fit.in_one_state(rows)
        steps = fit.primitives(rows)
        here = machine_with(known.changed(yield_=fit.yield_of(steps, count, cores)), count)
        compared = fit.compared(here, fit.times_of(rows))
        fit.mark(compared, config.Config(table="off"), count, facts["oversubscribed"],
                 here.s, task.heap)
        record["rows"] += compared
        record["crossovers"] += fit.crossings(compared, "predicted_us")
        record["crossovers"] += fit.crossings(compared, "measured_us")
        record["tables"].append(fit.table(
            compared, count, facts["oversubscribed"], task.heap))
        known = here.parameters
    record["parameters"] = known.as_dict()
    return record


def only_measured(measured: dict[int, tuple[list[dict], dict]], meta: dict) -> dict:
    """The record of what was stopped: what was measured, and no table made of it."""
    rows = [row | {"partial": True} for rows, _ in measured.values() for row in rows]
    return {"meta": meta, "rows": [], "crossovers": [], "tables": [], "states": {},
            "measured": rows}


def run(task: TuneTask, count: int, meta: dict) -> tuple[list[dict], dict]:
    """One job; ranks on cores of their own are bound, so that distances are known."""
    layout = "compact" if count <= task.cores else None
    with jobs.progress_bar(f"{count} ranks", task.rows(count)) as advance:
        rows, facts = jobs.run_until_stopped(
            task, count, jobs.Where(layout), {}, advance, meta)
    meta["jobs"].append(facts)
    return rows, facts


def parameters_from(base: tuple[list[dict], dict], cores: int, meta: dict) -> parameters.Parameters:
    """Of a job with a rank on each core."""
    rows, _ = fit.in_one_state(base[0])
    steps = fit.primitives(rows)
    latencies = [{"name": level, "latency": ns} for (kind, level, _), ns in steps.items()
                 if kind == "exchange"]
    sketch = parameters.from_dict({"local": {"latency": 0.0}, "level": latencies})
    q = machine_with(sketch, cores).q
    known = fit.fit(steps, cores, q, meta["machine"]["processor"],
                    f"smcoll tune, {meta['date'][:10]}")
    known = known.changed(yield_=fit.yield_of(steps, cores, cores))
    return fit.calibrate(machine_with(known, cores), fit.times_of(rows))


def machine_with(known: parameters.Parameters, ranks: int) -> machine.Machine:
    """This machine."""
    return machine.of_hardware(hardware.read_machine(), ranks, known, node.allowed_cpus())


def print_verdict(console: Console, rows: list[dict], states: dict) -> None:
    """The model's errors, and how far choices are behind the best, in one line each."""
    if states["left_out"]:
        prose(console, f"the machine changed its state: {states['left_out']} of {states['rows']} "
              "measurements, with lines exchanged in "
              f"{states['other_ns']:.0f} instead of {states['ns']:.0f} ns, are left out")
    chosen = [row for row in rows if row["chosen"]]
    best = {(row["collective"], row["bytes"]): row["measured_us"] for row in rows if row["best"]}

    def behind(row: dict) -> float:
        return row["measured_us"] / best[row["collective"], row["bytes"]] - 1

    by_size = sorted(abs(row["error"]) for row in rows)
    prose(console, f"errors of all {len(rows)} variants: median "
              f"{100 * by_size[len(by_size) // 2]:.0f} %, largest {100 * by_size[-1]:.0f} %; "
              "of the chosen ones: "
              f"{sum(abs(row['error']) <= 0.25 for row in chosen)} of {len(chosen)} within 25 %")
    usual = [behind(row) for row in rows if row["default"]]
    prose(console, f"chosen: at most {100 * max(map(behind, chosen)):.0f} % behind the best; "
              f"built-in defaults: {sum(gap <= 0.25 for gap in usual)} of {len(usual)} within "
              f"25 %, at most {100 * max(usual, default=0):.0f} % behind")


def clear_table(setting: str) -> None:
    """Remove the table that a setting names; the default one with what programs have learned."""
    file = tables.file_of(setting)
    if file is None:
        raise typer.BadParameter("--clear --table off: there is nothing to remove")
    files = [file]
    if setting == "auto" and (found := learned.file()) is not None:
        files.append(found)
    for one in files:
        try:
            was_there = tables.clear(one)
        except OSError as error:
            raise typer.BadParameter(f"--table {one}: {error.strerror}") from None
        if was_there:
            typer.echo(f"removed: {one}")
        elif one == file:
            typer.echo(f"there is no decision table {one}")


def write_table(console: Console, setting: str, record: dict) -> None:
    """The table's file: this machine's tables of other numbers of ranks stay. What programs have
    learned beside older tables is forgotten."""
    file = tables.file_of(setting)
    if file is None:
        return
    kept = []
    try:
        kept = tables.read(file)["tables"] if file.exists() else []
    except (OSError, ValueError):
        console.print(f"{file} was of another machine or version: written anew", soft_wrap=True)
    new = set(map(tables.kind_of, record["tables"]))
    kept = [table for table in kept if tables.kind_of(table) not in new]
    tables.write(file, {"format": tables.FORMAT, "version": tables.version(),
                        "machine": tables.machine(), "date": record["meta"]["date"],
                        "parameters": record["parameters"],
                        "tables": kept + record["tables"]})
    if setting == "auto" and (found := learned.file()) is not None:
        tables.clear(found)
    console.print(f"decision table: {file}", soft_wrap=True)
