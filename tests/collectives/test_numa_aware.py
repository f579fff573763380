"""Collectives that follow the hardware, on ranks in made-up domains: what test_collectives leaves.

There every algorithm of Bcast, Reduce, Allreduce and Barrier runs in domains of all kinds.
"""

from __future__ import annotations

import time

import chosen
import numpy as np
import pytest
from mpi4py import MPI
from patterns import check, data, expected
from placements import MACHINE, even, placed, uneven

import smcoll
from smcoll.algorithms import ALGORITHMS, IN_RANK_ORDER

PLACEMENTS = {
    "one domain": lambda ranks: None,
    "two halves": lambda ranks: even(ranks, 2),
    "each alone": lambda ranks: [rank % 4 for rank in range(ranks)],
    "uneven": lambda ranks: uneven(ranks, ranks + 1),
}
# The domains are those of one machine.
pytestmark = pytest.mark.one_node
STAGED = [name for name in ALGORITHMS["reduce_scatter"]
          if name not in IN_RANK_ORDER["reduce_scatter"]]


@pytest.mark.mpi(2, 3, 5, 8)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", STAGED)
def test_reduce_scatter_in_stages(comm_world, name, placement):
    rank, ranks = comm_world.rank, comm_world.size
    config = chosen.config(segment_size=4096, segments=2, reduce_scatter=name, arity=3)
    with placed(PLACEMENTS[placement](ranks)), smcoll.Comm(comm_world, config) as comm:
        for seed, longest in enumerate((0, 1, 40, 700, 3000)):
            for counts in ([longest] * ranks, [longest * (i % 3) // 2 for i in range(ranks)],
                           [0] * (ranks - 1) + [longest]):
                total, begin = sum(counts), sum(counts[:rank])
                wanted = expected("SUM", "d", ranks, total, seed)[begin:begin + counts[rank]]
                mine = data("SUM", "d", rank, total, seed)
                result = np.full(counts[rank], -1.0)
                comm.Reduce_scatter(mine, result, counts)
                check(result, wanted, (name, counts))
                comm.Reduce_scatter(MPI.IN_PLACE, mine, counts)
                check(mine[:counts[rank]], wanted, (name, counts, "in place"))
        assert comm.explain("reduce_scatter", nbytes=800).algorithm == name
        assert {row["algorithm"] for row in comm.stats() if row["calls"]} == {name}


@pytest.mark.mpi(2, 3, 5, 8)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_scatter_in_two_stages(comm_world, placement):
    """Blocks of any lengths, with and without holes, in place, and too long for their room."""
    rank, ranks = comm_world.rank, comm_world.size
    config = chosen.config(stream_size=65536, scatter="two_stage")
    every_other = MPI.INT.Create_resized(0, 8).Commit()
    calls = 0
    with placed(PLACEMENTS[placement](ranks)), smcoll.Comm(comm_world, config) as comm:
        for root in range(ranks):
            for length in (0, 1, 50, 5000):
                counts = [length * (i % 3) for i in range(ranks)]
                places = [sum(counts[:i]) + i for i in range(ranks)]
                whole = np.arange(sum(counts) + ranks, dtype="i")
                wanted = whole[places[rank]:places[rank] + counts[rank]]
                send = [whole, (counts, places), MPI.INT] if rank == root else None
                result = np.full(counts[rank] + 1, -1, "i")
                comm.Scatterv(send, [result, counts[rank], MPI.INT], root)
                check(result[:-1], wanted, (root, counts))
                assert result[-1] == -1
                roomy = np.full(4 * length + 100, -1, "i")
                comm.Scatterv(send, roomy, root)
                check(roomy[:counts[rank]], wanted, (root, counts, "roomy"))
                assert (roomy[counts[rank]:] == -1).all()
                holes = np.full(2 * counts[rank], -1, "i")
                comm.Scatterv(send, [holes, counts[rank], every_other], root)
                check(holes[::2], wanted, (root, counts, "holes"))
                assert (holes[1::2] == -1).all()
                equal = np.arange(length * ranks, dtype="i") + root
                result = np.full(length, -1, "i")
                comm.Scatter(equal if rank == root else None,
                             MPI.IN_PLACE if rank == root else result, root)
                if rank != root:
                    check(result, equal[length * rank:length * (rank + 1)], (root, length))
                calls += 4
            short = np.zeros(4, "i")
            with pytest.raises(MPI.Exception) as refused:
                comm.Scatter(np.zeros(5 * ranks, "i") if rank == root else None, short, root)
            assert refused.value.Get_error_class() == MPI.ERR_TRUNCATE
            calls += 1
        rows = [(row["algorithm"], row["calls"]) for row in comm.stats() if row["calls"]]
        assert rows == [("two_stage", calls)]
    every_other.Free()


@pytest.mark.mpi(3, 8)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_nobody_leaves_a_hierarchical_barrier_before_the_last_one_comes(comm_world, placement):
    rank, ranks = comm_world.rank, comm_world.size
    clock = np.zeros(ranks)
    with placed(PLACEMENTS[placement](ranks)), smcoll.Comm(comm_world) as comm:
        for late in range(ranks):
            if rank == late:
                time.sleep(0.01)
            came = time.monotonic()
            with chosen.algorithm(comm, "barrier", "hierarchical", arity=2 + late % 3):
                comm.Barrier()
            left = time.monotonic()
            comm_world.Allgather(np.array([came]), clock)
            assert left >= clock.max()


@pytest.mark.mpi(5)
def test_defaults_follow_the_hardware_where_there_is_something_to_save(comm_world):
    """Between domains that have several ranks each; not where all ranks share one, or none."""
    def chosen(domains):
        with placed(domains), smcoll.Comm(comm_world, smcoll.Config(heap=False)) as comm:
            return [comm.explain(name, nbytes=nbytes).algorithm
                    for name in ("barrier", "bcast", "reduce", "allreduce")
                    for nbytes in (8, 1 << 20)]

    ranks = comm_world.size
    flat = chosen([0] * ranks)
    assert chosen([None] * ranks) == flat
    assert chosen(even(ranks, 2)) == [
        "hierarchical", "hierarchical", "two_stage", "two_stage", "n_ary", "tiled_hierarchical",
        "reduce_broadcast", "tiled_hierarchical"]
    part = comm_world.Split(comm_world.rank // 4, 0)
    if part.size == 4:
        with placed([0, 1, 2, 3, 0]), smcoll.Comm(part, smcoll.Config(heap=False)) as comm:
            assert len(comm.engine.domains) == 4
            assert comm.explain("allreduce", nbytes=8).algorithm == "all_read"
    part.Free()


@pytest.mark.mpi(3)
def test_operations_that_do_not_commute(comm_world):
    """In rank order by default in any domains; refused by name where the order can't be kept."""
    rank, ranks = comm_world.rank, comm_world.size
    keep_left = MPI.Op.Create(lambda one, two, _: np.copyto(
        np.frombuffer(two, "q"), np.frombuffer(one, "q")), commute=False)
    mine, result = np.full(3000, rank, "q"), np.zeros(3000, "q")
    domains = [1, 0, 1]
    with placed(domains), smcoll.Comm(comm_world, smcoll.Config(heap=False)) as comm:
        comm.Allreduce(mine, result, keep_left)
        assert (result == 0).all()
        assert [row["algorithm"] for row in comm.stats() if row["calls"]] == ["tiled"]
    for name in ALGORITHMS["allreduce"]:
        with placed(domains), smcoll.Comm(comm_world, chosen.config(allreduce=name)) as comm:
            if name in IN_RANK_ORDER["allreduce"]:
                comm.Allreduce(mine, result, keep_left)
                assert (result == 0).all()
            else:
                with pytest.raises(ValueError, match="does not combine operands in rank order"):
                    comm.Allreduce(mine, result, keep_left)
    for name in STAGED:
        config = chosen.config(reduce_scatter=name)
        with (placed(domains), smcoll.Comm(comm_world, config) as comm,
              pytest.raises(ValueError, match="does not combine operands in rank order")):
            comm.Reduce_scatter_block(mine, result[:1000], keep_left)
    keep_left.Free()
    assert ranks == 3


@pytest.mark.mpi(3)
@pytest.mark.parametrize("binding, problem", [("0 1", "none for rank 2"), ("0 x 2", "'x'")])
def test_a_malformed_binding_is_the_same_error_on_all_ranks(comm_world, binding, problem,
                                                            monkeypatch):
    monkeypatch.setenv("SMCOLL_TOPOLOGY", MACHINE)
    monkeypatch.setenv("SMCOLL_BINDING", binding)
    comm = smcoll.Comm(comm_world)
    with pytest.raises(smcoll.TopologyError, match=problem) as refused:
        comm.Barrier()
    assert len(set(comm_world.allgather(str(refused.value)))) == 1
    monkeypatch.undo()
    comm.Barrier()
    comm.Free()


@pytest.mark.mpi(5)
@pytest.mark.parametrize("collective", ["bcast", "reduce", "allreduce", "barrier"])
def test_radices_are_checked(comm_world, collective):
    name = {"barrier": "hierarchical", "allreduce": "reduce_broadcast"}.get(collective, "n_ary")
    first = ALGORITHMS[collective][0]
    with smcoll.Comm(comm_world) as comm:
        comm.Barrier()
        for arity in (0, 1, 256):
            with (pytest.raises(ValueError, match="not between 2 and 255"),
                  chosen.algorithm(comm, collective, name, arity=arity)):
                pass
        with (pytest.raises(ValueError, match="has no arity radix"),
              chosen.algorithm(comm, collective, first, arity=2)):
            pass


@pytest.mark.mpi(3, 5)
@pytest.mark.parametrize("collective", ["reduce", "allreduce", "reduce_scatter"])
def test_operations_of_the_user_s_that_commute(comm_world, collective):
    """Without a kernel: Op.Reduce_local does it, in whatever order the algorithm takes."""
    rank, ranks = comm_world.rank, comm_world.size
    add = MPI.Op.Create(lambda one, two, _: np.add(
        np.frombuffer(one, "q"), np.frombuffer(two, "q"), np.frombuffer(two, "q")), commute=True)
    count = 700 * ranks
    mine = data("SUM", "q", rank, count, 3)
    wanted = expected("SUM", "q", ranks, count, 3)
    for name in ALGORITHMS[collective]:
        config = smcoll.Config(segment_size=4096, algorithms={collective: name})
        with placed(uneven(ranks, 2)), smcoll.Comm(comm_world, config) as comm:
            result = np.zeros(count, "q")
            if collective == "reduce":
                comm.Reduce(mine, result if rank == 1 else None, add, 1)
                assert rank != 1 or (result == wanted).all(), name
            elif collective == "allreduce":
                comm.Allreduce(mine, result, add)
                assert (result == wanted).all(), name
            else:
                comm.Reduce_scatter_block(mine, result[:700], add)
                assert (result[:700] == wanted[700 * rank:700 * (rank + 1)]).all(), name
            assert [row["algorithm"] for row in comm.stats() if row["calls"]] == [name]
    add.Free()
