"""Collectives that C code calls in a Python process: through what MPI_X is, and through PMPI_X.

    python bench/libraries.py -n 2 [--libraries] [--json FILE]

Compiles libraries.c (``$CC``, else cc; no mpi.h is needed) and calls its loops by ctypes in the
ranks of one job. ``--libraries``: after ``smcoll.install(libraries=True)``, so that MPI_X is
smcoll's; without it both are the MPI's, and the ratios say how far the machine can be trusted. The
two ways have a duplicate of MPI.COMM_WORLD each, and take turns block by block. A time is the
median over blocks of the slowest rank's; a ratio above 1 says that MPI_X is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("libraries.c")
COLLECTIVES = ("barrier", "bcast", "reduce", "allreduce", "allgather", "dup loop")
WAYS = ("through", "own")
WARM_UP = 7000      # calls of each size and way before the first that counts: past the comparison
DUPLICATES = 10_000
TIMEOUT = 1800      # seconds, the job


class Failure(RuntimeError):
    """No compiler, or a job that failed."""


def compile_loops(folder: str, library: str) -> str:
    """Path of the loops as a shared object that needs this MPI."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise Failure(f"there is no C compiler {compiler!r}: set CC")
    target = str(Path(folder, "libraries.so"))
    result = subprocess.run([compiler, "-O2", "-fPIC", "-shared", str(SOURCE), "-o", target,
                             library], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Failure(f"{compiler} fails:\n{result.stderr.strip()}")
    return target


# ---------------------------------------------------------------------- a rank


class Loops:
    """The loops of libraries.c on two duplicates of MPI.COMM_WORLD."""

    def __init__(self, MPI, path: str, largest: int):
        import ctypes

        import numpy as np

        self.MPI, self.ctypes = MPI, ctypes
        # Bound at once, to what is there now.
        self.library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.library.block.restype = ctypes.c_double
        self.library.place_of_allreduce.restype = ctypes.c_void_p
        world = MPI.COMM_WORLD
        # mpi4py's own communicators: who makes these decides nothing about the calls on them.
        dup = MPI.Intracomm.Dup
        self.comms = {way: dup(world) for way in WAYS}
        self.start, self.results = dup(world), dup(world)
        self.data = np.zeros(max(largest // 8, 1))
        self.result = np.zeros(max(largest // 8, 1) * world.Get_size())

    def interposed(self) -> bool:
        """Whether MPI_X is somebody else's."""
        return self.library.place_of_allreduce(0) != self.library.place_of_allreduce(1)

    def handle(self, thing):
        """What C code has for it."""
        return self.ctypes.c_size_t(self.MPI._handleof(thing))

    def block(self, way: str, what: str, nbytes: int, calls: int) -> float:
        """The slowest rank's µs for a call."""
        pointer = self.ctypes.c_void_p
        seconds = self.library.block(
            int(way == "own"), COLLECTIVES.index(what), pointer(self.data.ctypes.data),
            pointer(self.result.ctypes.data), max(nbytes // 8, 1), self.handle(self.MPI.DOUBLE),
            self.handle(self.MPI.SUM), self.handle(self.comms[way]), self.handle(self.start),
            self.ctypes.c_long(calls))
        slowest = self.results.allreduce(seconds, self.MPI.MAX)
        if self.results.allreduce(seconds, self.MPI.MIN) < 0:
            raise Failure(f"{what} of {nbytes} bytes ({way}) returned an error")
        return slowest / calls * 1e6

    def row(self, what: str, nbytes: int, seconds: float, blocks: int, duplicates: int) -> dict:
        """Blocks of both ways by turns."""
        import statistics

        if what == "dup loop":
            calls, warm_up = max(duplicates // blocks, 1), 1
        else:
            first = max(self.block(way, what, nbytes, 10) for way in WAYS)
            warm_up = min(WARM_UP, max(int(seconds / 2 / first * 1e6), 1))
            slower = max(self.block(way, what, nbytes, warm_up) for way in WAYS)
            calls = max(int(seconds / 2 / blocks / slower * 1e6), 1)
        times = {way: [] for way in WAYS}
        for turn in range(blocks):
            for way in WAYS if turn % 2 else reversed(WAYS):
                times[way].append(self.block(way, what, nbytes, calls))
        row = {"collective": what, "bytes": nbytes, "ranks": self.results.Get_size(),
               "calls": calls, "blocks": blocks}
        for way in WAYS:
            row[f"{way}_us"] = statistics.median(times[way])
            row[f"{way}_us_blocks"] = times[way]
        ratios = sorted(own / through for through, own in
                        zip(times["through"], times["own"], strict=True))
        row["ratio"] = row["own_us"] / row["through_us"]
        row["ratio_low"], row["ratio_high"] = ratios[len(ratios) // 4], ratios[-len(ratios) // 4]
        return row


def rank_main(arguments: argparse.Namespace) -> int:
    """Measure; rank 0 writes a line of JSON for each row."""
    from mpi4py import MPI

    if arguments.libraries:
        import smcoll

        smcoll.install(libraries=True)
    loops = Loops(MPI, arguments.rank, max(arguments.sizes))
    rank = loops.results.Get_rank()
    if rank == 0:
        print(json.dumps({"interposed": loops.interposed()}), flush=True)
    for what in arguments.collectives:
        for nbytes in {"barrier": [0], "dup loop": [8]}.get(what, arguments.sizes):
            row = loops.row(what, nbytes, arguments.budget, arguments.blocks, arguments.duplicates)
            if rank == 0:
                print(json.dumps(row), flush=True)
    return 0


# ---------------------------------------------------------------------- the outer process


def measure(arguments: argparse.Namespace, library: str) -> tuple[list[dict], bool]:
    """Rows, and whether MPI_X was somebody else's."""
    from smcoll.launch import launch

    with tempfile.TemporaryDirectory(prefix="smcoll-libraries-") as folder:
        path = compile_loops(folder, library)
        argv = [sys.executable, str(Path(__file__).resolve()), "--rank", path,
                "--message-size", arguments.message_size, "--factor", str(arguments.factor),
                "--collectives", ",".join(arguments.collectives),
                "--budget", str(arguments.budget), "--blocks", str(arguments.blocks),
                "--duplicates", str(arguments.duplicates)]
        argv += ["--libraries"] if arguments.libraries else []
        search = os.pathsep.join(entry for entry in sys.path if entry)
        job = launch.run(arguments.ranks, argv, TIMEOUT, capture_output=True, text=True,
                         stdin=subprocess.DEVNULL,
                         environment={"PYTHONPATH": search, "OPENBLAS_NUM_THREADS": "1"})
    if job.returncode != 0:
        raise Failure(f"the job ended with code {job.returncode}\n{job.stdout[-1000:]}\n"
                      f"{job.stderr[-3000:]}")
    lines = [json.loads(line) for line in job.stdout.splitlines() if line.startswith("{")]
    return lines[1:], lines[0]["interposed"]


def print_rows(rows: list[dict], title: str) -> None:
    """The table."""
    from rich.table import Table

    from smcoll.cli import output

    table = Table(title=title, title_justify="left")
    for name in ("collective", "bytes", "MPI_X us", "PMPI_X us", "ratio", "middle half"):
        table.add_column(name, justify="left" if name == "collective" else "right")
    for row in rows:
        table.add_row(row["collective"], str(row["bytes"]), output.microseconds(row["through_us"]),
                      output.microseconds(row["own_us"]), f"{row['ratio']:.2f}",
                      f"{row['ratio_low']:.2f}-{row['ratio_high']:.2f}")
    output.wide_console().print(table)


def sizes(text: str, factor: int) -> list[int]:
    """From the least to the greatest of ``MIN:MAX``."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20}
    least, most = (int(number) * units[unit] for number, unit in
                   re.findall(r"(\d+)([KM]?)(?::|$)", text))
    found = [least]
    while found[-1] * factor <= most:
        found.append(found[-1] * factor)
    return found if found[-1] == most else [*found, most]


def parse_arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--libraries", action="store_true", help="smcoll.install(libraries=True)")
    parser.add_argument("-m", "--message-size", default="8:1M", metavar="MIN:MAX",
                        help="bytes (8:1M)")
    parser.add_argument("--factor", type=int, default=4, help="from size to size (4)")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--budget", type=float, default=0.6, help="seconds for each row (0.6)")
    parser.add_argument("--blocks", type=int, default=15, help="of each way for each row (15)")
    parser.add_argument("--duplicates", type=int, default=DUPLICATES,
                        help=f"that the dup loop makes and frees each way ({DUPLICATES})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.collectives = arguments.collectives.split(",")
    unknown = set(arguments.collectives) - set(COLLECTIVES)
    if unknown:
        parser.error(f"{sorted(unknown)}: known are {', '.join(COLLECTIVES)}")
    arguments.sizes = sizes(arguments.message_size, arguments.factor)
    return arguments


def main() -> int:
    """Exit code 1: it could not be measured."""
    arguments = parse_arguments()
    if arguments.rank is not None:
        return rank_main(arguments)
    from smcoll.cli import info, output
    from smcoll.launch import launch
    from smcoll.tuning.distance import farthest

    mpi = launch.mpi_info()
    cpus = os.sched_getaffinity(0)
    try:
        before = farthest(cpus)
        rows, interposed = measure(arguments, mpi.library)
        after = farthest(cpus)
    except (Failure, launch.LaunchError) as error:
        print(f"libraries.py: {error}", file=sys.stderr)
        return 1
    whose = "smcoll's" if interposed else "the MPI's own"
    print_rows(rows, f"Calls from C, {arguments.ranks} ranks, {mpi.title}; MPI_X is {whose}")
    if arguments.json is not None:
        output.write_json(arguments.json, {"meta": {
            "mpi": {"family": mpi.family, "version": mpi.version}, "ranks": arguments.ranks,
            "libraries": arguments.libraries, "interposed": interposed,
            "machine": info.machine_facts(),
            "round_trip_ns": {"before": before, "after": after},
            "command": ["python", "bench/libraries.py", *sys.argv[1:]]}, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
