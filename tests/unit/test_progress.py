"""Driving MPI's progress: what a waiting rank does between two looks at shared memory."""

from __future__ import annotations

import signal

import pytest

from smcoll.mpi import progress


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
            assert not progress._lock.locked()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
