"""The shared heap: its blocks and pages, numpy's arrays in it, fork."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import gc
import multiprocessing
import os
import pickle
import random
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from huge_pages import HUGE_PAGE, bytes_in_huge_pages

import smcoll
from smcoll.memory import heap, heap_arrays

PAGE = os.sysconf("SC_PAGESIZE")
LARGE = 20_000    # elements: above the threshold


@pytest.fixture
def numpy_in_heap():
    """numpy's arrays of at least a page lie in the heap."""
    assert heap_arrays.use(smcoll.Config(internals={"heap_threshold": PAGE}))
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


# ---------------------------------------------------------------------- arrays


def test_arrays_are_made_in_the_heap_one_by_one():
    heap_arrays.stop_using()  # with SMCOLL_HEAP=1 (--heap), importing smcoll.comm.comm has used it
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
    monkeypatch.setattr("smcoll.topology.node.memory_headroom", lambda: 1 << 20)
    array = np.ones(300 << 20, "u1")
    assert not smcoll.is_shared(array) and array[-1] == 1


def test_arrays_outlive_the_allocator():
    heap_arrays.use(smcoll.Config(internals={"heap_threshold": PAGE}))
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
            heap_arrays.use(smcoll.Config(internals={"heap_threshold": PAGE}))
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
        heap_arrays.use(smcoll.Config(internals={"heap_threshold": PAGE}))
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
from smcoll.memory import heap_arrays
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

    monkeypatch.setattr(smcoll.topology.node, "memory_headroom", interrupted)
    with pytest.raises(KeyboardInterrupt):
        # Until the next look at the cgroup's limit.
        kept = []
        for _ in range(20):
            kept.append(np.ones(1 << 20))
        time.sleep(0)


# ---------------------------------------------------------------------- pages

def test_the_heap_grows_by_huge_pages(huge_pages):
    before = bytes_in_huge_pages(smcoll.zeros(1).ctypes.data)
    # More than may lie idle, so that it grows.
    array = smcoll.empty(100 << 20, "u1")
    array[::PAGE] = 1
    assert bytes_in_huge_pages(array.ctypes.data) - before >= 100 << 20 >> 1
    del array
    assert not smcoll.zeros(100 << 20, "u1").any()


def test_small_arrays_share_a_huge_page(huge_pages):
    arrays = [smcoll.zeros(100 << 20, "u1")]    # what was free is used
    arrays += [smcoll.zeros(PAGE, "u1") for _ in range(100)]
    growth = []
    for _ in range(100):
        reserved = heap.usage()["reserved"]
        arrays.append(smcoll.zeros(PAGE, "u1"))
        growth.append(heap.usage()["reserved"] - reserved)
    assert growth.count(0) >= 90 and sum(growth) <= 2 * HUGE_PAGE


def test_at_the_limit_the_heap_grows_by_what_is_left(numpy_in_heap, limited):
    # `limited` leaves less than a huge page.
    reserved = heap.usage()["reserved"]
    assert smcoll.is_shared(np.ones(limited // 8))
    assert heap.usage()["reserved"] == reserved + limited


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


@contextlib.contextmanager
def limited_to(kind, soft):
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_a_forked_child_needs_no_address_space_for_what_the_heap_may_become(numpy_in_heap):
    array = np.ones(LARGE)
    with open("/proc/self/status") as status:
        mapped, = (int(line.split()[1]) << 10 for line in status if line.startswith("VmSize:"))

    def action():
        time.sleep(0.2)
        return (array == 1).all()

    with limited_to(resource.RLIMIT_AS, mapped + (1 << 30)):
        child = in_child(action)
    array[:] = 2
    assert ended_well(child)


def test_a_fork_without_free_descriptors_waits_for_the_childs_copies(numpy_in_heap):
    array = np.ones(100 * LARGE)
    opened = []
    with limited_to(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) + 50):
        try:
            while True:
                opened.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE
        child = in_child(lambda: (array == 1).all())
    array[:] = 2
    for descriptor in opened:
        os.close(descriptor)
    assert ended_well(child)


def test_a_forked_child_that_cannot_have_copies_ends_and_says_why(numpy_in_heap, capfd):
    array = np.ones(LARGE)
    with limited_to(resource.RLIMIT_NOFILE, 3):
        child = in_child(lambda: True)
    assert array.all()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 127
    assert "no descriptors to make the parent wait" in capfd.readouterr().err


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
