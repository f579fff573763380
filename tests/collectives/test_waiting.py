"""No silent hang: who waits long says so, gives up when told to, and notices the dead."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from pretend import PLACEMENTS
from programs import end_job, results, start_ranks

import smcoll


@pytest.mark.lengthy
@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("count", [1, 5000])
def test_timeout_names_who_is_missing(comm_world, count):
    last = comm_world.size - 1
    comm = smcoll.Comm(comm_world, smcoll.Config(timeout=0.5, eager=True))
    comm.Barrier()
    if comm.rank == last:
        time.sleep(3)
        with pytest.raises(smcoll.WaitTimeout):
            # What the others had posted before they gave up may be enough for one call.
            comm.Allreduce(np.ones(count), np.ones(count))
            comm.Barrier()
    else:
        began = time.monotonic()
        with pytest.raises(smcoll.WaitTimeout) as raised:
            comm.Allreduce(np.ones(count), np.ones(count))
        assert time.monotonic() - began < 3
        assert "Allreduce" in str(raised.value)
        assert "rank " in str(raised.value)
    texts = comm_world.allgather(None if comm.rank == last else str(raised.value))
    assert any(f"rank {last}" in text for text in texts if text)
    with pytest.raises(smcoll.WaitTimeout):
        comm.Barrier()


@pytest.mark.one_node
@pytest.mark.mpi(2)
def test_a_wait_does_not_poll_while_the_awaited_rank_needs_the_cpu(comm_world):
    comm = smcoll.Comm(comm_world)
    comm.Barrier()
    if comm.engine.oversubscribed:
        pytest.skip("ranks that outnumber cores never poll")
    own = os.sched_getaffinity(0)      # Open MPI binds each rank
    cpus = sorted(set().union(*comm_world.allgather(own)))

    def polls(cpu):
        """What each rank's waits do after both have run here for some time."""
        os.sched_setaffinity(0, {cpu})
        for _ in range(200):
            comm.Barrier()
        for late in range(2):
            if comm.rank == late:
                time.sleep(0.05)
            comm.Barrier()
        return comm_world.allgather(comm.engine.polls)

    try:
        usual = polls(cpus[comm.rank])
        assert min(usual) > 0
        assert polls(cpus[0]) == [0, 0]
        assert polls(cpus[comm.rank]) == usual
    finally:
        os.sched_setaffinity(0, own)
    comm.Free()


@pytest.mark.mpi(2)
def test_warning_after_a_long_wait(comm_world, capfd):
    # So long that a busy machine does not keep a rank from its CPU for it.
    comm = smcoll.Comm(comm_world, smcoll.Config(warn_after=1))
    comm.Barrier()
    comm.Barrier()
    assert capfd.readouterr().err == ""
    if comm.rank == 1:
        time.sleep(2.5)
    comm.Barrier()
    comm.Barrier()
    lines = capfd.readouterr().err.splitlines()
    if comm.rank == 0:
        assert len(lines) == 1, lines
        assert "rank 1" in lines[0] and "Barrier" in lines[0]
    else:
        assert lines == []
    comm.Free()


@pytest.mark.lengthy
@pytest.mark.mpi(2, 5)
def test_timeout_is_for_each_wait_not_for_the_life(comm_world):
    with smcoll.Comm(comm_world, smcoll.Config(timeout=2)) as comm:
        for _ in range(4):
            if comm.rank == 0:
                time.sleep(0.7)
            comm.Barrier()


@pytest.mark.mpi(2, 3)
def test_peer_that_freed_the_communicator(comm_world):
    """Free is collective; who abandons it is told from one who is late."""
    comm = smcoll.Comm(comm_world, smcoll.Config(timeout=30, eager=True))
    comm.Barrier()
    if comm.rank == 0:
        comm.engine.abandon()
    else:
        with pytest.raises(smcoll.Error) as raised:
            comm.Barrier()
        assert "rank 0" in str(raised.value)


@pytest.mark.staged("a Reduce of arrays in heaps waits for all ranks: nobody is ahead")
@pytest.mark.mpi(4, 5)
@pytest.mark.parametrize("wrong", ["abandoned", "interrupted", "mismatch"])
@pytest.mark.parametrize("placement", ["one node", "blocks", "round robin", "all alone"])
def test_a_call_completes_though_ranks_that_are_ahead_gave_up(comm_world, monkeypatch, placement,
                                                              wrong):
    """Nobody did anything wrong in that call."""
    if placement != "one node":
        on_node = PLACEMENTS[placement](comm_world.size)
        monkeypatch.setenv("SMCOLL_NODE", str(on_node[comm_world.rank]))
    comm = smcoll.Comm(comm_world, smcoll.Config(timeout=30))
    comm.Barrier()
    late, root, ahead = 0, 1, comm.rank >= 2
    total = np.zeros(1)
    if comm.rank == late:
        time.sleep(0.3)
    comm.Reduce(np.ones(1), total if comm.rank == root else None, root=root)
    if comm.rank == root:
        assert total[0] == comm.size
    former = signal.getsignal(signal.SIGALRM)
    with pytest.raises((smcoll.Error, KeyboardInterrupt)):
        if wrong == "mismatch" and comm.rank == 2:
            comm.Allreduce(np.ones(1), np.ones(1))
        if ahead and wrong == "abandoned":
            comm.engine.abandon()
        if ahead and wrong == "interrupted":
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            for _ in range(2):         # what had been posted before may be enough for one
                comm.Barrier()
        finally:
            # The alarm may come when another rank's failure has ended the call already.
            signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.lengthy
@pytest.mark.mpi(2)
def test_waiting_costs_little_cpu(comm_world):
    """A rank that waits long sleeps: after the spin and the yields."""
    with smcoll.Comm(comm_world) as comm:
        comm.Barrier()
        if comm.rank == 0:
            before = time.process_time()
            comm.Barrier()
            assert time.process_time() - before < 1.5
        else:
            time.sleep(3)
            comm.Barrier()


@pytest.mark.one_node
@pytest.mark.mpi(2, 3, 5)
def test_who_sleeps_is_woken_by_who_begins_a_call(comm_world):
    """Waiters that slept on would keep the rank waiting for which they waited."""
    woken = []
    for _ in range(3):             # other processes may keep waiters from falling asleep
        with smcoll.Comm(comm_world) as comm:
            comm.Barrier()
            for _ in range(10):
                if comm.rank == comm.size - 1:
                    time.sleep(0.05)
                comm.Barrier()
            woken.append(comm_world.allgather(comm.engine.woken))
        # The last rank is waited for; a wake-up that just misses a sleeper may be lost.
        if all(count >= 5 for count in woken[-1][:-1]):
            return
    raise AssertionError(f"how often each rank was woken in 10 waits: {woken}")


DEATH = """
    import os, signal, sys, time
    import numpy as np
    from mpi4py import MPI
    import smcoll
    directory, count = sys.argv[1], int(sys.argv[2])
    world = MPI.COMM_WORLD
    comm = smcoll.Comm(world, smcoll.Config(timeout=30))
    data, total = np.ones(count), np.ones(count)
    comm.Allreduce(data, total)

    def report(text):
        with open(os.path.join(directory, f"rank-{world.rank}.part"), "w") as file:
            file.write(text)
        os.rename(file.name, os.path.join(directory, f"rank-{world.rank}"))

    if world.rank == 1:
        time.sleep(0.3)
        # mpiexec would end the job before anybody could notice: it is stopped.
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        for _ in range(10):
            comm.Allreduce(data, total)
        report("no error")
    except BaseException as error:
        report(f"{type(error).__name__} {time.monotonic() - began:.1f} {error}")
    time.sleep(60)
"""


@pytest.mark.parametrize("count", [1, 100_000])
def test_death_of_a_peer(tmp_path, count):
    """Whoever waits for a rank that was killed raises PeerError that names it, soon."""
    job = start_ranks(3, DEATH, tmp_path, count)
    try:
        found = results(tmp_path, (0, 2))
        assert set(found) == {0, 2}
        for text in found.values():
            kind, seconds, message = text.split(" ", 2)
            assert kind == "PeerError", text
            assert "rank 1 " in message
            assert float(seconds) < 20
    finally:
        end_job(job)


