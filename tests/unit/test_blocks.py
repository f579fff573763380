"""Buffer arguments with a block for each rank come to what mpi4py makes of them.

Each case is parsed by us for some rank and size, compared with counts and displacements worked out
by hand, and handed to mpi4py's own method: the data that arrive must be those of our blocks. What
mpi4py refuses must be refused with the same exception.
"""

import array
import ctypes
from itertools import accumulate

import numpy as np
import pytest
from mpi4py import MPI

import smcoll
from smcoll.buffers.blocks import parse_sides

ELEMENTS = 24  # for 1, 2, 3, 4 and 6 ranks

D = MPI.DOUBLE


def packed(counts):
    return [0, *accumulate(counts)][: len(counts)]


def evenly(size, elements=ELEMENTS):
    return [elements // size + (rank < elements % size) for rank in range(size)]


def rising(size):
    return list(range(1, size + 1))


def backwards(size):
    return [6 * (size - 1 - rank) for rank in range(size)]


class WithIndex:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


# ---------------------------------------------------------------------- what is accepted

# name: (buffer b, ranks n) -> argument, counts, displacements in elements of a double
EQUAL = {
    "array": lambda b, n: (b, evenly(n), None),
    "array and type": lambda b, n: ([b, D], evenly(n), None),
    "array and code": lambda b, n: ((b, "d"), evenly(n), None),
    "no type": lambda b, n: ([b, None], evenly(n), None),
    "count": lambda b, n: ([b, 3], [3] * n, None),
    "numpy's count": lambda b, n: ([b, np.int32(3)], [3] * n, None),
    "index": lambda b, n: ([b, WithIndex(3)], [3] * n, None),
    "no elements": lambda b, n: ([b, 0], [0] * n, [0] * n),
    "empty": lambda b, n: (b[:0], [0] * n, [0] * n),
    "count and type": lambda b, n: ([b, 3, D], [3] * n, None),
    "count and no displacement": lambda b, n: ([b, (3, None)], [3] * n, None),
    "displacement and no count": lambda b, n: (
        [b, (None, ELEMENTS - n)], [1] * n, [ELEMENTS - n + r for r in range(n)]),
    "pair": lambda b, n: ([b, (2, 4)], [2] * n, [4 + 2 * r for r in range(n)]),
    "pair as a list": lambda b, n: ([b, [2, 4], "d"], [2] * n, [4 + 2 * r for r in range(n)]),
    "four": lambda b, n: ((b, 2, 4, D), [2] * n, [4 + 2 * r for r in range(n)]),
    "four of nothing": lambda b, n: ((b, None, None, None), evenly(n), None),
    "two dimensions": lambda b, n: (b.reshape(4, 6), evenly(n), None),
    "Fortran's order": lambda b, n: (b.reshape(4, 6).T, evenly(n), None),
    "memoryview": lambda b, n: (memoryview(b), evenly(n), None),
    "MPI's memory": lambda b, n: ([MPI.memory.frombuffer(b), D], evenly(n), None),
    "big-endian with a type": lambda b, n: ([b.view(">f8"), D], evenly(n), None),
    "two integers an element": lambda b, n: (b.view("i"), evenly(n), None),
    "bytes with a type": lambda b, n: ([b.view("b"), D], evenly(n), None),
    "bytes": lambda b, n: (b.view("b"), evenly(n), None),
    "CTypes": lambda b, n: (np.ctypeslib.as_ctypes(b), evenly(n), None),
    "a type with a gap behind": lambda b, n: (
        [b, 1, spread()], [1] * n, [2 * r for r in range(n)]),
    "backward extent": lambda b, n: (
        [b, (1, None), backward()], [1] * n, [-r for r in range(n)]),
}  # fmt: skip

VECTORS = {
    "array": lambda b, n: (b, evenly(n), None),
    "not evenly": lambda b, n: (b[:22], evenly(n, 22), None),
    "fewer than ranks": lambda b, n: (b[:1], evenly(n, 1), None),
    "empty": lambda b, n: (b[:0], [0] * n, None),
    "array and type": lambda b, n: ([b, D], evenly(n), None),
    "array and code": lambda b, n: ((b, "d"), evenly(n), None),
    "no type": lambda b, n: ([b, None], evenly(n), None),
    "one count": lambda b, n: ([b, 3], [3] * n, None),
    "numpy's count": lambda b, n: ([b, np.int64(3)], [3] * n, None),
    "array of no dimensions": lambda b, n: ([b, np.array(3)], [3] * n, None),
    "true": lambda b, n: ([b, True], [1] * n, None),
    "index": lambda b, n: ([b, WithIndex(3)], [3] * n, None),
    "counts": lambda b, n: ([b, rising(n)], rising(n), None),
    "array of counts": lambda b, n: ([b, np.array(rising(n))], rising(n), None),
    "array of small counts": lambda b, n: ([b, np.array(rising(n), "u1"), D], rising(n), None),
    "counts of the array module": lambda b, n: (
        [b, array.array("i", rising(n))], rising(n), None),
    "range of counts": lambda b, n: ([b, range(1, n + 1)], rising(n), None),
    "bytes as counts": lambda b, n: ([b, (bytes(rising(n)), None)], rising(n), None),
    "dict of counts": lambda b, n: ([b, dict(enumerate(rising(n))), D], rising(n), None),
    "no displacements": lambda b, n: ([b, (rising(n), None)], rising(n), None),
    "no counts, stride": lambda b, n: (
        [b[:n], (None, 2)], [1] * n, [2 * r for r in range(n)]),
    "no counts, displacements": lambda b, n: (
        [b[:n], (None, backwards(n)), D], [1] * n, backwards(n)),
    "stride": lambda b, n: ([b, (1, 6)], [1] * n, [6 * r for r in range(n)]),
    "stride of no dimensions": lambda b, n: (
        [b, (1, np.array(6)), "d"], [1] * n, [6 * r for r in range(n)]),
    "stride zero": lambda b, n: ([b, (0, 0)], [0] * n, [0] * n),
    "displacements": lambda b, n: ([b, (rising(n), backwards(n))], rising(n), backwards(n)),
    "numpy's displacements": lambda b, n: (
        [b, (rising(n), np.array(backwards(n))), D], rising(n), backwards(n)),
    "four": lambda b, n: ([b, rising(n), backwards(n), D], rising(n), backwards(n)),
    "four as a tuple": lambda b, n: ((b, 2, backwards(n), "d"), [2] * n, backwards(n)),
    "four, packed": lambda b, n: ([b, rising(n), None, D], rising(n), None),
    "four of nothing": lambda b, n: ([b, None, None, None], evenly(n), None),
    "negative displacements": lambda b, n: (
        [b[12:], (1, [-1 - r for r in range(n)])], [1] * n, [11 - r for r in range(n)]),
    "Fortran's order": lambda b, n: ([b.reshape(4, 6).T, 2], [2] * n, None),
    "bytes": lambda b, n: ([b.view("b"), rising(n), D], rising(n), None),
    "a type with a gap behind": lambda b, n: (
        [b, (1, None), spread()], [1] * n, [2 * r for r in range(n)]),
    "from the bottom": lambda b, n: (
        [MPI.BOTTOM, [8 * c for c in rising(n)], [b.ctypes.data + 8 * c for c in backwards(n)],
         MPI.BYTE], rising(n), backwards(n)),
}  # fmt: skip


def bytes_of(elements):
    return [8 * value for value in elements]


WITH_TYPES = {
    "types": lambda b, n: ([b, [D] * n], [1] * n, [0] * n),
    "tuple of types": lambda b, n: ((b, None, None, (D,) * n), [1] * n, [0] * n),
    "pair": lambda b, n: (
        [b, (rising(n), bytes_of(backwards(n))), [D] * n], rising(n), backwards(n)),
    "four": lambda b, n: (
        [b, rising(n), bytes_of(backwards(n)), [D] * n], rising(n), backwards(n)),
    "numpy's": lambda b, n: (
        [b, np.array(rising(n)), np.array(bytes_of(backwards(n))), [D] * n],
        rising(n), backwards(n)),
    "various types": lambda b, n: (
        [b, [2 if r % 2 else 1 for r in range(n)], bytes_of(backwards(n)),
         [MPI.INT if r % 2 else D for r in range(n)]], [1] * n, backwards(n)),
    "from the bottom": lambda b, n: (
        [None, rising(n), [b.ctypes.data + 8 * c for c in backwards(n)], [D] * n],
        rising(n), backwards(n)),
}  # fmt: skip

_made = {}


def spread():
    """A double and room for another."""
    if "spread" not in _made:
        _made["spread"] = D.Create_resized(0, 16).Commit()
    return _made["spread"]


def backward():
    """A double; the next lies in front of it."""
    if "backward" not in _made:
        _made["backward"] = D.Create_resized(0, -8).Commit()
    return _made["backward"]


def buffers(rank=0):
    """A send and a receive buffer; what lies around their middle is at hand, too."""
    return np.arange(ELEMENTS) + 100.0 * (rank + 1), np.full(ELEMENTS, -1.0)


def expected_blocks(buffer, counts, displacements):
    places = packed(counts) if displacements is None else displacements
    return [(buffer.ctypes.data + 8 * place, 8 * count)
            for count, place in zip(counts, places, strict=True)]


@pytest.mark.mpi(1)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(("method", "cases"), [
    ("Alltoall", EQUAL), ("Alltoallv", VECTORS), ("Alltoallw", WITH_TYPES)])
def test_blocks_lie_where_they_should(method, cases, size):
    for name, make in cases.items():
        send, recv = buffers()
        argument, counts, displacements = make(send, size)
        sides = parse_sides(method, argument, make(recv, size)[0], size - 1, size)
        assert sides["send"] == expected_blocks(send, counts, displacements), name
        assert sides["recv"] == expected_blocks(recv, counts, displacements), name


# ---------------------------------------------------------------------- mpi4py moves these bytes

def contents(side):
    return [ctypes.string_at(address, nbytes) for address, nbytes in side]


def check_transfer(comm, method, send, recv, received, source_of, root=None):
    """Call mpi4py's method, and see that ``received`` has what the blocks say.

    ``source_of``: which block of which rank's sent ones comes to block i of this rank's.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    sides = parse_sides(method, send, recv, rank, size, root or 0)
    at_root = root is None or rank == root
    sent = sides["recv" if sides["send"] == "in place" else "send"] or []
    everything = comm.allgather(contents(sent))
    wanted = received.copy()
    shift = wanted.ctypes.data - received.ctypes.data
    for i, (address, _) in enumerate(sides["recv"] if isinstance(sides["recv"], list) else []):
        source, block = source_of(i)
        if sides["send"] == "in place" and source == rank and at_root:
            continue
        data = everything[source][block if block < len(everything[source]) else 0]
        ctypes.memmove(address + shift, data, len(data))
    getattr(comm, method)(send, recv, *(() if root is None else (root,)))
    assert (received == wanted).all()


def single(buffer, argument, count):
    """A message as long as one block of ``argument``, in elements of the same kind."""
    kind = {"int32": MPI.INT, "int8": MPI.SIGNED_CHAR}.get(str(getattr(argument, "dtype", "")), D)
    return [buffer, count * 8 // kind.Get_size(), kind]


# Data in front of the buffer; displacements that mpi4py can't hand to an MPI of 32 bits.
NOT_SENT = ("backward extent", "from the bottom")


@pytest.mark.mpi(1, 2, 3)
@pytest.mark.parametrize(("suffix", "cases"), [("", EQUAL), ("v", VECTORS)])
def test_mpi4py_moves_the_same_bytes(comm_world, suffix, cases):
    rank, size = comm_world.Get_rank(), comm_world.Get_size()
    for name, make in cases.items():
        if name in NOT_SENT:
            continue
        for root in {0, size - 1}:
            send, recv = buffers(rank)
            argument, counts, _ = make(recv, size)
            check_transfer(comm_world, "Gather" + suffix, single(send, argument, counts[rank]),
                           argument if rank == root else "ignored", recv, lambda i: (i, 0), root)
            send, recv = buffers(rank)
            argument, counts, _ = make(send, size)
            check_transfer(comm_world, "Scatter" + suffix, argument if rank == root else None,
                           single(recv, argument, counts[rank]), recv,
                           lambda i, root=root: (root, rank), root)
        send, recv = buffers(rank)
        argument, counts, _ = make(recv, size)
        check_transfer(comm_world, "Allgather" + suffix, single(send, argument, counts[rank]),
                       argument, recv, lambda i: (i, 0))
        if len(set(counts)) == 1:
            send, recv = buffers(rank)
            check_transfer(comm_world, "Alltoall" + suffix, make(send, size)[0],
                           make(recv, size)[0], recv, lambda i: (i, rank))


@pytest.mark.mpi(1, 2, 3)
def test_mpi4py_moves_the_same_bytes_of_each_type(comm_world):
    rank, size = comm_world.Get_rank(), comm_world.Get_size()
    for name, make in WITH_TYPES.items():
        if name in NOT_SENT:
            continue
        send, recv = buffers(rank)
        argument, counts, _ = make(send, size)
        kinds = argument[-1]
        # From each rank as much as it sends to us.
        target = [recv, [counts[rank] * 8 // kinds[rank].Get_size()] * size,
                  [8 * counts[rank] * peer for peer in range(size)], [kinds[rank]] * size]
        check_transfer(comm_world, "Alltoallw", argument, target, recv, lambda i: (i, rank))


@pytest.mark.mpi(1, 2, 3)
@pytest.mark.parametrize("nothing", [None, MPI.IN_PLACE], ids=["None", "IN_PLACE"])
def test_in_place(comm_world, nothing):
    rank, size = comm_world.Get_rank(), comm_world.Get_size()
    listed = [MPI.IN_PLACE, 2, D] if nothing is MPI.IN_PLACE else nothing
    for send in (nothing, listed):
        for method in ("Allgather", "Allgatherv", "Alltoall", "Alltoallv"):
            recv = buffers(rank)[0]
            block = rank if method.startswith("Allto") else None
            check_transfer(comm_world, method, send, recv, recv,
                           lambda i, block=block: (i, i if block is None else block))
        root = size - 1
        for method in ("Gather", "Gatherv"):
            recv, own = buffers(rank)
            part = [own, ELEMENTS // size, D]
            check_transfer(comm_world, method, send if rank == root else part,
                           recv if rank == root else None, recv, lambda i: (i, 0), root)
        for method in ("Scatter", "Scatterv"):
            values, recv = buffers(rank)
            part = [recv, ELEMENTS // size, D]
            check_transfer(comm_world, method, values if rank == root else None,
                           send if rank == root else part, recv,
                           lambda i, root=root: (root, rank), root)
    assert parse_sides("Alltoallw", nothing, [recv, [D]])["send"] == "in place"


# ---------------------------------------------------------------------- what is refused

def read_only():
    frozen = np.zeros(ELEMENTS)
    frozen.flags.writeable = False
    return frozen


def numbers():
    return np.zeros(ELEMENTS)


# For every argument, whatever stands for the counts.
WRONG = {
    "nothing": lambda n: None,
    "a number": lambda n: 1.5,
    "an integer": lambda n: 3,
    "text": lambda n: "text",
    "a class": lambda n: object,
    "a dict": lambda n: {"buf": numbers()},
    "a set": lambda n: {1, 2},
    "no items": lambda n: (),
    "one item": lambda n: [numbers()],
    "five items": lambda n: [numbers(), 1, 0, D, None],
    "numbers": lambda n: [1.0, 2.0, 3.0],
    "a list as buffer": lambda n: [[1, 2, 3, 4], 4, 0, "i"],
    "a dict as buffer": lambda n: [{1: 2}, D],
    "not contiguous": lambda n: np.zeros(2 * ELEMENTS)[::2],
    "big-endian": lambda n: np.zeros(ELEMENTS, ">f8"),
    "objects": lambda n: np.array([None] * ELEMENTS),
    "structured": lambda n: np.zeros(ELEMENTS, [("a", "i"), ("b", "d")]),
    "dates": lambda n: np.zeros(ELEMENTS, "M8[s]"),
    "unknown code": lambda n: [numbers(), "no such type"],
    "code zero": lambda n: [numbers(), 0, [0], "\0"],
    "type is a number": lambda n: [numbers(), 6, 6.5],
    "part of an element": lambda n: [bytearray(8 * n + 3), D],
    "part of an element, plain": lambda n: [np.zeros(8 * n + 3, "b"), None, D],
    "null and no count": lambda n: [numbers(), MPI.DATATYPE_NULL],
    "backward extent": lambda n: [numbers(), backward()],
    "no type at the bottom": lambda n: [MPI.BOTTOM, 0],
    "text as count": lambda n: [numbers(), "6", D],
    "half a count": lambda n: [numbers(), 1.5],
    "half a count with a type": lambda n: [numbers(), 1.5, D],
    "numpy's half a count": lambda n: [numbers(), np.float64(1.5)],
    "three in a pair": lambda n: [numbers(), (1, 2, 3), D],
    "one in a pair": lambda n: [numbers(), (1,), D],
    "text as displacement": lambda n: [numbers(), (1, "0"), D],
    "half a displacement": lambda n: [numbers(), (1, 0.5)],
    "huge count": lambda n: [numbers(), 1 << 70],
    "huge displacement": lambda n: [numbers(), (1, 1 << 70)],
}
WRONG_EQUAL = {
    "elements do not divide": lambda n: np.zeros(n + 1),
    "elements do not divide, with a type": lambda n: [bytearray(8 * n + 8), D],
    "negative count": lambda n: [numbers(), -1],
    "negative displacement": lambda n: [numbers(), (1, -1)],
    "displacement too far": lambda n: [numbers(), (0, ELEMENTS + 1)],
    "displacement and null": lambda n: [numbers(), (0, 1), MPI.DATATYPE_NULL],
    "displacement of a backward extent": lambda n: [numbers(), (0, 1), backward()],
    "nothing counted": lambda n: [None, 1, D],
    "a list of counts": lambda n: [numbers(), [1] * (n + 2)],
    "array of counts": lambda n: [numbers(), np.array([1, 1, 1, 1])],
}
WRONG_VECTORS = {
    "too few counts": lambda n: [numbers(), [1] * (n - 1)],
    "too many counts": lambda n: [numbers(), [1] * (n + 1)],
    "too few displacements": lambda n: [numbers(), ([1] * n, [0] * (n - 1))],
    "too many displacements": lambda n: [numbers(), ([1] * n, [0] * (n + 1))],
    "texts as counts": lambda n: [numbers(), ["1"] * n],
    "half counts": lambda n: [numbers(), [1.5] * n],
    "half counts, too many": lambda n: [numbers(), [1.5] * (n + 1)],
    "numpy's half counts": lambda n: [numbers(), np.full(n, 1.5)],
    "half a count of no dimensions": lambda n: [numbers(), np.array(1.5)],
    "half displacements": lambda n: [numbers(), (1, np.full(n, 0.5))],
    "a set of counts": lambda n: [numbers(), {1}],
    "generated counts": lambda n: [numbers(), (1 for _ in range(n))],
    "counts in two dimensions": lambda n: [numbers(), np.ones((n, 2), int)],
    "a dict without them": lambda n: [numbers(), {7 + r: 1 for r in range(n)}],
    "huge counts": lambda n: [numbers(), [1 << 70] * n],
    "counts and null, none given": lambda n: [numbers(), None, [0] * n, MPI.DATATYPE_NULL],
}
WRONG_WITH_TYPES = {
    "nothing": lambda n: None,
    "a number": lambda n: 3,
    "an array": lambda n: np.zeros(7),
    "one item": lambda n: [numbers()],
    "five items": lambda n: [numbers(), [0] * n, [0] * n, [D] * n, None],
    "one type": lambda n: [numbers(), D],
    "too few types": lambda n: [numbers(), [D] * (n - 1)],
    "too many types": lambda n: [numbers(), [D] * (n + 1)],
    "codes": lambda n: [numbers(), ["d"] * n],
    "no types": lambda n: [numbers(), [None] * n],
    "a dict of types": lambda n: [numbers(), {7 + r: D for r in range(n)}],
    "one count": lambda n: [numbers(), 1, [0] * n, [D] * n],
    "one displacement": lambda n: [numbers(), [1] * n, 0, [D] * n],
    "counts only": lambda n: [numbers(), [1] * n, None, [D] * n],
    "displacements only": lambda n: [numbers(), None, [0] * n, [D] * n],
    "no pair": lambda n: [numbers(), 1, [D] * n],
    "too few counts": lambda n: [numbers(), [1] * (n - 1), [0] * n, [D] * n],
    "too few displacements": lambda n: [numbers(), [1] * n, [0] * (n - 1), [D] * n],
    "half counts": lambda n: [numbers(), [0.5] * n, [0] * n, [D] * n],
    "bottom without counts": lambda n: [MPI.BOTTOM, None, [0] * n, [D] * n],
    "bottom without displacements": lambda n: [None, [0] * n, None, [D] * n],
    "bottom with types only": lambda n: [None, [D] * n],
    "not contiguous": lambda n: [np.zeros(12)[::2], [D] * n],
    "a list as buffer": lambda n: [[1, 2], [D] * n],
}
WRONG_TO_RECEIVE = {
    "read-only": lambda n: read_only(),
    "read-only with a type": lambda n: [read_only(), D],
    "read-only, counted": lambda n: [read_only(), 1],
    "bytes": lambda n: [bytes(8 * ELEMENTS), D],
}
WRONG_TO_RECEIVE_WITH_TYPES = {
    "read-only": lambda n: [read_only(), [D] * n],
    "read-only memory": lambda n: [MPI.memory(bytes(64)).toreadonly(), [D] * n],
}


def outcome(call):
    """None, or the exception: its type and text, or its error class where MPI raises it.

    Without the texts of BufferErrors (mpi4py's is that of the last protocol that it tries) and of
    OverflowErrors (they name a C type).
    """
    try:
        call()
    except MPI.Exception as error:
        return MPI.Exception, MPI.Get_error_string(error.Get_error_class())
    except (BufferError, OverflowError) as error:
        return type(error), ""
    except Exception as error:
        return type(error), str(error)
    return None


def check_refused(comm, name, method, send, recv, *root):
    """The same exception as mpi4py's; there must be one."""
    rank, size = comm.Get_rank(), comm.Get_size()
    ours = outcome(lambda: parse_sides(method, send, recv, rank, size, *root))
    # Without an exception mpi4py would communicate, with whatever the argument says.
    assert ours is not None, (method, name)
    theirs = outcome(lambda: getattr(comm, method)(send, recv, *root))
    assert ours == theirs, (method, name)


@pytest.mark.mpi(1, 2, 3)
@pytest.mark.parametrize("suffix", ["", "v", "w"])
def test_refused_by_all(comm_world, suffix):
    size = comm_world.Get_size()
    wrong = {"": WRONG | WRONG_EQUAL, "v": WRONG | WRONG_VECTORS, "w": WRONG_WITH_TYPES}[suffix]
    to_receive = WRONG_TO_RECEIVE_WITH_TYPES if suffix == "w" else WRONG_TO_RECEIVE
    good = [numbers(), [D] * size] if suffix == "w" else numbers()
    methods = ["Alltoall"] if suffix == "w" else ["Alltoall", "Allgather"]
    # A wrong count of one rank is right for one rank only where it is not looked at.
    right_alone = {"elements do not divide", "elements do not divide, with a type"}
    for method in methods:
        for name, make in (wrong | to_receive).items():
            if size == 1 and name in right_alone:
                continue
            check_refused(comm_world, name, method + suffix, good, make(size))
            check_refused(comm_world, name, method + suffix, MPI.IN_PLACE, make(size))
            # Both sides are wrong, each in its way: the receive side is told.
            check_refused(comm_world, name, method + suffix, "wrong", make(size))
    for name, make in wrong.items():
        if make(size) is None or (size == 1 and name in right_alone):
            continue
        check_refused(comm_world, name, "Alltoall" + suffix, make(size), good)


@pytest.mark.mpi(1)
@pytest.mark.parametrize("suffix", ["", "v"])
def test_refused_at_the_root(comm_world, suffix):
    wrong = WRONG | (WRONG_VECTORS if suffix else WRONG_EQUAL)
    for name, make in wrong.items():
        if name.startswith("elements do not divide"):
            continue
        check_refused(comm_world, name, "Gather" + suffix, numbers(), make(1))
        check_refused(comm_world, name, "Scatter" + suffix, make(1), numbers())
        # The send side first in Scatter, the receive side in Gather.
        check_refused(comm_world, name, "Gather" + suffix, "wrong", make(1))
        check_refused(comm_world, name, "Scatter" + suffix, make(1), "wrong")
    for name, make in WRONG.items():
        if make(1) is not None:
            check_refused(comm_world, name, "Gather" + suffix, make(1), numbers())
            check_refused(comm_world, name, "Scatter" + suffix, numbers(), make(1))
    for name, make in WRONG_TO_RECEIVE.items():
        check_refused(comm_world, name, "Gather" + suffix, numbers(), make(1))
        check_refused(comm_world, name, "Scatter" + suffix, numbers(), make(1))


@pytest.mark.mpi(1)
@pytest.mark.parametrize("method", ["Gather", "Gatherv", "Scatter", "Scatterv"])
def test_what_the_other_ranks_parse(method):
    """Only their own side; there nothing is in place. A root of no rank is left to the caller."""
    own, other = numbers(), "not looked at"
    send, recv = (own, other) if method.startswith("Gather") else (other, own)
    side = "send" if method.startswith("Gather") else "recv"
    sides = parse_sides(method, send, recv, rank=1, size=3, root=2)
    assert sides == {"send": None, "recv": None} | {side: [(own.ctypes.data, own.nbytes)]}
    for wrong in (None, "text"):
        arguments = (wrong, None) if method.startswith("Gather") else (None, wrong)
        with pytest.raises(TypeError, match="expecting buffer or list/tuple"):
            parse_sides(method, *arguments, rank=1, size=3, root=2)
    with pytest.raises(MPI.Exception):
        parse_sides(method, MPI.IN_PLACE, MPI.IN_PLACE, rank=1, size=3, root=2)
    assert parse_sides(method, other, other, rank=1, size=3, root=MPI.PROC_NULL) == {
        "send": None, "recv": None}


@pytest.mark.mpi(1)
def test_what_mpi_refuses():
    """mpi4py hands these on; not all MPIs look at them, and then they read or write anywhere."""
    good, negative = numbers(), [numbers(), [1, -1]]
    negative_w = [numbers(), [1, -1], [0, 0], [D, D]]
    null = [None, [1, 1], D]
    in_place = [MPI.IN_PLACE, 2, D]
    ours = MPI.ERR_ARG if MPI.get_vendor()[0] == "Open MPI" else MPI.ERR_BUFFER
    for method, send, recv, error_class in [
        ("Gatherv", good, negative, MPI.ERR_COUNT),
        ("Scatterv", negative, good, MPI.ERR_COUNT),
        ("Allgatherv", good, negative, MPI.ERR_COUNT),
        ("Alltoallv", good, negative, MPI.ERR_COUNT),
        ("Alltoallv", negative, good, MPI.ERR_COUNT),
        ("Alltoallw", negative_w, [good, [D, D]], MPI.ERR_COUNT),
        ("Alltoallw", None, negative_w, MPI.ERR_COUNT),
        ("Alltoallv", null, good, MPI.ERR_BUFFER),
        ("Allgatherv", good, null, MPI.ERR_BUFFER),
        ("Allgather", good, MPI.IN_PLACE, ours),
        ("Allgather", good, in_place, ours),
        ("Alltoallv", good, in_place, ours),
        ("Gather", good, in_place, ours),
        ("Scatter", in_place, good, ours),
    ]:
        with pytest.raises(MPI.Exception) as raised:
            parse_sides(method, send, recv, size=2)
        assert raised.value.Get_error_class() == error_class, method
    # What Python refuses is told first, wherever it stands.
    with pytest.raises(TypeError):
        parse_sides("Allgatherv", "text", negative, size=2)
    # Nothing is at no address, and a derived datatype may bring the addresses.
    assert parse_sides("Alltoallv", [None, [0, 0], D], good, size=2)["send"] == [(0, 0), (0, 0)]
    place = D.Create_hindexed([1], [good.ctypes.data]).Commit()
    assert parse_sides("Alltoallv", [MPI.BOTTOM, 1, [0, 0], place], good, size=2)["send"] == [
        (0, 8), (0, 8)]
    place.Free()


@pytest.mark.mpi(1)
def test_null_datatypes_are_carried():
    """With explicit counts nothing needs the datatype here; it is refused where it is used."""
    null = MPI.DATATYPE_NULL
    for method, argument in [("Alltoall", [numbers(), 2, null]),
                             ("Alltoallv", [numbers(), [2, 2], null]),
                             ("Alltoallw", [numbers(), [null, null]])]:
        sides = parse_sides(method, argument, argument, size=2)
        assert [nbytes for _, nbytes in sides["send"] + sides["recv"]] == [0, 0, 0, 0]


# ---------------------------------------------------------------------- through the methods

@pytest.mark.mpi(2, 3)
def test_methods_raise_the_same(comm_world):
    """What the methods check themselves, in mpi4py's order; nobody communicates."""
    size = comm_world.Get_size()
    total = np.zeros(2 * size)
    calls = {
        f"Reduce_scatter: {name}": lambda comm, counts=counts, place=place: comm.Reduce_scatter(
            MPI.IN_PLACE if place else total, numbers()[: 2 * size if place else 2], counts)
        for place in (False, True)
        for name, counts in {
            "one integer": 2, "halves": [2.0] * size, "numpy's halves": np.full(size, 2.0),
            "a set": {2}, "too many": [2] * (size + 1), "too few": [2] * (size - 1),
            "texts": ["2"] * size, "another sum": [3] * size, "two dimensions": [[2]] * size,
        }.items()
    } | {
        "no counts in place": lambda comm: comm.Reduce_scatter(MPI.IN_PLACE, total),
        "negative count": lambda comm: comm.Reduce_scatter(
            MPI.IN_PLACE, numbers()[:4], [-1, 5] + [0] * (size - 2)),
        "a buffer before the root": lambda comm: comm.Gather("text", None, 99),
        "a buffer before the root, Scatter": lambda comm: comm.Scatter(None, "text", 99),
        "no root": lambda comm: comm.Gather(numbers(), None, 99),
        "PROC_NULL as the root": lambda comm: comm.Gather("text", "text", MPI.PROC_NULL),
    }
    plain = comm_world.Dup()
    with smcoll.Comm(comm_world) as ours:
        for name, call in calls.items():
            expected = outcome(lambda call=call: call(plain))
            assert expected is not None, name
            got = outcome(lambda call=call: call(ours))
            assert got == expected, name
        for counts in ([2] * size, np.full(size, 2), (2,) * size):
            reduced = np.zeros(2)
            ours.Reduce_scatter(np.ones(2 * size), reduced, counts)
            assert (reduced == size).all()
    plain.Free()
