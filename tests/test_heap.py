"""The shared heap: its blocks, numpy's arrays in it, what others see of them, and its end."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI
from programs import run_ranks

import smcoll
from smcoll import heap, heap_arrays
from smcoll.memory import budget

PAGE = os.sysconf("SC_PAGESIZE")
LARGE = 20_000    # elements: above the threshold
PRIVATE = "numpy's own arrays are private in it"


@pytest.fixture
def numpy_in_heap():
    """numpy's arrays of at least a page lie in the heap."""
    assert heap_arrays.use(smcoll.Config(heap_threshold=PAGE))
    try:
        yield
    finally:
        heap_arrays.stop_using()


@pytest.fixture
def limited():
    """A heap that has 64 pages left."""
    gc.collect()
    smcoll.empty(1)
    limit = heap.usage()["limit"]
    heap.set_limit(0)
    taken = []
    for pages in (1024, 16, 1):
        # What is reserved and free.
        while not taken or smcoll.is_shared(taken[-1]):
            taken.append(smcoll.empty(pages * PAGE, "u1"))
        taken.pop()
    heap.set_limit(heap.usage()["reserved"] + 64 * PAGE)
    try:
        yield 64 * PAGE
    finally:
        heap.set_limit(limit)


def allreduce(comm, send, recv) -> None:
    send[:] = np.arange(len(send)) + comm.rank
    recv[:] = -1
    comm.Allreduce(send, recv)
    assert np.array_equal(
        recv, comm.size * np.arange(len(send)) + comm.size * (comm.size - 1) // 2)


# ---------------------------------------------------------------------- arrays


def test_arrays_are_made_in_the_heap_one_by_one():
    for made in (smcoll.empty((3, 4)), smcoll.zeros(7, "i4"), smcoll.array([1, 2, 3]),
                 smcoll.empty_like(np.ones((2, 2), "f4"))):
        assert smcoll.is_shared(made)
    assert not smcoll.is_shared(np.ones(LARGE))
    assert smcoll.empty_like(np.ones((2, 3), "f4")).dtype == np.float32
    assert smcoll.array([1, 2, 3]).tolist() == [1, 2, 3]
    assert smcoll.zeros((2, 3), order="F").flags.f_contiguous


def test_views_and_slices_of_shared_arrays_are_shared():
    whole = smcoll.zeros((10, 10))
    assert smcoll.is_shared(whole[3:5, ::-2]) and smcoll.is_shared(whole.T)
    assert not smcoll.is_shared(whole[:0])
    assert not smcoll.is_shared(np.lib.stride_tricks.as_strided(whole, (1 << 45,), (8,)))


def test_freed_and_reused_memory_is_zero_where_zeros_are_asked_for(numpy_in_heap):
    for elements in (LARGE, 3 * LARGE, LARGE // 2):
        dirty = np.full(elements, 7.0)
        del dirty
        clean = np.zeros(3 * LARGE)
        assert smcoll.is_shared(clean) and not clean.any()


def test_blocks_never_overlap(numpy_in_heap):
    choose = random.Random(1)
    live: list[tuple[np.ndarray, int]] = []
    for number in range(3000):
        if live and choose.random() < 0.5:
            array, value = live.pop(choose.randrange(len(live)))
            assert (array == value).all()
        else:
            array = np.empty(choose.choice([512, 513, 5000, 40_000, 300_000]), "i8")
            array.fill(number)
            live.append((array, number))
    assert all((array == value).all() for array, value in live)


def test_small_arrays_stay_where_numpy_puts_them(numpy_in_heap):
    assert not smcoll.is_shared(np.ones(PAGE // 8 - 1))
    assert smcoll.is_shared(np.ones(PAGE // 8))


def test_resize_keeps_the_data(numpy_in_heap):
    for start in (10, LARGE):
        array = np.arange(start, dtype="i8")
        for elements in (4 * LARGE, LARGE // 2, 3, 2 * LARGE):
            kept = min(len(array), elements)
            before = array[:kept].copy()
            array.resize(elements, refcheck=False)
            assert np.array_equal(array[:kept], before) and not array[kept:].any()
    assert np.resize(np.arange(LARGE), 3 * LARGE)[-1] == LARGE - 1


def test_beyond_the_limit_memory_is_private(numpy_in_heap, limited):
    arrays = [np.ones(limited // 4 // 8) for _ in range(8)]
    shared = [smcoll.is_shared(array) for array in arrays]
    assert shared[0] and not shared[-1] and sum(shared) <= 4
    assert all((array == 1).all() for array in arrays)
    arrays[-1].resize(2 * limited // 8, refcheck=False)
    assert not smcoll.is_shared(arrays[-1]) and arrays[-1][0] == 1


def test_a_shared_array_that_outgrows_the_heap_moves_out(numpy_in_heap, limited):
    array = np.arange(limited // 2 // 8)
    assert smcoll.is_shared(array)
    array.resize(2 * limited // 8, refcheck=False)
    assert not smcoll.is_shared(array) and array[limited // 2 // 8 - 1] == limited // 2 // 8 - 1


def test_freed_memory_goes_back_to_the_system():
    smcoll.empty(1)
    before = heap.usage()
    array = smcoll.empty(200 << 20, "u1")
    array[:] = 1
    assert heap.usage()["reserved"] >= before["reserved"] + (100 << 20)
    del array
    after = heap.usage()
    assert after["blocks"] == before["blocks"]
    assert after["reserved"] <= before["used"] + (64 << 20)


def test_the_cgroups_limit_ends_the_heap(numpy_in_heap, monkeypatch):
    monkeypatch.setattr("smcoll.node.memory_headroom", lambda: 1 << 20)
    array = np.ones(300 << 20, "u1")
    assert not smcoll.is_shared(array) and array[-1] == 1


def test_arrays_outlive_the_allocator():
    heap_arrays.use(smcoll.Config(heap_threshold=PAGE))
    array = np.arange(LARGE)
    heap_arrays.stop_using()
    assert smcoll.is_shared(array) and not smcoll.is_shared(np.arange(LARGE))
    array.resize(2 * LARGE, refcheck=False)
    assert array[LARGE - 1] == LARGE - 1


def test_pickles_and_copies_hold_the_data(numpy_in_heap):
    array = np.arange(LARGE)
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
    for copy in (pickle.loads(pickle.dumps(array)), pickle.loads(text, buffers=buffers),
                 array.copy()):
        assert np.array_equal(copy, array)


def test_other_threads_have_numpys_own_allocator_until_they_ask(numpy_in_heap):
    def work(ask):
        if ask:
            heap_arrays.use(smcoll.Config(heap_threshold=PAGE))
        array = np.ones(LARGE)
        return smcoll.is_shared(array), array

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        shared, _ = pool.submit(work, False).result()
        asked, array = pool.submit(work, True).result()
    assert asked and smcoll.is_shared(array) and (array == 1).all()
    if not getattr(sys.flags, "thread_inherit_context", False):
        assert not shared


def test_threads_allocate_and_free_side_by_side():
    failures = []

    def work(number):
        heap_arrays.use(smcoll.Config(heap_threshold=PAGE))
        choose, live = random.Random(number), []
        for _ in range(400):
            live.append(np.full(choose.choice([512, 3000, 50_000]), number))
            if len(live) > 5 and not (live.pop(choose.randrange(6)) == number).all():
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


MANY_MAKE_ONE = """
import sys, threading
import numpy as np, smcoll
from smcoll import heap_arrays
sys.setswitchinterval(1e-6)
start, arrays = threading.Barrier(8), []
def make():
    start.wait()
    arrays.append(smcoll.empty(20_000))
threads = [threading.Thread(target=make) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with open("/proc/self/maps") as maps:
    assert sum("memfd:smcoll-heap" in line for line in maps) == 1
assert all(smcoll.is_shared(array) for array in arrays)
"""


def test_threads_that_make_the_heap_at_once_make_one():
    for _ in range(5):
        subprocess.run([sys.executable, "-c", MANY_MAKE_ONE], check=True, timeout=60)


def test_ctrl_c_while_the_heap_grows_is_not_lost(numpy_in_heap, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(smcoll.node, "memory_headroom", interrupted)
    with pytest.raises(KeyboardInterrupt):
        # Until the next look at the cgroup's limit.
        kept = []
        for _ in range(20):
            kept.append(np.ones(1 << 20))
        time.sleep(0)


# ---------------------------------------------------------------------- fork


def in_child(action) -> int:
    """Run ``action()`` in a forked child; ``ended_well`` says whether it was true."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if action() else 2
        finally:
            os._exit(status)
    return child


def ended_well(child) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_has_the_values_at_the_fork(numpy_in_heap):
    """Whatever its parent does afterwards: changes, frees, uses the memory again."""
    changed, freed = np.arange(LARGE), np.arange(LARGE)
    address = freed.ctypes.data

    def action():
        time.sleep(0.2)
        return np.array_equal(changed, np.arange(LARGE)) and np.array_equal(kept[0],
                                                                           np.arange(LARGE))

    kept = [freed]
    child = in_child(action)
    changed[:] = -1
    del freed, kept[:]
    again = np.full(LARGE, 5)
    assert again.ctypes.data == address
    assert ended_well(child)


def test_a_forked_child_does_not_write_into_its_parents_arrays(numpy_in_heap):
    array, other = np.zeros(LARGE), np.ones(LARGE)

    def action():
        nonlocal other
        array[:] = 7
        other = None
        new = np.full(3 * LARGE, 9)
        return not smcoll.is_shared(new) and not smcoll.is_shared(array) and (array == 7).all()

    assert ended_well(in_child(action))
    assert not array.any() and (other == 1).all()


def test_a_forked_child_of_many_arrays_has_copies_of_all(numpy_in_heap):
    """More than a process may have mappings."""
    with open("/proc/sys/vm/max_map_count") as limit:
        count = min(int(limit.read()), 100_000) + 1000
    arrays = [np.zeros(PAGE, "u1") for _ in range(count)]
    assert smcoll.is_shared(arrays[-1])

    def action():
        for array in arrays:
            array[0] = 7
        return True

    assert ended_well(in_child(action))
    assert not any(array[0] for array in arrays)


def test_a_grandchild_inherits_as_from_any_process(numpy_in_heap):
    array = np.arange(LARGE)
    assert ended_well(in_child(
        lambda: ended_well(in_child(lambda: np.array_equal(array, np.arange(LARGE))))))


def _sum_of(array):
    return float(array.sum())


def test_multiprocessing_by_fork_gets_its_arguments(numpy_in_heap):
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        assert pool.map(_sum_of, [np.full(LARGE, i) for i in range(4)]) == [
            LARGE * i for i in range(4)]


# ---------------------------------------------------------------------- communicators


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("who", ["all", "none", "first", "others", "results", "operands"])
def test_any_mixture_of_shared_and_private_arrays_is_right(comm_world, who):
    def array(rank, result):
        shared = {"all": True, "none": False, "first": rank == 0, "others": rank != 0,
                  "results": result, "operands": not result}[who]
        return smcoll.empty(LARGE) if shared else np.empty(LARGE)

    with smcoll.Comm(comm_world, smcoll.Config(heap=True, strict=True)) as comm:
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
    with smcoll.Comm(comm_world, smcoll.Config(heap=True, strict=True)) as comm:
        for shift in (1, 3, 8 * comm.rank + 5):
            send = smcoll.empty(8 * LARGE + 64, "u1")[shift:shift + 8 * LARGE].view("f8")
            recv = smcoll.empty(8 * LARGE + 64, "u1")[7:7 + 8 * LARGE].view("f8")
            send[:], recv[:] = comm.rank + 1, 0
            comm.Allreduce([send, MPI.DOUBLE], [recv, MPI.DOUBLE])
            assert (recv == comm.size * (comm.size + 1) // 2).all()


@pytest.mark.mpi(2, 3)
def test_the_same_bits_wherever_arrays_lie(comm_world):
    with smcoll.Comm(comm_world, smcoll.Config(heap=True, strict=True)) as comm:
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


@pytest.mark.staged(PRIVATE)
@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_stats_and_explain_say_what_was_direct(comm_world):
    with smcoll.Comm(comm_world, smcoll.Config(heap=True, strict=True)) as comm:
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
        assert row["direct_bytes"] == (8 * LARGE if comm.rank == 0 else 0)


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_long_broadcasts_and_allgathers_are_staged(comm_world):
    """From where on depends on whether there are more than two ranks."""
    with smcoll.Comm(comm_world, smcoll.Config(heap=True, strict=True)) as comm:
        for collective, nbytes, direct in (("bcast", 8 * LARGE, True),
                                           ("bcast", 4 << 20, comm.size > 2),
                                           ("bcast", 16 << 20, False),
                                           ("allgather", 8 * LARGE, True),
                                           ("allgather", 4 << 20, comm.size == 2),
                                           ("allgather", 16 << 20, False)):
            explanation = comm.explain(collective, nbytes)
            assert (explanation.algorithm == "shared_heap") == direct
            assert ("staged, wherever" in explanation.reason) == (not direct)


@pytest.mark.mpi(2)
def test_a_rank_returns_only_when_nobody_uses_its_arrays(comm_world):
    """What a rank writes into its arrays right after a call is never seen by the others in it."""
    with smcoll.Comm(comm_world, smcoll.Config(heap=True, strict=True)) as comm:
        send, recv = smcoll.empty(LARGE), smcoll.empty(LARGE)
        many, others = smcoll.empty(2 * LARGE), smcoll.empty(2 * LARGE)
        for number in range(200):
            send[:] = number
            comm.Allreduce(send, recv)
            send[:] = -1
            assert (recv == 2 * number).all()
            recv[:] = -2
            send[:] = number
            comm.Bcast(send, number % 2)
            send[:] = number + comm.rank
            comm.Allgather(send, many)
            send[:] = -1
            assert (many[:LARGE] == number).all() and (many[LARGE:] == number + 1).all()
            many[:LARGE], many[LARGE:] = 10 * comm.rank, 10 * comm.rank + 1
            comm.Alltoall(many, others)
            many[:] = -3
            assert (others[:LARGE] == comm.rank).all() and (others[LARGE:] == 10 + comm.rank).all()
            send[:] = number
            comm.Gather(send, many if comm.rank == 1 else None, 1)
            send[:] = -1
            assert comm.rank == 0 or (many == number).all()


def mapped() -> int:
    """Heaps that this process has mapped, its own and others."""
    with open("/proc/self/maps") as maps:
        return sum("smcoll-heap" in line for line in maps)


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_heaps_are_mapped_once_for_all_communicators_and_unmapped_with_the_last(comm_world):
    config = smcoll.Config(heap=True, strict=True)
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


@pytest.mark.staged(PRIVATE)
@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_where_one_rank_has_no_heap_all_stage(comm_world, monkeypatch, capfd):
    if comm_world.rank == 1:
        def refuse(config, ranks_on_node=0):
            raise OSError(28, "no space for this test")
        monkeypatch.setattr("smcoll.heap_arrays.ensure", refuse)
    with smcoll.Comm(comm_world, smcoll.Config(heap=True)) as comm:
        assert not comm.uses_heap
        assert comm.explain("allreduce", 8 * LARGE).path == "shared memory"
        allreduce(comm, smcoll.zeros(LARGE, comm=comm), np.zeros(LARGE))
        assert not smcoll.is_shared(smcoll.zeros(LARGE, comm=comm))
    if comm_world.rank == 0:
        assert "no shared heaps" in capfd.readouterr().err


@pytest.mark.one_node
@pytest.mark.mpi(2, 3)
def test_heaps_that_one_rank_cannot_map_are_given_back_by_all(comm_world, monkeypatch):
    gc.collect()
    before, claimed = mapped(), budget.claimed
    if comm_world.rank == comm_world.size - 1:
        def refuse(record):
            raise OSError(13, "no permission for this test")
        monkeypatch.setattr("smcoll.heap.PeerHeap", refuse)
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
    monkeypatch.setattr("smcoll.heap_arrays.ensure", interrupt)
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


IMPATIENT = smcoll.Config(heap=True, strict=True, timeout=0.3)


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
def test_memory_of_a_call_that_failed_is_not_used_again(comm_world):
    """Rank 1, which has not noticed yet, would write its part of the result there."""
    comm = smcoll.Comm(comm_world, IMPATIENT)
    # A size that nothing else has: what is freed is what is taken next.
    send, recv = smcoll.zeros(LARGE + 3 * PAGE), smcoll.zeros(LARGE + 3 * PAGE)
    comm.Allreduce(send, recv)
    if comm.rank == 0:
        with pytest.raises(smcoll.WaitTimeout):
            comm.Allreduce(send, recv[:])
        addresses = {send.ctypes.data, recv.ctypes.data}
        del send, recv
        gc.collect()
        others = [smcoll.zeros(LARGE + 3 * PAGE) for _ in range(4)]
        assert not addresses & {other.ctypes.data for other in others}
    comm_world.Barrier()
    if comm.rank == 1:
        with pytest.raises(smcoll.Error):
            comm.Allreduce(send, recv)
    comm.Free()


# ---------------------------------------------------------------------- jobs of their own

INSTALLED = """
    import numpy as np, smcoll
    {install}
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    send, recv = np.full(20_000, comm.rank + 1.0), np.empty(20_000)
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
