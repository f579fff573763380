"""Several hosts with memory and network of their own (hosts.py): results, and what is sent."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hosts
import pytest

from smcoll import launch, mpi_settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(hosts.problem() is not None, reason=f"hosts: {hosts.problem()}"),
]
MACHINE = "package:2 l3:2 core:2"
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


def test_compare_starts_its_ranks_on_hosts(tmp_path):
    settings = mpi_settings.settings(launch.mpi_info().family, several_nodes=True)
    with hosts.Hosts(2) as several:
        (several.folder / "list").write_text("n1 slots=2\nn2:1\n")
        for setting in settings:
            result = several.run(launch.own_command(
                "compare", "--hostfile", str(several.folder / "list"), "--mpi-setting", setting,
                "--sizes", "8", "--collectives", "bcast,allreduce", "--budget", "0.02", "-r", "2",
                "--no-point-to-point", "--json", str(tmp_path / "out.json")))
            assert result.returncode == 0, result.stdout + result.stderr
            assert "3 ranks on 2 nodes (2, 1)" in result.stdout
            record = json.loads((tmp_path / "out.json").read_text())
            nodes = record["meta"]["jobs"][0]["nodes"]
            assert [(node["host"], node["ranks"]) for node in nodes] == [
                ("n1", [0, 1]), ("n2", [2])]
            assert {row["path"] for row in record["rows"]} == {"shared memory and network"}
            assert all(row["valid"] for row in record["rows"])


def test_run_starts_a_program_on_hosts():
    with hosts.Hosts(2) as several:
        program = several.folder / "program.py"
        program.write_text("from mpi4py import MPI\nimport os, sys\n"
                           "found = MPI.COMM_WORLD.allgather((os.uname().nodename, "
                           "os.environ.get('SMCOLL_SPIN')))\n"
                           "MPI.COMM_WORLD.rank == 0 and print(found, sys.argv[1:])\n")
        result = several.run(["env", "SMCOLL_SPIN=5", *launch.own_command(
            "run", "--hosts", "n1,n2", "-n", "3", str(program), "a")])
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[('n1', '5'), ('n1', '5'), ('n2', '5')] ['a']" in result.stdout


@pytest.mark.parametrize("name, options", [
    ("matvec", ["--size", "24", "--iterations", "5"]),
    ("barnes_hut", ["--bodies", "20000", "--capacity", "20"]),
    ("vectors", ["--doubles", "1,7000", "--iterations", "2", "--topology", MACHINE]),
    ("summa", ["--size", "48", "--block", "2", "--rows", "1", "--topology", MACHINE]),
])
def test_applications_give_the_same_on_hosts(name, options, tmp_path):
    with hosts.Hosts(2) as several:
        result = several.run([sys.executable, "-m", f"smcoll.apps.{name}", "--hosts", "n1:4,n2:4",
                              *options, "-r", "1", "--json", str(tmp_path / "out.json")])
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert rows and all(row["valid"] and row["ranks"] == 8 for row in rows)
    if MACHINE in options:
        assert "level 3 of" in result.stdout
