"""Flattened datatypes move the same bytes as MPI_Pack and MPI_Unpack."""

import random

import numpy as np
import pytest
from mpi4py import MPI

from smcoll.buffers import packing

pytestmark = pytest.mark.mpi(1)

ROOM = 1 << 16
MIDDLE = ROOM // 2
BASIC = [MPI.CHAR, MPI.SHORT, MPI.INT, MPI.DOUBLE, MPI.C_DOUBLE_COMPLEX, MPI.DOUBLE_INT,
         MPI.SHORT_INT, MPI.FLOAT]        # long double has bytes that are no data


def random_type(rng, depth=0):
    """A committed datatype of some nested layout that fits ROOM around its middle."""
    while True:
        made = draw(rng, depth)
        lower, extent = made.Get_true_extent()
        if abs(lower) + extent < 4000 and made.Get_size() < 4000:
            return made.Commit()


def draw(rng, depth):
    base = random_type(rng, depth + 1) if depth < 3 and rng.random() < 0.6 else rng.choice(BASIC)
    kind = rng.randrange(11)
    few = [rng.randrange(0, 4) for _ in range(rng.randrange(1, 4))]
    places = [rng.randrange(-3, 12) for _ in few]
    extent = base.Get_extent()[1]
    if kind == 0:
        return base.Create_contiguous(rng.randrange(0, 4))
    if kind == 1:
        return base.Create_vector(rng.randrange(0, 4), rng.randrange(0, 3), rng.randrange(-3, 5))
    if kind == 2:
        # Not -1: Open MPI 5.0.11 then gives a wrong lower bound and packs other bytes.
        return base.Create_hvector(rng.randrange(0, 4), rng.randrange(0, 3),
                                   rng.choice([*range(-40, -1), *range(90)]))
    if kind == 3:
        return base.Create_indexed(few, places)
    if kind == 4:
        return base.Create_hindexed(few, [place * 7 for place in places])
    if kind == 5:
        return base.Create_indexed_block(rng.randrange(0, 3), places)
    if kind == 6:
        return base.Create_hindexed_block(rng.randrange(0, 3), [place * 5 for place in places])
    if kind == 7:
        other = rng.choice(BASIC)
        types = [rng.choice([base, other]) for _ in few]
        return MPI.Datatype.Create_struct(few, [place * 9 for place in places], types)
    if kind == 8 and extent > 0:
        sizes = [rng.randrange(1, 5) for _ in range(rng.randrange(1, 4))]
        subsizes = [rng.randrange(1, size + 1) for size in sizes]
        starts = [rng.randrange(size - sub + 1) for size, sub in
                  zip(sizes, subsizes, strict=True)]
        return base.Create_subarray(sizes, subsizes, starts,
                                    rng.choice([MPI.ORDER_C, MPI.ORDER_FORTRAN]))
    if kind == 9:
        return base.Create_resized(rng.randrange(-9, 9), rng.randrange(1, 60))
    return base.Dup()


def whole(count, datatype):
    """One element for all: mpi4py's Pack takes as many elements as extents fit the buffer."""
    several = datatype.Create_hvector(count, 1, datatype.Get_extent()[1])
    return several.Create_resized(0, 1).Commit()


def packed_by_mpi(memory, count, datatype):
    out = np.zeros(max(count * datatype.Get_size(), 1), np.uint8)
    used = 0
    if count * datatype.Get_size():
        used = whole(count, datatype).Pack(memory[MIDDLE:MIDDLE + 1], out, 0, MPI.COMM_SELF)
    return out[:used].tobytes()


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_moves_the_bytes_that_mpi_packs(first):
    for seed in range(first, first + 50):
        check_random_type(seed)


def check_random_type(seed):
    rng = random.Random(seed)
    datatype = random_type(rng)
    count = rng.randrange(0, 4)
    memory = np.random.default_rng(seed).integers(0, 256, ROOM).astype(np.uint8)
    expected = packed_by_mpi(memory, count, datatype)
    assert packing.pack(memory[MIDDLE:], count, datatype) == expected

    # Laid out in other memory a few bytes at a time, nothing else there changes.
    ours, theirs = np.zeros(ROOM, np.uint8), np.zeros(ROOM, np.uint8)
    packing.unpack(expected, ours[MIDDLE:], count, datatype, rng.randrange(1, 50))
    if expected:
        whole(count, datatype).Unpack(np.frombuffer(expected, np.uint8), 0,
                                      theirs[MIDDLE:MIDDLE + 1], MPI.COMM_SELF)
    np.testing.assert_array_equal(ours, theirs)
    datatype.Free()


@pytest.mark.parametrize("distribution", ["DISTRIBUTE_BLOCK", "DISTRIBUTE_CYCLIC"])
def test_darray(distribution):
    kind = getattr(MPI, distribution)
    datatype = MPI.INT.Create_darray(4, 3, [9, 7], [kind, kind], [MPI.DISTRIBUTE_DFLT_DARG] * 2,
                                     [2, 2]).Commit()
    memory = np.arange(ROOM).astype(np.uint8)
    assert packing.pack(memory[MIDDLE:], 2, datatype) == packed_by_mpi(memory, 2, datatype)
    datatype.Free()


@pytest.mark.parametrize("base", [MPI.LONG_DOUBLE, MPI.LONG_DOUBLE_INT])
def test_padding_of_a_long_double_is_no_other_place(base):
    """MPI_Pack may leave it out; where it lies must still be where it is laid out."""
    datatype = base.Create_darray(4, 3, [9, 7], [MPI.DISTRIBUTE_CYCLIC] * 2,
                                  [MPI.DISTRIBUTE_DFLT_DARG] * 2, [2, 2]).Commit()
    extent = datatype.Get_extent()[1]
    memory = np.arange(extent).astype(np.uint8)
    received = np.zeros_like(memory)
    packing.unpack(packing.pack(memory, 1, datatype), received, 1, datatype)
    moved = received != 0
    assert moved.sum() >= datatype.Get_size() * 0.9
    np.testing.assert_array_equal(received[moved], memory[moved])
    datatype.Free()


def test_a_reused_handle_is_not_taken_for_the_freed_type():
    memory = np.arange(ROOM).astype(np.uint8)
    for stride in range(2, 30):
        datatype = MPI.INT.Create_vector(3, 1, stride).Commit()
        assert packing.pack(memory[MIDDLE:], 2, datatype) == packed_by_mpi(memory, 2, datatype)
        datatype.Free()


def test_many_runs():
    count = 1_000_000
    datatype = MPI.INT.Create_vector(count, 1, 2).Commit()
    numbers = np.arange(2 * count, dtype=np.intc)
    assert packing.pack(numbers, 1, datatype) == numbers[::2].tobytes()
    datatype.Free()


@pytest.mark.parametrize("kind", ["null", "uncommitted"])
def test_null_and_uncommitted_types_raise_as_in_mpi(kind):
    datatype = MPI.DATATYPE_NULL if kind == "null" else MPI.INT.Create_vector(2, 1, 3)
    with pytest.raises(MPI.Exception) as error:
        packing.pack(np.zeros(100, np.intc), 1, datatype)
    assert error.value.Get_error_class() == MPI.ERR_TYPE
