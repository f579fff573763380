"""While a rank waits in shared memory, MPI's own operations go on."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

import smcoll
from smcoll.mpi import progress

LARGE = 1_000_000  # doubles: no MPI sends 8 MB without the receiver


def enter_barrier(comm):
    comm.Barrier()


def enter_allreduce(comm):
    total = np.zeros(20_000)
    comm.Allreduce(np.ones(20_000), total)
    assert (total == comm.size).all()


def enter_bcast(comm):
    # Rank 0 must be one that waits.
    buffer = np.full(20_000, float(comm.rank))
    comm.Bcast(buffer, comm.size - 1)
    assert (buffer == comm.size - 1).all()


COLLECTIVES = [enter_barrier, enter_allreduce, enter_bcast]


@pytest.fixture
def plain(comm_world):
    """A second communicator, MPI's own, for what happens beside smcoll."""
    comm = comm_world.Dup()
    yield comm
    comm.Free()


@pytest.fixture(params=[False, True], ids=["", "unexpected message pending"])
def pending_message(request, comm_world):
    """A message that rank 0 receives only afterwards: it must not hide the rest from a poke."""
    rank = comm_world.rank
    if request.param and rank == comm_world.size - 1:
        comm_world.Send(np.arange(3.0), 0, tag=77)
    comm_world.Barrier()
    yield
    if request.param and rank == 0:
        message = np.zeros(3)
        comm_world.Recv(message, comm_world.size - 1, tag=77)
        assert (message == np.arange(3.0)).all()


@pytest.mark.mpi(2, 3, deadline=60)
@pytest.mark.parametrize("enter", COLLECTIVES)
def test_large_isend_before_a_collective(plain, comm_world, pending_message, enter):
    with smcoll.Comm(comm_world) as comm:
        comm.Barrier()
        if comm.rank == 0:
            data = np.full(LARGE, 3.0)
            requests = [plain.Isend(data, other) for other in range(1, comm.size)]
            enter(comm)
            MPI.Request.Waitall(requests)
        else:
            data = np.zeros(LARGE)
            plain.Recv(data, 0)
            assert (data == 3.0).all()
            enter(comm)


@pytest.mark.mpi(2, 3, deadline=60)
@pytest.mark.parametrize("enter", COLLECTIVES)
def test_iallreduce_on_another_communicator(plain, comm_world, pending_message, enter):
    with smcoll.Comm(comm_world) as comm:
        comm.Barrier()
        mine, total = np.ones(LARGE), np.zeros(LARGE)
        request = plain.Iallreduce(mine, total)
        if comm.rank == 0:
            enter(comm)
            request.Wait()
        else:
            request.Wait()
            enter(comm)
        assert (total == comm.size).all()


@pytest.mark.mpi(2, 3, deadline=60)
@pytest.mark.parametrize("enter", COLLECTIVES)
def test_one_sided_passive_target(plain, comm_world, pending_message, enter):
    with smcoll.Comm(comm_world) as comm:
        comm.Barrier()
        rank = comm.rank
        memory = np.zeros(LARGE)
        window = MPI.Win.Create(memory, 8, comm=plain)
        if rank == 0:
            enter(comm)
        else:
            piece = LARGE // comm.size
            part = np.full(piece, float(rank))
            window.Lock(0)
            window.Put(part, 0, target=(rank * piece, piece))
            window.Unlock(0)
            back = np.zeros(piece)
            window.Lock(0, MPI.LOCK_SHARED)
            window.Get(back, 0, target=(rank * piece, piece))
            window.Unlock(0)
            assert (back == rank).all()
            enter(comm)
        plain.Barrier()
        window.Free()
        if rank == 0:
            for other in range(1, comm.size):
                piece = LARGE // comm.size
                assert (memory[other * piece : (other + 1) * piece] == other).all()


@pytest.mark.mpi(2, 3, deadline=60)
def test_smcoll_collectives_on_two_communicators_in_opposite_order(comm_world):
    """Nonblocking MPI of a second pair of ranks needs ranks that wait in the first collective."""
    with smcoll.Comm(comm_world) as one, smcoll.Comm(comm_world) as two:
        for _ in range(20):
            enter_allreduce(one)
            request = comm_world.Ibarrier()
            enter_allreduce(two)
            request.Wait()


@pytest.mark.mpi(2, 3, deadline=100)
def test_iallreduce_beside_a_loop_of_short_collectives(plain, comm_world):
    """Pokes also come across calls: an Iallreduce ends soon, not with the loop."""
    with smcoll.Comm(comm_world) as comm:
        value, result = np.ones(1), np.zeros(1)
        comm.Allreduce(value, result)
        # Over several nodes each call takes as long as the messages between them.
        calls = 100_000 if comm.explain("allreduce", nbytes=8).path == "shared memory" else 3_000
        mine, total = np.full(32_768, comm.rank + 1.0), np.zeros(32_768)
        done_at_call = None
        comm.Barrier()
        began = time.perf_counter()
        request = plain.Iallreduce(mine, total)
        wanted = comm.size * (comm.size + 1) / 2
        for call in range(calls):
            comm.Allreduce(value, result)
            # Looking at the data drives no progress, as Test would. In the middle, too: results
            # may arrive in any order.
            if done_at_call is None and total[-1] == total[16_384] == total[0] == wanted:
                done_at_call = call
                elapsed = time.perf_counter() - began
        assert done_at_call is not None, "the Iallreduce did not end within the loop"
        assert done_at_call < calls // 2 or elapsed < 0.05, (done_at_call, elapsed)
        request.Wait()
        assert (total == wanted).all()


@pytest.mark.mpi(2, 3, deadline=100)
def test_throughput_of_one_sided_traffic_beside_a_wait(plain, comm_world):
    """Dense poking while MPI has work: 200 puts of 64 KB into a rank that waits end in seconds."""
    with smcoll.Comm(comm_world) as comm:
        comm.Barrier()
        memory = np.zeros(65_536, "B")
        window = MPI.Win.Create(memory, comm=plain)
        if comm.rank == 0:
            comm.Barrier()
        else:
            began = time.perf_counter()
            part = np.full(65_536, comm.rank, "B")
            for _ in range(200):
                window.Lock(0)
                window.Put(part, 0)
                window.Unlock(0)
            assert time.perf_counter() - began < 30
            comm.Barrier()
        plain.Barrier()
        window.Free()


# ---------------------------------------------------------------------- Python goes on, too


@pytest.mark.mpi(2, 3, deadline=60)
@pytest.mark.parametrize("enter", COLLECTIVES)
def test_ctrl_c_ends_a_wait(comm_world, enter):
    """SIGINT raises KeyboardInterrupt in the rank that waits; the others are told."""
    comm = smcoll.Comm(comm_world, smcoll.Config(timeout=40))
    comm.Barrier()
    if comm.rank == 0:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            enter(comm)
        assert time.monotonic() - began < 20
        timer.join()
        with pytest.raises(smcoll.Error):
            comm.Barrier()
    else:
        time.sleep(1.5)
        with pytest.raises(smcoll.Error) as raised:
            enter(comm)
            comm.Barrier()  # a root of Bcast waits for nobody
        assert "rank 0" in str(raised.value)
    comm_world.Barrier()
    with smcoll.Comm(comm_world) as fresh:
        enter_allreduce(fresh)


@pytest.mark.mpi(2, deadline=60)
def test_signal_handlers_run_during_a_wait(comm_world):
    calls = []
    with smcoll.Comm(comm_world) as comm:
        comm.Barrier()
        if comm.rank == 0:
            previous = signal.signal(signal.SIGALRM, lambda *_: calls.append(time.monotonic()))
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            comm.Barrier()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
            assert len(calls) >= 3
        else:
            time.sleep(1)
            comm.Barrier()


@pytest.mark.mpi(2, deadline=60)
def test_other_threads_run_during_a_wait(comm_world):
    """The GIL is not held in a wait."""
    with smcoll.Comm(comm_world) as comm:
        comm.Barrier()
        if comm.rank == 0:
            counted = []
            stop = threading.Event()

            def count():
                while not stop.wait(0.01):
                    counted.append(time.monotonic())

            thread = threading.Thread(target=count)
            thread.start()
            comm.Barrier()
            during = len(counted)
            stop.set()
            thread.join()
            assert during >= 10
        else:
            time.sleep(1)
            comm.Barrier()


@pytest.mark.mpi(2, 3, deadline=60)
def test_two_threads_on_two_communicators(comm_world):
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("MPI was not initialised with MPI_THREAD_MULTIPLE")
    failures = []

    def loop(comm, count):
        try:
            total = np.zeros(count)
            for turn in range(300):
                comm.Allreduce(np.full(count, turn + 1.0), total)
                assert (total == comm.size * (turn + 1)).all()
        except BaseException as error:
            failures.append(error)

    with smcoll.Comm(comm_world) as one, smcoll.Comm(comm_world) as two:
        one.Allreduce(np.ones(9000), np.ones(9000))
        two.Allreduce(np.ones(9000), np.ones(9000))
        threads = [threading.Thread(target=loop, args=(one, 3)),
                   threading.Thread(target=loop, args=(two, 9000))]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


@pytest.mark.mpi(2, deadline=60)
def test_second_thread_in_the_same_communicator_is_refused(comm_world):
    with smcoll.Comm(comm_world) as comm:
        comm.Barrier()
        if comm.rank == 0:
            refused = []

            def second():
                time.sleep(0.3)
                try:
                    comm.Barrier()
                except smcoll.Error as error:
                    refused.append(error)

            thread = threading.Thread(target=second)
            thread.start()
            comm.Barrier()
            thread.join()
            assert len(refused) == 1
        else:
            time.sleep(1)
            comm.Barrier()
        comm.Barrier()


@pytest.mark.mpi(1)
def test_an_interrupt_leaves_the_lock_free(comm_world, monkeypatch):
    """Who ends MPI waits for the lock: a rank whose wait Ctrl-C ended would never exit."""
    progress.start()
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for i in range(2000):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, (10 + i % 100) * 1e-6)
                while True:
                    progress.poke()
            assert not progress._poking
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

    def can_be_taken():
        taken = progress._lock.acquire(timeout=5)
        if taken:
            progress._lock.release()
        return taken

    # By a thread other than the one that may hold it.
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(can_be_taken).result()


@pytest.mark.mpi(1)
def test_a_signal_handler_that_interrupts_a_step_can_end_it(comm_world):
    """As one that calls MPI.Finalize does."""
    progress.start()
    entered = []

    def enter(number, frame):
        with progress._lock:
            entered.append(number)

    previous = signal.signal(signal.SIGALRM, enter)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
        while len(entered) < 500:
            progress.poke()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
