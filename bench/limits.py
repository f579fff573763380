"""The machine's own limits: what no collective can beat, to set measured times beside.

    python bench/limits.py --json limits.json --plot limits.png

Compiles ``limits.c`` and runs it on processes bound to one CPU of each core. Needs a C compiler
(``CC``, or ``cc``), and the machine for itself: other programs' load goes into the figures.

Measured (`limits.c` says how): a cache line there and back and the exchange of two lines for each
pair of cores; ``sched_yield``; bandwidth of copy and reduction of 1 to n processes at once; the
latency of reading lines in Modified state against the size of the data set, as figures 15 and 17 of
Li, Hoefler & Snir 2013; the hand-over of k cache lines, of which their section 3.4 isolates the
payload as time with it minus time without any; lines that one has written read by all others; and
lines that another has read written again, with stores and with memcpy; and sections passed on
through a ring, by each kind of stores that smcoll has, with the distance of the cores at that time.

Everything is repeated, each repetition going through all measurements: what disturbs the machine
for a while disturbs one repetition of each. A figure is the median of the repetitions' medians, its
spread their least and greatest. `smcoll.bench.lower_bound` makes the least time of a collective of
these figures, and `smcoll compare --limits FILE` shows it in its table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from rich.console import Console
from rich.table import Table

import smcoll
from smcoll.base import kernels
from smcoll.cli.info import machine_facts
from smcoll.cli.output import STYLES, microseconds, require_matplotlib, wide_console, write_json
from smcoll.cli.words import size
from smcoll.launch import launch
from smcoll.topology import node
from smcoll.tuning import distance

SOURCE = Path(__file__).with_suffix(".c")
HEADERS = smcoll.get_include()
LINE = 64  # bytes, as in limits.c
PASSED_ON = tuple(f"pass_{stores}" for stores in kernels.stores_available())
KIB, MIB = 1 << 10, 1 << 20
# The fastest that the compiler can make of the loops: tried in this order.
OPTIONS = (["-march=native", "-mprefer-vector-width=512"], ["-march=native"], [])
HANDOVER_LINES = (0, 1, 2, 4, 8, 16, 32, 64)
TIMEOUT = 120  # seconds, one measurement


class LimitsError(Exception):
    """No C compiler, or a measurement that failed."""


# ---------------------------------------------------------------------- measuring


def compile_program(folder: Path) -> tuple[Path, str]:
    """``limits.c``, compiled into this folder: the program, and the command that made it."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise LimitsError("no C compiler: install one, or name it in CC")
    program = folder / "limits"
    for options in OPTIONS:
        command = ["-std=gnu11", "-O3", "-ffp-contract=off", f"-I{HEADERS}", *options]
        result = subprocess.run([compiler, *command, "-o", program, SOURCE], capture_output=True,
                                text=True, check=False)
        if result.returncode == 0:
            return program, " ".join([Path(compiler).name, *(
                word for word in command if not word.startswith("-I"))])
    raise LimitsError(f"{SOURCE.name} does not compile: {result.stderr}")


def compiler_version() -> str:
    """First line of the compiler's ``--version``."""
    result = subprocess.run([os.environ.get("CC", "cc"), "--version"], capture_output=True,
                            text=True, check=False)
    return result.stdout.partition("\n")[0]


def run_once(program: Path, row: dict, seconds: float) -> float:
    """Median of one repetition's samples, ns."""
    arguments = [row["measurement"], ",".join(map(str, row["cpus"])), row["bytes"], seconds]
    try:
        result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True,
                                timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise LimitsError(f"{row['measurement']} did not end in {TIMEOUT} seconds") from None
    if result.returncode != 0:
        raise LimitsError(f"{row['measurement']}: {result.stderr.strip()}")
    return statistics.median(map(float, result.stdout.split()))


def counts(most: int) -> list[int]:
    """1 to 8 processes, above that powers of two, and all."""
    return [count for count in range(1, most + 1)
            if count <= 8 or count & (count - 1) == 0 or count == most]


def powers(low: int, high: int, factor: int) -> list[int]:
    """Sizes from low to high, each `factor` times the one before."""
    return [low] if low >= high else [low, *powers(low * factor, high, factor)]


def tasks(cpus: Sequence[int], largest: int) -> list[dict]:
    """What to measure on these CPUs, one of each core, with buffers of up to `largest` bytes."""
    sizes = powers(4 * KIB, largest, 4)
    rows = [("sched_yield", [cpus[0]] * processes, 0) for processes in (1, 2)]
    for count in counts(len(cpus)):
        rows += [(name, cpus[:count], nbytes)
                 for name in ("copy", "reduction") for nbytes in sizes]
    modified = powers(4 * KIB, min(largest, 32 * MIB), 2)
    rows += [("modified", cpus[:1], nbytes) for nbytes in modified]
    for pair in combinations(cpus, 2):
        rows += [(name, pair, 0) for name in ("there_and_back", "exchange")]
    for other in dict.fromkeys(cpus[1:2] + cpus[-1:] if len(cpus) > 1 else ()):  # near, far
        pair = [cpus[0], other]
        rows += [("modified", pair, nbytes) for nbytes in modified]
        rows += [("handover", pair, lines * LINE) for lines in HANDOVER_LINES]
        rows += [(name, pair, nbytes) for name in ("rewrite", "rewrite_copy")
                 for nbytes in powers(16 * KIB, min(largest, 4 * MIB), 4)]
        rows += [(name, pair, nbytes) for nbytes in powers(8 * KIB, min(largest, 8 * MIB), 4)
                 for name in PASSED_ON]
    for readers in counts(len(cpus) - 1):
        rows += [("one_to_all", cpus[:1 + readers], nbytes) for nbytes in sizes]
    return [{"measurement": name, "cpus": list(where), "bytes": nbytes}
            for name, where, nbytes in rows]


def summary(values: Sequence[float]) -> dict:
    """Median and spread of what the repetitions gave."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values),
            "repetitions": list(values)}


def measure(program: Path, cpus: Sequence[int], *, largest: int = 64 * MIB, repetitions: int = 7,
            seconds: float = 0.03) -> dict:
    """All limits of these CPUs (one of each core): a list of rows for each measurement.

    A row has ``cpus`` (of each process), ``bytes`` (per process), ``us``: µs of one operation, its
    ``median``, ``low``, ``high`` and ``repetitions``; what is passed on has ``there_and_back_ns``,
    the distance of the cores before each repetition; bandwidths ``gbytes_per_s``: bytes of all
    processes by the median; hand-overs ``payload_us``: the same less the time without a payload.
    """
    rows = tasks(list(cpus), largest)
    times: list[list[float]] = [[] for _ in rows]
    for _ in range(repetitions):
        for row, values in zip(rows, times, strict=True):
            if row["measurement"] in PASSED_ON:
                row.setdefault("there_and_back_ns", []).append(run_once(
                    program, row | {"measurement": "there_and_back"}, seconds / 4))
            values.append(run_once(program, row, seconds) / 1000)
    limits: dict[str, list[dict]] = {
        name: [] for name in ("there_and_back", "exchange", "sched_yield", "copy", "reduction",
                              "modified", "handover", "one_to_all", "rewrite", "rewrite_copy",
                              *PASSED_ON)}
    for row, values in zip(rows, times, strict=True):
        name = row.pop("measurement")
        workers = len(row["cpus"]) - (name == "one_to_all")
        limits[name].append(row | {"us": summary(values)})
        if name in ("copy", "reduction", "one_to_all"):
            limits[name][-1]["gbytes_per_s"] = (
                workers * row["bytes"] / statistics.median(values) / 1000)
    add_payload(limits["handover"])
    return limits


def add_payload(rows: list[dict]) -> None:
    """Time with k lines minus time with none, each repetition by itself (LHS 2013, section 3.4)."""
    empty = {tuple(row["cpus"]): row["us"]["repetitions"] for row in rows if row["bytes"] == 0}
    for row in rows:
        row["payload_us"] = summary([full - nothing for full, nothing in zip(
            row["us"]["repetitions"], empty[tuple(row["cpus"])], strict=True)])


# ---------------------------------------------------------------------- output


def spread(values: dict, factor: float = 1.0) -> str:
    """Median and, in parentheses, least and greatest repetition."""
    middle, low, high = (values[name] * factor for name in ("median", "low", "high"))
    return f"{microseconds(middle)} ({microseconds(low)} .. {microseconds(high)})"


TITLES = {
    "there_and_back": "cache line there and back", "exchange": "exchange of two lines",
    "sched_yield": "sched_yield", "copy": "copy", "reduction": "reduction, a += b",
    "modified": "read a Modified line", "handover": "hand over lines, one way",
    "one_to_all": "one writes, others copy", "rewrite": "store where another has read",
    "rewrite_copy": "memcpy to where another has read",
    "pass_ordinary": "pass on, ordinary stores", "pass_string": "pass on, string copy",
    "pass_non_temporal": "pass on, non-temporal stores",
}


def rate(row: dict) -> str:
    """The last column: bandwidth, time of the payload, or nothing."""
    if "gbytes_per_s" in row:
        return f"{row['gbytes_per_s']:.1f} GB/s"
    if "there_and_back_ns" in row:
        ns = statistics.median(row["there_and_back_ns"])
        return f"cores {distance.state_of(ns)} ({ns:.0f} ns)"
    if row.get("payload_us") and row["bytes"]:
        return f"payload {spread(row['payload_us'], 1000)} ns"
    return ""


def limits_table(limits: dict) -> Table:
    """Everything, for people."""
    table = Table("limit", "CPUs", title="The machine's limits: median (least .. greatest "
                  "repetition)", title_justify="left")
    for name in ("bytes", "ns", "all together"):
        table.add_column(name, justify="right")
    for name, rows in limits.items():
        for row in rows:
            table.add_row(TITLES[name], ",".join(map(str, row["cpus"])),
                          size(row["bytes"]) if row["bytes"] else "",
                          spread(row["us"], 1000), rate(row))
        table.add_section()
    return table


def plot(file: Path, limits: dict, title: str) -> None:
    """Latency against the data set's size; bandwidth of copy, reduction and one-to-all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16.8, 3.8), layout="constrained")
    panels = figure.subplots(1, 4)
    draw(panels[0], limits["modified"], "reading Modified lines, random order", "ns per line",
         lambda row, value: 1000 * value, lambda cpus: "own" if len(cpus) == 1 else
         f"CPU {cpus[1]}'s")
    for panel, name in zip(panels[1:], ("copy", "reduction", "one_to_all"), strict=True):
        readers = name == "one_to_all"
        draw(panel, limits[name], TITLES[name], "GB/s, each process",
             lambda row, value: row["bytes"] / value / 1000,
             lambda cpus, readers=readers: f"{len(cpus) - readers} at once")
    panels[0].set_yscale("log")
    for panel in panels[1:]:
        panel.set_ylim(bottom=0)
    figure.suptitle(title, fontsize="medium")
    figure.savefig(file, dpi=150)


def draw(panel, rows: list[dict], title: str, unit: str, value_of, label_of) -> None:
    """One line for each set of CPUs; bands: least and greatest repetition."""
    for number, cpus in enumerate(dict.fromkeys(tuple(row["cpus"]) for row in rows)):
        chosen = [row for row in rows if tuple(row["cpus"]) == cpus]
        sizes = [row["bytes"] for row in chosen]
        style = STYLES[number % len(STYLES)]
        median, low, high = ([value_of(row, row["us"][name]) for row in chosen]
                             for name in ("median", "low", "high"))
        panel.plot(sizes, median, label=label_of(cpus), markersize=4, **style)
        panel.fill_between(sizes, low, high, alpha=0.2, linewidth=0, color=style["color"])
    panel.set_xscale("log", base=2)
    panel.set(title=title, xlabel="bytes", ylabel=unit)
    panel.grid(True, which="major", linewidth=0.4)
    if rows:
        panel.legend(fontsize="small")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the machine's own limits.")
    parser.add_argument("--cpus", type=lambda text: [int(part) for part in text.split(",")],
                        default=[core[0] for core in launch.cores(node.allowed_cpus())],
                        help="such as 0,2,4 (one of each core that this process may use); with "
                        "many cores all pairs take a while")
    parser.add_argument("--repetitions", type=int, default=7, help="of everything (7)")
    parser.add_argument("--seconds", type=float, default=0.03,
                        help="for each measurement of a repetition (0.03)")
    parser.add_argument("--quick", action="store_true",
                        help="3 repetitions of 2 ms, buffers of up to 1 MiB: a trial, no result")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, default=None, metavar="FILE",
                        help="draw latency and bandwidth against size (needs matplotlib)")
    arguments = parser.parse_args()
    if arguments.repetitions < 1 or arguments.seconds < 0:
        parser.error("--repetitions must be 1 or more, --seconds 0 or more")
    if not set(arguments.cpus) <= set(node.allowed_cpus()):
        parser.error(f"--cpus: this process may use {node.allowed_cpus()}")
    if len(set(arguments.cpus)) < len(arguments.cpus):
        parser.error("--cpus: each CPU once")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    if arguments.plot:
        require_matplotlib()
    settings = {"largest": 64 * MIB, "repetitions": arguments.repetitions,
                "seconds": arguments.seconds}
    if arguments.quick:
        settings = {"largest": MIB, "repetitions": 3, "seconds": 0.002}
    cpus = arguments.cpus
    meta = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "machine": machine_facts() | {
        "load_average": list(os.getloadavg())}, "cpus": cpus, "settings": settings}
    try:
        with tempfile.TemporaryDirectory() as folder:
            program, command = compile_program(Path(folder))
            meta["compiler"] = {"command": command, "version": compiler_version()}
            limits = measure(program, cpus, **settings)
    except LimitsError as error:
        Console(stderr=True, soft_wrap=True).print(f"limits: {error}", style="red", markup=False,
                                                   highlight=False)
        return 1
    title = f"{meta['machine']['processor']}, CPUs {','.join(map(str, cpus))}"
    console = wide_console()
    console.print(f"{title}; {command}", markup=False)
    console.print(limits_table(limits))
    if arguments.json:
        write_json(arguments.json, {"meta": meta, "limits": limits})
    if arguments.plot:
        plot(arguments.plot, limits, title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
