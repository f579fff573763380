"""Random programs on communicators whose rows change as often as they can.

What is tried, and when, depends on times. Here an exploration of the tests' own takes the place of
``tuning.exploration.Exploration``.
"""

from __future__ import annotations

import random
import time

import numpy as np
from mpi4py import MPI

from smcoll.engine import learning

KINDS = ("ordered", "bcast", "reduce", "scan", "allgather", "reduce_scatter", "gather", "object",
         "objects")


class Restless:
    """Tries variants at random for ever, and now and then keeps one."""

    changes = 0
    given_up = False

    def __init__(self, variants, current=0, known=None):
        self.numbers = [0, *variants]
        self.left = random.randint(1, 6)

    def next(self):
        Restless.changes += 1
        self.left -= 1
        return random.choice(self.numbers) if self.left else None

    def record(self, nanoseconds):
        assert all(0 < ns < 10**12 for ns in nanoseconds), nanoseconds

    def best(self):
        return random.choice(self.numbers)

    def ranking(self):
        return self.numbers

    def time(self, number):
        return 1.0

    def cost(self):
        return 0.0

    trials = ()


def be_restless(monkeypatch):
    monkeypatch.setattr(learning, "Exploration", Restless)
    monkeypatch.setattr(Restless, "changes", 0)


def compute(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Program:
    """A random program, the same on all ranks; what each rank sends follows from the call.

    Before one call in a hundred a rank computes, for up to ``late`` seconds.
    """

    def __init__(self, comm, seed, late=5e-4):
        self.late = late
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.random = random.Random(seed)
        self.own = random.Random(seed * 100 + self.rank)
        self.call = 0

    def data(self, rank, elements):
        return (np.arange(elements) % 17 + rank + self.call % 5).astype("d")

    def run(self, calls, sizes):
        self.last = MPI.Op.Create(lambda one, other, _: None, commute=False)
        for number in range(calls):
            if number % 500 == 0:      # few classes at a time: so each comes often
                kinds = ["allreduce", "barrier", *self.random.sample(KINDS, 2)]
                size = self.random.choice(sizes)
            self.call += 1
            if self.own.random() < 0.01:
                compute(self.own.random() * self.late)
            getattr(self, self.random.choice(kinds))(size // 8, self.random.randrange(self.size))
        self.last.Free()               # mpi4py has room for few

    def sum_of(self, elements, ranks=None):
        return sum(self.data(rank, elements) for rank in range(ranks or self.size))

    def barrier(self, elements, root):
        self.comm.Barrier()

    def allreduce(self, elements, root):
        result = np.empty(elements)
        self.comm.Allreduce(self.data(self.rank, elements), result)
        assert np.array_equal(result, self.sum_of(elements)), (self.call, elements)

    def ordered(self, elements, root):
        """By an operation that does not commute: synchronising, and following no variant."""
        elements = min(elements, 50)
        result = np.empty(elements)
        self.comm.Allreduce(self.data(self.rank, elements), result, self.last)
        assert np.array_equal(result, self.data(self.size - 1, elements)), self.call

    def bcast(self, elements, root):
        buffer = self.data(root, elements) if self.rank == root else np.empty(elements)
        self.comm.Bcast(buffer, root)
        assert np.array_equal(buffer, self.data(root, elements)), (self.call, elements)

    def reduce(self, elements, root):
        result = np.empty(elements)
        self.comm.Reduce(self.data(self.rank, elements), result, root=root)
        assert self.rank != root or np.array_equal(result, self.sum_of(elements)), self.call

    def scan(self, elements, root):
        result = np.empty(elements)
        self.comm.Scan(self.data(self.rank, elements), result)
        assert np.array_equal(result, self.sum_of(elements, self.rank + 1)), self.call

    def allgather(self, elements, root):
        result = np.empty((self.size, elements))
        self.comm.Allgather(self.data(self.rank, elements), result)
        for rank in range(self.size):
            assert np.array_equal(result[rank], self.data(rank, elements)), (self.call, rank)

    def reduce_scatter(self, elements, root):
        block = elements // self.size + 1
        result = np.empty(block)
        self.comm.Reduce_scatter_block(self.data(self.rank, block * self.size), result)
        whole = self.sum_of(block * self.size)
        assert np.array_equal(result, whole[self.rank * block:(self.rank + 1) * block]), self.call

    def gather(self, elements, root):
        result = np.empty((self.size, elements))
        self.comm.Gather(self.data(self.rank, elements), result, root)
        assert self.rank != root or all(
            np.array_equal(result[rank], self.data(rank, elements)) for rank in range(self.size))

    def object(self, elements, root):
        assert self.comm.bcast(self.call if self.rank == root else None, root) == self.call

    def objects(self, elements, root):
        text = "x" * min(elements, 3000)
        assert self.comm.allgather((self.rank, text)) == [
            (rank, text) for rank in range(self.size)]
