"""Gather, Scatter, Allgather, Alltoall, Reduce_scatter, Scan and Exscan against numpy."""

import json
import random

import chosen
import numpy as np
import pytest
from mpi4py import MPI

import smcoll
from smcoll.topology import sysfs
from smcoll.tuning import select

RANKS = (2, 3, 5, 8)
# Elements of 8 bytes: none, one, a full cell, one more, a full inline slot, one more, the smallest
# chunk, one more, many of them.
CELL, SLOT, CHUNK = 224 // 8, 1120 // 8, 4096 // 8
COUNTS = [0, 1, 7, CELL, CELL + 1, SLOT, SLOT + 1, CHUNK, CHUNK + 1, 20 * CHUNK + 3]


@pytest.fixture(scope="module", params=["default", "one page"])
def comm(request):
    """With the default sizes, and with the smallest: every size is many sections and chunks."""
    small = {"segment_size": 4096, "stream_size": 4096, "inline_size": 64,
             "rooted_inline_size": 32, "banks": 1, "segments": 2, "inline_slots": 2,
             "kernel_copy_size": 1}
    fields = small if request.param == "one page" else {}
    made = smcoll.Comm(MPI.COMM_WORLD, chosen.config(**fields))
    yield made
    made.Free()


def numbers(rank, count, salt=0):
    """What ``rank`` contributes: different for every rank, place and call."""
    return (np.arange(count) * 7 + 1000 * rank + salt) % 100_003


def roots(size):
    return sorted({0, size // 2, size - 1})


def ragged(size, count):
    """Counts that differ per rank, some of them none."""
    return [max(0, count - 3 * rank) if rank % 3 != 2 else 0 for rank in range(size)]


@pytest.mark.mpi(*RANKS)
@pytest.mark.parametrize("settings", [{}, {"scatter": "two_stage"}], ids=["direct", "two_stage"])
@pytest.mark.parametrize("count", [0, 5, 3 * CHUNK])
def test_some_ranks_pass_arrays_and_others_specifications(settings, count):
    """The first call of a communicator, too: that reserves its streams."""
    with smcoll.Comm(MPI.COMM_WORLD, chosen.config(**settings)) as comm:
        rank, size = comm.rank, comm.size

        def given(array, call):
            return array if (rank + call) % 2 else [array, MPI.INT64_T]

        blocks = [numbers(r, count) for r in range(size)]
        for call in range(4):
            root = call % size
            everything = np.full(size * count, -1)
            comm.Gather(given(blocks[rank], call), given(everything, call), root)
            assert rank != root or np.array_equal(everything, np.concatenate(blocks))
            mine = np.full(count, -1)
            comm.Scatter(given(np.concatenate(blocks), call), given(mine, call), root)
            assert np.array_equal(mine, blocks[rank])
            everything[:] = -1
            comm.Allgather(given(blocks[rank], call), given(everything, call))
            assert np.array_equal(everything, np.concatenate(blocks))
            sent = np.concatenate([numbers(rank, count, salt=r) for r in range(size)])
            comm.Alltoall(given(sent, call), given(everything, call))
            assert np.array_equal(everything, np.concatenate(
                [numbers(r, count, salt=rank) for r in range(size)]))


@pytest.mark.mpi(*RANKS)
@pytest.mark.parametrize("in_place", [False, True])
def test_gather_and_scatter(comm, in_place):
    for count in COUNTS:
        check_gather_and_scatter(comm, count, in_place)


def check_gather_and_scatter(comm, count, in_place):
    rank, size = comm.rank, comm.size
    everything = np.concatenate([numbers(r, count) for r in range(size)])
    for root in roots(size):
        received = None
        if rank == root:
            received = np.full(size * count, -1)
            received[rank * count:(rank + 1) * count] = numbers(rank, count)
        comm.Gather(MPI.IN_PLACE if in_place and rank == root else numbers(rank, count), received,
                    root)
        if rank == root:
            np.testing.assert_array_equal(received, everything)
        own = np.full(count, -1)
        comm.Scatter(everything if rank == root else None,
                     MPI.IN_PLACE if in_place and rank == root else own, root)
        if not (in_place and rank == root):
            np.testing.assert_array_equal(own, numbers(rank, count))


@pytest.mark.one_node
@pytest.mark.mpi(*RANKS)
@pytest.mark.parametrize("cache", [0, 1 << 20], ids=["shared core", "core of its own"])
def test_messages_of_many_long_chunks(cache):
    """They go round the ring, in whatever places the chunks before them have used."""
    fields = {"learn": "off", "kernel_copy_size": 1 << 30, "stream_size": 4 << 20}
    with smcoll.Comm(MPI.COMM_WORLD, chosen.config(**fields)) as comm:
        rank, size = comm.rank, comm.size
        comm.Barrier()
        comm.engine.use_core_cache(cache)
        comm.Barrier()
        for count in (170_001, 9_000, 70_003, 2_049, 170_001):
            check_gather_and_scatter(comm, count, in_place=False)
            exchanged = np.concatenate([numbers(rank, count, salt=r) for r in range(size)])
            comm.Alltoall(MPI.IN_PLACE, exchanged)
            np.testing.assert_array_equal(exchanged, np.concatenate(
                [numbers(r, count, salt=rank) for r in range(size)]))


@pytest.mark.one_node
@pytest.mark.mpi(2, 4)
@pytest.mark.parametrize("turns", [False, True], ids=["one root", "roots by turns"])
def test_the_root_of_long_gathers_finds_out_how_to_write_its_result(comm_world, turns):
    with smcoll.Comm(comm_world, smcoll.Config(heap=False)) as comm:
        rank, size = comm.rank, comm.size
        always = comm.explain("gather", 8).parameters["around_caches_from"]
        least = select.measured_results_from(size, sysfs.last_level_caches(size))
        count = least // size // 8 + 8
        if count * 8 * size >= always:
            pytest.skip("the last-level cache is so small that nothing is measured")
        received = np.empty((size, count))
        by_all = 36 * size if turns else 36
        for call in range(20 * by_all):
            root = call % size if turns else 0
            sent = np.full(count, 100.0 * call + rank)
            comm.Gather(sent, received if rank == root else None, root)
            if rank == root:
                assert (received == 100.0 * call + np.arange(size)[:, None]).all()
            told = comm.explain("gather", 8 * count).parameters
            if call == size + 1:
                first = told["root_writes"]
            # Where the distance of the cores changes, ranks begin anew.
            found = "us from call to call" in told["root_writes_because"]
            if call % by_all == by_all - 1 and comm_world.allreduce(found) == (
                    size if turns else 1):
                break
        # What others than the one root would begin with counts, too.
        assert first == ("around the caches" if turns or rank > 0 else "through the caches")
        assert found == (turns or rank == 0)
        # Others follow from their size.
        assert "root_writes" not in comm.explain("gather", 64 << 10).parameters
        assert "root_writes" not in comm.explain("gather", always // size + 8).parameters
        assert "root_writes" not in comm.explain("scatter", 8 * count).parameters


@pytest.mark.one_node
@pytest.mark.mpi(2, 8)
def test_chunks_are_about_equal_and_shorter_where_the_receiver_can_begin_early(comm):
    longest = comm.engine.chunk_bytes("alltoall", 1 << 30)
    for nbytes in (225, 4097, 1 << 15, 65_537, 131_073, 1 << 20, (1 << 24) + 1):
        lengths = {collective: comm.engine.chunk_bytes(collective, nbytes)
                   for collective in ("gather", "scatter", "alltoall")}
        assert lengths["gather"] == lengths["scatter"] <= lengths["alltoall"] <= 128 << 10
        for length in lengths.values():
            assert length % 128 == 0
        pieces = -(-nbytes // lengths["gather"])
        assert lengths["gather"] - nbytes / pieces < 128
        # Both messages of a pair are cut at the same places, whatever follows there.
        assert lengths["alltoall"] == min(-(-nbytes // 128) * 128, longest)
        if nbytes > 1 << 16:
            assert -(-nbytes // lengths["gather"]) >= 4


@pytest.mark.mpi(*RANKS)
def test_gatherv_and_scatterv_with_gaps(comm):
    for count in COUNTS:
        check_gatherv_and_scatterv_with_gaps(comm, count)


def check_gatherv_and_scatterv_with_gaps(comm, count):
    """Blocks in reverse order, a hole behind each: what lies in the holes stays."""
    rank, size = comm.rank, comm.size
    counts = ragged(size, count)
    places = [sum(counts[r + 1:]) + 2 * (size - r) for r in range(size)]
    expected = np.full(sum(counts) + 2 * size + 2, -1)
    for r in range(size):
        expected[places[r]:places[r] + counts[r]] = numbers(r, counts[r])
    for root in roots(size):
        received = np.full_like(expected, -1) if rank == root else None
        comm.Gatherv(numbers(rank, counts[rank]),
                     [received, counts, places, MPI.LONG] if rank == root else None, root)
        if rank == root:
            np.testing.assert_array_equal(received, expected)
        own = np.full(counts[rank] + 1, -1)
        comm.Scatterv([expected, (counts, places)] if rank == root else None, [own, counts[rank]],
                      root)
        np.testing.assert_array_equal(own, np.append(numbers(rank, counts[rank]), -1))


@pytest.mark.mpi(*RANKS)
@pytest.mark.parametrize("in_place", [False, True])
def test_allgather_and_allgatherv(comm, in_place):
    for count in COUNTS:
        check_allgather_and_allgatherv(comm, count, in_place)


def check_allgather_and_allgatherv(comm, count, in_place):
    rank, size = comm.rank, comm.size
    for counts in ([count] * size, ragged(size, count)):
        starts = np.cumsum([0, *counts])
        expected = np.concatenate([numbers(r, counts[r]) for r in range(size)])
        received = np.full(len(expected), -1)
        mine = numbers(rank, counts[rank])
        if in_place:
            received[starts[rank]:starts[rank + 1]], mine = mine, MPI.IN_PLACE
        if counts == [count] * size:
            comm.Allgather(mine, received)
        else:
            comm.Allgatherv(mine, [received, counts])
        np.testing.assert_array_equal(received, expected)


@pytest.mark.mpi(*RANKS)
@pytest.mark.parametrize("in_place", [False, True])
def test_alltoall_and_alltoallv(comm, in_place):
    for count in COUNTS:
        check_alltoall_and_alltoallv(comm, count, in_place)


def check_alltoall_and_alltoallv(comm, count, in_place):
    """In place, what arrives may only overwrite what has left."""
    rank, size = comm.rank, comm.size
    matrix = np.full((size, size), count)
    ragged_matrix = np.array([[ragged(size, count)[(r + s) % size] for s in range(size)]
                              for r in range(size)])
    for counts in (matrix, ragged_matrix):          # both symmetric, as in place needs it
        sent = np.concatenate([numbers(rank, counts[rank][to], to) for to in range(size)])
        expected = np.concatenate([numbers(r, counts[r][rank], rank) for r in range(size)])
        received = sent.copy() if in_place else np.full(len(expected), -1)
        send = MPI.IN_PLACE if in_place else sent
        if counts is matrix:
            comm.Alltoall(send, received)
        else:
            comm.Alltoallv(send if in_place else [sent, counts[rank].tolist()],
                           [received, counts[:, rank].tolist()])
        np.testing.assert_array_equal(received, expected)


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("kind", ["null", "uncommitted"])
def test_types_of_empty_blocks_are_refused_where_mpi_refuses_them(comm_world, kind):
    """Some MPIs don't look at them."""
    rank, size = comm_world.rank, comm_world.size
    unused = MPI.DATATYPE_NULL if kind == "null" else MPI.BYTE.Create_contiguous(10)
    counts, types = [0] * size, [unused] * size
    counts[rank], types[rank] = 1, MPI.INT
    places = [10 * i for i in range(size)]

    def outcome(comm):
        received = np.zeros(10 * size, "u1")
        try:
            comm.Alltoallw([np.arange(10 * size, dtype="u1"), (counts, places), types],
                           [received, (counts, places), types])
        except MPI.Exception as error:
            return error.Get_error_class()
        return received.tolist()

    with smcoll.Comm(comm_world) as comm:
        assert outcome(comm) == outcome(comm_world)
        if kind == "uncommitted":
            # It is not taken for a committed one later.
            counts[rank], types[rank] = 1, unused
            with pytest.raises(MPI.Exception):
                comm.Alltoallw([np.zeros(10 * size, "u1"), (counts, places), types],
                               [np.zeros(10 * size, "u1"), (counts, places), types])
            unused.Free()


@pytest.mark.mpi(2, 3, 5)
def test_alltoallw(comm):
    """A datatype for each pair: columns of a matrix become rows."""
    rank, size = comm.rank, comm.size
    matrix = np.arange(size * 40.0).reshape(40, size) + 1000 * rank
    column = MPI.DOUBLE.Create_vector(40, 1, size).Commit()
    rows = np.zeros((size, 40))
    comm.Alltoallw([matrix, ([1] * size, [8 * to for to in range(size)]), [column] * size],
                   [rows, ([40] * size, [320 * r for r in range(size)]), [MPI.DOUBLE] * size])
    for r in range(size):
        np.testing.assert_array_equal(rows[r], np.arange(size * 40.0).reshape(40, size)[:, rank]
                                      + 1000 * r)
    column.Free()


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("count", [0, 1, 30, 3000])
def test_layouts_that_differ_between_ranks(comm, count):
    """Rank r has its elements r + 1 places apart; the path is the same, the gaps stay."""
    rank, size = comm.rank, comm.size
    strided = MPI.LONG.Create_resized(0, 8 * (rank + 1)).Commit()

    def spread(values, filler=-1):
        memory = np.full(max(len(values), 1) * (rank + 1), filler)
        memory[::rank + 1][:len(values)] = values
        return memory

    everything = np.concatenate([numbers(r, count) for r in range(size)])
    for root in roots(size):
        buffer = spread(numbers(root, count) if rank == root else np.full(count, 0))
        comm.Bcast([buffer, count, strided], root)
        np.testing.assert_array_equal(buffer, spread(numbers(root, count)))
        received = spread(np.zeros(count * size, int)) if rank == root else None
        comm.Gather([spread(numbers(rank, count)), count, strided],
                    [received, count, strided] if rank == root else None, root)
        if rank == root:
            np.testing.assert_array_equal(received, spread(everything))
    received = spread(np.zeros(count * size, int))
    comm.Allgather([spread(numbers(rank, count)), count, strided], [received, count, strided])
    np.testing.assert_array_equal(received, spread(everything))
    comm.Alltoall([spread(np.tile(numbers(rank, count), size)), count, strided],
                  [received, count, strided])
    np.testing.assert_array_equal(received, spread(everything))
    strided.Free()


@pytest.mark.mpi(*RANKS)
@pytest.mark.parametrize("in_place", [False, True])
def test_reduce_scatter(comm, in_place):
    for count in COUNTS:
        check_reduce_scatter(comm, count, in_place)


def check_reduce_scatter(comm, count, in_place):
    rank, size = comm.rank, comm.size
    for counts in ([count] * size, ragged(size, count)):
        starts = np.cumsum([0, *counts])
        total = sum(numbers(r, starts[-1]) for r in range(size))
        mine = numbers(rank, starts[-1])
        received = mine.copy() if in_place else np.full(counts[rank], -1)
        send = MPI.IN_PLACE if in_place else mine
        if counts == [count] * size:
            comm.Reduce_scatter_block(send, received)
        else:
            comm.Reduce_scatter(send, received, counts)
            if not in_place:
                received[:] = -1
                comm.Reduce_scatter(send, received)     # the counts are what the ranks receive
        np.testing.assert_array_equal(received[:counts[rank]],
                                      total[starts[rank]:starts[rank + 1]])


@pytest.mark.mpi(*RANKS)
@pytest.mark.parametrize("in_place", [False, True])
def test_scan_and_exscan(comm, in_place):
    for count in COUNTS:
        check_scan_and_exscan(comm, count, in_place)


def check_scan_and_exscan(comm, count, in_place):
    rank = comm.rank
    for method, ranks in ((comm.Scan, rank + 1), (comm.Exscan, rank)):
        mine = numbers(rank, count)
        received = mine.copy() if in_place else np.full(count, -1)
        method(MPI.IN_PLACE if in_place else mine, received)
        if ranks:
            np.testing.assert_array_equal(received, sum(numbers(r, count) for r in range(ranks)))
        else:
            np.testing.assert_array_equal(received, mine if in_place else np.full(count, -1))


@pytest.mark.mpi(*RANKS)
@pytest.mark.staged("names a staged algorithm")
@pytest.mark.one_node
@pytest.mark.parametrize("name", ["direct", "chain"])
def test_scans_by_name(comm_world, name):
    small = {"segment_size": 4096, "segments": 2, "inline_slots": 2}
    for settings in ({}, small):
        with smcoll.Comm(comm_world, chosen.config(scan=name, exscan=name, **settings)) as comm:
            for count in COUNTS:
                for in_place in (False, True):
                    check_scan_and_exscan(comm, count, in_place)
            used = {row["algorithm"] for row in comm.stats() if row["collective"] == "scan"}
            assert used == {name}


@pytest.mark.mpi(*RANKS)
def test_scans_give_the_same_bits_whatever_the_algorithm(comm_world):
    comms = [smcoll.Comm(comm_world, chosen.config(scan=name, exscan=name))
             for name in ("direct", "chain")]
    for count in (1, 30, 5000):
        mine = np.random.default_rng(comm_world.rank).standard_normal(count)
        for method in ("Scan", "Exscan"):
            results = [np.zeros(count) for _ in comms]
            for comm, result in zip(comms, results, strict=True):
                getattr(comm, method)(mine, result)
            assert results[0].tobytes() == results[1].tobytes()
    for comm in comms:
        comm.Free()


def product(one, two, _datatype):
    """2 x 2 matrices modulo a prime: associative, not commutative."""
    left, right = (np.frombuffer(b, "q").reshape(-1, 2, 2) for b in (one, two))
    np.copyto(right, left @ right % 1_000_003)


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("count", [1, 600])
def test_a_chain_keeps_rank_order(comm_world, count):
    with smcoll.Comm(comm_world, chosen.config(scan="chain", exscan="chain")) as comm:
        check_order(comm, count)


@pytest.mark.mpi(2, 3, 5, 8)
@pytest.mark.parametrize("count", [1, 5, 600])
def test_operations_that_do_not_commute_keep_rank_order(comm, count):
    check_order(comm, count)


def check_order(comm, count):
    rank, size = comm.rank, comm.size
    operation = MPI.Op.Create(product, commute=False)
    matrix = MPI.LONG.Create_contiguous(4).Commit()

    def matrices(r, howmany):
        return (np.arange(4 * howmany) * (r + 3) + r + 1).reshape(-1, 2, 2) % 1_000_003

    def expected(ranks, howmany=count, part=slice(None)):
        result = matrices(ranks[0], howmany)[part]
        for r in ranks[1:]:
            result = result @ matrices(r, howmany)[part] % 1_000_003
        return result

    mine, got = matrices(rank, count), np.zeros((count, 2, 2), int)
    comm.Allreduce([mine, count, matrix], [got, count, matrix], operation)
    np.testing.assert_array_equal(got, expected(range(size)))
    for root in roots(size):
        got[:] = 0
        comm.Reduce([mine, count, matrix], [got, count, matrix], operation, root)
        if rank == root:
            np.testing.assert_array_equal(got, expected(range(size)))
    comm.Scan([mine, count, matrix], [got, count, matrix], operation)
    np.testing.assert_array_equal(got, expected(range(rank + 1)))
    comm.Exscan([mine, count, matrix], [got, count, matrix], operation)
    if rank > 0:
        np.testing.assert_array_equal(got, expected(range(rank)))
    comm.Reduce_scatter_block([matrices(rank, size * count), count, matrix],
                              [got, count, matrix], operation)
    np.testing.assert_array_equal(
        got, expected(range(size), size * count, slice(rank * count, (rank + 1) * count)))
    operation.Free()
    matrix.Free()
    assert "MPI" not in {row["path"] for row in comm.stats()}


@pytest.mark.mpi(2)
@pytest.mark.one_node
def test_an_algorithm_that_cannot_keep_rank_order_is_refused_by_name(comm_world):
    operation = MPI.Op.Create(product, commute=False)
    with smcoll.Comm(comm_world, chosen.config(allreduce="fan_in_fan_out")) as comm:
        with pytest.raises(ValueError, match="rank order"):
            comm.Allreduce(np.ones(4, "q"), np.ones(4, "q"), operation)
        total = np.zeros(4)
        comm.Allreduce(np.ones(4), total)
        assert (total == 2).all()
    operation.Free()


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("count", [4, 40, 40_000])
def test_truncation_is_the_receivers_error_and_the_communicator_goes_on(comm, count):
    """The receiver follows what the sender published: less is right, more is its own error."""
    rank, size = comm.rank, comm.size
    everything = np.concatenate([numbers(r, count) for r in range(size)])
    for less in (1, count - 1):
        room = np.full(count - less, -1)
        if rank == size - 1:
            with pytest.raises(MPI.Exception) as error:
                comm.Scatter(None, room, 0)
            assert error.value.Get_error_class() == MPI.ERR_TRUNCATE
            assert str(error.value) == (f"rank 0 sent {8 * count} bytes; this rank has room for "
                                        f"{8 * (count - less)}")
        else:
            comm.Scatter(everything if rank == 0 else None, np.zeros(count, int), 0)
        received = np.full((size, count), -1)
        comm.Gather([numbers(rank, count), max(count - less * rank, 0)],
                    received if rank == 0 else None, 0)
        if rank == 0:
            for r in range(size):
                sent = max(count - less * r, 0)
                np.testing.assert_array_equal(received[r][:sent], numbers(r, count)[:sent])
                assert (received[r][sent:] == -1).all()


@pytest.mark.mpi(3)
def test_a_sender_runs_ahead_only_as_far_as_its_ring(comm):
    """A thousand short messages to a slow root: none is overwritten before it is read."""
    import time

    for turn in range(1000):
        received = np.zeros(3, int) if comm.rank == 0 else None
        comm.Gather(np.array([1000 * comm.rank + turn]), received, 0)
        if comm.rank == 0:
            if turn % 100 == 0:
                time.sleep(0.005)
            assert received.tolist() == [turn, 1000 + turn, 2000 + turn]


@pytest.mark.one_node
@pytest.mark.staged("messages in heaps need no ring")
@pytest.mark.mpi(2, deadline=30)
def test_a_message_that_fills_the_ring_leaves_once_the_one_before_was_read(comm_world):
    """Whatever was sent before: credit for its last pieces does not wait for half a ring."""
    cells = 8
    with smcoll.Comm(comm_world, smcoll.Config(learn="off")) as comm:
        comm.Barrier()
        chunk = comm.explain("gather", 1 << 20).parameters["chunk_bytes"]
        block = np.ones(cells * chunk // 8)
        received = np.zeros((2, len(block))) if comm.rank == 0 else None
        for _ in range(cells):
            comm.Gather(np.ones(1), np.zeros(2) if comm.rank == 0 else None, 0)
            comm.Gather(block, received, 0)
            if comm.rank == 0:
                comm_world.recv(source=1)
            comm.Gather(block, received, 0)
            if comm.rank == 1:
                comm_world.send("left", 0)
            comm.Barrier()


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_two_streams_changing_rooms_overwrite_nothing_unread(comm_world):
    """Messages of none to 40 chunks in both directions or in one, ranks late by turns."""
    import time

    shared, own = random.Random(7), random.Random(comm_world.Get_rank())
    settings = chosen.config(stream_size=64 << 10, kernel_copy_size=1 << 30, learn="off")
    with smcoll.Comm(comm_world, settings) as comm:
        comm.Barrier()
        comm.engine.use_core_cache(1 << 20)     # chunks take turns in their rooms, too
        comm.Barrier()
        rank, size = comm.rank, comm.size
        chunk = comm.engine.chunk_bytes("alltoall", 1 << 30)
        for turn in range(400):
            longest = shared.choice((chunk // 8, 3 * chunk, 40 * chunk)) // 8
            lengths = [[shared.randint(0, longest) for _ in range(size)] for _ in range(size)]
            if own.random() < 0.1:
                time.sleep(2e-4)
            kind = shared.choice(("alltoallv", "alltoall in place", "gather", "scatter"))
            if kind == "alltoallv":
                check_alltoallv(comm, lengths, turn)
            elif kind == "alltoall in place":
                exchanged = np.concatenate(
                    [numbers(rank, longest, salt=turn + r) for r in range(size)])
                comm.Alltoall(MPI.IN_PLACE, exchanged)
                np.testing.assert_array_equal(exchanged, np.concatenate(
                    [numbers(r, longest, salt=turn + rank) for r in range(size)]))
            else:
                root = shared.randrange(size)
                blocks = np.concatenate([numbers(r, longest, salt=turn) for r in range(size)])
                if kind == "gather":
                    whole = np.zeros_like(blocks) if rank == root else None
                    comm.Gather(numbers(rank, longest, salt=turn), whole, root)
                    if rank == root:
                        np.testing.assert_array_equal(whole, blocks)
                else:
                    mine = np.zeros(longest, blocks.dtype)
                    comm.Scatter(blocks if rank == root else None, mine, root)
                    np.testing.assert_array_equal(mine, numbers(rank, longest, salt=turn))


def check_alltoallv(comm, lengths, turn):
    """``lengths[s][d]``: elements from rank s to rank d."""
    rank, size = comm.rank, comm.size
    sent = np.concatenate([numbers(rank, lengths[rank][r], salt=turn + r) for r in range(size)])
    expected = np.concatenate(
        [numbers(r, lengths[r][rank], salt=turn + rank) for r in range(size)])
    received = np.zeros_like(expected)
    comm.Alltoallv((sent, lengths[rank]), (received, [row[rank] for row in lengths]))
    np.testing.assert_array_equal(received, expected)


class Point:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x

    def __add__(self, other):
        return Point(self.x + other.x)


OBJECTS = [0, -1, 1 << 62, 1 << 70, 0.5, float("inf"), True, False, None, 1 + 2j, "short",
           "long" * 1000, b"bytes", (1, [2.5, {"a": None}]), np.float32(1.5), np.int8(-3),
           np.bool_(True), np.longdouble(1) / 3, np.complex64(1j), np.str_("text"),
           np.datetime64("2020-02-02"), np.arange(3), np.arange(50_000.0), Point(3)]


def same(one, two):
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


@pytest.mark.mpi(2, 3, 5)
def test_objects_arrive_with_their_type(comm):
    rank, size = comm.rank, comm.size
    for turn in range(len(OBJECTS)):
        every = [OBJECTS[(turn + r) % len(OBJECTS)] for r in range(size)]
        root = turn % size
        got = comm.bcast(every[rank], root)
        assert same(got, every[root])
        assert same(comm.gather(every[rank], root), every if rank == root else None)
        assert same(comm.scatter(every if rank == root else None, root), every[rank])
        assert same(comm.allgather(every[rank]), every)
        crossed = [OBJECTS[(turn + rank + 2 * r) % len(OBJECTS)] for r in range(size)]
        assert same(comm.alltoall(crossed),
                    [OBJECTS[(turn + r + 2 * rank) % len(OBJECTS)] for r in range(size)])


@pytest.mark.mpi(2, 3, 5)
def test_objects_are_copies_at_their_own_rank_too(comm):
    mine = [comm.rank]
    for got in (comm.bcast(mine, comm.rank and 0), comm.allgather(mine)[comm.rank],
                comm.scatter([mine] * comm.size), comm.alltoall([mine] * comm.size)[comm.rank]):
        assert got is not mine


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("kind", [int, float, str, Point, np.arange])
def test_objects_are_reduced_in_rank_order(comm, kind):
    rank, size = comm.rank, comm.size

    def total(ranks):
        result = kind(ranks[0] + 1)
        for r in ranks[1:]:
            result = result + kind(r + 1)
        return result

    if kind is np.arange:
        def kind(r):
            return np.arange(3) * r
    assert same(comm.allreduce(kind(rank + 1)), total(range(size)))
    assert same(comm.reduce(kind(rank + 1), lambda a, b: a + b, size - 1),
                total(range(size)) if rank == size - 1 else None)
    assert same(comm.scan(kind(rank + 1)), total(range(rank + 1)))
    assert same(comm.exscan(kind(rank + 1)), total(range(rank)) if rank else None)


@pytest.mark.mpi(2, 3)
def test_objects_that_cannot_be_sent_raise_before_anything_is_published(comm):
    for call in (lambda: comm.allgather(lambda: 0), lambda: comm.gather(lambda: 0),
                 lambda: comm.alltoall([lambda: 0] * comm.size)):
        with pytest.raises(Exception, match=r"pickle|lambda"):
            call()
    with pytest.raises(ValueError, match="items"):
        comm.alltoall([1])
    if comm.rank == 0:
        with pytest.raises(ValueError, match="items"):
            comm.scatter([1], 0)
    assert comm.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.mpi(2, 3)
def test_a_pickle_of_the_programs_own_gets_the_buffers_that_mpi4py_gives_it(comm):
    MPI.pickle.__init__(lambda value: json.dumps(value).encode(),
                        lambda buffer: json.loads(buffer.tobytes()))
    try:
        for length in (1, 10_000):
            value = ["x"] * length
            assert comm.bcast(value) == value
            assert comm.allgather(value) == [value] * comm.size
            assert comm.alltoall([value] * comm.size) == [value] * comm.size
    finally:
        MPI.pickle.__init__()
