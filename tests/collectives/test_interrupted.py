"""A signal handler that uses the communicator, or raises, while a call waits."""

import programs
import pytest

START = """
    import signal, sys, time
    import numpy as np
    import smcoll
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    comm = smcoll.Comm(world, smcoll.Config(timeout=20))
    rank, size = comm.rank, comm.size
    said = []

    def on_alarm(action):
        def handler(number, frame):
            try:
                action()
            except Exception as error:
                said.append(str(error))
        signal.signal(signal.SIGALRM, handler)
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        else:
            time.sleep(0.4)
"""


def run(ranks, source):
    import textwrap

    program = textwrap.dedent(START) + textwrap.dedent(source)
    result = programs.run_ranks(ranks, program, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.lengthy
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_refused_nested_call_leaves_the_running_one_alone(ranks):
    """Its messages and its memory are its own, and nothing is reserved on one rank only."""
    out = run(ranks, """
        other = np.full(size, -1.0)
        comm.Gather(np.zeros(1), np.zeros(size) if rank == 0 else None, 0)
        on_alarm(lambda: comm.Gather(np.ones(1), other, 0))
        got = np.zeros(size) if rank == 0 else None
        comm.Gather(np.full(1, rank + 1.0), got, 0)
        if rank == 0:
            assert got.tolist() == [r + 1 for r in range(size)], got
            assert said and "one call at a time" in said[0], said
        fresh = smcoll.Comm(world, smcoll.Config(timeout=20))
        fresh.Barrier()
        on_alarm(lambda: fresh.gather(1))
        fresh.Barrier()
        assert fresh.gather(rank) == (list(range(size)) if rank == 0 else None)
        print("done")
        """)
    assert out.count("done") == ranks


def test_leaving_the_communicator_in_a_handler_is_no_crash():
    out = run(2, """
        def leave():
            comm.__exit__(ValueError, ValueError("out"), None)
        on_alarm(leave)
        try:
            comm.Barrier()
        except MPI.Exception as error:
            print(type(error).__name__)
        print("done")
        """)
    assert out.count("done") == 2


def test_an_object_that_cannot_be_unpickled_is_that_ranks_error_alone():
    out = run(3, """
        class Odd:
            def __init__(self, where):
                self.where = where
            def __reduce__(self):
                return make, (self.where,)

        def make(where):
            if MPI.COMM_WORLD.Get_rank() == where:
                raise RuntimeError("not here")
            return where

        sys.modules["__main__"].make = make
        try:
            comm.allgather(Odd(1) if rank == 0 else "x" * 100_000)
            assert rank != 1
        except RuntimeError:
            assert rank == 1
        assert comm.allgather(rank) == [0, 1, 2]
        print("done")
        """)
    assert out.count("done") == 3
