"""Collectives that C code calls in a rank's process: through MPI itself, and through smcoll.

calls.c is compiled here (no mpi.h is needed) and loaded twice: before smcoll gets under the C
libraries, bound to the MPI's own functions, and after ``smcoll.install(libraries=True)``. Every
test runs with both: the first says that the test itself is right.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import begin
import numpy as np
import pytest

pytestmark = [pytest.mark.own_job]

SOURCE = Path(__file__).with_name("calls.c")
WARM_UP = 150    # blocking collectives on a new communicator: more than smcoll lets pass
COUNTS = (1, 7, 1000, 60_000)
KINDS = ("world", "dup", "reversed", "self")
WAYS = ("mpi", "libraries")


def compile_calls(folder: str, library: str) -> str:
    """An empty text, or why calls.so can't be made in this folder."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler!r}"
    target = str(Path(folder, "mpi.so"))
    result = subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-fPIC", "-shared", str(SOURCE),
                             "-o", target, library], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return f"{compiler} fails: {result.stderr.strip()[:2000]}"
    # Another file, or else the dynamic linker would give the same library again.
    shutil.copy(target, Path(folder, "libraries.so"))
    return ""


def load(path: str):
    """Bound at once to what is there now."""
    return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)


@functools.cache
def folder_of_calls() -> tuple[str, str]:
    """Where rank 0 compiled both, for all ranks; or why there is nothing."""
    from mpi4py import MPI

    folder, problem = "", ""
    if MPI.COMM_WORLD.Get_rank() == 0:
        folder = tempfile.mkdtemp(prefix="calls-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        problem = compile_calls(folder, begin.libmpi())
    return MPI.COMM_WORLD.bcast((folder, problem))


# By way. A rank runs its tests one by one, each with fixtures of its own: these stay.
_loaded: dict[str, ctypes.CDLL] = {}


@pytest.fixture(params=WAYS)
def c(request):
    """calls.so, bound to this way's functions."""
    import smcoll

    folder, problem = folder_of_calls()
    if problem:
        pytest.skip(problem)
    if "mpi" not in _loaded:    # before anybody is in between
        _loaded["mpi"] = load(f"{folder}/mpi.so")
    if request.param not in _loaded:
        smcoll.install(libraries=True)
        _loaded["libraries"] = load(f"{folder}/libraries.so")
    return _loaded[request.param]


class Group:
    """A communicator as C code has it, and its ranks."""

    def __init__(self, c, kind: str):
        from mpi4py import MPI

        self.c, world = c, MPI.COMM_WORLD
        self.made = ctypes.c_size_t(0)
        self.rank, self.size = world.Get_rank(), world.Get_size()
        if kind == "dup":
            check(c.call_Comm_dup(handle(world), ctypes.byref(self.made)))
        elif kind == "reversed":
            check(c.call_Comm_split(handle(world), 0, ctypes.c_int(-self.rank),
                                    ctypes.byref(self.made)))
            self.rank = self.size - 1 - self.rank
        elif kind == "self":
            self.rank, self.size = 0, 1
        predefined = MPI.COMM_SELF if kind == "self" else world
        self.comm = ctypes.c_size_t(self.made.value) if self.made.value else handle(predefined)
        for _ in range(WARM_UP):
            check(c.call_Barrier(self.comm))

    def free(self) -> None:
        """As MPI_Comm_free does, from C."""
        if self.made.value:
            check(self.c.call_Comm_free(ctypes.byref(self.made)))


@pytest.fixture(params=KINDS)
def group(request, c):
    """A communicator of each kind, past the number of calls that smcoll lets pass."""
    group = Group(c, request.param)
    yield group
    group.free()


def handle(thing) -> ctypes.c_size_t:
    """What C code has for this object of mpi4py."""
    from mpi4py import MPI

    return ctypes.c_size_t(MPI._handleof(thing))


def handles(types) -> ctypes.Array:
    """An array of datatypes as C code would have it."""
    from mpi4py import MPI

    of_size = {4: ctypes.c_uint32, 8: ctypes.c_uint64}[MPI._sizeof(MPI.Datatype)]
    return (of_size * len(types))(*(MPI._handleof(one) for one in types))


def check(code: int) -> None:
    """MPI_SUCCESS."""
    assert code == 0, f"error code {code}"


def at(array: np.ndarray | None) -> ctypes.c_void_p:
    """Its address, which keeps it alive."""
    return ctypes.c_void_p() if array is None else array.ctypes.data_as(ctypes.c_void_p)


def in_place() -> ctypes.c_void_p:
    """MPI_IN_PLACE."""
    from mpi4py import MPI

    return ctypes.c_void_p(int(MPI.IN_PLACE))


def ints(values) -> np.ndarray:
    """An array of C's int."""
    return np.array(list(values), "i4")


def numbers(rank: int, count: int, dtype="f8", salt: int = 0) -> np.ndarray:
    """What this rank contributes; whole numbers, whose sums are exact in any order."""
    return ((np.arange(count) * 7 + rank * 1000003 + salt * 31) % 1009).astype(dtype)


def shares(size: int, count: int) -> list[int]:
    """Counts that differ between ranks, one of them 0."""
    return [0 if rank == 1 else count // (rank + 1) + rank for rank in range(size)]


def gaps(counts) -> list[int]:
    """Displacements with a gap of one element between the parts."""
    return [sum(counts[:rank]) + rank for rank in range(len(counts))]


# ---------------------------------------------------------------------- all of them


@pytest.mark.mpi(2, 3, 5)
def test_barrier(c, group):
    for _ in range(20):
        check(c.call_Barrier(group.comm))


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("count", COUNTS)
def test_bcast(c, group, count):
    from mpi4py import MPI

    for root in range(group.size):
        array = numbers(root, count) if group.rank == root else np.zeros(count)
        check(c.call_Bcast(at(array), count, handle(MPI.DOUBLE), root, group.comm))
        np.testing.assert_array_equal(array, numbers(root, count))


REDUCTIONS = [("SUM", "DOUBLE", "f8", np.add), ("MAX", "INT", "i4", np.maximum),
              ("MIN", "FLOAT", "f4", np.minimum), ("BXOR", "UINT64_T", "u8", np.bitwise_xor),
              ("LAND", "INT", "i4", np.logical_and), ("PROD", "INT64_T", "i8", np.multiply)]


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("op, name, dtype, function", REDUCTIONS, ids=lambda one: str(one))
def test_reductions(c, group, op, name, dtype, function):
    from mpi4py import MPI

    of_type, of_op = handle(getattr(MPI, name)), handle(getattr(MPI, op))
    for count in COUNTS:
        parts = [numbers(rank, count * group.size, dtype) for rank in range(group.size)]
        with np.errstate(over="ignore"):
            # Partial results, as the first ranks have them.
            sums = [parts[0]]
            for part in parts[1:]:
                sums.append(function(sums[-1], part).astype(dtype))
        mine, got = parts[group.rank], np.zeros(count * group.size, dtype)
        total = count * group.size
        check(c.call_Allreduce(at(mine), at(got), total, of_type, of_op, group.comm))
        np.testing.assert_array_equal(got, sums[-1])
        got[:] = mine
        check(c.call_Allreduce(in_place(), at(got), total, of_type, of_op, group.comm))
        np.testing.assert_array_equal(got, sums[-1])

        root = group.size - 1
        got[:] = 3
        check(c.call_Reduce(at(mine), at(got), total, of_type, of_op, root, group.comm))
        np.testing.assert_array_equal(got, sums[-1] if group.rank == root else np.full_like(got, 3))
        got[:] = mine
        check(c.call_Reduce(in_place() if group.rank == root else at(mine), at(got), total, of_type,
                            of_op, root, group.comm))
        np.testing.assert_array_equal(got, sums[-1] if group.rank == root else mine)

        check(c.call_Scan(at(mine), at(got), total, of_type, of_op, group.comm))
        np.testing.assert_array_equal(got, sums[group.rank])
        got[:] = mine
        check(c.call_Scan(in_place(), at(got), total, of_type, of_op, group.comm))
        np.testing.assert_array_equal(got, sums[group.rank])
        got[:] = 5
        check(c.call_Exscan(at(mine), at(got), total, of_type, of_op, group.comm))
        if group.rank > 0:
            np.testing.assert_array_equal(got, sums[group.rank - 1])
        got[:] = mine
        check(c.call_Exscan(in_place(), at(got), total, of_type, of_op, group.comm))
        if group.rank > 0:
            np.testing.assert_array_equal(got, sums[group.rank - 1])

        block = slice(group.rank * count, (group.rank + 1) * count)
        got[:] = 9
        check(c.call_Reduce_scatter_block(at(mine), at(got), count, of_type, of_op, group.comm))
        np.testing.assert_array_equal(got[:count], sums[-1][block])
        assert (got[count:] == 9).all()
        got[:] = mine
        check(c.call_Reduce_scatter_block(in_place(), at(got), count, of_type, of_op, group.comm))
        np.testing.assert_array_equal(got[:count], sums[-1][block])

        # Other counts on each rank. Not the longest last: with IN_PLACE, MPICH 5.0 ends the job
        # over a part that is longer than what lies before it (source and target overlap).
        counts = [count] * group.size
        counts[0] += 1
        counts[-1] -= 1
        first = sum(counts[:group.rank])
        expected = sums[-1][first:first + counts[group.rank]]
        got[:] = 9
        check(c.call_Reduce_scatter(at(mine), at(got), at(ints(counts)), of_type, of_op,
                                    group.comm))
        np.testing.assert_array_equal(got[:counts[group.rank]], expected)
        got[:] = mine
        check(c.call_Reduce_scatter(in_place(), at(got), at(ints(counts)), of_type, of_op,
                                    group.comm))
        np.testing.assert_array_equal(got[:counts[group.rank]], expected)


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_gather_and_scatter(c, group, count, inplace):
    from mpi4py import MPI

    double, n = handle(MPI.DOUBLE), count
    everyones = np.concatenate([numbers(rank, n) for rank in range(group.size)])
    mine = numbers(group.rank, n)
    block = slice(group.rank * n, (group.rank + 1) * n)
    for root in {0, group.size - 1}:
        at_root = group.rank == root
        got = np.full(n * group.size, -1.0)
        if at_root and inplace:
            got[block] = mine
        check(c.call_Gather(in_place() if at_root and inplace else at(mine), n, double,
                            at(got) if at_root else None, n, double, root, group.comm))
        if at_root:
            np.testing.assert_array_equal(got, everyones)
        part = np.full(n, -1.0)
        check(c.call_Scatter(at(everyones) if at_root else None, n, double,
                             in_place() if at_root and inplace else at(part), n, double, root,
                             group.comm))
        np.testing.assert_array_equal(part, np.full(n, -1.0) if at_root and inplace else mine)
    got = np.full(n * group.size, -1.0)
    if inplace:
        got[block] = mine
    check(c.call_Allgather(in_place() if inplace else at(mine), n, double, at(got), n, double,
                           group.comm))
    np.testing.assert_array_equal(got, everyones)

    # What rank r sends to rank s has the salt 100 r + s.
    sent = np.concatenate([numbers(0, n, salt=100 * group.rank + other)
                           for other in range(group.size)])
    expected = np.concatenate([numbers(0, n, salt=100 * other + group.rank)
                               for other in range(group.size)])
    got = sent.copy() if inplace else np.full(n * group.size, -1.0)
    check(c.call_Alltoall(in_place() if inplace else at(sent), n, double, at(got), n, double,
                          group.comm))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_v_forms(c, group, count, inplace):
    from mpi4py import MPI

    double, rank, size = handle(MPI.DOUBLE), group.rank, group.size
    counts = shares(size, count)
    displs = gaps(counts)
    whole = np.full(sum(counts) + size, -1.0)
    for other in range(size):
        whole[displs[other]:displs[other] + counts[other]] = numbers(other, counts[other])
    mine = numbers(rank, counts[rank])
    place = slice(displs[rank], displs[rank] + counts[rank])
    c_counts, c_displs = ints(counts), ints(displs)
    for root in {0, size - 1}:
        at_root = rank == root
        got = np.full_like(whole, -1.0)
        if at_root and inplace:
            got[place] = mine
        check(c.call_Gatherv(in_place() if at_root and inplace else at(mine), counts[rank], double,
                             at(got) if at_root else None, at(c_counts), at(c_displs), double, root,
                             group.comm))
        if at_root:
            np.testing.assert_array_equal(got, whole)
        part = np.full(counts[rank] + 1, -1.0)
        check(c.call_Scatterv(at(whole) if at_root else None, at(c_counts), at(c_displs), double,
                              in_place() if at_root and inplace else at(part), counts[rank], double,
                              root, group.comm))
        if not (at_root and inplace):
            np.testing.assert_array_equal(part, [*mine, -1.0])
    got = np.full_like(whole, -1.0)
    if inplace:
        got[place] = mine
    check(c.call_Allgatherv(in_place() if inplace else at(mine), counts[rank], double, at(got),
                            at(c_counts), at(c_displs), double, group.comm))
    np.testing.assert_array_equal(got, whole)

    # Between two ranks as much both ways, as IN_PLACE wants it.
    between = [counts[rank] + counts[other] for other in range(size)]
    where = gaps(between)
    sent, expected = (np.full(sum(between) + size, -1.0) for _ in range(2))
    for other in range(size):
        part = slice(where[other], where[other] + between[other])
        sent[part] = numbers(0, between[other], salt=100 * rank + other)
        expected[part] = numbers(0, between[other], salt=100 * other + rank)
    c_counts, c_displs = ints(between), ints(where)
    got = sent.copy() if inplace else np.full_like(sent, -1.0)
    check(c.call_Alltoallv(in_place() if inplace else at(sent), at(c_counts), at(c_displs), double,
                           at(got), at(c_counts), at(c_displs), double, group.comm))
    np.testing.assert_array_equal(got, expected)

    # In bytes, and with a type for each rank.
    types = handles([MPI.DOUBLE] * size)
    c_bytes = ints(8 * displ for displ in where)
    got = sent.copy() if inplace else np.full_like(sent, -1.0)
    check(c.call_Alltoallw(in_place() if inplace else at(sent), at(c_counts), at(c_bytes), types,
                           at(got), at(c_counts), at(c_bytes), types, group.comm))
    np.testing.assert_array_equal(got, expected)


# ---------------------------------------------------------------------- types and operations


class Layout:
    """``count`` doubles in memory, described in one of three ways."""

    def __init__(self, way: int, count: int):
        from mpi4py import MPI

        self.stride = 1
        self.made, self.count = None, count
        if way == 1:
            self.made, self.count = MPI.DOUBLE.Create_contiguous(count).Commit(), 1
        elif way == 2:
            # Its extent ends with its last element's gap, so that several lie side by side.
            self.stride = 3
            strided = MPI.DOUBLE.Create_vector(count, 1, 3)
            self.made = strided.Create_resized(0, 24 * count).Commit()
            strided.Free()
            self.count = 1
        self.type = MPI.DOUBLE if self.made is None else self.made

    def array(self, values: np.ndarray) -> np.ndarray:
        """These values as they lie in memory; -7 in the gaps."""
        array = np.full(len(values) * self.stride, -7.0)
        array[::self.stride] = values
        return array

    def check(self, array: np.ndarray, values: np.ndarray) -> None:
        """The values have arrived, and the gaps are untouched."""
        np.testing.assert_array_equal(array, self.array(values))

    def free(self) -> None:
        """The type, if it was made."""
        if self.made is not None:
            self.made.Free()


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("turn", range(3))
def test_ranks_that_describe_one_signature_differently(c, group, count, turn):
    size, rank, n = group.size, group.rank, count
    own, others = Layout((rank + turn) % 3, n), Layout((rank + turn + 1) % 3, n)
    mine, empty = numbers(rank, n), np.full(n, -1.0)
    everyones = np.concatenate([numbers(other, n) for other in range(size)])
    nothing = np.full(n * size, -1.0)
    for root in {0, size - 1}:
        array = own.array(numbers(root, n) if rank == root else empty)
        check(c.call_Bcast(at(array), own.count, handle(own.type), root, group.comm))
        own.check(array, numbers(root, n))

        sent, got = own.array(mine), others.array(nothing)
        check(c.call_Gather(at(sent), own.count, handle(own.type), at(got), others.count,
                            handle(others.type), root, group.comm))
        others.check(got, everyones if rank == root else nothing)

        sent, got = others.array(everyones), own.array(empty)
        check(c.call_Scatter(at(sent), others.count, handle(others.type), at(got), own.count,
                             handle(own.type), root, group.comm))
        own.check(got, mine)
    sent, got = own.array(mine), others.array(nothing)
    check(c.call_Allgather(at(sent), own.count, handle(own.type), at(got), others.count,
                           handle(others.type), group.comm))
    others.check(got, everyones)

    sent = own.array(np.concatenate([numbers(0, n, salt=100 * rank + other)
                                     for other in range(size)]))
    got = others.array(nothing)
    check(c.call_Alltoall(at(sent), own.count, handle(own.type), at(got), others.count,
                          handle(others.type), group.comm))
    expected = np.concatenate([numbers(0, n, salt=100 * other + rank) for other in range(size)])
    others.check(got, expected)

    # v- and w-forms: displacements in extents, or in bytes.
    places = ints(range(size))
    extent = n * 8 * others.stride
    if others.made is None:
        counts, displs = ints([n] * size), ints(n * other for other in range(size))
    else:
        counts, displs = ints([1] * size), places
    # What the MPIs can't do is not asked of smcoll, which may leave such calls to them. Open MPI
    # 5.0 multiplies the receive counts with the size of the type that is sent, and ranks that get
    # other products choose other algorithms: a rank sends and receives by one type here. MPICH 5.0
    # cuts long messages between the receiver's elements: this one is short.
    if n <= 1000:
        got = others.array(nothing)
        sent = others.array(mine)
        check(c.call_Allgatherv(at(sent), others.count, handle(others.type), at(got), at(counts),
                                at(displs), handle(others.type), group.comm))
        others.check(got, everyones)
    sent = own.array(np.concatenate([numbers(0, n, salt=100 * rank + other)
                                     for other in range(size)]))
    got = others.array(nothing)
    check(c.call_Alltoallw(
        at(sent), at(ints([own.count] * size)),
        at(ints(n * 8 * own.stride * other for other in range(size))), handles([own.type] * size),
        at(got), at(ints([others.count] * size)), at(ints(extent * other for other in range(size))),
        handles([others.type] * size), group.comm))
    others.check(got, expected)
    own.free()
    others.free()


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("count", (1, 5, 3000))
def test_user_defined_operations(c, group, count):
    from mpi4py import MPI

    for name in ("multiply", "odd_bits"):
        getter = getattr(c, f"function_{name}")
        getter.restype = ctypes.c_void_p
        op = ctypes.c_size_t(0)
        check(c.call_Op_create(ctypes.c_void_p(getter()), int(name == "odd_bits"),
                               ctypes.byref(op)))
        if name == "multiply":
            matrix = MPI.UINT64_T.Create_contiguous(4).Commit()
            of_type, elements = handle(matrix), 4 * count
            combine = multiplied
        else:
            matrix, of_type, elements = None, handle(MPI.UINT64_T), count
            combine = np.bitwise_xor
        parts = [numbers(rank, elements, "u8") + np.uint64(1) for rank in range(group.size)]
        sums = [parts[0]]
        for part in parts[1:]:
            sums.append(combine(sums[-1], part))
        got = np.zeros(elements, "u8")
        check(c.call_Allreduce(at(parts[group.rank]), at(got), count, of_type, op, group.comm))
        np.testing.assert_array_equal(got, sums[-1])
        got[:] = parts[group.rank]
        check(c.call_Allreduce(in_place(), at(got), count, of_type, op, group.comm))
        np.testing.assert_array_equal(got, sums[-1])
        for root in range(group.size):
            got[:] = 0
            check(c.call_Reduce(at(parts[group.rank]), at(got), count, of_type, op, root,
                                group.comm))
            if group.rank == root:
                np.testing.assert_array_equal(got, sums[-1])
        check(c.call_Scan(at(parts[group.rank]), at(got), count, of_type, op, group.comm))
        np.testing.assert_array_equal(got, sums[group.rank])
        check(c.call_Exscan(at(parts[group.rank]), at(got), count, of_type, op, group.comm))
        if group.rank > 0:
            np.testing.assert_array_equal(got, sums[group.rank - 1])
        check(c.call_Op_free(ctypes.byref(op)))
        if matrix is not None:
            matrix.Free()


def multiplied(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Products of 2 x 2 matrices."""
    a, b = left.reshape(-1, 2, 2), right.reshape(-1, 2, 2)
    with np.errstate(over="ignore"):
        return np.einsum("nij,njk->nik", a, b).reshape(-1)


@pytest.mark.mpi(2, 3, 5)
def test_places_of_the_smallest(c, group):
    from mpi4py import MPI

    pairs = np.dtype([("value", "f8"), ("place", "i4")], align=True)
    count = 100
    parts = []
    for rank in range(group.size):
        part = np.zeros(count, pairs)
        part["value"], part["place"] = numbers(rank, count) % 5, rank
        parts.append(part)
    got = np.zeros(count, pairs)
    check(c.call_Allreduce(at(parts[group.rank]), at(got), count, handle(MPI.DOUBLE_INT),
                           handle(MPI.MINLOC), group.comm))
    values = np.stack([part["value"] for part in parts])
    np.testing.assert_array_equal(got["value"], values.min(axis=0))
    np.testing.assert_array_equal(got["place"], values.argmin(axis=0))


@pytest.mark.mpi(2, 3, 5)
def test_forms_with_wide_counts(c, group):
    from mpi4py import MPI

    if not c.has_Allreduce_c():
        pytest.skip("this MPI has no MPI_Allreduce_c")
    double, size, rank = handle(MPI.DOUBLE), group.size, group.rank
    for count in COUNTS:
        wide = ctypes.c_ssize_t(count)
        array = numbers(0, count) if rank == 0 else np.zeros(count)
        check(c.call_Bcast_c(at(array), wide, double, 0, group.comm))
        np.testing.assert_array_equal(array, numbers(0, count))
        got = np.zeros(count)
        check(c.call_Allreduce_c(at(numbers(rank, count)), at(got), wide, double, handle(MPI.SUM),
                                 group.comm))
        np.testing.assert_array_equal(got, sum(numbers(other, count) for other in range(size)))
        counts = shares(size, count)
        displs = gaps(counts)
        whole = np.full(sum(counts) + size, -1.0)
        for other in range(size):
            whole[displs[other]:displs[other] + counts[other]] = numbers(other, counts[other])
        got = np.full_like(whole, -1.0)
        mine = numbers(rank, counts[rank])
        check(c.call_Allgatherv_c(at(mine), ctypes.c_ssize_t(counts[rank]), double, at(got),
                                  at(np.array(counts, "i8")), at(np.array(displs, "i8")), double,
                                  group.comm))
        np.testing.assert_array_equal(got, whole)
        ones = np.array([count] * size, "i8")
        places = np.array([count * other for other in range(size)], "i8")
        sent = np.concatenate([numbers(0, count, salt=100 * rank + other)
                               for other in range(size)])
        got = np.zeros_like(sent)
        check(c.call_Alltoallv_c(at(sent), at(ones), at(places), double, at(got), at(ones),
                                 at(places), double, group.comm))
        np.testing.assert_array_equal(got, np.concatenate(
            [numbers(0, count, salt=100 * other + rank) for other in range(size)]))


# ---------------------------------------------------------------------- errors, other communicators


@pytest.mark.mpi(2, 3)
def test_errors_are_returned(c, comm_world):
    """With MPI.ERRORS_RETURN; a call that can't be made on any rank is made on none."""
    from mpi4py import MPI

    comm = MPI.Intracomm.Dup(comm_world)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    for _ in range(WARM_UP):
        check(c.call_Barrier(handle(comm)))
    array, got = np.zeros(4), np.zeros(4)
    double, plus, of = handle(MPI.DOUBLE), handle(MPI.SUM), handle(comm)
    cases = [
        (MPI.ERR_ROOT, c.call_Bcast(at(array), 4, double, comm.size, of)),
        (MPI.ERR_COUNT, c.call_Bcast(at(array), -1, double, 0, of)),
        (MPI.ERR_TYPE, c.call_Bcast(at(array), 4, handle(MPI.DATATYPE_NULL), 0, of)),
        (MPI.ERR_OP, c.call_Allreduce(at(array), at(got), 4, double, handle(MPI.OP_NULL), of)),
        (MPI.ERR_ROOT, c.call_Reduce(at(array), at(got), 4, double, plus, -5, of)),
    ]
    for expected, code in cases:
        assert code != 0 and MPI.Get_error_class(code) == expected
    check(c.call_Allreduce(at(array), at(got), 4, double, plus, of))
    comm.Free()


@pytest.mark.mpi(2, 3, 5)
def test_inter_communicators_are_left_to_mpi(c, comm_world):
    from mpi4py import MPI

    rank, size = comm_world.rank, comm_world.size
    left = rank < size // 2
    local = comm_world.Split(int(left), rank)
    inter = local.Create_intercomm(0, comm_world, size // 2 if left else 0)
    mine, got = numbers(rank, 50), np.zeros(50)
    others = range(size // 2, size) if left else range(size // 2)
    for _ in range(WARM_UP):
        got[:] = 0
        check(c.call_Allreduce(at(mine), at(got), 50, handle(MPI.DOUBLE), handle(MPI.SUM),
                               handle(inter)))
        np.testing.assert_array_equal(got, sum(numbers(other, 50) for other in others))
    inter.Free()
    local.Free()


@pytest.mark.mpi(2, 3)
def test_calls_from_python_and_from_c_in_turns(c, comm_world):
    from mpi4py import MPI

    comm = comm_world.Dup()
    size = comm.size
    for turn in range(300):
        mine, got = np.full(3, float(comm.rank + turn)), np.zeros(3)
        if turn % 3 == 0:
            comm.Allreduce(mine, got)
        else:
            check(c.call_Allreduce(at(mine), at(got), 3, handle(MPI.DOUBLE), handle(MPI.SUM),
                                   handle(comm)))
        np.testing.assert_array_equal(got, np.full(3, turn * size + size * (size - 1) / 2))
    comm.Free()


# ---------------------------------------------------------------------- beside MPI's own


COMPARED = 6500   # calls of one class: those before the engine and a comparison, and the comparison


def is_compared(request) -> bool:
    return request.node.callspec.params["c"] == "libraries"


def only_with_smcoll(request) -> None:
    if not is_compared(request):
        pytest.skip("nothing is compared without smcoll")


@pytest.mark.mpi(2)
def test_calls_that_mpi_carries_out_faster_become_mpis(c, comm_world, request):
    """A datatype with holes goes through Python, which takes many times as long as MPI's way."""
    from mpi4py import MPI

    only_with_smcoll(request)
    spaced = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    array = np.empty(3)
    address, of_type = at(array), handle(spaced)
    # Where the machine is disturbed in three rounds of five, the conclusion is another: seen once.
    for _attempt in range(3):
        comm = comm_world.Dup()
        size, rank, of = comm.size, comm.rank, handle(comm)
        # Little else in this loop: what it takes itself would hide the difference.
        for turn in range(COMPARED):
            array[:] = turn if rank == turn % size else -1
            status = c.call_Bcast(address, 1, of_type, turn % size, of)
            assert status == MPI.SUCCESS and array[0] == array[2] == turn
        why = comm.explain("bcast", 16).reason
        if "calls from C by MPI" in why:
            break
        comm.Free()
    else:
        pytest.fail(f"MPI carries nothing out: {why}")
    [row] = [row for row in comm.stats() if row["path"] == "MPI"]
    assert row["collective"] == "bcast" and row["from_c"] == row["calls"] >= 1000
    # A class of its own, not compared yet.
    assert "calls from C" not in comm.explain("bcast", 32).reason
    spaced.Free()
    comm.Free()


@pytest.mark.mpi(2, 3, 5)
def test_ranks_with_different_types_of_one_signature_compare_together(c, comm_world, request):
    from mpi4py import MPI

    only_with_smcoll(request)
    comm = comm_world.Dup()
    double, spaced = MPI.DOUBLE, MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    for turn in range(COMPARED):
        root, has_holes = turn % comm.size, (comm.rank + turn) % 3 == 0
        array = np.full(3, float(turn) if comm.rank == root else -1.0)
        check(c.call_Bcast(at(array), 1 if has_holes else 2,
                           handle(spaced if has_holes else double), root, handle(comm)))
        np.testing.assert_array_equal(array[[0, 2]] if has_holes else array[:2], [turn, turn])
    assert "calls from C by" in comm.explain("bcast", 16).reason
    spaced.Free()
    comm.Free()


@pytest.mark.mpi(2, 3, 5)
def test_a_call_that_was_wrong_on_one_rank_does_not_count_in_a_comparison(c, comm_world, request):
    from mpi4py import MPI

    comm = comm_world.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    int64, plus, of = handle(MPI.INT64_T), handle(MPI.SUM), handle(comm)
    array, got = np.full(2, comm.rank + 1), np.zeros(2, int)
    for turn in range(COMPARED if is_compared(request) else 100):
        if comm.rank == turn % comm.size:
            # Its root is no rank; all else is as in the calls that are counted.
            assert c.call_Reduce(at(array), at(got), 2, int64, plus, comm.size, of) != 0
        check(c.call_Allreduce(at(array), at(got), 2, int64, plus, of))
        assert (got == comm.size * (comm.size + 1) // 2).all()
        check(c.call_Reduce(at(array), at(got), 2, int64, plus, 0, of))
    if is_compared(request):
        for collective in ("allreduce", "reduce"):
            assert "calls from C by" in comm.explain(collective, 16).reason
    comm.Free()


@pytest.mark.mpi(3)
def test_a_sum_whose_bits_depend_on_its_order_is_not_compared(c, comm_world):
    from mpi4py import MPI

    comm = comm_world.Dup()
    array, got, of = np.ones(1), np.zeros(1), handle(comm)
    for _ in range(COMPARED):
        check(c.call_Allreduce(at(array), at(got), 1, handle(MPI.DOUBLE), handle(MPI.SUM), of))
    assert "calls from C" not in comm.explain("allreduce", 8).reason
    comm.Free()


@pytest.mark.mpi(2, 3, 5)
def test_forms_with_equal_lengths_are_compared(c, comm_world, request):
    """Every second call is in place."""
    from mpi4py import MPI

    only_with_smcoll(request)
    comm = comm_world.Dup()
    of, int64, plus = handle(comm), handle(MPI.INT64_T), handle(MPI.SUM)
    rank, size, last = comm.rank, comm.size, comm.size - 1
    ranks = np.arange(size)
    for turn in range(COMPARED):
        places = turn % 2 == 1
        mine, row = np.array([rank + turn]), ranks + turn
        got = np.where(ranks == rank, row, -1)
        check(c.call_Allgather(in_place() if places else at(mine), 1, int64, at(got), 1, int64, of))
        np.testing.assert_array_equal(got, row)
        begun = np.where(ranks == rank, row, -1)
        got = begun.copy()
        check(c.call_Gather(in_place() if places and rank == last else at(mine), 1, int64, at(got),
                            1, int64, last, of))
        np.testing.assert_array_equal(got, row if rank == last else begun)
        part = np.full(1, -1)
        check(c.call_Scatter(at(row), 1, int64,
                             in_place() if places and rank == last else at(part), 1, int64, last,
                             of))
        assert part[0] == (-1 if places and rank == last else mine[0])
        sent = turn + 100 * rank + ranks
        got = sent.copy()
        check(c.call_Alltoall(in_place() if places else at(sent), 1, int64, at(got), 1, int64, of))
        np.testing.assert_array_equal(got, turn + 100 * ranks + rank)
        got = row.copy()
        check(c.call_Reduce_scatter_block(in_place() if places else at(row), at(got), 1, int64,
                                          plus, of))
        assert got[0] == size * mine[0]
        part = mine.copy()
        check(c.call_Scan(in_place() if places else at(mine), at(part), 1, int64, plus, of))
        assert part[0] == row[:rank + 1].sum()
    for collective, nbytes in (("allgather", 8), ("gather", 8), ("scatter", 8), ("alltoall", 8),
                               ("reduce_scatter_block", 8 * size), ("scan", 8)):
        reason = comm.explain(collective, nbytes).reason
        # What a setting names is not compared: scans, with --heap.
        assert "calls from C by" in reason or "scan=shared_heap" in reason, (collective, reason)
    comm.Free()


WITH_LENGTHS = 600   # COMPARED, where the calls give a length for each rank


@pytest.mark.mpi(2, 3, 5)
def test_forms_with_a_length_for_each_rank_are_compared(c, comm_world, request):
    """Ranks describe the same data by different types; lengths change from call to call."""
    from mpi4py import MPI

    only_with_smcoll(request)
    comm = comm_world.Dup()
    of, int64, plus = handle(comm), MPI.INT64_T, handle(MPI.SUM)
    pair = int64.Create_contiguous(2).Commit()
    rank, size, last = comm.rank, comm.size, comm.size - 1
    for turn in range(WITH_LENGTHS):
        has_pairs = (rank + turn) % 3 == 0
        type_, unit = (pair, 2) if has_pairs else (int64, 1)
        one = handle(type_)
        longs = [2 * ((other + turn) % size) for other in range(size)]   # int64 of each rank
        starts = np.concatenate([[0], np.cumsum(longs)[:-1]]).astype("i4")
        counts, displs = ints(n // unit for n in longs), ints(n // unit for n in starts)
        parts = [numbers(other, n, "i8", turn) for other, n in enumerate(longs)]
        whole, mine = np.concatenate(parts), parts[rank]
        got = np.full_like(whole, -1)
        check(c.call_Allgatherv(at(mine), int(counts[rank]), one, at(got), at(counts), at(displs),
                                one, of))
        np.testing.assert_array_equal(got, whole)
        got[:] = -1
        check(c.call_Gatherv(at(mine), int(counts[rank]), one, at(got), at(counts), at(displs), one,
                             last, of))
        np.testing.assert_array_equal(got, whole if rank == last else np.full_like(got, -1))
        part = np.full_like(mine, -1)
        check(c.call_Scatterv(at(whole), at(counts), at(displs), one, at(part),
                              int(counts[rank]), one, last, of))
        np.testing.assert_array_equal(part, mine)

        # To each rank what it contributed above; so it gets as much from each of them.
        got = np.full(size * longs[rank], -1)
        to = ints(other * longs[rank] // unit for other in range(size))
        same = ints([longs[rank] // unit] * size)
        check(c.call_Alltoallv(at(whole), at(counts), at(displs), one, at(got), at(same), at(to),
                               one, of))
        np.testing.assert_array_equal(got, np.tile(mine, size))
        got[:] = -1
        all_types = handles([type_] * size)
        check(c.call_Alltoallw(at(whole), at(counts), at(ints(8 * starts)), all_types, at(got),
                               at(same), at(ints(8 * unit * to)), all_types, of))
        np.testing.assert_array_equal(got, np.tile(mine, size))

        part = np.full_like(mine, -1)
        check(c.call_Reduce_scatter(at(whole), at(part), at(ints(longs)), handle(int64), plus, of))
        np.testing.assert_array_equal(part, size * mine)
    for collective in ("allgatherv", "gatherv", "scatterv", "alltoallv", "alltoallw",
                       "reduce_scatter"):
        nbytes = 8 * (size - 1) * (size if collective == "reduce_scatter" else 1)
        assert "calls from C by" in comm.explain(collective, nbytes).reason, collective
    pair.Free()
    comm.Free()


# ---------------------------------------------------------------------- threads, many communicators


@pytest.mark.mpi(2, 3, 5)
def test_two_threads_on_two_communicators(c, comm_world):
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("this MPI has no MPI_THREAD_MULTIPLE")
    groups = [Group(c, "dup"), Group(c, "reversed")]
    wrong = [-1, -1]
    c.sum_loop.restype = ctypes.c_long

    def run(number: int) -> None:
        group = groups[number]
        wrong[number] = c.sum_loop(group.comm, handle(MPI.INT64_T), handle(MPI.SUM), group.rank,
                                   group.size, ctypes.c_long(300))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0]
    for group in groups:
        group.free()


@pytest.mark.mpi(2, 3, deadline=300)
def test_ten_thousand_duplicates(c, comm_world):
    from mpi4py import MPI

    c.dup_loop.restype = ctypes.c_long
    repeats = 10_000 if comm_world.size == 2 else 1000
    wrong = c.dup_loop(handle(comm_world), handle(MPI.INT64_T), handle(MPI.SUM), comm_world.rank,
                       comm_world.size, ctypes.c_long(repeats))
    assert wrong == 0


@pytest.mark.mpi(2, 3)
def test_sums_in_a_loop(c, group):
    from mpi4py import MPI

    c.sum_loop.restype = ctypes.c_long
    assert c.sum_loop(group.comm, handle(MPI.INT64_T), handle(MPI.SUM), group.rank, group.size,
                      ctypes.c_long(500)) == 0
