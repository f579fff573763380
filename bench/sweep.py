"""Sweep algorithm x fan-in x fan-out x segment size x message size, as in the figures of Graham &
Shipman 2008.

    python bench/sweep.py --ranks 2 --collectives allreduce --json sweep.json

Starts its own ranks. One communicator for each segment size; on it every algorithm and radix is a
contender of the same interleaved measurement (smcoll.measure), beside MPI's own collective. Prints
the fastest of each message size; the JSON has them all.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from pathlib import Path

from smcoll import launch
from smcoll.config import parse_bytes

RADICES = (2, 3, 4, 5, 6, 7, 8, 12, 16)


def numbers(text: str) -> list[int]:
    """``4K,128K`` -> bytes."""
    return [parse_bytes(part) for part in text.split(",")]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sweep algorithms, radices and segment sizes.")
    parser.add_argument("--ranks", type=int, default=2, help="ranks to start (2)")
    parser.add_argument("--layout", default=None, help="compact, spread, or CPUs such as 0,2,4-7")
    parser.add_argument("--collectives", default="bcast,reduce,allreduce",
                        help="comma-separated (bcast,reduce,allreduce)")
    parser.add_argument("--algorithms", default="", help="comma-separated (all)")
    parser.add_argument("--radices", type=numbers, default=list(RADICES),
                        help="fan-in and fan-out radices (2-8,12,16); those not below the number "
                        "of ranks are one tree, tried once")
    parser.add_argument("--segment-sizes", type=numbers, default=numbers("16K,64K,128K,256K"),
                        help="comma-separated (16K,64K,128K,256K)")
    parser.add_argument("--sizes", type=numbers, default=numbers("8,1K,32K,256K,1M,4M"),
                        help="message sizes (8,1K,32K,256K,1M,4M)")
    parser.add_argument("--budget", type=float, default=0.1,
                        help="seconds for each contender and message size (0.1)")
    parser.add_argument("--no-validate", dest="validate", action="store_false")
    parser.add_argument("--json", type=Path, default=None, help="write all rows")
    return parser.parse_args()


def variants(collective: str, arguments: argparse.Namespace, ranks: int) -> list[dict]:
    """Keyword arguments of the engine's call: each algorithm with each of its radices."""
    from smcoll.algos import ALGORITHMS
    from smcoll.algos import RADICES as RADICES_OF

    wanted = arguments.algorithms.split(",") if arguments.algorithms else None
    radices = sorted({min(radix, max(1, ranks - 1)) for radix in arguments.radices})
    result = []
    for algorithm in ALGORITHMS[collective]:
        if wanted and algorithm not in wanted:
            continue
        names = RADICES_OF.get((collective, algorithm), ())
        for values in itertools.product(radices, repeat=len(names)):
            result.append({"algorithm": algorithm, **dict(zip(names, values, strict=True))})
    return result


def name_of(variant: dict) -> str:
    """One word for a variant."""
    radices = [f"{name}={value}" for name, value in variant.items() if name != "algorithm"]
    return " ".join([variant["algorithm"], *radices])


def contender(engine, name: str, variant: dict):
    """A variant as smcoll.measure wants it."""
    from smcoll import measure

    return measure.Contender(
        name, lambda collective: functools.partial(getattr(engine, collective), **variant))


def sweep_segment_size(world, segment_size: int, arguments: argparse.Namespace) -> list[dict]:
    """All rows of one segment size."""
    from mpi4py import MPI

    import smcoll
    from smcoll import measure

    rows = []
    config = smcoll.Config(segment_size=segment_size, strict=True)
    with smcoll.Comm(world, config) as comm:
        for collective in arguments.collectives.split(","):
            chosen = variants(collective, arguments, world.Get_size())
            contenders = [measure.methods_of("mpi", MPI.Intracomm(world))]
            contenders += [contender(comm.engine, name_of(variant), variant) for variant in chosen]
            settings = measure.Settings(budget=arguments.budget * len(contenders),
                                        repetitions=7, validate=arguments.validate)
            bench = measure.Bench(world, contenders, settings)
            for nbytes in arguments.sizes if collective != "barrier" else [0]:
                result = bench.measure(collective, nbytes)
                for variant in chosen:
                    name = name_of(variant)
                    ratio, low, _ = result.ratio("mpi", name)
                    rows.append({
                        "collective": collective, "bytes": nbytes, "ranks": bench.ranks,
                        "segment_size": segment_size, **variant, "smcoll_us": result.median(name),
                        "mpi_us": result.median("mpi"), "ratio": ratio, "ratio_low": low,
                        "valid": result.valid[name], "mpi_valid": result.valid["mpi"],
                    })
            bench.close()
    return rows


def print_best(rows: list[dict]) -> None:
    """For each collective and size: the fastest variant, and how far behind the others are."""
    print(f"{'collective':10} {'bytes':>9} {'us':>9} {'MPI us':>9} {'ratio':>6}  fastest")
    for (collective, nbytes), group in itertools.groupby(
            sorted(rows, key=lambda row: (row["collective"], row["bytes"], row["smcoll_us"])),
            key=lambda row: (row["collective"], row["bytes"])):
        best, *others = [row for row in group if row["valid"] is not False]
        radices = {name: best[name] for name in ("fan_in", "fan_out") if name in best}
        text = name_of({"algorithm": best["algorithm"], **radices})
        second = next((row for row in others if row["algorithm"] != best["algorithm"]), None)
        behind = (f"; {second['algorithm']} takes {second['smcoll_us'] / best['smcoll_us']:.2f} "
                  "times as long") if second else ""
        print(f"{collective:10} {nbytes:9} {best['smcoll_us']:9.2f} {best['mpi_us']:9.2f} "
              f"{best['ratio']:6.2f}  {text}, segments of {best['segment_size']}{behind}")


def run_rank(arguments: argparse.Namespace) -> int:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rows = []
    for segment_size in arguments.segment_sizes:
        rows += sweep_segment_size(world, segment_size, arguments)
    if world.Get_rank() == 0:
        print_best(rows)
        if arguments.json is not None:
            meta = {"command": sys.argv, "library": MPI.Get_library_version().splitlines()[0],
                    "layout": arguments.layout}
            arguments.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")
    return 1 if any(row["valid"] is False for row in rows) else 0


def main() -> int:
    arguments = parse_arguments()
    if launch.under_mpiexec():
        return run_rank(arguments)
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return launch.run(arguments.ranks, [sys.executable, *sys.argv], layout=arguments.layout,
                      environment=threads).returncode


if __name__ == "__main__":
    sys.exit(main())
