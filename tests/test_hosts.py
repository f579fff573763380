"""Several hosts with memory and network of their own (hosts.py): results, and what is sent."""

from __future__ import annotations

import json
from pathlib import Path

import hosts
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(hosts.problem() is not None, reason=f"hosts: {hosts.problem()}"),
]
FUZZER = (Path(__file__).parent / "differential.py").read_text()

COUNT = """
    import json
    import numpy as np
    from mpi4py import MPI
    import smcoll

    world = MPI.COMM_WORLD
    comm = smcoll.Comm(world)
    vector = np.ones(131072)

    def sent():
        # Bytes that this host has sent; every host has an eth0 of its own.
        with open("/proc/net/dev") as lines:
            return next(int(line.split(":")[1].split()[8]) for line in lines if "eth0" in line)

    def bytes_of(call, times):
        call()
        world.Barrier()
        MPI.COMM_WORLD.Barrier()
        before, messages = sent(), comm.engine.span.network.messages
        for _ in range(times):
            call()
        messages = comm.engine.span.network.messages - messages
        comm.Barrier()
        mine = (sent() - before) if comm.engine.node.rank == 0 else 0
        return sum(world.allgather(mine)) / times, sum(world.allgather(messages)) / times

    one = np.ones(1)
    rows = {
        "bcast": bytes_of(lambda: comm.Bcast(vector, 1), 20),
        "allreduce": bytes_of(lambda: comm.Allreduce(one, np.empty(1)), 200),
        "nodes": comm.engine.span.place.nodes,
    }
    comm.Free()
    comm = smcoll.Comm(world, smcoll.Config(between_nodes="dissemination"))
    rows["dissemination"] = bytes_of(lambda: comm.Allreduce(one, np.empty(1)), 200)
    if world.rank == 0:
        print(json.dumps(rows))
"""


@pytest.mark.parametrize("ranks", [[2, 1], [3, 2, 1, 1]])
def test_random_programs_on_hosts(ranks):
    with hosts.Hosts(len(ranks)) as several:
        result = several.run_ranks(ranks, FUZZER, "--seconds", "5", "--seed", len(ranks))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "without a difference" in result.stdout


def test_what_crosses_the_network_grows_with_nodes_not_with_ranks():
    few, many, four = {}, {}, {}
    for ranks, rows in (([1, 1], few), ([4, 4], many), ([1, 1, 1, 1], four)):
        with hosts.Hosts(len(ranks)) as several:
            result = several.run_ranks(ranks, COUNT)
        assert result.returncode == 0, result.stdout + result.stderr
        rows |= json.loads(result.stdout)
    nbytes = 8 * 131072
    for rows in (few, many, four):
        # Headers of TCP and acknowledgements beside the data.
        assert 1 <= rows["bcast"][0] / (rows["nodes"] - 1) / nbytes < 1.2, rows
    # A message from each leader to the other; 2 x log2 2 and 4 x log2 4 by dissemination.
    assert few["allreduce"][1] == many["allreduce"][1] == 2
    assert [rows["dissemination"][1] for rows in (few, many, four)] == [2, 2, 8]
    assert many["allreduce"][0] < 2 * few["allreduce"][0]
