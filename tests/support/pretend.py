"""Pretended nodes: ranks of one machine that smcoll, and where it can MPI too, take for several.

``SMCOLL_NODE`` tells them apart for smcoll. For MPI, MPICH's cliques do, and with Open MPI (as
root) host names: a launch agent that stays on this machine starts each node's ranks in a UTS
namespace of its own. MPI's messages between the nodes then take its network path.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

AGENT = """#!/bin/sh
# Stands in for ssh: options, host, command.
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1; shift
exec unshare --uts sh -c "hostname $host; $*"
"""


def blocks(ranks: int, nodes: int) -> list[int]:
    """A node for each rank, in rank order, the first with the most: 5 on 2: 0 0 0 0 1."""
    alone = min(nodes, ranks) - 1
    return [0] * (ranks - alone) + list(range(1, alone + 1))


def round_robin(ranks: int, nodes: int) -> list[int]:
    """Neighbouring ranks on different nodes."""
    return [rank % nodes for rank in range(ranks)]


PLACEMENTS = {
    "blocks": lambda ranks: blocks(ranks, 2),
    "last alone first": lambda ranks: [1] + [0] * (ranks - 1),
    "round robin": lambda ranks: round_robin(ranks, 2),
    "three nodes": lambda ranks: blocks(ranks, 3),
    "three, round robin": lambda ranks: round_robin(ranks, 3),
    "all alone": lambda ranks: list(range(ranks)),
}
# Of a communicator on them: short messages are cut, sliced and bundled, too.
SETTINGS = {"internals": {"network_section": 8192, "slice_above": 16384, "bundle_size": 2048}}


def settings(ranks: int, nodes: int, directory: Path) -> tuple[list[str], dict[str, str]]:
    """(mpiexec's options, environment) that split a job's ranks for MPI, too, where that can be.

    ``directory``: where a launch agent may be put. Intel MPI, and Open MPI without root, take the
    nodes for one.
    """
    from smcoll.launch import launch

    if nodes == 1 or ranks == 1:
        return [], {}
    family = launch.mpi_info().family
    if family == launch.MPICH:
        return [], {"MPIR_CVAR_NUM_CLIQUES": str(min(ranks, nodes)),
                    "MPIR_CVAR_CLIQUES_BY_BLOCK": "1"}
    if family != launch.OPEN_MPI or os.geteuid() != 0 or shutil.which("unshare") is None:
        return [], {}
    agent = directory / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    on_node = blocks(ranks, nodes)
    hosts = ",".join(f"pretended{node}:{on_node.count(node)}" for node in sorted(set(on_node)))
    # Unbound, since every node would bind its first rank to the same CPU.
    return ["--host", hosts], {"PRTE_MCA_plm_ssh_agent": str(agent),
                               "PRTE_MCA_hwloc_default_binding_policy": "none"}


def enter_node(world, nodes: int) -> None:
    """Say on which pretended node this rank is: as MPI sees it, else as in ``blocks``."""
    from mpi4py import MPI

    together = world.Split_type(MPI.COMM_TYPE_SHARED)
    node = together.bcast(world.rank)
    if together.size == world.size:
        node = blocks(world.size, nodes)[world.rank]
    together.Free()
    os.environ["SMCOLL_NODE"] = str(node)
