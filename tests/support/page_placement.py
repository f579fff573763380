"""Run by test_page_placement inside a machine with NUMA nodes: ``page_placement.py RANKS``.

Starts a job of ranks bound to one CPU each, over all nodes, which say where their memory lies.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def node_of(cpu: int) -> int:
    (folder,) = Path(f"/sys/devices/system/cpu/cpu{cpu}").glob("node[0-9]*")
    return int(folder.name.removeprefix("node"))


def inside() -> None:
    import numpy as np
    from mpi4py import MPI

    import smcoll

    world = MPI.COMM_WORLD
    (cpu,) = os.sched_getaffinity(0)
    with smcoll.Comm(world, smcoll.Config(segment_size="32K")) as comm:
        result = np.zeros(50_000)
        comm.Allreduce(np.ones(50_000), result)              # makes the data regions,
        comm.Scatter(np.ones(world.size), result[:1])        # and the streams
        assert result[1] == world.size
        row = {"rank": world.rank, "node": node_of(cpu), "pages": comm.engine.pages_by_node(),
               "reserved": comm.engine.bytes_reserved, "domains": comm.engine.domains.members}
    rows = world.gather(row)
    if world.rank == 0:
        print("\n".join(f"@@rank {row}" for row in rows), flush=True)


def outside(ranks: int) -> int:
    from smcoll.launch import launch

    return launch.run(ranks, [sys.executable, __file__], layout="spread", timeout=400).returncode


if __name__ == "__main__":
    sys.exit(outside(int(sys.argv[1])) if len(sys.argv) > 1 else inside())
