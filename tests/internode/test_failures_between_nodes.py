"""Communicators over several (pretended) nodes: errors and deaths, told to all nodes."""

from __future__ import annotations

import os
import re
import time

import numpy as np
import programs
import pytest
from mpi4py import MPI
from pretend import SETTINGS
from programs import end_job, results

import smcoll
from smcoll.internode import connections, notices, watch
from smcoll.memory import budget as memory


@pytest.mark.mpi(4)
@pytest.mark.parametrize("spread", ["blocks", "round robin"], indirect=True)
@pytest.mark.parametrize("wrong", ["Barrier", "root", "bytes"])
def test_ranks_of_different_nodes_that_disagree_find_out(spread, wrong):
    spread.Barrier()
    comm = smcoll.Comm(spread, smcoll.Config(timeout=30))
    if comm.engine.notices.unwatched:
        pytest.skip(f"leaders do not watch each other: {comm.engine.notices.unwatched}")
    comm.Barrier()
    last_node = os.environ["SMCOLL_NODE"] == "1"
    with pytest.raises(smcoll.Error) as raised:
        for _ in range(3):              # who only sends finds out in a later call
            if wrong == "Barrier" and last_node:
                comm.Barrier()
            elif wrong == "root":
                comm.Bcast(np.zeros(3), 1 if last_node else 0)
                comm.Barrier()
            else:
                comm.Allreduce(np.zeros(4 if last_node else 3), np.zeros(4 if last_node else 3))
    found = spread.allgather((type(raised.value).__name__, str(raised.value)))
    assert {name for name, _ in found} == {"MismatchError"}, found
    with pytest.raises(smcoll.Error):
        comm.Barrier()


@pytest.mark.lengthy
@pytest.mark.mpi(4)
@pytest.mark.parametrize("spread", ["blocks", "round robin"], indirect=True)
def test_ranks_that_come_late_are_asked_and_nothing_happens(spread, monkeypatch):
    monkeypatch.setattr(notices, "ASK_AFTER", 0.05)
    comm = smcoll.Comm(spread)
    total = np.zeros(2000)
    for step in range(3):
        for root in range(comm.size):
            if comm.rank == (step + root) % comm.size:
                time.sleep(0.2)
            comm.Bcast(np.zeros(3), root)
            comm.Reduce(np.ones(2000), total if comm.rank == root else None, root=root)
            if comm.rank == root:
                assert (total == comm.size).all()
            comm.Barrier()
    mine = comm.engine.notices
    assert any(spread.allgather(mine.asked > 0)) or mine.unwatched
    comm.Free()


@pytest.mark.mpi(3)
@pytest.mark.parametrize("spread", ["all alone"], indirect=True)
def test_who_frees_a_communicator_tells_a_rank_that_asked_and_disagrees(spread, monkeypatch):
    monkeypatch.setattr(notices, "ASK_AFTER", 0.05)
    comm = smcoll.Comm(spread, smcoll.Config(timeout=30))
    if comm.engine.notices.unwatched:
        pytest.skip(f"leaders do not watch each other: {comm.engine.notices.unwatched}")
    comm.Barrier()
    if comm.rank == 0:
        with pytest.raises(smcoll.MismatchError):
            comm.Bcast(np.zeros(1), 1)
    elif comm.rank == 1:
        comm.Reduce(np.ones(1), None, root=2)      # sends, and is through
        time.sleep(1)
        comm.Free()
    spread.Barrier()


@pytest.mark.mpi(3)
@pytest.mark.parametrize("spread", ["all alone"], indirect=True)
def test_a_timeout_names_who_did_not_come_and_not_who_came_later(spread):
    comm = smcoll.Comm(spread, smcoll.Config(timeout=1))
    comm.Barrier()
    total = np.zeros(1)
    if comm.rank == 2:
        time.sleep(0.3)
    if comm.rank == 1:
        time.sleep(2)
    else:
        try:
            comm.Reduce(np.ones(1), total, root=0)
        except smcoll.WaitTimeout as error:
            assert comm.rank == 0 and "rank 1" in str(error) and "rank 2" not in str(error)
        else:
            assert comm.rank == 2
    spread.Barrier()


@pytest.mark.mpi(4)
@pytest.mark.parametrize("spread", ["blocks"], indirect=True)
def test_an_interrupt_between_two_reservations_is_told_to_all(spread, monkeypatch):
    comm = smcoll.Comm(spread, smcoll.Config(timeout=30))
    comm.Barrier()
    claims = []

    def claim(self, wanted, kind):
        claims.append(wanted)
        if len(claims) == 2 and comm.rank == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(memory.Budget, "claim", claim)
    with pytest.raises(KeyboardInterrupt if comm.rank == 1 else smcoll.Error):
        comm.Allreduce(np.ones(100_000), np.ones(100_000))
    assert len(claims) == 2
    with pytest.raises(smcoll.Error):
        comm.Barrier()


@pytest.mark.mpi(4)
@pytest.mark.parametrize("spread", ["blocks", "round robin"], indirect=True)
@pytest.mark.parametrize("unit", [1, 1000])
def test_ranks_that_disagree_about_the_counts_of_an_allgatherv_find_out(spread, unit):
    comm = smcoll.Comm(spread, smcoll.Config(timeout=20, **SETTINGS))
    rank = comm.rank
    agreed, wrong = unit * np.array([3, 2, 1, 4]), unit * np.array([3, 1, 2, 4])
    received = np.zeros(10 * unit)
    comm.Allgatherv(np.full(agreed[rank], float(rank)), [received, agreed])
    np.testing.assert_array_equal(received, np.repeat(np.arange(4.0), agreed))
    counts = wrong if rank == 2 else agreed
    with pytest.raises(smcoll.MismatchError):
        for _ in range(3):
            comm.Allgatherv(np.full(counts[rank], float(rank)), [received, counts])


@pytest.mark.lengthy
@pytest.mark.mpi(4)
@pytest.mark.parametrize("spread", ["blocks", "round robin"], indirect=True)
@pytest.mark.parametrize("count", [1, 5000])
def test_a_timeout_is_told_to_all_nodes(spread, count):
    comm = smcoll.Comm(spread, smcoll.Config(timeout=0.5))
    comm.Barrier()
    last = comm.size - 1
    if comm.rank == last:
        time.sleep(2)
    with pytest.raises(smcoll.Error) as raised:
        for _ in range(3):
            comm.Allreduce(np.ones(count), np.ones(count))
    texts = spread.allgather(str(raised.value))
    assert any(re.search(rf"ranks? ([0-9, and]* )?{last}\b", text) for text in texts), texts


DEATH = """
    import os, signal, sys, time
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    os.environ["SMCOLL_NODE"] = "001"[world.rank]
    import numpy as np
    import smcoll
    directory, victim = sys.argv[1], int(sys.argv[2])
    comm = smcoll.Comm(world, smcoll.Config(timeout=2))
    comm.Allreduce(np.ones(1), np.ones(1))

    def report(text):
        with open(os.path.join(directory, f"rank-{world.rank}.part"), "w") as file:
            file.write(text)
        os.rename(file.name, os.path.join(directory, f"rank-{world.rank}"))

    if world.rank == victim:
        time.sleep(0.3)
        # mpiexec would end the job before anybody could notice: it is stopped.
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(10):
            comm.Allreduce(np.ones(1), np.ones(1))
        report("no error")
    except BaseException as error:
        report(f"{type(error).__name__} {error}")
    time.sleep(60)
"""


@pytest.mark.parametrize("victim, kinds", [
    (1, ("PeerError",)),
    # Its node is gone, and no one is left there who could tell.
    (2, ("PeerError", "WaitTimeout")),
])
def test_a_death_is_told_to_the_other_node(tmp_path, victim, kinds):
    job = programs.start_ranks(3, DEATH, tmp_path, victim)
    try:
        others = [rank for rank in range(3) if rank != victim]
        found = results(tmp_path, others)
        assert set(found) == set(others)
        for text in found.values():
            assert text.split()[0] in kinds and f"rank {victim}" in text, text
    finally:
        end_job(job)


VANISH = """
    import os, signal, sys, time
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    directory, nodes, victims, count, helper = sys.argv[1:6]
    rank, victims, count = world.rank, [int(victim) for victim in victims], int(count)
    os.environ["SMCOLL_NODE"] = nodes[rank]
    import numpy as np
    import smcoll
    comm = smcoll.Comm(world)
    comm.Allreduce(np.ones(count), np.ones(count))
    pids = world.allgather(os.getpid())
    launchers = set(world.allgather(os.getppid()))

    def report(text):
        with open(os.path.join(directory, f"rank-{rank}.part"), "w") as file:
            file.write(text)
        os.rename(file.name, os.path.join(directory, f"rank-{rank}"))

    if rank == victims[0]:
        if helper == "helper" and os.fork() == 0:
            time.sleep(15)
            os._exit(0)
        time.sleep(0.3)
        # mpiexec would end the job before anybody could notice: it is stopped.
        for launcher in launchers:
            os.kill(launcher, signal.SIGSTOP)
        # Not one after the other: who is left for a moment would tell of the first.
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for victim in reversed(victims):
                if how != signal.SIGSTOP or victim != rank:
                    os.kill(pids[victim], how)
    if rank in victims or nodes[rank] == nodes[victims[0]]:
        time.sleep(30)
        os._exit(0)
    began = time.monotonic()
    try:
        for _ in range(1000):
            comm.Allreduce(np.ones(count), np.ones(count))
            comm.Barrier()
        report("no error")
    except BaseException as error:
        report(f"{time.monotonic() - began:.1f} s {type(error).__name__} {error}")
    time.sleep(30)
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("nodes, victims, count, helper", [
    ("0011", "23", 1, "helper"),
    ("00112", "23", 100_000, "no helper"),
    # Its node lives on, but nobody there is in a call, who could tell.
    ("0011", "2", 1, "no helper"),
])
def test_a_node_that_vanishes_is_named_at_once_without_a_timeout(tmp_path, nodes, victims, count,
                                                                  helper):
    job = programs.start_ranks(len(nodes), VANISH, tmp_path, nodes, victims, count, helper)
    try:
        others = [rank for rank in range(len(nodes)) if nodes[rank] != "1"]
        found = results(tmp_path, others)
        assert set(found) == set(others)
        for text in found.values():
            assert "PeerError rank 2 has died, the leader of ranks 2 and 3" in text, text
            assert float(text.split()[0]) < 10, text
    finally:
        end_job(job)


@pytest.mark.lengthy
@pytest.mark.parametrize("nodes, victims", [("0011", "23"), ("00112", "23")])
def test_a_timeout_ends_the_wait_for_the_dead_where_no_leader_watches(tmp_path, nodes, victims):
    job = programs.start_ranks(
        len(nodes), VANISH, tmp_path, nodes, victims, 1, "no helper",
        environment={"SMCOLL_WATCH_NODES": "0", "SMCOLL_TIMEOUT": "1"})
    try:
        others = [rank for rank in range(len(nodes)) if nodes[rank] != "1"]
        found = results(tmp_path, others)
        assert set(found) == set(others)
        for text in found.values():
            assert "WaitTimeout" in text, text
    finally:
        end_job(job)


LEAVE = """
    import os, sys, time
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    directory, nodes, leavers, how = sys.argv[1:5]
    rank = world.rank
    os.environ["SMCOLL_NODE"] = nodes[rank]
    import numpy as np
    import smcoll
    comm = smcoll.Comm(world)
    comm.Allreduce(np.ones(1), np.ones(1))
    assert not comm.engine.notices.unwatched
    if str(rank) in leavers:
        if how == "free":
            comm.Free()
            time.sleep(60)
        if how == "finalize":
            MPI.Finalize()
        sys.exit()
    try:
        comm.Allreduce(np.ones(1), np.ones(1))
        text = "no error"
    except BaseException as error:
        text = f"{type(error).__name__} {error}"
    with open(os.path.join(directory, f"rank-{rank}.part"), "w") as file:
        file.write(text)
    os.rename(file.name, os.path.join(directory, f"rank-{rank}"))
    time.sleep(60)
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("nodes, leavers, how", [
    ("01", "1", "exit"), ("01", "1", "finalize"), ("0011", "23", "exit"), ("0122", "1", "exit"),
    # Its node lives on, and tells the others.
    ("0011", "1", "exit"), ("0011", "1", "free"), ("0011", "2", "exit"),
])
def test_ranks_that_end_in_good_order_are_not_waited_for(tmp_path, nodes, leavers, how):
    job = programs.start_ranks(len(nodes), LEAVE, tmp_path, nodes, leavers, how)
    try:
        others = [rank for rank in range(len(nodes)) if str(rank) not in leavers]
        found = results(tmp_path, others)
        assert set(found) == set(others)
        for text in found.values():
            assert re.match(r"PeerError rank \d has (freed the communicator or )?ended", text), text
    finally:
        end_job(job)


ENDS = """
    import os, sys, time
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    rank, how = world.rank, sys.argv[1]
    os.environ["SMCOLL_NODE"] = str(rank // 2)
    import numpy as np
    import smcoll
    comm = smcoll.Comm(world, smcoll.Config(timeout=20))
    gathered = np.zeros(4)
    comm.Gather(np.zeros(1), gathered)
    assert (comm.engine.notices.leaders is None) == (rank % 2 == 1)
    if rank == 1:
        time.sleep(1.5)            # rank 0 waits for it, and looks
    comm.Gather(np.full(1, float(rank)), gathered)
    if rank == 0:
        assert (gathered == range(4)).all()
        # Nobody is left there but perhaps in MPI's own end.
        assert comm.engine.notices.leaders.look() == set()
        print("gone, in good order:", sorted(comm.engine.notices.leaders.connections))
    if how == "free":
        comm.Free()
    if how == "finalize":
        MPI.Finalize()
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("how", ["exit", "free", "finalize"])
def test_an_end_in_good_order_is_no_death(how):
    result = programs.run_ranks(4, ENDS, how)
    assert result.returncode == 0, result.stderr
    assert "gone, in good order: []" in result.stdout


@pytest.mark.mpi(4)
def test_leaders_that_can_not_be_connected_are_said_to(comm_world, monkeypatch):
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank // 2))
    monkeypatch.setattr(connections, "addresses", lambda: ["192.0.2.1"])     # nobody's
    monkeypatch.setattr(watch, "CONNECT_WITHIN", 0.2)
    monkeypatch.setattr(watch, "_unreachable", [])
    group = comm_world.Create(comm_world.group.Excl([1]))       # one that nothing is known of
    if group != MPI.COMM_NULL:
        comm = smcoll.Comm(group)
        total = np.zeros(1)
        comm.Allreduce(np.ones(1), total)
        assert total[0] == 3 and comm.engine.notices.leaders is None
        assert re.search(r"vanish \(rank \d: no connection to (\d) of \1",
                         comm.explain("bcast", 8).reason)
        # A group that holds such a rank does not try again.
        monkeypatch.setattr(watch, "CONNECT_WITHIN", 1e6)
        two = group.Create(group.group.Incl([0, 1]))
        if two != MPI.COMM_NULL:
            pair = smcoll.Comm(two)
            assert "vanish" in pair.explain("bcast", 8).reason
            pair.Free()
        comm.Free()
        group.Free()
