"""Ranks that disagree about a call in which nobody waits for the odd one: they find out later."""

from __future__ import annotations

import numpy as np
import pytest
from pretend import PLACEMENTS

import smcoll

BCASTS = {
    "Bcast": (lambda comm, root: comm.Bcast(np.ones(8), root), "Bcast(root={root}, 64 B)"),
    "in a region": (lambda comm, root: comm.Bcast(np.ones(300), root),
                    "Bcast(root={root}, 2400 B)"),
    "bcast": (lambda comm, root: comm.bcast("text", root), "bcast(root={root})"),
}
MEETINGS = {
    "Barrier": lambda comm: comm.Barrier(),
    "Allreduce": lambda comm: comm.Allreduce(np.ones(1), np.zeros(1)),
    "alltoall": lambda comm: comm.alltoall([0] * comm.size),
    "long Allreduce": lambda comm: comm.Allreduce(np.ones(9000), np.zeros(9000)),
}


def cases(size, odd_ranks):
    """Each odd rank, with itself and another one as its root; a kind of meeting each."""
    meetings = list(MEETINGS)
    for odd in odd_ranks:
        for usual in (0, size - 1):
            for root in {odd, (usual + 1) % size} - {usual}:
                yield odd, root, usual, meetings[(odd + usual + root) % len(meetings)]


@pytest.mark.mpi(2, 3, 4, 5)
@pytest.mark.parametrize("kind", BCASTS)
@pytest.mark.parametrize("placement", [
    pytest.param("one node", marks=pytest.mark.one_node), "blocks", "round robin"])
def test_two_roots_of_a_short_bcast_show_where_ranks_meet_next(comm_world, monkeypatch, kind,
                                                              placement):
    """Both sides are named, with the program's own number of the call."""
    if placement != "one node":
        on_node = PLACEMENTS[placement](comm_world.size)
        monkeypatch.setenv("SMCOLL_NODE", str(on_node[comm_world.rank]))
    call, text = BCASTS[kind]
    odd_ranks = range(comm_world.size) if placement == "one node" else (0, comm_world.size - 1)
    for odd, root, usual, meeting in cases(comm_world.size, odd_ranks):
        comm = smcoll.Comm(comm_world, smcoll.Config(timeout=20))
        comm.Barrier()
        with pytest.raises(smcoll.MismatchError) as raised:
            call(comm, root if comm_world.rank == odd else usual)
            for _ in range(2):
                MEETINGS[meeting](comm)
        told = comm_world.allgather(str(raised.value))
        if placement == "one node":
            assert all("collective number 2:" in one for one in told), (odd, root, usual, told)
            for one in told:
                assert f"rank {odd} called {text.format(root=root)}" in one, (odd, usual, told)
                assert text.format(root=usual) in one, (odd, root, told)


@pytest.mark.one_node
@pytest.mark.mpi(2)
@pytest.mark.parametrize("meeting", [*MEETINGS, "Bcast"])
def test_two_roots_show_though_only_one_of_them_shares_regions(comm_world, meeting):
    """Rank 0 goes on with its own regions, rank 1 takes its turn in rank 0's and in fewer segments:
    in the next call they may look at different ones."""
    long = np.ones(20000)
    with smcoll.Comm(comm_world, smcoll.Config(timeout=20)) as comm:
        comm.Bcast(long, 0)
        comm.Barrier()
        with pytest.raises(smcoll.MismatchError) as raised:
            comm.Bcast(long, comm.rank)
            for _ in range(3):
                if meeting == "Bcast":
                    comm.Bcast(long, 0)
                    comm.Bcast(long, 1)
                else:
                    MEETINGS[meeting](comm)
    told = str(raised.value)
    assert "collective number 3" in told, told
    assert all(f"rank {r} called Bcast(root={r}, 160000 B)" in told for r in range(2)), told


@pytest.mark.mpi(4)
def test_ranks_of_two_nodes_that_meet_later_see_an_earlier_disagreement(comm_world, monkeypatch):
    """The Bcast's messages are between ranks 0 and 3, the Alltoall's between ranks 1 and 3."""
    monkeypatch.setenv("SMCOLL_NODE", str(PLACEMENTS["blocks"](4)[comm_world.rank]))
    with smcoll.Comm(comm_world, smcoll.Config(timeout=20)) as comm:
        comm.Allreduce(np.ones(1000), np.zeros(1000))       # reserves memory by a call of ours
        with pytest.raises(smcoll.MismatchError) as raised:
            comm.Bcast(np.ones(8), 3 if comm.rank == 3 else 0)
            comm.alltoall([0] * comm.size)
        told = comm_world.allgather(str(raised.value))
    assert any("before number 3, in which ranks" in one for one in told), told
    assert all("before" in one for one in told), told


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_a_disagreement_of_long_ago_is_found_though_not_named(comm_world):
    """Short Bcasts from one root: who does not receive never waits."""
    comm = smcoll.Comm(comm_world, smcoll.Config(timeout=20))
    comm.Barrier()
    with pytest.raises(smcoll.MismatchError):
        comm.Bcast(np.ones(1), comm.rank if comm.rank < 2 else 0)
        for _ in range(1000):
            comm.Bcast(np.ones(1), 0)
        comm.Barrier()


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_allgatherv_with_other_counts_on_one_rank_is_no_wrong_data(comm_world):
    """Where a block lies follows from the longest one, which has to be the same on all ranks."""
    count, size, rank = 600, comm_world.Get_size(), comm_world.Get_rank()
    blocks = np.concatenate([np.arange(count) + 10**6 * r for r in range(size)])
    for calls_before in (0, 1, 17, 40):
        comm = smcoll.Comm(comm_world, smcoll.Config(timeout=20, learn="off"))
        comm.Barrier()
        comm.engine.use_core_cache(1 << 20)
        comm.Barrier()
        received = np.zeros_like(blocks)
        for _ in range(calls_before):
            comm.Allgatherv(np.arange(count) + 10**6 * rank, (received, [count] * size))
            np.testing.assert_array_equal(received, blocks)
        counts = [2 * count if r == rank == 0 else count for r in range(size)]
        received = np.zeros(sum(counts), int)
        with pytest.raises((smcoll.MismatchError, smcoll.PeerError)):
            comm.Allgatherv(np.arange(count) + 10**6 * rank, (received, counts))
            np.testing.assert_array_equal(received[:count], blocks[:count])
            np.testing.assert_array_equal(received[-(size - 1) * count:], blocks[count:])
            comm.Barrier()


@pytest.mark.one_node
@pytest.mark.mpi(2)
@pytest.mark.parametrize("name", ["reduce", "allreduce", "scan", "exscan"])
def test_collectives_of_objects_go_by_their_names(comm_world, name):
    with smcoll.Comm(comm_world) as comm:
        comm.Allreduce(np.ones(100_000), np.zeros(100_000))     # reserves memory by a call of ours
        getattr(comm, name)(comm.rank)
        comm.Barrier()
        views = comm.engine.observe()
        comm_world.Barrier()           # all have looked
        assert [view.call for view in views] == [3, 3]
        rows = [row["collective"] for row in comm.stats()]
        assert f"{name}_objects" in rows and "allgather_objects" not in rows
        comm.Barrier()
