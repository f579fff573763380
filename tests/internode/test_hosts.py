"""Several hosts with memory and network of their own (hosts.py): results, and what is sent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hosts
import pytest
from programs import results

from smcoll.launch import launch, mpi_settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(hosts.problem() is not None, reason=f"hosts: {hosts.problem()}"),
]
PAPERS = Path(__file__).resolve().parents[2] / "examples" / "papers"
MACHINE = "package:2 l3:2 core:2"
FUZZER = (Path(__file__).parents[1] / "verification" / "differential.py").read_text()

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
        "nodes": comm.engine.span.placement.nodes,
    }
    comm.Free()
    comm = smcoll.Comm(world, smcoll.Config(across_nodes="dissemination"))
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


VANISH = """
    import os, signal, sys, time
    import numpy as np
    from mpi4py import MPI
    import smcoll

    directory, first_dead, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    world = MPI.COMM_WORLD
    rank = world.rank
    comm = smcoll.Comm(world)
    host = comm.allgather(os.uname().nodename)
    for _ in range(3):
        comm.Allreduce(np.ones(count), np.ones(count))

    def report(name, text):
        with open(os.path.join(directory, f"{name}.part"), "w") as file:
            file.write(text)
        os.rename(file.name, os.path.join(directory, f"{name}"))

    report(f"pid-{rank}", str(os.getpid()))
    if host[rank] == host[first_dead]:
        time.sleep(60)             # until the test kills it
    try:
        for _ in range(1000):
            comm.Allreduce(np.ones(count), np.ones(count))
            comm.Barrier()
        report(f"rank-{rank}", "no error")
    except BaseException as error:
        report(f"rank-{rank}", f"{time.monotonic():.1f} {type(error).__name__} {error}")
    time.sleep(60)
"""


@pytest.mark.parametrize("ranks, dying, count", [
    ([2, 2], [2, 3], 1), ([2, 2, 1], [2, 3], 100_000), ([2, 2], [2], 1)])
def test_a_host_whose_processes_are_killed_is_named_without_a_timeout(ranks, dying, count):
    with hosts.Hosts(len(ranks)) as several:
        folder = several.folder
        command, variables = several.command(ranks, VANISH, folder, dying[0], count,
                                             outlives_its_dead=True)
        with open(folder / "output", "w") as output:
            job = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT)
        try:
            everyone = range(sum(ranks))
            wait_for([folder / f"pid-{rank}" for rank in everyone])
            time.sleep(0.5)        # the others are in a call
            at = time.monotonic()
            pids = [int((folder / f"pid-{rank}").read_text()) for rank in dying]
            for how in (signal.SIGSTOP, signal.SIGKILL):
                for pid in pids:
                    os.kill(pid, how)
            others = [rank for rank in everyone if rank not in (2, 3)]
            found = results(folder, others)
            assert set(found) == set(others), (found, (folder / "output").read_text())
            for text in found.values():
                ended, kind, message = text.split(" ", 2)
                assert kind == "PeerError", text
                assert "rank 2 has died, the leader of ranks 2 and 3 on n2" in message, text
                print(f"{float(ended) - at:.1f} s after the death: {message}")
                assert float(ended) - at < 10, text
        finally:
            several.end_processes()
            job.kill()
            job.wait()


def wait_for(files, seconds=30):
    end = time.monotonic() + seconds
    while not all(file.exists() for file in files):
        assert time.monotonic() < end, [file for file in files if not file.exists()]
        time.sleep(0.05)


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
                           "os.environ.get('SMCOLL_SEGMENTS')))\n"
                           "MPI.COMM_WORLD.rank == 0 and print(found, sys.argv[1:])\n")
        result = several.run(["env", "SMCOLL_SEGMENTS=5", *launch.own_command(
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
        result = several.run([sys.executable, str(PAPERS / f"{name}.py"), "--hosts", "n1:4,n2:4",
                              *options, "-r", "1", "--json", str(tmp_path / "out.json")])
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert rows and all(row["valid"] and row["ranks"] == 8 for row in rows)
    if MACHINE in options:
        assert "level 3 of" in result.stdout
