"""Rings of NEURON cells on all ranks: prints a checksum of the spikes, and where the time went.

    mpiexec -n 2 python tests/libraries/neuron_ring.py [--libraries] [--cells 4096] [--ms 200]

NEURON exchanges spikes by MPI_Allgather (and what does not fit in it by MPI_Allgatherv) once in
each minimal delay, in C. The cells are artificial (IntFire4-like cost is of no interest here): what
is measured is the exchange. Every rank prints nothing but rank 0: JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time

import begin

DELAY = 0.5        # ms; the exchange happens so often
PER_RING = 64      # cells


def build(pc, h, cells: int) -> dict:
    """Rings of cells that hand one spike on, cell gid lives on rank gid % ranks."""
    rank, ranks = int(pc.id()), int(pc.nhost())
    kept = {"cells": {}, "connections": [], "starters": []}
    for gid in range(rank, cells, ranks):
        cell = h.IntFire1()
        cell.tau, cell.refrac = 10, 0.2
        kept["cells"][gid] = cell
        pc.set_gid2node(gid, rank)
        pc.cell(gid, h.NetCon(cell, None))
    for gid, cell in kept["cells"].items():
        ring, place = divmod(gid, PER_RING)
        members = min(PER_RING, cells - ring * PER_RING)
        before = ring * PER_RING + (place - 1) % members
        connection = pc.gid_connect(before, cell)
        connection.weight[0], connection.delay = 1.1, DELAY + 0.01 * (ring % 7)
        kept["connections"].append(connection)
        if place == 0:
            start = h.NetStim()
            start.number, start.start = 1, 0.1 + 0.003 * ring
            first = h.NetCon(start, cell)
            first.weight[0], first.delay = 1.1, 0.1
            kept["starters"] += [start, first]
    return kept


def allreduce_us(pc, calls: int) -> float:
    """Of one pc.allreduce of a number."""
    pc.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        pc.allreduce(1, 1)
    return (time.perf_counter() - began) / calls * 1e6


def main() -> int:
    """Exit code 1: sums over ranks are wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", action="store_true", help="smcoll.install(libraries=True)")
    parser.add_argument("--cells", type=int, default=4096)
    parser.add_argument("--ms", type=float, default=1500, help="simulated (1500)")
    parser.add_argument("--calls", type=int, default=5000, help="of pc.allreduce (5000)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    MPI = begin.begin(arguments.libraries)
    begin.find_libmpi_for_neuron()
    from neuron import h

    h.nrnmpi_init()
    pc = h.ParallelContext()
    rank, ranks = int(pc.id()), int(pc.nhost())
    if ranks != MPI.COMM_WORLD.Get_size():
        print(f"NEURON has {ranks} ranks, mpi4py {MPI.COMM_WORLD.Get_size()}", file=sys.stderr)
        return 1
    kept = build(pc, h, arguments.cells)
    times, gids = h.Vector(), h.Vector()
    pc.spike_record(-1, times, gids)
    pc.set_maxstep(10)
    h.finitialize()
    pc.barrier()
    began = time.perf_counter()
    pc.psolve(arguments.ms)
    seconds = time.perf_counter() - began
    waited = pc.wait_time()
    exchanges = pc.allreduce(1, 1)

    # Each rank's spikes as numbers; NEURON's own collective of Python objects brings them together.
    parts = pc.py_allgather((list(times), list(map(int, gids))))
    spikes = sorted((when, gid) for part in parts for when, gid in zip(*part, strict=True))
    text = "".join(f"{when:.6f} {gid}\n" for when, gid in spikes)
    per_call = allreduce_us(pc, arguments.calls)
    slowest = pc.allreduce(per_call, 2)
    result = {
        "ranks": ranks, "cells": arguments.cells, "spikes": len(spikes),
        "checksum": hashlib.sha256(text.encode()).hexdigest()[:16],
        "solve_s": pc.allreduce(seconds, 2), "wait_s": pc.allreduce(waited, 2),
        "allreduce_us": slowest, "libraries": arguments.libraries,
        "library": MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0 "),
    }
    if arguments.libraries:
        result["served"] = begin.served()
    right = exchanges == ranks and len(kept["cells"]) > 0
    if rank == 0:
        print(json.dumps(result) if arguments.json else
              "\n".join(f"{name}: {value}" for name, value in result.items()), flush=True)
    pc.barrier()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
