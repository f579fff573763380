"""Long random programs of mixed collectives, the same on every rank, every result checked.

What each rank sends is a function of (call number, rank, index), so that the result to expect is
computed locally: no other communication stands between the calls, and races show.
"""

from __future__ import annotations

import os
import random
import time

import numpy as np
from mpi4py import MPI
from placements import even, placed, uneven

import smcoll
from smcoll.algos import ALGORITHMS

LONGEST = 70_000
PATTERN = {code: (np.arange(LONGEST) * 7 % 101).astype(code) for code in "iqfd"}
SPREAD = 17  # shifts of ranks lie below
OPS = (("SUM", MPI.SUM), ("MAX", MPI.MAX), ("MIN", MPI.MIN))
COLLECTIVES = ("allreduce",) * 7 + ("bcast",) * 6 + ("reduce",) * 5 + ("barrier",) * 2
CONFIGS = (
    {},
    {"segment_size": 4096, "segments": 1, "banks": 1, "inline_size": 64, "rooted_inline_size": 32},
    {"segment_size": 4096, "segments": 2, "banks": 3, "pipeline": False,
     "streaming_size": 1},
    {"segment_size": 16384, "segments": 4, "banks": 4, "rooted_inline_size": 512},
    {"segment_size": 8192, "segments": 8, "banks": 1, "inline_size": 512, "fan_in": 2,
     "fan_out": 3, "arity": 3},
)  # fmt: skip


class RandomProgram:
    """A seeded program: every rank of ``world`` takes the same decisions in the same order."""

    def __init__(self, world, seed: int, delays: bool = True):
        self.world = world
        self.rank = world.Get_rank()
        self.shared = random.Random(seed)
        self.own = random.Random(seed * 1000 + self.rank)  # delays only
        self.delays = delays
        self.calls = 0
        self.communicators = [self.make_communicator(kind) for kind in ("whole", "whole", "split")]

    def make_communicator(self, kind: str):
        config = smcoll.Config(**self.shared.choice(CONFIGS))
        colours = self.shared.randint(1, 3)
        ranks = self.world.Get_size()
        where = self.shared.choice(
            (None, even(ranks, self.shared.randint(2, 4)), uneven(ranks, self.shared.random())))
        with placed(where):
            if kind == "whole":
                comm = smcoll.Comm(self.world, config)
            else:
                # Ranks in reverse order, in up to three groups: other roots, other sizes, one rank
                # alone.
                part = self.world.Split(self.rank % colours, -self.rank)
                comm = smcoll.Comm(part, config)
                part.Free()
            assert comm.engine is not None or comm.size == 1
        return comm

    def run(self, calls: int, replace_every: int = 250) -> None:
        for _ in range(calls):
            self.calls += 1
            if self.calls % replace_every == 0:
                self.replace_communicator()
            self.step(self.shared.choice(self.communicators))

    def free(self) -> None:
        for comm in self.communicators:
            comm.Free()

    def replace_communicator(self) -> None:
        position = self.shared.randrange(len(self.communicators))
        kind = self.shared.choice(("whole", "split"))
        self.communicators[position].Free()
        self.communicators[position] = self.make_communicator(kind)

    def count(self) -> int:
        kind = self.shared.random()
        if kind < 0.70:
            return self.shared.randint(0, 12)
        if kind < 0.93:
            return self.shared.randint(0, 600)
        if kind < 0.99:
            return self.shared.randint(0, 6000)
        return self.shared.randint(0, LONGEST)

    def shift(self, rank: int) -> int:
        return (rank * 5 + self.calls * 3) % SPREAD

    def delay(self) -> None:
        kind = self.own.random()
        if kind < 0.003:
            time.sleep(0.001)
        elif kind < 0.02:
            os.sched_yield()
        elif kind < 0.04:
            end = time.perf_counter() + 30e-6
            while time.perf_counter() < end:
                pass

    def step(self, comm) -> None:
        shared = self.shared
        collective = shared.choice(COLLECTIVES)
        code = shared.choice("iqfd")
        op_name, op = shared.choice(OPS)
        root_choice = shared.random()
        algorithm = shared.choice(("auto", *ALGORITHMS[collective]))
        in_place = shared.random() < 0.3
        count = self.count()
        if self.delays:
            self.delay()
        size, rank = comm.Get_size(), comm.Get_rank()
        root = int(root_choice * size)
        engine = comm.engine
        by_name = algorithm != "auto" and engine is not None
        if collective == "barrier":
            if by_name:
                engine.barrier(algorithm=algorithm)
            else:
                comm.Barrier()
            return
        pattern = PATTERN[code][:count]
        what = (self.calls, collective, algorithm, op_name, code, count, root, size, in_place)
        if collective == "bcast":
            wanted = pattern + pattern.dtype.type(self.shift(root))
            buffer = wanted.copy() if rank == root else np.zeros_like(pattern)
            if by_name:
                engine.bcast(buffer, root=root, algorithm=algorithm)
            else:
                comm.Bcast(buffer, root)
            self.check(buffer, wanted, what)
            return
        send = pattern + pattern.dtype.type(self.shift(rank))
        recv = send if in_place else np.full_like(send, -1)
        if collective == "allreduce":
            if by_name:
                engine.allreduce(send, recv, op, algorithm=algorithm)
            else:
                comm.Allreduce(MPI.IN_PLACE if in_place else send, recv, op)
        elif by_name:
            engine.reduce(send, recv, op, root=root, algorithm=algorithm)
        else:
            at_root = rank == root
            comm.Reduce(MPI.IN_PLACE if in_place and at_root else send,
                        recv if at_root else None, op, root)
        if collective == "allreduce" or rank == root:
            self.check(recv, self.reduced(op_name, pattern, size), what)

    def reduced(self, op_name: str, pattern, size: int):
        shifts = [self.shift(rank) for rank in range(size)]
        number = pattern.dtype.type
        if op_name == "SUM":
            return pattern * number(size) + number(sum(shifts))
        return pattern + number(max(shifts) if op_name == "MAX" else min(shifts))

    def check(self, got, wanted, what) -> None:
        if not np.array_equal(got, wanted):
            wrong = np.flatnonzero(got != wanted)
            raise AssertionError(
                "wrong data in (call, collective, algorithm, op, type, count, root, ranks, "
                f"in place) = {what} on rank {self.rank}: {len(wrong)} wrong, first "
                f"[{wrong[0]}] = {got[wrong[0]]}, not {wanted[wrong[0]]}"
            )
