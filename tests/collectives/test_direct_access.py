"""Calls on arrays in shared heaps: any mixture is right, nobody touches what is given back."""

from __future__ import annotations

import gc
import os
import signal
from itertools import pairwise

import chosen
import numpy as np
import pytest
from mpi4py import MPI
from programs import run_ranks

import smcoll
from smcoll.memory.budget import budget
from smcoll.topology import sysfs
from smcoll.tuning import select

PAGE = os.sysconf("SC_PAGESIZE")
LARGE = 20_000    # elements: above the threshold
PRIVATE = "numpy's own arrays are private in it"
EVERYTHING_DIRECT = {"heap": True, "strict": True, "direct_size": 32 << 10,
                     "scan": "shared_heap", "exscan": "shared_heap"}


def allreduce(comm, send, recv) -> None:
    send[:] = np.arange(len(send)) + comm.rank
    recv[:] = -1
    comm.Allreduce(send, recv)
    assert np.array_equal(
        recv, comm.size * np.arange(len(send)) + comm.size * (comm.size - 1) // 2)


# ---------------------------------------------------------------------- communicators


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("who", ["all", "none", "first", "others", "results", "operands"])
def test_any_mixture_of_shared_and_private_arrays_is_right(comm_world, who):
    def array(rank, result):
        shared = {"all": True, "none": False, "first": rank == 0, "others": rank != 0,
                  "results": result, "operands": not result}[who]
        return smcoll.empty(LARGE) if shared else np.empty(LARGE)

    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT)) as comm:
        rank, size = comm.rank, comm.size
        # Of one node; over several the same must be right without.
        assert comm.uses_heap or "network" in comm.explain("allreduce", nbytes=8).path
        send, recv = array(rank, False), array(rank, True)
        for root in range(size):
            allreduce(comm, send, recv)
            comm.Reduce(send, recv if rank == root else None, MPI.MAX, root)
            if rank == root:
                assert np.array_equal(recv, np.arange(LARGE) + size - 1)
            send[:] = rank + 1
            comm.Bcast(send, root)
            assert (send == root + 1).all()
        send[:] = rank
        comm.Allreduce(MPI.IN_PLACE, send)
        assert (send == size * (size - 1) // 2).all()
        blocks = LARGE // size
        send[:] = rank
        comm.Allgather(send[:blocks], recv[:blocks * size])
        assert np.array_equal(recv[:blocks * size], np.repeat(np.arange(size), blocks))
        comm.Alltoall(recv[:blocks * size], send[:blocks * size])
        assert (send[:blocks * size] == rank).all()
        send[:] = rank + 1
        comm.Reduce_scatter_block(send[:blocks * size], recv[:blocks])
        assert (recv[:blocks] == size * (size + 1) // 2).all()
        comm.Reduce_scatter_block(MPI.IN_PLACE, send[:blocks * size])
        assert (send[:blocks] == size * (size + 1) // 2).all()
        send[:] = rank + 1
        comm.Scan(send, recv)
        assert (recv == (rank + 1) * (rank + 2) // 2).all()
        comm.Exscan(MPI.IN_PLACE, send)
        assert rank == 0 or (send == rank * (rank + 1) // 2).all()
        send[:] = rank
        comm.Gather(send[:blocks], recv[:blocks * size] if rank == 0 else None)
        comm.Scatter(recv[:blocks * size] if rank == 0 else None, send[blocks:2 * blocks])
        assert (send[blocks:2 * blocks] == rank).all()


@pytest.mark.mpi(2, 3)
def test_operands_and_results_at_odd_addresses(comm_world):
    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT)) as comm:
        for shift in (1, 3, 8 * comm.rank + 5):
            send = smcoll.empty(8 * LARGE + 64, "u1")[shift:shift + 8 * LARGE].view("f8")
            recv = smcoll.empty(8 * LARGE + 64, "u1")[7:7 + 8 * LARGE].view("f8")
            send[:], recv[:] = comm.rank + 1, 0
            comm.Allreduce([send, MPI.DOUBLE], [recv, MPI.DOUBLE])
            assert (recv == comm.size * (comm.size + 1) // 2).all()


@pytest.mark.mpi(2, 3)
def test_the_same_bits_wherever_arrays_lie(comm_world):
    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT)) as comm:
        values = np.random.default_rng(comm.rank).standard_normal(LARGE).astype("f4")
        results = []
        for send in (values, smcoll.array(values)):
            for recv in (np.empty_like(values), smcoll.empty_like(values)):
                if comm.rank == 0 and len(results) == 1:
                    recv = np.empty_like(values)
                comm.Allreduce(send, recv)
                results.append(recv.tobytes())
        assert len(set(results)) == 1
        assert len(set(comm.allgather(results[0]))) == 1
        # Here the order of the operands shows: of equal ones either is a maximum.
        values = np.where(np.arange(LARGE) % 2, -0.0 if comm.rank == 0 else 0.0,
                          np.nan if comm.rank == 0 else 1.0)
        for root in range(comm.size):
            results = []
            for send in (values, smcoll.array(values)):
                for recv in (np.empty_like(values), smcoll.empty_like(values)):
                    comm.Reduce(send, recv, MPI.MAX, root)
                    results.append(recv.tobytes())
            assert comm.rank != root or len(set(results)) == 1


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("count", [20_000, 300_000], ids=["less than a ring", "more"])
def test_alltoall_that_is_in_place_on_one_rank_only(comm_world, count):
    """That rank sends chunks, and receives no chunk: what comes lies in heaps."""
    config = chosen.config(heap=True, strict=True, heap_threshold=32 << 10, direct_size=32 << 10)
    with smcoll.Comm(comm_world, config) as comm:
        rank, size = comm.rank, comm.size
        for turn in range(4):
            send = smcoll.zeros(size * count, int)
            send[:] = np.arange(size * count) + rank * 10**7 + turn
            recv = smcoll.zeros(size * count, int)
            if rank == turn % size:
                recv[:] = send
                comm.Alltoall(MPI.IN_PLACE, recv)
            else:
                comm.Alltoall(send, recv)
            for other in range(size):
                block = np.arange(rank * count, (rank + 1) * count) + other * 10**7 + turn
                assert np.array_equal(recv[other * count:(other + 1) * count], block)


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_messages_are_used_in_place_from_the_size_on_that_explain_says(comm_world):
    config = chosen.config(heap=True, strict=True, heap_threshold=32 << 10, direct_size=0)
    with smcoll.Comm(comm_world, config) as comm:
        core_cache = 0 if comm.engine.oversubscribed else sysfs.core_cache()
        least = select.direct_sizes(config, comm.size, core_cache)
        for collective, nbytes in least.items():
            assert comm.explain(collective, 8 * LARGE).parameters["in_place_from"] == nbytes
        # Two ranks begin with longer ones, and measure.
        first = least | (select.measured_in_heaps(
            config, 2, core_cache, sysfs.last_level_caches(2)) if comm.size == 2 else {})
        for count in (LARGE, first["alltoall"] // 8):
            before = sum(row["direct_bytes"] for row in comm.stats())
            comm.Alltoall(smcoll.zeros(comm.size * count), smcoll.empty(comm.size * count))
            assert sum(row["direct_bytes"] for row in comm.stats()) - before == (
                8 * count * (comm.size - 1) if 8 * count >= first["alltoall"] else 0)
        block, blocks = smcoll.zeros(LARGE), smcoll.empty(comm.size * LARGE)
        before = sum(row["direct_bytes"] for row in comm.stats())
        comm.Gather(block, blocks if comm.rank == 0 else None)
        # Its sender writes it into the root's heap.
        assert (sum(row["direct_bytes"] for row in comm.stats()) > before) == (
            comm.rank > 0 and first["gather"] <= 8 * LARGE)


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_two_ranks_try_whether_a_message_in_a_heap_is_faster_staged(comm_world):
    config = chosen.config(heap=True, strict=True, heap_threshold=32 << 10, direct_size=0)
    with smcoll.Comm(comm_world, config) as comm:
        told = comm.explain("alltoall", 8 * LARGE)
        assert "where that is measured to be faster" in told.reason
        count = told.parameters["in_place_from"] // 8
        send, recv = smcoll.zeros(2 * count), smcoll.empty(2 * count)
        moved = []
        for number in range(60):
            before = sum(row["direct_bytes"] for row in comm.stats())
            send[:] = 10 * number + comm.rank
            comm.Alltoall(send, recv)
            assert (recv[:count] == 10 * number).all() and (recv[count:] == 10 * number + 1).all()
            moved.append(sum(row["direct_bytes"] for row in comm.stats()) - before)
        assert set(moved) == {0, 8 * count}
        in_place = select.measured_in_heaps(config, 2, comm.engine.core_cache)["alltoall"]
        assert (moved[0] > 0) == (8 * count >= in_place)


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("collective", [
    "bcast", "reduce", "allreduce", "reduce_scatter", "allgather"])
def test_all_ranks_try_whether_arrays_in_heaps_are_faster_staged(comm_world, collective):
    if collective == "bcast" and comm_world.size > 2:
        pytest.skip("of more ranks each copies by itself")
    config = chosen.config(heap=True, strict=True, heap_threshold=32 << 10, direct_size=0,
                           learn="off")
    with smcoll.Comm(comm_world, config) as comm:
        rows = pairwise(comm.engine.decisions[collective])
        nbytes = next((row.up_to + 1 for row, after in rows if after.algorithm == "shared_heap"),
                      None)
        if nbytes is None:
            pytest.skip("arrays that don't fit a core's own cache are staged here in any case")
        told = comm.explain(collective, nbytes)
        assert "or all are, where that is measured to be faster" in told.reason
        count = -(-nbytes // 8 // (comm.size if collective == "reduce_scatter" else 1))
        send = smcoll.zeros(count * (comm.size if collective == "reduce_scatter" else 1))
        # Rank 1's result is private: calls that are not staged by all are mixed ones.
        result = count * (comm.size if collective == "allgather" else 1)
        recv = np.empty(result) if comm.rank == 1 else smcoll.empty(result)
        moved = []
        for number in range(60):
            before = sum(row["direct_bytes"] for row in comm.stats())
            send[:] = number + comm.rank
            recv[:] = -1
            if collective == "bcast":
                comm.Bcast(send, root=number % comm.size)
                recv[:] = comm.size * send + comm.size * (
                    (comm.size - 1) / 2 - number % comm.size)
            elif collective == "reduce":
                comm.Reduce(send, recv, root=number % comm.size)
            elif collective == "allreduce":
                comm.Allreduce(send, recv)
            elif collective == "reduce_scatter":
                comm.Reduce_scatter_block(send, recv)
            else:
                comm.Allgather(send, recv)
            if collective == "allgather":
                assert np.array_equal(recv, np.repeat(number + np.arange(comm.size), count))
            elif collective != "reduce" or comm.rank == number % comm.size:
                assert (recv == comm.size * number + comm.size * (comm.size - 1) // 2).all()
            # Who copies is not the same in all collectives.
            moved.append(comm_world.allreduce(
                sum(row["direct_bytes"] for row in comm.stats()) - before))
        in_place = select.measured_in_heaps(config, comm.size, comm.engine.core_cache)[collective]
        assert (moved[0] > 0) == (nbytes >= in_place)
        # The first burst does not count as a trial.
        assert 0 in moved[8:] and max(moved[8:]) > 0


def test_short_arrays_are_staged_where_ranks_have_cores_of_their_own():
    config = chosen.config(heap_threshold=32 << 10, direct_size=0)
    assert select.direct_sizes(config, 2, 1 << 20) == {
        "gather": 256 << 10, "scatter": 256 << 10, "alltoall": 256 << 10}
    assert select.direct_sizes(config, 8, 1 << 20) == {
        "gather": 2 << 20, "scatter": 256 << 10, "alltoall": 256 << 10}
    # Where ranks share cores.
    assert set(select.direct_sizes(config, 8).values()) == {32 << 10}
    for ranks, cache, nbytes in (
            (2, 1 << 20, 256 << 10), (3, 1 << 20, 2 << 20), (2, 0, 32 << 10)):
        rows = select.decide(config, ranks, cache == 0, heaps=True, core_cache=cache)["allreduce"]
        first = [row.algorithm == "shared_heap" for row in rows].index(True)
        assert {row.algorithm for row in rows[first:]} == {"shared_heap"}
        assert rows[first - 1].up_to == nbytes - 1
    told = chosen.config(direct_size=64 << 10)
    assert set(select.direct_sizes(told, 8, 1 << 20).values()) == {64 << 10}
    rows = select.decide(told, 2, False, heaps=True, core_cache=1 << 20)["allreduce"]
    assert (64 << 10) - 1 in [row.up_to for row in rows]
    assert not select.measured_in_heaps(told, 2, 1 << 20)


def test_two_ranks_stage_first_what_both_cores_caches_can_hold():
    config = chosen.config(heap_threshold=32 << 10, direct_size=0,
                           algorithms="allreduce=all_read,alltoall=direct")
    first = select.measured_in_heaps(config, 2, 1 << 20)
    assert first == {"bcast": 2 << 20, "reduce": 2 << 20, "reduce_scatter": 2 << 20,
                     "gather": 2 << 20, "allgather": 16 << 20, "scatter": 8 << 20,
                     "alltoall": 1 << 20}
    smaller = select.measured_in_heaps(config, 2, 1 << 20, 8 << 20)
    assert smaller == first | {"allgather": 4 << 20, "scatter": 2 << 20}
    assert select.measured_in_heaps(config, 4, 1 << 20) == dict.fromkeys(
        ("reduce", "reduce_scatter", "allgather"), 2 << 20)


@pytest.mark.staged(PRIVATE)
@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_stats_and_explain_say_what_was_direct(comm_world):
    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT)) as comm:
        assert comm.explain("allreduce", 8 * LARGE).algorithm == "shared_heap"
        assert comm.explain("allreduce", 8).algorithm != "shared_heap"
        assert "staged" in comm.explain("allreduce", 8).reason
        assert comm.explain("gather", 8 * LARGE).parameters["in_place_from"] == 32768
        allreduce(comm, np.empty(LARGE), np.empty(LARGE))
        (row,) = (row for row in comm.stats() if row["algorithm"] == "shared_heap")
        assert row["direct_bytes"] == 0
        allreduce(comm, smcoll.empty(LARGE), smcoll.empty(LARGE))
        (row,) = (row for row in comm.stats() if row["algorithm"] == "shared_heap")
        # Half of the other's operand read, half of its result written.
        assert abs(row["direct_bytes"] - 8 * LARGE) <= 128
        block = smcoll.zeros(LARGE)
        comm.Gather(block, smcoll.empty(2 * LARGE) if comm.rank == 0 else None)
        (row,) = (row for row in comm.stats() if row["collective"] == "gather")
        assert row["direct_bytes"] == (8 * LARGE if comm.rank == 1 else 0)


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_long_broadcasts_and_allgathers_are_staged(comm_world):
    """From where on depends on whether there are more than two ranks."""
    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT)) as comm:
        for collective, nbytes, direct in (("bcast", 8 * LARGE, True),
                                           ("bcast", 16 << 20, comm.size == 2),
                                           ("allgather", 8 * LARGE, True),
                                           ("allgather", 2 << 20, comm.size == 2),
                                           ("allgather", 16 << 20, comm.size == 2)):
            explanation = comm.explain(collective, nbytes)
            assert (explanation.algorithm == "shared_heap") == direct
            assert ("staged, wherever" in explanation.reason) == (not direct)


@pytest.mark.mpi(2, 3)
def test_a_rank_returns_only_when_nobody_uses_its_arrays(comm_world):
    """What a rank writes into its arrays right after a call is never seen by the others in it."""
    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT, bcast="shared_heap")) as comm:
        rank, size = comm.rank, comm.size
        send, recv = smcoll.empty(LARGE), smcoll.empty(LARGE)
        many, others = smcoll.empty(size * LARGE), smcoll.empty(size * LARGE)
        for number in range(200):
            send[:] = number
            comm.Allreduce(send, recv)
            send[:] = -1
            assert (recv == size * number).all()
            recv[:] = -2
            root = number % size
            send[:] = number if rank == root else -3
            comm.Bcast(send, root)
            assert send[-1] == number      # what came last
            assert (send == number).all()
            send[:] = number + rank
            comm.Allgather(send, many)
            send[:] = -1
            assert np.array_equal(many, np.repeat(number + np.arange(size), LARGE))
            many[:] = np.repeat(10 * rank + np.arange(size), LARGE)
            comm.Alltoall(many, others)
            many[:] = -3
            assert np.array_equal(others, np.repeat(10 * np.arange(size) + rank, LARGE))
            others[:] = -4
            send[:] = number + rank
            comm.Gather(send, many if rank == root else None, root)
            send[:] = -1
            assert rank != root or np.array_equal(many, np.repeat(number + np.arange(size), LARGE))
            comm.Scatter(many if rank == root else None, recv, root)
            many[:] = -5
            assert (recv == number + rank).all()


@pytest.mark.mpi(2)
@pytest.mark.parametrize("collective", ["bcast", "allreduce", "reduce", "gather", "alltoall",
                                        "allgather"])
def test_what_a_rank_has_after_it_gave_up_is_not_written(comm_world, collective):
    """Others come later and find where its arrays lie; its program may use these again."""
    early = 0 if collective in ("gather", "reduce") else 1
    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT, bcast="shared_heap")) as comm:
        send, recv = smcoll.zeros(2 * LARGE), smcoll.zeros(2 * LARGE)
        block = send[:LARGE]
        arguments = {"bcast": (recv, 0), "gather": (block, recv), "allgather": (block, recv)}.get(
            collective, (send, recv))

        def call():
            getattr(comm, collective.capitalize())(*arguments)

        comm.Barrier()
        if comm.rank == early:
            former = signal.signal(signal.SIGALRM, signal.default_int_handler)
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                call()
            signal.signal(signal.SIGALRM, former)
            recv[:] = 77
        comm_world.Barrier()
        if comm.rank != early:
            with pytest.raises(smcoll.PeerError):
                call()
        comm_world.Barrier()
        assert comm.rank != early or (recv == 77).all()


@pytest.mark.mpi(2)
def test_what_does_not_fit_is_left_out_by_the_sender_that_writes(comm_world):
    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT)) as comm:
        send, memory = smcoll.zeros(2 * LARGE), smcoll.zeros(4 * LARGE)
        recv = memory[:2 * LARGE]
        for number in range(1, 200):
            send[:], memory[:] = number, -1
            # Rank 1 sends twice what it is to send in every other call.
            count = LARGE if number % 2 or comm.rank == 0 else 2 * LARGE
            if comm.rank == 0:
                error = None
                try:
                    comm.Gatherv(send[:count], [recv, [LARGE, LARGE]])
                except MPI.Exception as raised:
                    error = raised.Get_error_class()
                assert error == (None if number % 2 else MPI.ERR_TRUNCATE)
                assert (recv == number).all() and (memory[2 * LARGE:] == -1).all()
            else:
                comm.Gatherv(send[:count], None)


@pytest.mark.mpi(2)
def test_a_block_that_does_not_fit_is_written_in_part(comm_world):
    """Of an Allgatherv: each writes into the other's result, which may have less room."""
    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT)) as comm:
        less = 10 if comm.rank == 1 else 0
        send, recv = smcoll.empty(LARGE), smcoll.empty(2 * LARGE)
        for number in range(20):
            send[:], recv[:] = number + comm.rank, -1
            places = [recv, ([LARGE - less, LARGE], [0, LARGE])]
            if comm.rank == 0:
                comm.Allgatherv(send, places)
            else:
                with pytest.raises(smcoll.TruncationError, match=f"^rank 0 sent {8 * LARGE} bytes"):
                    comm.Allgatherv(send, places)
            send[:] = -2
            assert (recv[:LARGE - less] == number).all()
            assert (recv[LARGE - less:LARGE] == -1).all()
            assert (recv[LARGE:] == number + 1).all()


def mapped() -> int:
    """Heaps that this process has mapped, its own and others."""
    with open("/proc/self/maps") as maps:
        return sum("smcoll-heap" in line for line in maps)


@pytest.mark.staged("heaps are mapped there already")
@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_heaps_are_mapped_once_for_all_communicators_and_unmapped_with_the_last(comm_world):
    config = chosen.config(**EVERYTHING_DIRECT)
    smcoll.empty(1)
    own = mapped()
    comms = [smcoll.Comm(comm_world, config) for _ in range(3)]
    for comm in comms:
        assert comm.uses_heap and mapped() == own + 1
    array = smcoll.zeros(5)
    for comm in comms:
        comm.Free()
    del comm, comms[:]
    gc.collect()
    assert mapped() == own
    assert smcoll.is_shared(array) and not array.any()


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_calls_of_objects_are_counted_where_heaps_are_shared(comm_world):
    with smcoll.Comm(comm_world, chosen.config(**EVERYTHING_DIRECT)) as comm:
        assert comm.allreduce(comm.rank) == 1
        calls = {row["collective"]: row["calls"] for row in comm.stats()}
        assert calls["allreduce_objects"] == 1, calls


@pytest.mark.staged(PRIVATE)
@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_where_one_rank_has_no_heap_all_stage(comm_world, monkeypatch, capfd):
    if comm_world.rank == 1:
        def refuse(config, ranks_on_node=0):
            raise OSError(28, "no space for this test")
        monkeypatch.setattr("smcoll.memory.heap_arrays.ensure", refuse)
    with smcoll.Comm(comm_world, smcoll.Config(heap=True)) as comm:
        assert not comm.uses_heap
        assert comm.explain("allreduce", 8 * LARGE).path == "shared memory"
        allreduce(comm, smcoll.zeros(LARGE, comm=comm), np.zeros(LARGE))
        assert not smcoll.is_shared(smcoll.zeros(LARGE, comm=comm))
    if comm_world.rank == 0:
        assert "no shared heaps" in capfd.readouterr().err


@pytest.mark.staged("heaps are mapped there already")
@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_heaps_that_one_rank_cannot_map_are_given_back_by_all(comm_world, monkeypatch):
    gc.collect()
    before, claimed = mapped(), budget.claimed
    if comm_world.rank == comm_world.size - 1:
        def refuse(record):
            raise OSError(13, "no permission for this test")
        monkeypatch.setattr("smcoll.memory.heap.PeerHeap", refuse)
    with smcoll.Comm(comm_world, smcoll.Config(heap=True)) as comm:
        assert not comm.uses_heap
        gc.collect()
        assert mapped() == max(before, 1)
        allreduce(comm, smcoll.zeros(LARGE), smcoll.zeros(LARGE))
    assert budget.claimed == claimed


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_a_set_up_that_is_interrupted_gives_back_what_it_had(comm_world, monkeypatch):
    def interrupt(config, ranks_on_node=0):
        raise KeyboardInterrupt

    claimed = budget.claimed
    with open("/proc/self/maps") as maps:
        before = sum("smcoll" in line for line in maps)
    monkeypatch.setattr("smcoll.memory.heap_arrays.ensure", interrupt)
    comm = smcoll.Comm(comm_world, smcoll.Config(heap=True))
    with pytest.raises(KeyboardInterrupt):
        comm.Barrier()
    assert budget.claimed == claimed
    with open("/proc/self/maps") as maps:
        assert sum("smcoll" in line for line in maps) == before
    comm.Free()


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_making_an_array_waits_for_nobody(comm_world):
    comm = smcoll.Comm(comm_world, smcoll.Config(heap=True))
    if comm.rank == 0:
        comm.send(smcoll.is_shared(smcoll.empty(LARGE, comm=comm)), 1)
    else:
        assert comm.recv(source=0)
    comm.Barrier()
    assert smcoll.is_shared(smcoll.empty(LARGE, comm=comm))
    comm.Free()


# ---------------------------------------------------------------------- calls that fail


IMPATIENT = chosen.config(timeout=0.3, bcast="shared_heap", **EVERYTHING_DIRECT)


@pytest.mark.one_node
@pytest.mark.mpi(2)
@pytest.mark.parametrize("collective", ["bcast", "allreduce", "allgather", "gather", "scan"])
def test_what_a_rank_changes_after_it_gave_up_is_not_taken_for_data(comm_world, collective):
    """Rank 0 gives up waiting for rank 1 and goes on with its array, which it had published."""
    comm = smcoll.Comm(comm_world, IMPATIENT)
    mine, all_blocks = smcoll.zeros(LARGE), smcoll.zeros(2 * LARGE)
    calls = {"bcast": lambda: comm.Bcast(mine, 0),
             "allreduce": lambda: comm.Allreduce(mine, all_blocks[:LARGE]),
             "allgather": lambda: comm.Allgather(mine, all_blocks),
             "gather": lambda: comm.Gather(mine, all_blocks if comm.rank == 1 else None, 1),
             "scan": lambda: comm.Scan(mine, all_blocks[:LARGE])}
    calls[collective]()
    if comm.rank == 0:
        with pytest.raises(smcoll.WaitTimeout):
            calls[collective]()
        mine[:] = 7
        comm_world.Barrier()
    else:
        comm_world.Barrier()
        with pytest.raises(smcoll.Error):
            calls[collective]()
    comm.Free()


@pytest.mark.one_node
@pytest.mark.mpi(2)
@pytest.mark.parametrize("collective", ["Allreduce", "Allgather"])
def test_memory_of_a_call_that_failed_is_not_used_again(comm_world, collective):
    """Rank 1, which has not noticed yet, would write its part of the result there."""
    comm = smcoll.Comm(comm_world, IMPATIENT)
    call = getattr(comm, collective)
    # A size that nothing else has: what is freed is what is taken next.
    send, recv = smcoll.zeros(LARGE + 3 * PAGE), smcoll.zeros(2 * (LARGE + 3 * PAGE))
    if collective == "Allreduce":
        recv = recv[:len(send)]
    call(send, recv)
    if comm.rank == 0:
        with pytest.raises(smcoll.WaitTimeout):
            call(send, recv[:])
        addresses = {send.ctypes.data, recv.ctypes.data}
        del send, recv
        gc.collect()
        others = [smcoll.zeros(count * (LARGE + 3 * PAGE)) for count in (1, 2) for _ in range(4)]
        assert not addresses & {other.ctypes.data for other in others}
    comm_world.Barrier()
    if comm.rank == 1:
        with pytest.raises(smcoll.Error):
            call(send, recv)
    comm.Free()


# ---------------------------------------------------------------------- jobs of their own

INSTALLED = """
    import numpy as np, smcoll
    {install}
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    send, recv = np.full(1_000_000, comm.rank + 1.0), np.empty(1_000_000)
    assert smcoll.is_shared(send) and smcoll.is_shared(recv)
    comm.Allreduce(send, recv)
    assert (recv == 3).all()
    assert any(row["direct_bytes"] for row in comm.stats())
    MPI.Finalize()
    send += recv
    assert smcoll.is_shared(send.copy())
    print("end")
"""


@pytest.mark.parametrize("install, environment", [
    ("smcoll.install(heap=True)", {}), ("smcoll.install()", {"SMCOLL_HEAP": "1"}),
])
def test_a_program_needs_no_change(install, environment):
    result = run_ranks(2, INSTALLED.format(install=install), environment=environment, alone=True)
    assert result.returncode == 0 and result.stdout.count("end") == 2, result.stderr
