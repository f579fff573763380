"""``smcoll compare``: smcoll beside MPI's own collectives, in one table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import algos, config, launch, node
from . import compare_job, info, output
from .run_program import end_job

COLLECTIVES = ("barrier", "bcast", "reduce", "allreduce")
# One thread for each rank: libraries' own threads would compete with the ranks.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
POLL_SECONDS = 0.1


def compare_command(
    ranks: Annotated[str, typer.Option(
        "-n", "--ranks", show_default="one for each core", metavar="N[,N...]",
        help="Ranks; one job (two with point-to-point) for each number.")] = "",
    sizes: Annotated[str, typer.Option(
        "-m", "--message-size", metavar="[MIN:]MAX", help="Message sizes in bytes.")] = "8:4194304",
    factor: Annotated[int, typer.Option(
        min=2, help="From size to size: by this factor, and MAX itself.")] = 4,
    collectives: Annotated[str, typer.Option(
        metavar="NAME[,NAME...]", help="Which collectives.")] = ",".join(COLLECTIVES),
    iterations: Annotated[int, typer.Option(
        "-i", "--iterations", min=0, show_default="as many as fit the budget",
        help="Calls in a block.")] = 0,
    warmup: Annotated[int, typer.Option(
        "-x", "--warmup", min=0, show_default="a few percent of the budget",
        help="Calls before the first block.")] = 0,
    repetitions: Annotated[int, typer.Option(
        "-r", "--repetitions", min=1, help="Blocks of each, by turns.")] = 15,
    budget: Annotated[float, typer.Option(
        min=0.01, help="Seconds for each collective and size, validation apart.")] = 0.8,
    validate: Annotated[bool, typer.Option(
        help="Check results against numpy, on calls that are not timed.")] = True,
    point_to_point: Annotated[bool, typer.Option(
        help="Also against MPI's collectives forced onto point-to-point messages.")] = True,
    algorithm: Annotated[str, typer.Option(
        metavar="NAME", show_default="chosen by smcoll",
        help="One algorithm wherever a collective has it.")] = "",
    layout: Annotated[str | None, typer.Option(
        show_default="mpiexec's own",
        help="Bind ranks: compact, spread, or CPUs such as 0,2,4-7.")] = None,
    thread_level: Annotated[str, typer.Option(
        help="MPI's thread level: single, funneled, serialized or multiple (mpi4py's own).",
        )] = "multiple",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE")] = None,
    plot_file: Annotated[Path | None, typer.Option(
        "--plot", metavar="FILE", help="A figure (.png, .svg, .pdf); needs matplotlib.")] = None,
) -> None:
    """Measure smcoll beside MPI's own collectives, on this machine, in the same job.

    Ratios say how many times faster smcoll is, with a 95 % lower bound. The exit code is 1 when
    a result of smcoll's was wrong. Started under mpiexec, it measures with the ranks of that job.
    """
    task = make_task(sizes, factor, collectives, algorithm, thread_level, {
        "budget": budget, "repetitions": repetitions, "iterations": iterations, "warmup": warmup,
        "validate": validate})
    if plot_file is not None:
        output.require_matplotlib()
    console = output.wide_console()
    if launch.under_mpiexec():
        if ranks or layout:
            raise typer.BadParameter("this is a rank of a job already: leave -n and --layout out")
        record = inside_job(task)
        if record is None:
            return  # not rank 0
        print_record(console, record)
    else:
        counts = parse_counts(ranks)
        mpi = launch.mpi_info()
        record = {"meta": describe(task, mpi), "rows": []}
        record["meta"]["layout"] = layout or "mpiexec's own"
        settings = launch.point_to_point_settings(mpi.family) if point_to_point else None
        record["meta"]["point_to_point"] = settings
        for count in counts:
            rows, job = outside_job(task, count, layout, settings)
            record["rows"] += rows
            record["meta"]["jobs"].append(job)
            print_table(console, record["meta"], job, rows)
        print_notes(console, record)
    if json_file is not None:
        output.write_json(json_file, record)
    if csv_file is not None:
        output.write_csv(csv_file, record["rows"])
    if plot_file is not None:
        output.plot(plot_file, record["rows"], plot_title(record["meta"]))
    if any(row["valid"] is False for row in record["rows"]):
        raise typer.Exit(1)


# ---------------------------------------------------------------------- what to measure


def make_task(sizes: str, factor: int, collectives: str, algorithm: str, thread_level: str,
              settings: dict) -> compare_job.Task:
    """The options, checked."""
    names = [name.strip().lower() for name in collectives.split(",") if name.strip()]
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown or not names:
        raise typer.BadParameter(f"--collectives: {', '.join(unknown) or 'none'} "
                                 f"(there are {', '.join(COLLECTIVES)})")
    levels = ("single", "funneled", "serialized", "multiple")
    if thread_level not in levels:
        raise typer.BadParameter(f"--thread-level is one of {', '.join(levels)}")
    chosen = {}
    if algorithm:
        chosen = {name: algorithm for name in names if algorithm in algos.ALGORITHMS[name]}
        if not chosen:
            known = sorted({known for name in names for known in algos.ALGORITHMS[name]})
            raise typer.BadParameter(f"--algorithm: {algorithm} (there are {', '.join(known)})")
    return compare_job.Task(names, parse_sizes(sizes, factor), settings, chosen, thread_level)


def parse_sizes(text: str, factor: int) -> list[int]:
    """``MIN:MAX`` or ``MAX`` in bytes (K and M for 1024 and 1024 squared) -> sizes."""
    low, _, high = text.rpartition(":")
    try:
        first, last = config.parse_bytes(low or "8"), config.parse_bytes(high)
    except ValueError as error:
        raise typer.BadParameter(f"-m {text}: {error}") from None
    if not 8 <= first <= last or first % 8 or last % 8:
        raise typer.BadParameter(f"-m {text}: sizes are multiples of 8 bytes, the smaller first")
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return [*sizes, last]


def parse_counts(text: str) -> list[int]:
    """``2,4,8`` -> rank counts."""
    if not text:
        return [max(2, len(launch.cores(node.allowed_cpus())))]
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise typer.BadParameter(f"-n {text}: numbers of ranks such as 2,4,8")
    return counts


def describe(task: compare_job.Task, mpi: launch.MPIInfo) -> dict:
    """The record's meta: what was measured where."""
    return {
        "command": ["smcoll", *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": info.versions(),
        "mpi": {**asdict(mpi), "title": mpi.title},
        "machine": info.machine_facts() | {"load_average": os.getloadavg()},
        "task": asdict(task),
        "config": asdict(config.Config(**task.config)),
        "point_to_point": None,
        "jobs": [],
    }


# ---------------------------------------------------------------------- jobs


def outside_job(task: compare_job.Task, ranks: int, layout: str | None,
                point_to_point: dict[str, str] | None) -> tuple[list[dict], dict]:
    """Start the jobs of one rank count. Rows, and what is to be recorded about the jobs.

    ``point_to_point``: the environment of the second job; None: there is none.
    """
    errors = Console(stderr=True, highlight=False)
    total = sum(1 for _ in task.points()) * (2 if point_to_point else 1)
    progress = Progress(
        TextColumn(f"{ranks} ranks"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.description}"), TimeRemainingColumn(), console=errors, transient=True,
    ) if errors.is_terminal else nullcontext()
    with progress:
        bar = progress.add_task("starting", total=total) if errors.is_terminal else None

        def advance(record: dict) -> None:
            if bar is not None and "meta" not in record:
                progress.update(bar, advance=1,
                                description=f"{record['collective']} {record['bytes']}")

        rows, job = run_job(task, ranks, layout, {}, advance)
        if point_to_point:
            forced, _ = run_job(task, ranks, layout, point_to_point, advance)
            for row, other in zip(rows, forced, strict=True):
                add_point_to_point(row, other)
    return rows, job


def add_point_to_point(row: dict, other: dict) -> None:
    """Into a row what the second job measured: MPI forced onto messages, beside smcoll again."""
    for name in ("us", "us_min", "us_max", "valid"):
        row[f"point_to_point_{name}"] = other[f"mpi_{name}"]
    for name in ("ratio", "ratio_low", "ratio_high"):
        row[f"point_to_point_{name}"] = other[name]
    row["problems"] += [f"with point-to-point messages: {text}" for text in other["problems"]]
    if other["valid"] is False:
        row["valid"] = False


def run_job(task: compare_job.Task, ranks: int, layout: str | None, environment: dict[str, str],
            advance: Callable[[dict], None]) -> tuple[list[dict], dict]:
    """One mpiexec; rows come through a file as they are measured."""
    with tempfile.TemporaryDirectory(prefix="smcoll-compare-") as folder, \
            tempfile.TemporaryFile("w+") as printed:
        compare_job.write_task(folder, task)
        records: list[dict] = []
        position = 0

        def collect() -> None:
            nonlocal position
            file = Path(folder, "rows.jsonl")
            if not file.exists():
                return
            with open(file) as lines:
                lines.seek(position)
                while (line := lines.readline()).endswith("\n"):
                    records.append(json.loads(line))
                    advance(records[-1])
                    position = lines.tell()

        with launch.job(ranks, launch.own_command("compare-rank", folder), layout=layout,
                        environment={**ONE_THREAD, **environment}, stdout=printed, stderr=printed,
                        stdin=subprocess.DEVNULL) as process:
            while process.poll() is None:
                collect()
                time.sleep(POLL_SECONDS)
        collect()
        printed.seek(0)
        text = printed.read().strip()
    if process.returncode != 0 or not records or "meta" not in records[-1]:
        raise launch.LaunchError(f"the job of {ranks} ranks failed (exit code "
                                 f"{process.returncode}):\n{text[-4000:]}")
    if text:
        print(text, file=sys.stderr)
    *rows, last = records
    return rows, last["meta"]


def inside_job(task: compare_job.Task) -> dict | None:
    """Under somebody's mpiexec: measure with these ranks. The record on rank 0, else None."""
    import mpi4py

    mpi4py.rc.thread_level = task.thread_level
    from mpi4py import MPI

    rows: list[dict] = []
    try:
        mpi = launch.mpi_info()
        facts = compare_job.measure_task(MPI.COMM_WORLD, task, rows.append)
    except BaseException as error:
        end_job(error)
        raise
    if MPI.COMM_WORLD.Get_rank() != 0:
        return None
    meta = describe(task, mpi)
    meta["layout"] = "by the launcher of this job"
    meta["jobs"].append(facts)
    return {"meta": meta, "rows": rows}


# ---------------------------------------------------------------------- showing


def print_record(console: Console, record: dict) -> None:
    """Table and notes of a job that somebody else started."""
    print_table(console, record["meta"], record["meta"]["jobs"][0], record["rows"])
    print_notes(console, record)


def print_table(console: Console, meta: dict, job: dict, rows: list[dict]) -> None:
    """The table of one rank count."""
    available = {cpu for cpus in job["placement"] for cpu in cpus}
    cores = len(launch.cores(sorted(available)))
    crowd = " (ranks outnumber cores)" if job["ranks"] > cores else ""
    title = f"{job['ranks']} ranks on {cores} cores{crowd}, {meta['mpi']['title']}"
    console.print(output.compare_table(rows, title, launch.TITLES[meta["mpi"]["family"]]))


def print_notes(console: Console, record: dict) -> None:
    """How it was measured, and what was found wrong."""
    meta, settings = record["meta"], record["meta"]["point_to_point"]
    console.print("us: median over blocks of the slowest rank's mean per call. times faster: "
                  "MPI's time / smcoll's, block by block in the same job, with 95 % lower bound.",
                  soft_wrap=True)
    if settings:
        text = " ".join(f"{name}={value}" for name, value in settings.items())
        console.print(f"point-to-point: a second job with {text}", soft_wrap=True)
    else:
        forced = launch.point_to_point_settings(meta["mpi"]["family"])
        text = " ".join(f"{name}={value}" for name, value in forced.items())
        console.print(f"point-to-point: not measured (MPI can be forced by {text})", soft_wrap=True)
    for row in record["rows"]:
        for problem in row["problems"]:
            console.print(f"[bold red]wrong:[/bold red] {row['ranks']} ranks: {problem}",
                          soft_wrap=True)


def plot_title(meta: dict) -> str:
    """One line above a figure."""
    return f"{meta['mpi']['title']}, {meta['machine']['processor']}, {meta['date'][:10]}"
