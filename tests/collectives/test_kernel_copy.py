"""Long Scatters, Alltoalls and Allgathers whose receivers read the senders' memory."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from mpi4py import MPI

import smcoll
from smcoll.memory import cross_memory
from smcoll.topology import sysfs
from smcoll.tuning import select

pytestmark = pytest.mark.one_node

WORTH_READING = 32768    # bytes
LARGE = 20_000    # elements: more than that
SETTINGS = {"internals": {"kernel_copy_size": 1}, "heap": False, "strict": True}


@pytest.fixture
def comm(comm_world):
    """A communicator whose every Scatter is copied through the kernel."""
    with smcoll.Comm(comm_world, smcoll.Config(**SETTINGS)) as comm:
        skip_where_refused(comm)
        yield comm


def skip_where_refused(comm) -> None:
    if not comm.engine.kernel_copy_sizes:
        pytest.skip("nobody reads a peer's memory: the kernel refuses")


def direct_bytes(comm) -> int:
    return sum(row["direct_bytes"] for row in comm.stats())


@pytest.mark.mpi(2, 3)
def test_blocks_are_copied_once_to_their_ranks(comm):
    received = 0
    for count in (LARGE, 29, 1, 7 * LARGE):
        for root in range(comm.size):
            send = np.arange(count * comm.size) + root if comm.rank == root else None
            recv = np.full(count, -1)
            comm.Scatter(send, recv, root)
            assert np.array_equal(recv, np.arange(count) + comm.rank * count + root)
            # Short ones are not worth the root's wait.
            if comm.rank != root and recv.nbytes > WORTH_READING:
                received += recv.nbytes
            assert direct_bytes(comm) == received


@pytest.mark.mpi(2)
def test_first_calls_are_copied_so_where_an_alltoall_outgrows_the_caches(comm_world):
    outgrown = select.outgrown_by_alltoalls(2, sysfs.last_level_caches(2))
    with smcoll.Comm(comm_world) as comm:
        skip_where_refused(comm)
        for collective in ("scatter", "alltoall"):
            routes = [comm.explain(collective, handed_out).parameters["route"]
                      for handed_out in (outgrown // 4, 2 * outgrown)]
            assert routes == ["staged", "in its sender's memory"]


@pytest.mark.mpi(3)
def test_blocks_of_different_lengths_and_in_place(comm):
    counts = [LARGE, 0, 3 * LARGE]
    everything = np.arange(sum(counts))
    for in_place in (False, True):
        recv = np.full(counts[comm.rank], -1)
        target = MPI.IN_PLACE if in_place and comm.rank == 0 else recv
        comm.Scatterv([everything, counts] if comm.rank == 0 else None, target)
        if not (in_place and comm.rank == 0):
            first = sum(counts[:comm.rank])
            assert np.array_equal(recv, everything[first:first + counts[comm.rank]])


@pytest.mark.mpi(2, 3, 8)
def test_alltoall_is_copied_once(comm):
    for turn in range(3):
        send = np.arange(comm.size * LARGE) + comm.rank * 10**7 + turn
        recv = np.full(comm.size * LARGE, -1)
        comm.Alltoall(send, recv)
        for rank in range(comm.size):
            block = np.arange(comm.rank * LARGE, (comm.rank + 1) * LARGE) + rank * 10**7 + turn
            assert np.array_equal(recv[rank * LARGE:(rank + 1) * LARGE], block)
    assert direct_bytes(comm) == 3 * (comm.size - 1) * 8 * LARGE


@pytest.mark.mpi(2, 3)
def test_alltoall_in_place_is_staged(comm):
    for turn in range(3):
        recv = np.arange(comm.size * LARGE) + comm.rank * 10**7 + turn
        comm.Alltoall(MPI.IN_PLACE, recv)
        for rank in range(comm.size):
            block = np.arange(comm.rank * LARGE, (comm.rank + 1) * LARGE) + rank * 10**7 + turn
            assert np.array_equal(recv[rank * LARGE:(rank + 1) * LARGE], block)
    assert direct_bytes(comm) == 0


@pytest.mark.mpi(3)
def test_alltoall_that_is_in_place_on_one_rank_only(comm):
    """What arrives there must wait until what lies there has gone."""
    for turn in range(20):
        send = np.arange(comm.size * LARGE) + comm.rank * 10**7 + turn
        recv = np.full(comm.size * LARGE, -1)
        if comm.rank == turn % comm.size:
            recv[:] = send
            comm.Alltoall(MPI.IN_PLACE, recv)
        else:
            comm.Alltoall(send, recv)
        for rank in range(comm.size):
            block = np.arange(comm.rank * LARGE, (comm.rank + 1) * LARGE) + rank * 10**7 + turn
            assert np.array_equal(recv[rank * LARGE:(rank + 1) * LARGE], block)


@pytest.mark.mpi(2)
def test_allgather_of_two_ranks_is_copied_once(comm):
    received = 0
    for turn, count in enumerate((LARGE, 29, 1, 7 * LARGE) * 3):
        mine = np.arange(count) + comm.rank * 10**7 + turn
        recv = np.full(2 * count, -1)
        if turn % 3 == comm.rank:
            recv[comm.rank * count:][:count] = mine
            comm.Allgather(MPI.IN_PLACE, recv)
        else:
            comm.Allgather(mine, recv)
        for rank in range(2):
            assert np.array_equal(recv[rank * count:][:count],
                                  np.arange(count) + rank * 10**7 + turn)
        if mine.nbytes > WORTH_READING:
            received += mine.nbytes
        assert direct_bytes(comm) == received


@pytest.mark.mpi(2)
def test_allgather_of_blocks_that_differ_in_length_and_layout(comm):
    column = MPI.DOUBLE.Create_vector(LARGE, 1, 2).Commit()
    for counts in ([LARGE, 3], [0, LARGE], [LARGE, LARGE]):
        send = np.arange(2.0 * LARGE) + comm.rank * 10**6
        recv = np.full(sum(counts), -1.0)
        mine = [send, 1, column] if counts[comm.rank] == LARGE else [send, counts[comm.rank]]
        comm.Allgatherv(mine, [recv, counts])
        expected = [(np.arange(2.0 * LARGE) + rank * 10**6)[::2 if count == LARGE else 1][:count]
                    for rank, count in enumerate(counts)]
        assert np.array_equal(recv, np.concatenate(expected))
    column.Free()


@pytest.mark.mpi(2)
def test_a_block_that_is_too_long_for_one_rank_is_truncated_there(comm):
    counts = [LARGE, LARGE - comm.rank]    # rank 1 has too little room for its own block
    for sent in (LARGE, 2 * LARGE):
        recv = np.full(sum(counts), -1)
        with pytest.raises(MPI.Exception) if comm.rank or sent > LARGE else nullcontext() as caught:
            comm.Allgatherv(np.arange(sent) + comm.rank, [recv, counts])
        if caught is not None:
            assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        for rank in range(2):
            assert np.array_equal(recv[rank * LARGE:][:counts[rank]],
                                  np.arange(counts[rank]) + rank)


@pytest.mark.mpi(2)
def test_allgathers_that_nobody_reads_in_place_leave_the_streams_for_a_while(comm):
    """Both ranks must draw that conclusion at the same call: what else would hang or mismatch."""
    count = WORTH_READING // 8    # always staged
    recv = np.empty(2 * count)
    by_messages = []
    for turn in range(450):
        by_messages.append(comm.engine.sends_messages("allgather", 8 * count))
        comm.Allgather(np.full(count, 10.0 * turn + comm.rank), recv)
        assert recv[0] == 10 * turn and recv[-1] == 10 * turn + 1
    assert by_messages == 32 * [True] + 250 * [False] + 32 * [True] + 136 * [False]
    # Another size has its own state.
    assert comm.engine.sends_messages("allgather", 1 << 20)


@pytest.mark.mpi(2)
def test_one_block_that_is_read_keeps_both_ranks_with_messages(comm):
    """Rank 0's block has holes and is staged; it has to notice that rank 1's was offered."""
    column = MPI.DOUBLE.Create_vector(LARGE, 1, 2).Commit()
    recv = np.empty(2 * LARGE)
    for turn in range(100):
        send = np.full(2 * LARGE, 10.0 * turn + comm.rank)
        assert comm.engine.sends_messages("allgather", 8 * LARGE)
        comm.Allgather([send, 1, column] if comm.rank == 0 else [send, LARGE], recv)
        assert recv[0] == 10 * turn and recv[-1] == 10 * turn + 1
    column.Free()


@pytest.mark.mpi(3)
def test_allgather_of_more_ranks_goes_through_the_data_regions(comm):
    assert not comm.engine.sends_messages("allgather", 8 * LARGE)
    assert "kernel" not in comm.explain("allgather", 8 * LARGE).reason


@pytest.mark.mpi(2, 3)
def test_what_is_received_with_holes_is_staged(comm):
    """A receiver refuses to read through the kernel what it would have to scatter."""
    column = MPI.DOUBLE.Create_vector(LARGE, 1, 2).Commit()
    for turn in range(3):
        send = np.arange(LARGE * comm.size) + turn if comm.rank == 0 else None
        recv = np.full(2 * LARGE, -1.0)
        comm.Scatter(None if send is None else send.astype("d"), [recv, 1, column])
        assert np.array_equal(recv[::2], np.arange(LARGE) + comm.rank * LARGE + turn)
        assert (recv[1::2] == -1).all()
        contiguous = np.empty(LARGE)
        comm.Scatter(None if send is None else send.astype("d"), contiguous)
        assert np.array_equal(contiguous, recv[::2])
    assert direct_bytes(comm) == (3 * 8 * LARGE if comm.rank else 0)
    column.Free()


@pytest.mark.mpi(2)
def test_a_message_that_is_too_long_is_truncated_and_the_next_one_arrives(comm):
    room = LARGE - comm.rank
    for recv in (np.full(room, -1.0), np.full(LARGE, -1.0)):
        send = np.arange(2.0 * LARGE) if comm.rank == 0 else None
        if comm.rank and len(recv) < LARGE:
            with pytest.raises(MPI.Exception) as caught:
                comm.Scatter(send, recv)
            assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        else:
            comm.Scatter(send, recv)
        assert np.array_equal(recv, np.arange(len(recv)) + comm.rank * LARGE)


@pytest.mark.mpi(2, 3)
def test_the_root_returns_only_when_all_have_read(comm):
    send, recv = np.empty(comm.size * LARGE), np.empty(LARGE)
    for number in range(200):
        send[:] = number
        comm.Scatter(send, recv, number % comm.size)
        send[:] = -1
        assert (recv == number).all()


@pytest.mark.mpi(2)
def test_another_process_under_the_ranks_id_is_not_read(comm_world, monkeypatch):
    """A rank is what has the bytes of the set-up: here rank 1 expects others of it afterwards."""
    if comm_world.rank == 1:
        real = cross_memory.readable
        monkeypatch.setattr(cross_memory, "readable", lambda record: real(record) and bool(
            record.update(bytes="00" * 16) or True))
    with smcoll.Comm(comm_world, smcoll.Config(**SETTINGS)) as comm:
        skip_where_refused(comm)
        recv = np.empty(LARGE)
        comm.Scatter(np.arange(2.0 * LARGE) if comm.rank == 0 else None, recv)
        assert np.array_equal(recv, np.arange(LARGE) + comm.rank * LARGE)
        assert direct_bytes(comm) == 0


@pytest.mark.mpi(2, 3)
def test_where_one_rank_cannot_read_nobody_does(comm_world, monkeypatch):
    if comm_world.rank == 1:
        monkeypatch.setattr("smcoll.memory.cross_memory.readable", lambda other: False)
    with smcoll.Comm(comm_world, smcoll.Config(**SETTINGS)) as comm:
        assert not comm.engine.kernel_copy_sizes
        assert "kernel_copy_from" not in comm.explain("scatter", 8 * LARGE).parameters
        recv = np.empty(LARGE)
        comm.Scatter(np.arange(comm.size * LARGE) * 1.0 if comm.rank == 0 else None, recv)
        assert recv[0] == comm.rank * LARGE and direct_bytes(comm) == 0


@pytest.mark.mpi(2)
def test_explain_says_so_and_it_can_be_switched_off(comm, comm_world):
    assert comm.explain("scatter", 8 * LARGE).parameters["kernel_copy_from"] == 1
    assert "kernel" in comm.explain("scatter", 8 * LARGE).reason
    assert "kernel" not in comm.explain("gather", 8 * LARGE).reason
    with smcoll.Comm(comm_world, smcoll.Config(**SETTINGS | {"kernel_copy": False})) as other:
        assert not other.engine.kernel_copy_sizes
        assert "kernel" not in other.explain("scatter", 8 * LARGE).reason


@pytest.mark.mpi(2)
def test_what_the_root_changes_after_it_gave_up_is_not_taken_for_data(comm_world):
    comm = smcoll.Comm(comm_world, smcoll.Config(**SETTINGS, timeout=1, warn_after=0))
    send, recv = np.zeros(2 * LARGE), np.zeros(LARGE)
    comm.Barrier()
    skip_where_refused(comm)    # a ring takes so much without waiting
    comm.Scatter(send if comm.rank == 0 else None, recv)
    if comm.rank == 0:
        with pytest.raises(smcoll.WaitTimeout):
            comm.Scatter(send, recv)
        send[:] = 7
        comm_world.Barrier()
    else:
        comm_world.Barrier()
        with pytest.raises(smcoll.Error):
            comm.Scatter(None, recv)
    comm.Free()
