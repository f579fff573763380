"""Pretended nodes: ranks of one machine that smcoll, and where it can MPI too, take for several.

``SMCOLL_NODE`` tells them apart for smcoll. MPICH's cliques, where they are asked for, make MPI
send messages between them through its network path; the pretended nodes are those then.
"""

from __future__ import annotations

import os


def blocks(ranks: int, nodes: int) -> list[int]:
    """A node for each rank, in rank order, the first with the most: 5 on 2: 0 0 0 0 1."""
    alone = min(nodes, ranks) - 1
    return [0] * (ranks - alone) + list(range(1, alone + 1))


def round_robin(ranks: int, nodes: int) -> list[int]:
    """Neighbouring ranks on different nodes."""
    return [rank % nodes for rank in range(ranks)]


def clique_settings(nodes: int) -> dict[str, str]:
    """What makes MPICH split a job's ranks in so many cliques; others don't know it."""
    return {"MPIR_CVAR_NUM_CLIQUES": str(nodes), "MPIR_CVAR_CLIQUES_BY_BLOCK": "1"}


def enter_node(world, nodes: int) -> None:
    """Say on which pretended node this rank is: on its clique, else as in ``blocks``."""
    from mpi4py import MPI

    together = world.Split_type(MPI.COMM_TYPE_SHARED)
    node = together.bcast(world.rank)
    if together.size == world.size:
        node = blocks(world.size, nodes)[world.rank]
    together.Free()
    os.environ["SMCOLL_NODE"] = str(node)
