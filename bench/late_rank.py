"""When one rank comes late: how soon all are through after it, and what the others' waiting costs.

    python bench/late_rank.py -n 2 --json late.json

Between two calls programs compute, and ranks are seldom done at the same time. Here the last rank
computes for a time before an Allreduce, the others come at once. Measured are the time from its
coming until the last rank has the result, and the CPU time that rank 0 spent in the call, with
MPI's own Allreduce and with smcoll's by turns in one job; medians, and in the JSON the 90th
percentile.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from smcoll.launch import launch


def compute(seconds: float) -> None:
    """Keep the CPU busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def one_call(world, comm, late: float, vectors) -> tuple[float, float]:
    """Seconds until all are through, and rank 0's CPU seconds; on rank 0."""
    world.Barrier()
    comm.Barrier()
    if world.Get_rank() == world.Get_size() - 1:
        compute(late)
    spent, came = time.process_time(), time.monotonic_ns()
    comm.Allreduce(*vectors)
    left, spent = time.monotonic_ns(), time.process_time() - spent
    everyone = world.gather((came, left))
    if everyone is None:
        return 0.0, 0.0
    return (max(left for _, left in everyone) - max(came for came, _ in everyone)) * 1e-9, spent


def measure(arguments: argparse.Namespace) -> list[dict] | None:
    """A row for each lateness; on rank 0."""
    from mpi4py import MPI

    import smcoll

    world = MPI.COMM_WORLD
    vectors = np.ones(arguments.bytes // 8), np.empty(arguments.bytes // 8)
    rows = []
    with smcoll.Comm(world, smcoll.Config(learn="off")) as ours:
        for late in arguments.late:
            calls: dict[str, list[tuple[float, float]]] = {"mpi": [], "smcoll": []}
            for _ in range(arguments.rounds):
                for name, comm in (("mpi", world), ("smcoll", ours)):
                    calls[name] += [one_call(world, comm, late * 1e-3, vectors)
                                    for _ in range(arguments.calls)]
            row = {"late_ms": late, "bytes": arguments.bytes, "ranks": world.Get_size()}
            for name, measured in calls.items():
                through, spent = np.array(measured).T
                row[f"{name}_us"] = float(np.median(through)) * 1e6
                row[f"{name}_us_90"] = float(np.percentile(through, 90)) * 1e6
                row[f"{name}_cpu_ms"] = float(np.median(spent)) * 1e3
            rows.append(row)
    return rows if world.Get_rank() == 0 else None


def report(arguments: argparse.Namespace, rows: list[dict]) -> None:
    """Table and JSON."""
    from rich.table import Table

    from smcoll.cli import info, output

    table = Table(title=f"Allreduce of {arguments.bytes} bytes, {rows[0]['ranks']} ranks, the last "
                        "one late", title_justify="left")
    for name in ("late by ms", "smcoll us", "MPI us", "CPU ms of smcoll", "of MPI"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(f"{row['late_ms']:g}", output.microseconds(row["smcoll_us"]),
                      output.microseconds(row["mpi_us"]), f"{row['smcoll_cpu_ms']:.2f}",
                      f"{row['mpi_cpu_ms']:.2f}")
    output.wide_console(force_terminal=False).print(table)
    if arguments.json is not None:
        from mpi4py import MPI

        vendor, version = MPI.get_vendor()
        meta = {"command": ["python", "bench/late_rank.py", *sys.argv[1:]],
                "mpi": f"{vendor} {'.'.join(map(str, version))}", "versions": info.versions(),
                "machine": info.machine_facts(), "date": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        output.write_json(arguments.json, {"meta": meta, "rows": rows})


def main() -> int:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--ranks", type=int, default=2, help="ranks to start (2)")
    parser.add_argument("--late", default="0.1,0.5,1.5,3,6,12,25,50,100", metavar="MS,...",
                        type=lambda text: [float(part) for part in text.split(",")],
                        help="how late the last rank comes, ms (0.1 to 100)")
    parser.add_argument("--bytes", type=int, default=8, help="of the vector (8)")
    parser.add_argument("--rounds", type=int, default=10, help="of MPI and smcoll by turns (10)")
    parser.add_argument("--calls", type=int, default=4, help="in each round (4)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write all rows")
    arguments = parser.parse_args()
    if min(arguments.ranks - 1, arguments.bytes // 8, arguments.rounds, arguments.calls) < 1:
        parser.error("at least 2 ranks, 8 bytes, a round and a call")
    if not launch.under_mpiexec():
        return launch.run(arguments.ranks, [sys.executable, __file__, *sys.argv[1:]],
                          environment={"OMP_NUM_THREADS": "1"}).returncode
    rows = measure(arguments)
    if rows is not None:
        report(arguments, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
