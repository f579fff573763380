"""A differential fuzzer: random programs on mpi4py's communicators and on smcoll's, side by side.

    mpiexec -n 3 python tests/verification/differential.py --seconds 60 --seed 1
    mpiexec -n 3 python tests/verification/differential.py --replay 1:4711

Every step is a random collective on a random communicator with random arguments. It runs with the
same data on a plain communicator and on a smcoll communicator of the same ranks; all memory that
the arguments lie in, gaps and guards included, must then be the same, byte for byte (floating-point
data are small whole numbers, so that every order of summation gives the same bits; "rough" steps
have real ones and are compared within rounding). Results of the lower-case calls must be equal and
of the same type. A step depends on seed and number only, so that it can be replayed alone.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import sys

import numpy as np
from mpi4py import MPI

GUARD = 5
SIZES = [0, 1, 2, 7, 28, 29, 63, 255, 256, 257, 2047, 2048, 4095, 4096, 4097, 16384, 16385, 70_000]
WEIGHTS = [3, 5, 4, 4, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 0.5, 0.5, 0.3]
INTEGERS = "bBhHiIlLqQ"
FLOATS = "fdgFD"
NAMES = {getattr(MPI, name).handle: name for name in
         ("SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR", "MINLOC",
          "MAXLOC")}
# MPICH 5.0.2's own Allgatherv truncates where ranks have different layouts of the same signature.
ALIKE = "MPICH" in MPI.Get_library_version()
SUM_LIKE = [MPI.SUM, MPI.PROD]
ORDERED = [MPI.MAX, MPI.MIN]
BITWISE = [MPI.BAND, MPI.BOR, MPI.BXOR, MPI.LAND, MPI.LOR, MPI.LXOR]


class Step:
    """The random choices of one step: `shared` is the same on every rank, `own` is not."""

    def __init__(self, seed: int, number: int, rank: int):
        self.shared = random.Random(f"{seed} {number}")
        self.own = random.Random(f"{seed} {number} {rank}")
        self.words: list[str] = []

    def pick(self, values, weights=None):
        return self.shared.choices(values, weights)[0]

    def count(self) -> int:
        return self.pick(SIZES, WEIGHTS)

    def say(self, *words) -> None:
        """Part of what is printed on a difference."""
        self.words += [str(word) for word in words]


# ---------------------------------------------------------------------- data


def values(typecode: str, count: int, salt: int, rough: bool = False) -> np.ndarray:
    """Small whole numbers, or where `rough` real ones."""
    dtype = np.dtype(typecode)
    if rough and dtype.kind in "fc":
        numbers = np.random.default_rng(salt).standard_normal(count)
    else:
        numbers = (np.arange(count) * 5 + salt * 3) % 7 + 1
        if dtype.kind == "b":
            numbers = numbers % 2
    return numbers.astype(dtype)


class Operand:
    """One rank's memory for a buffer argument, between guards, and the spec that describes it."""

    def __init__(self, step: Step, data: np.ndarray, simple: bool = False):
        self.dtype, self.count = data.dtype, len(data)
        self.stride = 1 if simple else step.own.choice([1, 1, 1, 2, 3])
        self.memory = np.full((2 * GUARD + self.count * self.stride), 99).astype(data.dtype)
        self.elements = self.memory[GUARD:GUARD + self.count * self.stride]
        self.elements[::self.stride] = data
        self.form = step.own.randrange(4)
        self.datatype = MPI._typedict[data.dtype.char]
        if self.stride > 1:
            self.datatype = self.datatype.Create_resized(
                0, self.stride * data.dtype.itemsize).Commit()
        step.say(f"[{self.dtype} x {self.count}, stride {self.stride}, form {self.form}]")

    def spec(self, blocks: int = 1):
        """As one of the forms that mpi4py takes; a given count is that of one block."""
        if self.stride > 1:
            return [self.elements, self.count // blocks, self.datatype]
        return (self.elements, (self.elements, self.datatype), [self.elements, self.dtype.char],
                [self.elements, self.count // blocks, self.datatype])[self.form]

    def vector(self, counts, displacements):
        return [self.elements, (counts, displacements), self.datatype]

    def free(self) -> None:
        if self.stride > 1:
            self.datatype.Free()


def ragged(step: Step, size: int, limit: int) -> list[int]:
    return [step.pick([0, limit, step.shared.randrange(limit + 1)]) for _ in range(size)]


def spread(step: Step, counts: list[int]) -> tuple[list[int], int]:
    """Displacements in a random order with gaps, and the length of it all."""
    order = list(range(len(counts)))
    step.own.shuffle(order)
    at, displacements = 0, [0] * len(counts)
    for block in order:
        displacements[block] = at
        at += counts[block] + step.own.choice([0, 0, 2])
    return displacements, at


# ---------------------------------------------------------------------- buffer collectives
#
# Each takes the step, rank and size of the communicator, and gives (operands, call).


def bcast(step, rank, size):
    typecode, count = step.pick(INTEGERS + FLOATS + "?e"), step.count()
    root = step.shared.randrange(size)
    buffer = Operand(step, values(typecode, count, rank))
    return [buffer], lambda comm: comm.Bcast(buffer.spec(), root)


def gather(step, rank, size):
    typecode, count = step.pick(INTEGERS + FLOATS), step.count()
    root, in_place = step.shared.randrange(size), step.pick([False, False, True])
    send = Operand(step, values(typecode, count, rank))
    recv = Operand(step, values(typecode, count * size, 50))
    return [send, recv], lambda comm: comm.Gather(
        MPI.IN_PLACE if in_place and rank == root else send.spec(),
        recv.spec(size) if rank == root else None, root)


def scatter(step, rank, size):
    typecode, count = step.pick(INTEGERS + FLOATS), step.count()
    root, in_place = step.shared.randrange(size), step.pick([False, False, True])
    send = Operand(step, values(typecode, count * size, rank))
    recv = Operand(step, values(typecode, count, 50))
    return [send, recv], lambda comm: comm.Scatter(
        send.spec(size) if rank == root else None,
        MPI.IN_PLACE if in_place and rank == root else recv.spec(), root)


def gatherv(step, rank, size):
    typecode, counts = step.pick(INTEGERS + FLOATS), ragged(step, size, step.count())
    root = step.shared.randrange(size)
    displacements, total = spread(step, counts)
    send = Operand(step, values(typecode, counts[rank], rank))
    recv = Operand(step, values(typecode, total, 50))
    return [send, recv], lambda comm: comm.Gatherv(
        send.spec(), recv.vector(counts, displacements) if rank == root else None, root)


def scatterv(step, rank, size):
    typecode, counts = step.pick(INTEGERS + FLOATS), ragged(step, size, step.count())
    root = step.shared.randrange(size)
    displacements, total = spread(step, counts)
    send = Operand(step, values(typecode, total, rank))
    recv = Operand(step, values(typecode, counts[rank], 50))
    return [send, recv], lambda comm: comm.Scatterv(
        send.vector(counts, displacements) if rank == root else None, recv.spec(), root)


def allgather(step, rank, size):
    typecode, count = step.pick(INTEGERS + FLOATS + "?"), step.count()
    in_place = step.pick([False, False, True])
    send = Operand(step, values(typecode, count, rank))
    recv = Operand(step, values(typecode, count * size, rank))
    return [send, recv], lambda comm: comm.Allgather(
        MPI.IN_PLACE if in_place else send.spec(), recv.spec(size))


def allgatherv(step, rank, size):
    typecode, counts = step.pick(INTEGERS + FLOATS), ragged(step, size, step.count())
    in_place = step.pick([False, False, True])
    displacements, total = spread(step, counts)
    send = Operand(step, values(typecode, counts[rank], rank), simple=ALIKE)
    recv = Operand(step, values(typecode, total, rank), simple=ALIKE)
    return [send, recv], lambda comm: comm.Allgatherv(
        MPI.IN_PLACE if in_place else send.spec(), recv.vector(counts, displacements))


def alltoall(step, rank, size):
    typecode, count = step.pick(INTEGERS + FLOATS), step.count()
    in_place = step.pick([False, False, True])
    send = Operand(step, values(typecode, count * size, rank))
    recv = Operand(step, values(typecode, count * size, rank + 9))
    return [send, recv], lambda comm: comm.Alltoall(
        MPI.IN_PLACE if in_place else send.spec(size), recv.spec(size))


def alltoallv(step, rank, size):
    typecode, limit = step.pick(INTEGERS + FLOATS), step.count()
    matrix = [ragged(step, size, limit) for _ in range(size)]
    sends, receives = matrix[rank], [matrix[r][rank] for r in range(size)]
    send_places, send_total = spread(step, sends)
    recv_places, recv_total = spread(step, receives)
    send = Operand(step, values(typecode, send_total, rank))
    recv = Operand(step, values(typecode, recv_total, 50))
    return [send, recv], lambda comm: comm.Alltoallv(
        send.vector(sends, send_places), recv.vector(receives, recv_places))


def alltoallw(step, rank, size):
    limit = step.count()
    matrix = [ragged(step, size, limit) for _ in range(size)]
    sends, receives = matrix[rank], [matrix[r][rank] for r in range(size)]
    send_places, send_total = spread(step, sends)
    recv_places, recv_total = spread(step, receives)
    send = Operand(step, values("d", send_total, rank))
    recv = Operand(step, values("d", recv_total, 50))

    def side(operand, counts, places):
        return [operand.elements,
                (counts, [8 * operand.stride * place for place in places]),
                [operand.datatype] * size]

    return [send, recv], lambda comm: comm.Alltoallw(
        side(send, sends, send_places), side(recv, receives, recv_places))


def operation_and_type(step):
    """A legal pair, and whether the data are rough."""
    kind = step.pick(["sum", "order", "bits", "half"], [5, 3, 3, 0.5])
    if kind == "sum":
        return step.pick(SUM_LIKE), step.pick(INTEGERS + FLOATS), step.pick([False, True])
    if kind == "order":
        return step.pick(ORDERED), step.pick(INTEGERS + "fdg"), step.pick([False, True])
    if kind == "bits":
        return step.pick(BITWISE), step.pick(INTEGERS), False
    return MPI.SUM, "e", False


def reduction(step, rank, size, method):
    operation, typecode, rough = operation_and_type(step)
    count, in_place = step.count(), step.pick([False, False, True])
    if method == "Reduce_scatter" and MPI.get_vendor()[0] == "MPICH":
        # MPICH 5.0.2 ends the program where blocks of different lengths in place are combined in
        # rank order: it copies a block over itself ("memory ranges overlap").
        in_place = False
    root = step.shared.randrange(size)
    lengths = {"Reduce_scatter_block": (count * size, count)}
    counts = ragged(step, size, count)
    lengths["Reduce_scatter"] = sum(counts), counts[rank]
    sent, received = lengths.get(method, (count, count))
    if in_place:
        received = sent
    send = Operand(step, values(typecode, sent, rank, rough), simple=True)
    recv = Operand(step, values(typecode, received, rank + 20, rough), simple=True)
    send.rough = recv.rough = rough and operation in SUM_LIKE
    step.say(NAMES[operation.handle], f"in_place={in_place}")

    def call(comm):
        if method == "Reduce":
            if rank == root:
                comm.Reduce(MPI.IN_PLACE if in_place else send.elements, recv.elements, operation,
                            root)
            else:
                comm.Reduce(send.elements, None, operation, root)
            return
        source = MPI.IN_PLACE if in_place else send.elements
        if method == "Reduce_scatter":
            comm.Reduce_scatter(source, recv.elements, counts, operation)
        else:
            getattr(comm, method)(source, recv.elements, op=operation)
        if in_place and method.startswith("Reduce_scatter"):
            # What lies behind the result is MPI's to use.
            recv.elements[counts[rank] if method == "Reduce_scatter" else count:] = 0

    return [send, recv], call


def product(one, two, _datatype):
    """2 x 2 matrices modulo a prime: associative, not commutative."""
    left, right = (np.frombuffer(b, "q").reshape(-1, 2, 2) for b in (one, two))
    np.copyto(right, left @ right % 10_007)


def ordered_reduction(step, rank, size):
    count, method = step.count() % 5000, step.pick(["Allreduce", "Reduce", "Scan", "Exscan"])
    root = step.shared.randrange(size)
    send = Operand(step, values("q", 4 * count, rank), simple=True)
    recv = Operand(step, values("q", 4 * count, rank + 20), simple=True)
    step.say(method)

    def call(comm):
        matrix = MPI.INT64_T.Create_contiguous(4).Commit()
        operation = MPI.Op.Create(product, commute=False)
        source, target = [send.elements, count, matrix], [recv.elements, count, matrix]
        if method == "Reduce":
            comm.Reduce(source, target if rank == root else None, operation, root)
        else:
            getattr(comm, method)(source, target, operation)
        operation.Free()
        matrix.Free()

    return [send, recv], call


def located(step, rank, size):
    count, operation = step.count() % 5000, step.pick([MPI.MINLOC, MPI.MAXLOC])
    send, recv = (Operand(step, values("d", 2 * count, salt), simple=True)
                  for salt in (rank, 50))
    pairs = send.elements.view([("value", "d"), ("index", "i"), ("hole", "i")])
    pairs["index"] = rank
    step.say(NAMES[operation.handle])
    return [send, recv], lambda comm: comm.Allreduce(
        [send.elements, count, MPI.DOUBLE_INT], [recv.elements, count, MPI.DOUBLE_INT], operation)


def barrier(step, rank, size):
    return [], lambda comm: comm.Barrier()


BUFFERS = {function.__name__: function for function in (
    barrier, bcast, gather, scatter, gatherv, scatterv, allgather, allgatherv, alltoall, alltoallv,
    alltoallw, ordered_reduction, located)}
for name in ("Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter", "Reduce_scatter_block"):
    BUFFERS[name] = (lambda step, rank, size, name=name: reduction(step, rank, size, name))


# ---------------------------------------------------------------------- objects

OBJECTS = [None, True, 0, -7, 1 << 40, 1 << 90, 0.25, 1 + 2j, "text", "x" * 3000, b"bytes",
           (1, [2, {"a": None}]), np.float64(1.5), np.int32(4), np.bool_(False), np.arange(4),
           np.arange(20_000.0)]
METHODS = ("barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce",
           "scan", "exscan")


def object_call(step, rank, size):
    """(call, description) of a lower-case collective."""
    method, root = step.pick(METHODS), step.shared.randrange(size)
    mine = step.own.choice(OBJECTS)
    many = [step.own.choice(OBJECTS) for _ in range(size)]
    number = step.pick([int, float, np.float64, np.int64, str, lambda n: [n]])(rank + 1)
    step.say(method, f"root={root}", repr(mine)[:40], repr(number))
    calls = {
        "barrier": lambda comm: comm.barrier(),
        "bcast": lambda comm: comm.bcast(mine, root),
        "gather": lambda comm: comm.gather(mine, root),
        "scatter": lambda comm: comm.scatter(many if rank == root else None, root),
        "allgather": lambda comm: comm.allgather(mine),
        "alltoall": lambda comm: comm.alltoall(many),
        "reduce": lambda comm: comm.reduce(number, root=root),
        "allreduce": lambda comm: comm.allreduce(number),
        "scan": lambda comm: comm.scan(number),
        "exscan": lambda comm: comm.exscan(number),
    }
    return calls[method]


def same(one, two) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


# ---------------------------------------------------------------------- the run


class Fuzzer:
    """Pairs of communicators of the same ranks, plain and smcoll's, and steps on them."""

    def __init__(self, seed: int, wrapper):
        self.seed = seed
        self.world = MPI.COMM_WORLD
        self.pairs = self.make_pairs(wrapper)
        self.done = 0

    def make_pairs(self, wrapper):
        plain, ours = self.world.Dup(), wrapper(self.world)
        rank, size = self.world.rank, self.world.size
        pairs = [(plain, ours)]
        for colour, key in ((0, -rank), (rank % 2, rank)):
            pairs.append((plain.Split(colour, key), ours.Split(colour, key)))
        dims = MPI.Compute_dims(size, 2)
        pairs.append((plain.Create_cart(dims), ours.Create_cart(dims)))
        return pairs

    def step(self, number: int) -> None:
        """Run one step and compare."""
        step = Step(self.seed, number, self.world.rank)
        plain, ours = step.pick(self.pairs, [4, 2, 1, 1])
        if step.shared.random() < 0.25:
            self.objects(step, number, plain, ours)
        else:
            self.buffers(step, number, plain, ours)
        self.done += 1

    def buffers(self, step, number, plain, ours) -> None:
        name = step.pick(sorted(BUFFERS))
        step.say(name)
        # Both runs start from the same choices and the same data.
        state = step.own.getstate(), step.shared.getstate()
        results = []
        for comm in (plain, ours):
            step.own.setstate(state[0])
            step.shared.setstate(state[1])
            operands, call = BUFFERS[name](step, comm.rank, comm.size)
            pending = self.nonblocking(step, comm)
            call(comm)
            self.finish(pending, number, step)
            results.append(operands)
        for one, two in zip(*results, strict=True):
            if getattr(one, "rough", False) and one.dtype.kind in "fc":
                # Each of the few additions rounds by half a unit in the last place.
                right = np.allclose(one.memory, two.memory, rtol=40 * np.finfo(one.dtype).eps,
                                    atol=40 * np.finfo(one.dtype).eps)
            else:
                right = one.memory.tobytes() == two.memory.tobytes()
                if not right and one.dtype.char in "gG":
                    right = np.array_equal(one.memory, two.memory)    # long double has padding
            if not right:
                places = np.flatnonzero(one.memory != two.memory)[:5]
                self.report(number, step, f"at {places - GUARD}: mpi4py {one.memory[places]}, "
                                          f"smcoll {two.memory[places]}")
        for operand in (*results[0], *results[1]):
            operand.free()

    def nonblocking(self, step, comm):
        """mpi4py's own calls, pending on the same communicator while the step runs."""
        kind = step.pick(["", "Ibcast", "Iallreduce", "ring"], [8, 1, 1, 1])
        if not kind:
            return None
        data, result = np.full(100, comm.rank + 1), np.zeros(100, int)
        if kind == "Ibcast":
            return [comm.Ibcast(data, 0)], data, np.full(100, 1), data
        if kind == "Iallreduce":
            total = comm.size * (comm.size + 1) // 2
            return [comm.Iallreduce(data, result)], result, np.full(100, total), data
        before = (comm.rank - 1) % comm.size
        return ([comm.Irecv(result, before, 7), comm.Isend(data, (comm.rank + 1) % comm.size, 7)],
                result, np.full(100, before + 1), data)

    def finish(self, pending, number, step) -> None:
        if pending is not None:
            # mpi4py's requests don't keep what is sent alive: `pending` does.
            requests, result, expected, _ = pending
            MPI.Request.Waitall(requests)
            if not np.array_equal(result, expected):
                self.report(number, step, f"nonblocking: {result[:3]}, not {expected[:3]}")

    def objects(self, step, number, plain, ours) -> None:
        call = object_call(step, plain.rank, plain.size)
        one, two = call(plain), call(ours)
        if not same(one, two):
            self.report(number, step, f"mpi4py {one!r:.200}, smcoll {two!r:.200}")

    def report(self, number, step, difference) -> None:
        print(f"DIFFERENCE at --replay {self.seed}:{number} with {self.world.size} ranks, on rank "
              f"{self.world.rank}: {' '.join(step.words)}\n  {difference}", flush=True)
        self.world.Abort(3)

    def run(self, seconds: float) -> None:
        """Steps until the time is over, which rank 0 decides."""
        until = MPI.Wtime() + seconds
        while self.world.bcast(MPI.Wtime() < until):
            for _ in range(50):
                faulthandler.dump_traceback_later(90, exit=True)
                self.step(self.done)
        faulthandler.cancel_dump_traceback_later()


def mutant(world):
    """A communicator that corrupts one result in a hundred: the fuzzer must find it."""
    import smcoll

    class Mutant(smcoll.Comm):
        calls = 0

        def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
            super().Allreduce(sendbuf, recvbuf, op)
            Mutant.calls += 1
            if Mutant.calls % 100 == 0 and isinstance(recvbuf, np.ndarray) and recvbuf.size:
                recvbuf[-1] += 1

    return Mutant(world)


def main() -> None:
    import smcoll

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", metavar="SEED:STEP")
    parser.add_argument("--mutant", action="store_true")
    parser.add_argument("--small", action="store_true", help="one-page segments and streams")
    parser.add_argument("--nodes", metavar="N,N,...",
                        help="pretend that the ranks are on these nodes, one number a rank")
    options = parser.parse_args()
    if options.nodes:
        os.environ["SMCOLL_NODE"] = options.nodes.split(",")[MPI.COMM_WORLD.rank]
    if options.replay:
        options.seed, number = map(int, options.replay.split(":"))
    fields = {"segment_size": 4096, "internals": {
        "stream_size": 4096, "inline_size": 64, "streaming_size": 1}} if options.small else {}
    fuzzer = Fuzzer(options.seed, mutant if options.mutant else
                    lambda world: smcoll.Comm(world, smcoll.Config(**fields)))
    if options.replay:
        fuzzer.step(number)
    else:
        fuzzer.run(options.seconds)
    if fuzzer.world.rank == 0:
        print(f"{fuzzer.done} steps without a difference", flush=True)


if __name__ == "__main__":
    sys.exit(main())
