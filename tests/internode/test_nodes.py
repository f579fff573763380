"""Communicators over several nodes: every placement, the same results.

The nodes are pretended (``SMCOLL_NODE``). The interface's other tests run on them with
``pytest --nodes 2``.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import programs
import pytest
from mpi4py import MPI
from pretend import PLACEMENTS, SETTINGS

import smcoll
from smcoll.algorithms import ALGORITHMS
from smcoll.internode import network
from smcoll.internode.placement import Placement, layout, neighbours
from smcoll.memory.budget import budget

IN_ORDER = ("blocks", "last alone first", "three nodes", "all alone")
# A flag line; one section; with SETTINGS sliced, and in several sections.
COUNTS = (1, 700, 12_001)
FORMS = ("auto", "tree", "dissemination", "tiled")


everywhere = pytest.mark.parametrize("spread", PLACEMENTS, indirect=True)


def numbers(rank: int, count: int) -> np.ndarray:
    return (np.arange(count) * 7 + rank * 11) % 101 + 0.5


# ---------------------------------------------------------------------- who is where


def test_nodes_are_numbered_by_their_lowest_rank():
    place = Placement(["b", "a", "b", "c", "a"])
    assert place.members == [[0, 2], [1, 4], [3]]
    assert place.node_of == [0, 1, 0, 2, 1] and place.local_of == [0, 0, 1, 0, 1]
    assert not place.in_rank_order and Placement("aabbb").in_rank_order
    assert place.counterpart(2, 1) == 4 and place.counterpart(4, 2) == 3


# Switches above the nodes, from the top down.
NETWORKS = {
    "unknown": lambda nodes: [()] * nodes,
    "alternating": lambda nodes: [(f"core{node % 2}",) for node in range(nodes)],
    "two levels": lambda nodes: [(f"core{node % 2}", f"core{node % 2}/edge{node % 3}")
                                 for node in range(nodes)],
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("nodes", range(1, 18))
def test_trees_between_nodes_reach_every_node_once(nodes, chain, network):
    above = NETWORKS[network](nodes)
    for root in {0, nodes // 2, nodes - 1}:
        reached = [root]
        for node in reached:
            parent, children = neighbours(node, root, chain, above)
            assert (parent is None) == (node == root)
            for child in children:
                assert neighbours(child, root, chain, above)[0] == node
                reached.append(child)
        assert sorted(reached) == list(range(nodes))


def crossings(messages, above, depth):
    """How many (from, to) leave a switch at this depth."""
    return sum(above[one][:depth + 1] != above[other][:depth + 1] for one, other in messages)


@pytest.mark.parametrize("chain", [False, True])
def test_trees_leave_a_switch_no_more_often_than_they_must(chain):
    nodes = 17
    above = NETWORKS["two levels"](nodes)
    flat = NETWORKS["unknown"](nodes)

    def edges(root, network):
        return [(node, child) for node in range(nodes)
                for child in neighbours(node, root, chain, network)[1]]

    for root in range(nodes):
        for depth, switches in ((0, 2), (1, 6)):
            assert crossings(edges(root, above), above, depth) == switches - 1
            assert crossings(edges(root, flat), above, depth) > switches - 1


def test_exchanges_between_nodes_leave_their_switch_in_the_last_steps_only():
    nodes = 8
    above = NETWORKS["alternating"](nodes)
    order = layout(above)
    assert sorted(order) == list(range(nodes))
    steps = [[(order[place], order[place ^ distance]) for place in range(nodes)]
             for distance in (1, 2, 4)]
    assert [crossings(step, above, 0) for step in steps] == [0, 0, nodes]


@pytest.mark.mpi(4)
@pytest.mark.parametrize("form", FORMS)
def test_switches_change_no_result(comm_world, tmp_path, monkeypatch, form):
    rank, size = comm_world.rank, comm_world.size
    network = tmp_path / "network"
    network.write_text("".join(f"h{host} core{host % 2}\n" for host in range(size)))
    monkeypatch.setenv("SMCOLL_NETWORK", str(network))
    monkeypatch.setenv("SMCOLL_BINDING", " ".join(f"h{host}:all" for host in range(size)))
    monkeypatch.setenv("SMCOLL_NODE", str(rank))
    comm = smcoll.Comm(comm_world, smcoll.Config(across_nodes=form, **SETTINGS))
    comm.Barrier()
    assert comm.engine.span.placement.above == [("core0",), ("core1",)] * 2
    everyone = [np.random.default_rng(peer).standard_normal(3000) for peer in range(size)]
    for root in range(size):
        data = everyone[rank].copy()
        comm.Bcast(data, root)
        np.testing.assert_array_equal(data, everyone[root])
        total = np.zeros(3000)
        comm.Reduce(everyone[rank], total, root=root)
        if rank == root:
            np.testing.assert_allclose(total, sum(everyone))
    for count in (3, 2000, 3000):
        total = np.zeros(count)
        comm.Allreduce(everyone[rank][:count], total)
        np.testing.assert_allclose(total, sum(everyone)[:count])
        assert len(set(comm.allgather(total.tobytes()))) == 1
    pair = MPI.INT64_T.Create_contiguous(2).Commit()
    operation = MPI.Op.Create(append_digits, commute=False)
    result = np.zeros(2, int)
    comm.Allreduce([np.array([rank + 1, 1]), 1, pair], [result, 1, pair], operation)
    assert list(result) == [1234, 4]
    comm.Reduce([np.array([rank + 1, 1]), 1, pair], [result, 1, pair], operation, 2)
    assert rank != 2 or list(result) == [1234, 4]
    operation.Free()
    pair.Free()
    comm.Free()


@pytest.mark.mpi(4)
def test_a_host_that_the_network_does_not_have_is_told_to_all_ranks(comm_world, tmp_path,
                                                                    monkeypatch):
    network = tmp_path / "network"
    network.write_text("h0 core0\nh1 core0\nh2 core0\n")
    monkeypatch.setenv("SMCOLL_NETWORK", str(network))
    monkeypatch.setenv("SMCOLL_BINDING", "h0:all h1:all h2:all h3:all")
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank // 2))
    comm = smcoll.Comm(comm_world)
    with pytest.raises(smcoll.TopologyError, match="no line for host 'h3'"):
        comm.Barrier()
    comm.Free()


# ---------------------------------------------------------------------- results


@pytest.mark.mpi(4)
@everywhere
def test_collectives_of_buffers(spread):
    rank, size = spread.rank, spread.size
    everyone = [lambda count, r=r: numbers(r, count) for r in range(size)]
    for count in COUNTS:
        total = sum(vector(count) for vector in everyone)
        for root in (0, size // 2, size - 1):
            buffer = everyone[rank](count)
            spread.Bcast(buffer, root)
            np.testing.assert_array_equal(buffer, everyone[root](count))
            result = np.zeros(count)
            spread.Reduce(everyone[rank](count), result, root=root)
            np.testing.assert_array_equal(result, total if rank == root else np.zeros(count))
            result = np.zeros((size, count))
            spread.Gather(everyone[rank](count), result if rank == root else None, root)
            if rank == root:
                np.testing.assert_array_equal(result, [vector(count) for vector in everyone])
            back = np.zeros(count)
            spread.Scatter(result if rank == root else None, back, root)
            np.testing.assert_array_equal(back, everyone[rank](count))
        spread.Barrier()
        result = np.zeros(count)
        spread.Allreduce(everyone[rank](count), result)
        np.testing.assert_array_equal(result, total)
        in_place = everyone[rank](count)
        spread.Allreduce(MPI.IN_PLACE, in_place)
        np.testing.assert_array_equal(in_place, total)
        result = np.zeros((size, count))
        spread.Allgather(everyone[rank](count), result)
        np.testing.assert_array_equal(result, [vector(count) for vector in everyone])
        mine = np.array([vector(count) + rank for vector in everyone])
        spread.Alltoall(mine, result)
        np.testing.assert_array_equal(result, [everyone[rank](count) + r for r in range(size)])
        spread.Alltoall(MPI.IN_PLACE, mine)
        np.testing.assert_array_equal(mine, result)
        vector = np.concatenate([part(count) for part in everyone]) * (rank + 1)
        back = np.zeros(count)
        spread.Reduce_scatter_block(vector, back)
        np.testing.assert_array_equal(back, everyone[rank](count) * (size * (size + 1) // 2))
        spread.Scan(everyone[rank](count), back)
        np.testing.assert_array_equal(back, sum(v(count) for v in everyone[:rank + 1]))
        before = everyone[rank](count)
        spread.Exscan(MPI.IN_PLACE, before)
        wanted = sum(v(count) for v in everyone[:rank]) if rank else before
        np.testing.assert_array_equal(before, wanted)


@pytest.mark.mpi(4)
@pytest.mark.parametrize("form", FORMS)
@everywhere
def test_an_allreduce_gives_all_ranks_the_same_bits(spread, form, monkeypatch):
    comm = smcoll.Comm(spread, smcoll.Config(across_nodes=form, **SETTINGS))
    chosen = comm.explain("allreduce", 8).parameters.get("between_nodes")
    assert chosen == {"tree": "recursive_doubling", "tiled": None}.get(form, chosen)
    assert form != "dissemination" or chosen == form
    for count in (3, 9000):
        mine = np.random.default_rng(comm.rank).standard_normal(count)
        results = []
        for _ in range(3):
            result = np.zeros(count)
            comm.Allreduce(mine, result)
            results.append(result.tobytes())
        assert len(set(comm.allgather(results[0])) | set(results)) == 1
    comm.Free()


def append_digits(one, two, _datatype):
    """Not commutative: (a, length of a) and (b, length of b) become the digits of a, then of b."""
    left, right = (np.frombuffer(memory, "q").reshape(-1, 2) for memory in (one, two))
    right[:, 0] += left[:, 0] * 10 ** right[:, 1]
    right[:, 1] += left[:, 1]


@pytest.mark.mpi(3, 4)
@everywhere
def test_info_topology_can_ask_where_a_ranks_memory_lies(spread):
    with smcoll.Comm(spread, smcoll.Config(eager=True)) as comm:
        pages = comm.engine.pages_by_node()
        assert pages is None or sum(pages.values()) > 0


@pytest.mark.mpi(4)
@everywhere
def test_operands_keep_their_order(spread):
    rank, size = spread.rank, spread.size
    pair = MPI.INT64_T.Create_contiguous(2).Commit()
    operation = MPI.Op.Create(append_digits, commute=False)
    digits = int("1234"[:size])
    for count in (1, 3000):
        mine = np.tile(np.array([rank + 1, 1]), (count, 1))
        result = np.zeros((count, 2), int)
        spread.Allreduce([mine, count, pair], [result, count, pair], operation)
        assert (result == [digits, size]).all()
        for root in (0, size - 1):
            result[:] = 0
            spread.Reduce([mine, count, pair], [result, count, pair], operation, root)
            assert rank != root or (result == [digits, size]).all()
        spread.Scan([mine, count, pair], [result, count, pair], operation)
        assert (result == [int("1234"[:rank + 1]), rank + 1]).all()
    operation.Free()
    pair.Free()


@pytest.mark.mpi(4)
def test_an_algorithm_that_can_not_keep_the_order_is_refused_and_nothing_is_lost(
        comm_world, monkeypatch):
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank // 2))
    comm = smcoll.Comm(comm_world, smcoll.Config(algorithms="reduce=n_ary", across_nodes="tiled"))
    pair = MPI.INT64_T.Create_contiguous(2).Commit()
    operation = MPI.Op.Create(append_digits, commute=False)
    mine, result = np.array([comm.rank + 1, 1]), np.zeros(2, int)
    for call in (comm.Allreduce, comm.Reduce):
        with pytest.raises(ValueError, match="rank order"):
            call([mine, 1, pair], [result, 1, pair], operation)
    total = np.zeros(1)
    comm.Allreduce(np.ones(1), total)          # sliced, in memory that is reserved first
    assert total[0] == 4
    operation.Free()
    pair.Free()
    comm.Free()


@pytest.mark.mpi(4)
@pytest.mark.parametrize("spread", ["blocks", "round robin"], indirect=True)
def test_messages_of_more_bytes_than_a_count_can_say(spread, monkeypatch):
    monkeypatch.setattr(network, "LARGEST_COUNT", 5000)
    rank, size, count = spread.rank, spread.size, 2501
    mine = numbers(rank, size * count)
    everybody = np.array([numbers(other, size * count) for other in range(size)])
    crossed, joined = np.zeros(size * count), np.zeros((size, count))
    spread.Alltoall(mine, crossed)
    np.testing.assert_array_equal(
        crossed, everybody.reshape(size, size, count)[:, rank].ravel())
    spread.Allgather(mine[:count], joined)
    np.testing.assert_array_equal(joined, everybody[:, :count])
    joined[:] = 0
    spread.Gather(mine[:count], joined if rank == 0 else None)
    assert rank > 0 or (joined == everybody[:, :count]).all()
    part, total = np.zeros(count), np.zeros(size * count)
    spread.Reduce_scatter_block(mine, part)
    np.testing.assert_array_equal(part, everybody.sum(0).reshape(size, count)[rank])
    spread.Reduce(mine, total, root=size - 1)
    assert rank < size - 1 or (total == everybody.sum(0)).all()


@pytest.mark.mpi(4)
@pytest.mark.parametrize("spread", ["blocks", "three nodes"], indirect=True)
def test_a_long_ordered_result_reaches_a_root_that_still_contributes(spread):
    comm = smcoll.Comm(spread, smcoll.Config(timeout=20))
    rank, size = comm.rank, comm.size
    pair = MPI.INT64_T.Create_contiguous(2).Commit()
    operation = MPI.Op.Create(append_digits, commute=False)
    # Far more sections than are in flight at once, too long to be buffered by MPI.
    count = 40 * smcoll.Config().internals.network_section // 16
    mine = np.tile(np.array([rank + 1, 1]), (count, 1))
    for result in (np.zeros((count, 2), int), mine):
        send = MPI.IN_PLACE if result is mine and rank == size - 1 else [mine, count, pair]
        comm.Reduce(send, [result, count, pair], operation, size - 1)
        assert rank < size - 1 or (result == [int("1234"[:size]), size]).all()
    operation.Free()
    pair.Free()
    comm.Free()


@pytest.mark.mpi(4)
@everywhere
def test_collectives_of_objects(spread):
    rank, size = spread.rank, spread.size
    for value in (7, "short", "long" * 5000, np.arange(3000)):
        assert repr(spread.bcast(value if rank == 1 else None, 1)) == repr(value)
        gathered = spread.gather((rank, value), size - 1)
        wanted = [(r, value) for r in range(size)]
        assert repr(gathered) == repr(wanted if rank == size - 1 else None)
        assert repr(spread.scatter(wanted if rank == 0 else None)) == repr((rank, value))
        assert repr(spread.allgather((rank, value))) == repr(wanted)
        sent = [(rank, peer, value) for peer in range(size)]
        assert repr(spread.alltoall(sent)) == repr([(peer, rank, value) for peer in range(size)])
    assert spread.allreduce(str(rank)) == "".join(map(str, range(size)))


@pytest.mark.one_node   # with others it has nodes of its own, in another order
@pytest.mark.mpi(4)
@pytest.mark.parametrize("spread", ["round robin"], indirect=True)
def test_explain_says_what_goes_to_mpi(spread):
    assert spread.explain("allreduce", 8).path == "shared memory and network"
    assert spread.explain("scan", 8).path == "MPI"
    assert "order" in spread.explain("scan", 8).reason
    spread.Scan(np.ones(1), np.ones(1))
    assert [row["path"] for row in spread.stats() if row["collective"] == "scan"] == ["MPI"]


@pytest.mark.mpi(4)
def test_names_that_hold_on_one_node_only_are_said_to(comm_world, monkeypatch, capfd):
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank // 2))
    comm = smcoll.Comm(comm_world, smcoll.Config(algorithms="allreduce=tiled,reduce=tiled"))
    result = np.zeros(5000)
    comm.Allreduce(np.arange(5000.0), result)
    np.testing.assert_array_equal(result, 4 * np.arange(5000.0))
    told = "the name allreduce=tiled holds for ranks of one node"
    assert told in comm.explain("allreduce", 8).reason
    assert (told in capfd.readouterr().err) == (comm.rank == 0)
    comm.Free()


@pytest.mark.mpi(4)
def test_off_by_its_setting(comm_world, monkeypatch):
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank))
    comm = smcoll.Comm(comm_world, smcoll.Config(across_nodes=False))
    assert comm.engine is None and "several nodes" in comm.explain("bcast", 8).reason
    comm.Free()


@pytest.mark.mpi(4)
def test_one_node_without_its_segment_sends_all_ranks_to_mpi(comm_world, monkeypatch, capfd):
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank // 2))
    if comm_world.rank == 2:
        def refuse(mapping, *arguments):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("smcoll.comm.setup.Mapping", type(
            "Mapping", (smcoll.segment.Mapping,), {"create": refuse}))
    comm = smcoll.Comm(comm_world)
    total = np.zeros(1)
    comm.Allreduce(np.ones(1), total)
    assert comm.engine is None and total[0] == 4
    assert "No space left" in comm.explain("allreduce", 8).reason
    comm.Free()


@pytest.mark.mpi(3)
def test_a_rank_alone_on_its_node_takes_part_whatever_the_algorithm(comm_world, monkeypatch):
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank))
    for name in ALGORITHMS["reduce"]:
        if name != "shared_heap":
            comm = smcoll.Comm(comm_world, smcoll.Config(algorithms={"reduce": name}))
            for count in (1, 20_000):
                result = np.zeros(count)
                comm.Reduce(np.full(count, comm_world.rank + 1.0), result, root=1)
                if comm_world.rank == 1:
                    np.testing.assert_array_equal(result, 6, name)
            comm.Free()


@pytest.mark.mpi(4)
def test_where_one_node_cannot_have_the_memory_every_call_is_right(comm_world, monkeypatch, capfd):
    """The short stages of some calls need it over nodes, where on one they do not."""
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank // 2))
    rank, size = comm_world.rank, comm_world.size
    comm = smcoll.Comm(comm_world, smcoll.Config(algorithms="reduce=tiled"))
    comm.Barrier()
    if rank == 2:
        def refuse(*arguments):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(budget, "claim", refuse)
    for value in (1, "x" * 10_000):
        assert comm.allgather((rank, value)) == [(peer, value) for peer in range(size)]
        assert comm.bcast((rank, value), 1) == (1, value)
    result = np.zeros(2)
    comm.Reduce_scatter(np.ones(2 * size), result)
    np.testing.assert_array_equal(result, size)
    total = np.zeros(5000)
    comm.Allreduce(np.ones(5000), total)
    np.testing.assert_array_equal(total, size)
    assert comm.engine.data_refused
    assert comm.explain("reduce_scatter", 16).path == "MPI"
    comm.Free()


@pytest.mark.mpi(4)
@pytest.mark.parametrize("strict", [False, True])
def test_memory_that_one_node_cannot_have_is_refused_in_every_call_that_needs_it(
        comm_world, monkeypatch, capfd, strict):
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank // 2))
    comm = smcoll.Comm(comm_world, smcoll.Config(strict=strict))
    comm.Barrier()
    if comm_world.rank == 2:
        def refuse(*arguments):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(budget, "claim", refuse)
    for _ in range(3):
        total = np.zeros(5000)
        if strict:
            with pytest.raises(smcoll.SegmentError):
                comm.Allreduce(np.ones(5000), total)
        else:
            comm.Allreduce(np.ones(5000), total)
            np.testing.assert_array_equal(total, comm.size)
        comm.Allreduce(np.ones(2), total[:2])        # needs none
        np.testing.assert_array_equal(total[:2], comm.size)
    assert comm.explain("allreduce", 40_000).path == "MPI"
    assert comm.explain("allreduce", 16).path == "shared memory and network"
    comm.Free()


@pytest.mark.mpi(4)
def test_an_ordered_allreduce_does_not_take_a_reduce_scatter_that_reorders(comm_world,
                                                                            monkeypatch):
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank // 2))
    config = smcoll.Config(algorithms="reduce_scatter=tree_one_stage", **SETTINGS)
    comm = smcoll.Comm(comm_world, config)
    op = MPI.Op.Create(lambda a, b, _: np.copyto(
        np.frombuffer(b), 2 * np.frombuffer(a) + np.frombuffer(b)), commute=False)
    count = 5000                  # sliced: above slice_above
    with pytest.raises(ValueError, match="does not combine operands in rank order"):
        comm.Allreduce(np.ones(count), np.zeros(count), op)
    comm.Barrier()
    op.Free()
    comm.Free()


@pytest.mark.mpi(4)
def test_threads_that_make_communicators_of_one_group_do_not_mix_them(comm_world, monkeypatch):
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        pytest.skip("needs MPI_THREAD_MULTIPLE")
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank // 2))
    plain = [MPI.Intracomm.Dup(comm_world) for _ in range(6)]
    comms = [smcoll.Comm(comm) for comm in plain]
    first = smcoll.Comm(comm_world)
    first.Barrier()               # makes what the others share
    wrong = []

    def work(number):
        total = np.zeros(1)
        for _ in range(50):
            comms[number].Allreduce(np.full(1, 10.0 ** number), total)
            if total[0] != comm_world.size * 10.0 ** number:
                wrong.append((number, total[0]))

    # Each rank's threads begin in another order.
    threads = [threading.Thread(target=work, args=((i + comm_world.rank) % 6,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len({comm.engine.span.network.tag for comm in [first, *comms]}) == 7
    for comm in [*comms, *plain, first]:
        comm.Free()


FUZZER = (Path(__file__).parents[1] / "verification" / "differential.py").read_text()


@pytest.mark.lengthy
@pytest.mark.parametrize("nodes, options", [("0,0,1", ()), ("0,1,0,2", ("--small",))])
def test_random_programs_on_several_nodes(nodes, options):
    ranks = nodes.count(",") + 1
    result = programs.run_ranks(ranks, FUZZER, "--seconds", "3", "--seed", str(ranks), "--nodes",
                                nodes, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "without a difference" in result.stdout


@pytest.mark.mpi(4)
def test_where_the_memory_lies_is_known_over_several_nodes(comm_world, monkeypatch):
    """`smcoll info --topology` asks every engine."""
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank % 2))
    with smcoll.Comm(comm_world, smcoll.Config(eager=True)) as comm:
        assert sum(comm.engine.pages_by_node().values()) > 0
        assert [rank for members in comm.engine.domains.members for rank in members] == [0, 1, 2, 3]


@pytest.mark.mpi(4)
def test_calls_are_counted_as_the_program_does(comm_world, monkeypatch):
    """Memory is agreed upon by calls of ours, in the midst of one of the program's."""
    monkeypatch.setenv("SMCOLL_NODE", str(comm_world.rank % 2))
    with smcoll.Comm(comm_world) as comm:
        for _ in range(3):
            comm.Barrier()
        comm.bcast("x" * 100_000, 0)
        comm.Allgather(np.ones(1000), np.zeros(1000 * comm.size))
        views = comm.engine.observe()
        comm_world.Barrier()           # all have looked
        # Of the ranks on its node: two, or one where --nodes has parted them already.
        assert {view.call for view in views} == {5}
