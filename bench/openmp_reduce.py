"""smcoll's Reduce beside OpenMP's reduction of vectors, as many threads as ranks.

    python bench/openmp_reduce.py -n 2 --json openmp.json --plot openmp.png

As Li, Hoefler & Snir 2013, section 3.5. Compiles openmp_reduce.c (``$CC``, else cc) and runs it by
turns with an MPI job (both are 2 processes or threads, never at the same time), in which smcoll and
MPI's own Reduce are measured by the protocol of ``smcoll compare``. Sizes go from 8 bytes to 4 MiB.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import typer

from smcoll.bench.compare_job import CompareTask
from smcoll.bench.measure import median_bounds
from smcoll.cli import jobs, output, selection
from smcoll.launch import launch

SOURCE = Path(__file__).with_name("openmp_reduce.c")
BLOCKS = 5  # of OpenMP's calls in a round
FLAGS = ["-O3", "-march=native", "-fopenmp"]
LINES = {"openmp": ("OpenMP", {"color": "#009E73", "marker": "^", "linestyle": "-."}),
         "smcoll": ("smcoll", output.STYLES[0]), "mpi": ("MPI", output.STYLES[1])}


class Failure(RuntimeError):
    """The C program can't be compiled or run."""


def compile_program(folder: str) -> str:
    """Path of the compiled program."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise Failure(f"there is no C compiler {compiler!r}: set CC")
    program = str(Path(folder, "openmp_reduce"))
    result = subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", program], capture_output=True,
                            text=True, check=False)
    if result.returncode != 0:
        raise Failure(f"{compiler} {' '.join(FLAGS)} fails:\n{result.stderr.strip()}")
    return program


def large_stack() -> None:
    """In the child: the first thread's stack holds its private copy; as much as is allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


def run_openmp(program: str, threads: int, sizes: list[int], seconds: float) -> dict[int, dict]:
    """Per size in bytes: valid, and µs of each block."""
    # The other threads' stacks: the private copy and something more.
    environment = {**os.environ, "OMP_STACKSIZE": f"{max(sizes) // 1024 + 4096}K"}
    environment.pop("OMP_NUM_THREADS", None)
    result = subprocess.run(
        [program, str(threads), str(seconds), str(BLOCKS), *(str(size // 8) for size in sizes)],
        capture_output=True, text=True, env=environment, preexec_fn=large_stack, check=False)
    if result.returncode != 0:
        raise Failure(f"openmp_reduce ends with code {result.returncode} (a too small stack, see "
                      f"`ulimit -s`, ends it by a signal): {result.stderr.strip()}")
    found = {}
    for line in result.stdout.splitlines():
        count, valid, *times = line.split()
        found[8 * int(count)] = {"valid": valid == "1", "us": [float(text) for text in times]}
    return found


def measure(arguments: argparse.Namespace, sizes: list[int]) -> list[dict]:
    """Rounds of both programs by turns; a row for each size."""
    task = CompareTask(["reduce"], sizes, {"budget": arguments.budget})
    rounds = []
    with tempfile.TemporaryDirectory(prefix="smcoll-openmp-") as folder:
        program = compile_program(folder)
        for _ in range(arguments.rounds):
            openmp = run_openmp(program, arguments.ranks, sizes, arguments.budget / 2)
            ours, _ = jobs.run_job(task, arguments.ranks, jobs.Where(), {}, lambda row: None)
            rounds.append([(openmp[row["bytes"]], row) for row in ours])
    return [make_row(list(of_size)) for of_size in zip(*rounds, strict=True)]


def make_row(pairs: list[tuple[dict, dict]]) -> dict:
    """One size: medians over rounds, and how many times faster smcoll is."""
    openmp = [float(np.median(found["us"])) for found, _ in pairs]
    row = {"bytes": pairs[0][1]["bytes"], "ranks": pairs[0][1]["ranks"],
           "openmp_us": float(np.median(openmp)), "openmp_us_rounds": openmp,
           "openmp_valid": all(found["valid"] for found, _ in pairs)}
    for name in ("smcoll", "mpi"):
        row[f"{name}_us_rounds"] = [ours[f"{name}_us"] for _, ours in pairs]
        row[f"{name}_us"] = float(np.median(row[f"{name}_us_rounds"]))
    row["valid"] = all(ours["valid"] for _, ours in pairs)
    row["mpi_valid"] = all(ours["mpi_valid"] for _, ours in pairs)
    row["algorithm"], row["path"] = pairs[0][1]["algorithm"], pairs[0][1]["path"]
    right = row["openmp_valid"] and row["valid"]
    row["ratio"], row["ratio_low"], row["ratio_high"] = None, None, None
    if right:
        ratios = np.divide(openmp, row["smcoll_us_rounds"])
        row["ratio"] = float(np.median(ratios))
        row["ratio_low"], row["ratio_high"] = median_bounds(ratios)
    return row


def print_rows(rows: list[dict], title: str) -> None:
    """The table."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("bytes", "smcoll us", "OpenMP us", "MPI us", "times faster than OpenMP"):
        table.add_column(name, justify="right")
    for name in ("algorithm", "path", "valid"):
        table.add_column(name)
    for row in rows:
        wrong = [title for name, title in (("valid", "smcoll"), ("openmp_valid", "OpenMP"),
                                           ("mpi_valid", "MPI")) if not row[name]]
        table.add_row(str(row["bytes"]),
                      *(output.microseconds(row[f"{name}_us"]) for name in
                        ("smcoll", "openmp", "mpi")),
                      output.ratio(row["ratio"], row["ratio_low"], row["ratio_high"]),
                      row["algorithm"], row["path"],
                      f"WRONG: {', '.join(wrong)}" if wrong else "yes")
    console = output.wide_console()
    console.print(table)
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    if ratios:
        mean = np.exp(np.mean(np.log(ratios)))
        console.print(f"smcoll is on average {mean:.2f} times as fast as OpenMP (geometric mean "
                      "over the sizes).", soft_wrap=True)


def plot(file: Path, rows: list[dict], title: str) -> None:
    """Time against size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    sizes = [row["bytes"] for row in rows]
    for name, (label, style) in LINES.items():
        axes.plot(sizes, [row[f"{name}_us"] for row in rows], label=label, markersize=4, **style)
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="µs per Reduce")
    axes.grid(True, linewidth=0.4)
    axes.legend()
    figure.suptitle(title, fontsize="medium")
    figure.savefig(file, dpi=150)


def parse_arguments() -> tuple[argparse.Namespace, list[int]]:
    """The options, and the sizes in bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--ranks", type=int, default=2, help="ranks, and threads (2)")
    parser.add_argument("-m", "--message-size", default="8:4M", metavar="[MIN:]MAX",
                        help="vector sizes in bytes (8:4M)")
    parser.add_argument("--factor", type=int, default=2, help="from size to size (2)")
    parser.add_argument("--budget", type=float, default=0.3,
                        help="seconds for each size in a round (0.3)")
    parser.add_argument("--rounds", type=int, default=3, help="of both programs, by turns (3)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write all rows")
    parser.add_argument("--plot", type=Path, default=None, metavar="FILE",
                        help="draw a figure (.png, .svg, .pdf); needs matplotlib")
    arguments = parser.parse_args()
    if arguments.ranks < 1 or arguments.rounds < 1 or arguments.factor < 2 or arguments.budget <= 0:
        parser.error("-n and --rounds are at least 1, --factor is at least 2, --budget more than 0")
    try:
        if arguments.plot is not None:
            output.require_matplotlib()
        return arguments, selection.sizes(arguments.message_size, arguments.factor)
    except typer.BadParameter as error:
        parser.error(str(error))


def main() -> int:
    """The program: exit code 1 when a sum was wrong."""
    arguments, sizes = parse_arguments()
    mpi = launch.mpi_info()
    try:
        rows = measure(arguments, sizes)
    except (Failure, launch.LaunchError) as error:
        print(f"openmp_reduce.py: {error}", file=sys.stderr)
        return 1
    title = f"Reduce, {arguments.ranks} ranks or threads, {mpi.title}"
    print_rows(rows, title)
    if arguments.json is not None:
        task = CompareTask(["reduce"], sizes, {"budget": arguments.budget})
        meta = jobs.describe(task, mpi)
        # Where things lie on this machine says nothing to others.
        meta["mpi"] = {"family": mpi.family, "version": mpi.version, "title": mpi.title}
        meta |= {"command": ["python", "bench/openmp_reduce.py", *sys.argv[1:]],
                 "compiler_flags": FLAGS, "rounds": arguments.rounds}
        output.write_json(arguments.json, {"meta": meta, "rows": rows})
    if arguments.plot is not None:
        plot(arguments.plot, rows, title)
    return 0 if all(row[name] for row in rows for name in
                    ("valid", "mpi_valid", "openmp_valid")) else 1


if __name__ == "__main__":
    sys.exit(main())
