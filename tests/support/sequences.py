"""Long random programs of mixed collectives, the same on every rank, every result checked.

What each rank sends is a function of (call number, rank, index), so that the result to expect is
computed locally: no other communication stands between the calls, and races show.
"""

from __future__ import annotations

import contextlib
import os
import random
import time

import chosen
import numpy as np
from mpi4py import MPI
from placements import even, placed, uneven

import smcoll
from smcoll.algorithms import ALGORITHMS
from smcoll.base import kernels

LONGEST = 70_000
PATTERN = {code: (np.arange(LONGEST) * 7 % 101).astype(code) for code in "iqfd"}
SPREAD = 17  # shifts of ranks lie below
OPS = (("SUM", MPI.SUM), ("MAX", MPI.MAX), ("MIN", MPI.MIN))
COLLECTIVES = ("allreduce",) * 7 + ("bcast",) * 6 + ("reduce",) * 5 + ("barrier",) * 2
STORES = kernels.stores_available()
CONFIGS = (
    {},
    {"segment_size": 4096, "segments": 1, "banks": 1, "inline_slots": 1, "inline_size": 64,
     "rooted_inline_size": 32, "scan": "direct", "exscan": "chain", "stores": STORES[-1]},
    {"segment_size": 4096, "segments": 2, "banks": 3, "inline_slots": 2, "pipeline": False,
     "streaming_size": 1, "kernel_copy_size": 1, "scan": "chain", "exscan": "direct"},
    {"segment_size": 16384, "segments": 4, "banks": 4, "inline_slots": 4,
     "rooted_inline_size": 512},
    {"segment_size": 8192, "segments": 8, "banks": 1, "inline_slots": 8, "inline_size": 512,
     "fan_in": 2, "fan_out": 3, "arity": 3, "scan": "direct", "stores": STORES[len(STORES) // 2]},
)  # fmt: skip


class RandomProgram:
    """A seeded program: every rank of ``world`` takes the same decisions in the same order."""

    may_be_refused = False  # a segment: all communicators of more than one rank must have theirs
    places_in_turn = True   # of what is shorter than its region, though ranks share cores

    def __init__(self, world, seed: int, delays: bool = True,
                 kinds=("whole", "whole", "split")):
        self.world = world
        self.rank = world.Get_rank()
        self.shared = random.Random(seed)
        self.own = random.Random(seed * 1000 + self.rank)  # delays only
        self.delays = delays
        self.calls = 0
        self.communicators = [self.make_communicator(kind) for kind in kinds]

    def make_communicator(self, kind: str):
        config = chosen.config(**self.settings())
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
            assert comm.engine is not None or comm.size == 1 or self.may_be_refused
        cache = self.shared.choice((0, 32 << 10, 1 << 20))
        if comm.engine is not None and self.places_in_turn:
            # As with cores of their own, of caches of such sizes.
            comm.engine.use_core_cache(cache)
        return comm

    def settings(self) -> dict:
        return self.shared.choice(CONFIGS)

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
        by_name = algorithm != "auto" and comm.engine is not None
        pattern = PATTERN[code][:count]
        what = (self.calls, collective, algorithm, op_name, code, count, root, size, in_place)
        with chosen.algorithm(comm, collective, algorithm) if by_name else (
                contextlib.nullcontext()):
            if collective == "barrier":
                comm.Barrier()
                return
            if collective == "bcast":
                wanted = pattern + pattern.dtype.type(self.shift(root))
                buffer = wanted.copy() if rank == root else np.zeros_like(pattern)
                comm.Bcast(buffer, root)
                self.check(buffer, wanted, what)
                return
            send = pattern + pattern.dtype.type(self.shift(rank))
            recv = send if in_place else np.full_like(send, -1)
            if collective == "allreduce":
                comm.Allreduce(MPI.IN_PLACE if in_place else send, recv, op)
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


def block(code: str, count: int, source: int, target: int, call: int):
    """What ``source`` sends ``target`` in this call."""
    pattern = PATTERN[code][:count]
    return pattern + pattern.dtype.type((source * 5 + target * 3 + call) % SPREAD)


class EveryCollective(RandomProgram):
    """The same with all collectives, on many communicators, some of them short of memory."""

    may_be_refused = True
    BUDGETS = ("0", "0", "0", "1M", "300K", "4K")  # for all ranks of the node

    def __init__(self, world, seed: int, delays: bool = True, communicators: int = 6):
        kinds = ("whole", "whole", "split") * (communicators // 3 + 1)
        self.moves = (self.gather, self.scatter, self.allgather, self.alltoall,
                      self.reduce_scatter, self.scan, self.objects)
        super().__init__(world, seed, delays, kinds[:communicators])

    def settings(self) -> dict:
        return super().settings() | {"budget": self.shared.choice(self.BUDGETS),
                                     "memory": self.shared.choice(("auto", "auto", "shm", "memfd")),
                                     "warn_after": 0}

    def step(self, comm) -> None:
        if self.shared.random() < 0.5:
            # An algorithm asked for by name runs or is refused on all ranks alike; on one alone,
            # the next call would be a mismatch.
            with contextlib.suppress(smcoll.SegmentError):
                super().step(comm)
            return
        move = self.shared.choice(self.moves)
        code = self.shared.choice("iqfd")
        count = min(self.count(), LONGEST // (2 * self.world.Get_size()))
        root = int(self.shared.random() * comm.Get_size())
        uneven = self.shared.random() < 0.5
        self.delay()
        move(comm, code, count, root, uneven)

    def lengths(self, comm, count: int, uneven: bool) -> list[int]:
        size = comm.Get_size()
        return [count * (rank + 1) // size if uneven else count for rank in range(size)]

    def blocks(self, code: str, lengths: list[int], pair) -> np.ndarray:
        """Blocks one behind the other; ``pair(rank)`` is who sends the block, and to whom."""
        return np.concatenate([block(code, length, *pair(rank), self.calls)
                               for rank, length in enumerate(lengths)])

    def gather(self, comm, code, count, root, uneven) -> None:
        rank, lengths = comm.Get_rank(), self.lengths(comm, count, uneven)
        send = block(code, lengths[rank], rank, root, self.calls)
        recv = np.empty(sum(lengths), code) if rank == root else None
        comm.Gatherv(send, [recv, lengths] if rank == root else None, root)
        if rank == root:
            self.check(recv, self.blocks(code, lengths, lambda source: (source, root)),
                       (self.calls, "gather", code, lengths, root))

    def scatter(self, comm, code, count, root, uneven) -> None:
        rank, lengths = comm.Get_rank(), self.lengths(comm, count, uneven)
        send = None
        if rank == root:
            send = [self.blocks(code, lengths, lambda target: (root, target)), lengths]
        recv = np.empty(lengths[rank], code)
        comm.Scatterv(send, recv, root)
        self.check(recv, block(code, lengths[rank], root, rank, self.calls),
                   (self.calls, "scatter", code, lengths, root))

    def allgather(self, comm, code, count, root, uneven) -> None:
        rank, lengths = comm.Get_rank(), self.lengths(comm, count, uneven)
        recv = np.empty(sum(lengths), code)
        send = block(code, lengths[rank], rank, 0, self.calls)
        if uneven:
            comm.Allgatherv(send, [recv, lengths])
        else:
            comm.Allgather(send, recv)
        self.check(recv, self.blocks(code, lengths, lambda source: (source, 0)),
                   (self.calls, "allgather", code, lengths))

    def alltoall(self, comm, code, count, root, uneven) -> None:
        rank, lengths = comm.Get_rank(), self.lengths(comm, count, uneven)
        # To every rank as many as it takes from everybody.
        send = self.blocks(code, lengths, lambda target: (rank, target))
        recv = np.empty(lengths[rank] * comm.Get_size(), code)
        if uneven:
            comm.Alltoallv([send, lengths], [recv, [lengths[rank]] * comm.Get_size()])
        else:
            comm.Alltoall(send, recv)
        self.check(recv, self.blocks(code, [lengths[rank]] * comm.Get_size(),
                                     lambda source: (source, rank)),
                   (self.calls, "alltoall", code, lengths))

    def reduce_scatter(self, comm, code, count, root, uneven) -> None:
        rank, size, lengths = comm.Get_rank(), comm.Get_size(), self.lengths(comm, count, uneven)
        operands = [self.blocks(code, lengths, lambda target, source=source: (source, target))
                    for source in range(size)]
        recv = np.empty(lengths[rank], code)
        comm.Reduce_scatter(operands[rank], recv, lengths)
        first = sum(lengths[:rank])
        wanted = sum(operands[1:], start=operands[0])[first:first + lengths[rank]]
        self.check(recv, wanted, (self.calls, "reduce_scatter", code, lengths))

    def scan(self, comm, code, count, root, uneven) -> None:
        rank = comm.Get_rank()
        recv = np.empty(count, code)
        comm.Scan(block(code, count, rank, 0, self.calls), recv)
        operands = [block(code, count, source, 0, self.calls) for source in range(rank + 1)]
        self.check(recv, sum(operands[1:], start=operands[0]), (self.calls, "scan", code, count))

    def objects(self, comm, code, count, root, uneven) -> None:
        rank, size = comm.Get_rank(), comm.Get_size()

        def thing(source, target):
            kind = (source + target + self.calls) % 4
            return (self.calls, float(source), {"from": source, "to": target},
                    "text " * (count % 900) + str(target))[kind]

        got = (comm.bcast(thing(root, 0) if rank == root else None, root),
               comm.gather(thing(rank, root), root),
               comm.allgather(thing(rank, 0)),
               comm.alltoall([thing(rank, target) for target in range(size)]))
        wanted = (thing(root, 0),
                  [thing(source, root) for source in range(size)] if rank == root else None,
                  [thing(source, 0) for source in range(size)],
                  [thing(source, rank) for source in range(size)])
        assert got == wanted, (self.calls, "objects", got, wanted)
