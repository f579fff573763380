"""Every collective and algorithm against numpy: a covering design over all that may differ."""

from __future__ import annotations

import array
import contextlib
import itertools
import zlib
from functools import partial

import chosen
import numpy as np
import pytest
from covering import covering_rows
from mpi4py import MPI
from patterns import (
    COMPLEX,
    OPS,
    TYPES,
    Guarded,
    bits,
    check,
    data,
    defined,
    expected,
)
from placements import even, placed, uneven

import smcoll
from smcoll.algorithms import ALGORITHMS

ALL_RANKS = (1, 2, 3, 4, 5, 7, 8, 16)
# The others have one algorithm each: test_movement, differential.
COLLECTIVES = ("barrier", "bcast", "reduce", "allreduce")
NAMED = [(collective, name) for collective in COLLECTIVES for name in ALGORITHMS[collective]]

CONFIGS = covering_rows({
    "segment_size": (4096, 8192, 32768),
    "streaming_size": (1, 1 << 30),
    "banks": (1, 2, 3, 4),
    "segments": (1, 2, 8),
    "inline_slots": (1, 3, 32),
    "pipeline": (True, False),
    "inline_size": (32, 2048),
    "rooted_inline_size": (32, 1120),
})


# Domains of the ranks; None: this machine's own.
PLACEMENTS = {
    "as is": lambda ranks: None,
    "two halves": lambda ranks: even(ranks, 2),
    "four parts": lambda ranks: even(ranks, 4),
    "uneven": lambda ranks: uneven(ranks, 5),
}


def op_fits_type(first, second):
    pair = dict([first, second])
    return set(pair) != {"op", "type"} or defined(pair["op"], pair["type"])


ROWS = covering_rows(
    {
        "algorithm": NAMED + [(collective, "auto") for collective in COLLECTIVES],
        "config": range(len(CONFIGS)),
        "type": TYPES,
        "op": OPS,
        "size": ("0", "1", "3", "inline", "inline+1", "33", "segment-1", "segment", "segment+1",
                 "bank", "rounds"),
        "root": ("first", "last", "middle"),
        "in_place": (False, True),
        "offset": (0, 1),
        "radix": (None, 2, 3, 4, 5, 6, 7, 8, 12, 16, 1),
        "placement": tuple(PLACEMENTS),
    },
    op_fits_type,
)  # fmt: skip


def count_of(size: str, typecode: str, config: smcoll.Config) -> int:
    """Elements of a row's size under the row's configuration."""
    itemsize = np.dtype(typecode).itemsize
    segment = config.segment_size // itemsize
    sizes = {
        "inline": config.internals.inline_size // itemsize,
        "inline+1": config.internals.inline_size // itemsize + 1,
        "segment-1": segment - 1,
        "segment": segment,
        "segment+1": segment + 1,
        "bank": config.segments * segment + 1,
        "rounds": (config.internals.banks * config.segments + 1) * segment + 3,
    }
    return sizes[size] if size in sizes else int(size)


def specify(buffer: Guarded):
    """An odd address needs the type spelled out: numpy exports such arrays as of no native type."""
    if buffer.array.flags.aligned:
        return buffer.array
    return [buffer.array, MPI.Datatype.fromcode(buffer.array.dtype.char)]


def by_name(comm, collective: str, name: str, radix: int | None):
    """A context in which ``comm`` carries the row's collective out by that algorithm."""
    if name == "auto" or comm.engine is None or hasattr(comm.engine, "span"):
        return contextlib.nullcontext()        # over several nodes it would be a stage's name
    radices = {} if radix is None else {
        parameter: max(radix, 2) if parameter == "arity" else radix
        for parameter in smcoll.algorithms.RADICES.get((collective, name), ())}
    return chosen.algorithm(comm, collective, name, **radices)


def run_row(comm, row: dict, config: smcoll.Config, seed: int, repeat: int = 2) -> None:
    collective, name = row["algorithm"]
    rank, ranks = comm.Get_rank(), comm.Get_size()
    root = {"first": 0, "last": ranks - 1, "middle": ranks // 2}[row["root"]]
    count = count_of(row["size"], row["type"], config)
    make = partial(Guarded, row["type"], count, row["offset"])
    with by_name(comm, collective, name, row["radix"]):
        for seed_now in range(seed, seed + repeat):
            if collective == "barrier":
                comm.Barrier()
                continue
            if collective == "bcast":
                wanted = data(row["op"], row["type"], root, count, seed_now)
                buffer = make(content=wanted if rank == root else 0)
                comm.Bcast(specify(buffer), root)
                check(buffer.array, wanted, row)
                buffer.check_guards(row)
                continue
            mine = data(row["op"], row["type"], rank, count, seed_now)
            wanted = expected(row["op"], row["type"], ranks, count, seed_now)
            has_result = collective == "allreduce" or rank == root
            if row["in_place"] and has_result:
                recv = make(content=mine)
                send = None
            else:
                recv = make(content=1)
                send = make(content=mine)
            arguments = (send and specify(send), specify(recv), getattr(MPI, row["op"]))
            if collective == "allreduce":
                comm.Allreduce(*arguments)
            else:
                comm.Reduce(*arguments, root)
            check(recv.array, wanted if has_result else np.ones(count, row["type"]), row)
            recv.check_guards(row)
            if send is not None:
                check(send.array, mine, f"send buffer, {row}")
                send.check_guards(row)


@pytest.mark.mpi(*ALL_RANKS)
@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_covering_design(comm_world, number):
    config = chosen.config(**CONFIGS[number])
    for placement, domains in PLACEMENTS.items():
        with placed(domains(comm_world.size)), smcoll.Comm(comm_world, config) as comm:
            for seed, row in enumerate(ROWS):
                if (row["config"], row["placement"]) == (number, placement):
                    run_row(comm, row, config, seed)


@pytest.mark.mpi(2, 5)
@pytest.mark.parametrize(
    "collective, name", [pair for pair in NAMED if pair[0] in ("reduce", "allreduce")]
)
def test_all_ops_and_types_through_comm(comm_world, collective, name):
    config = smcoll.Config(segment_size=4096, algorithms={collective: name})
    rank, ranks = comm_world.rank, comm_world.size
    with placed(even(ranks, 2)), smcoll.Comm(comm_world, config) as comm:
        pairs = [pair for pair in itertools.product(OPS, TYPES) if defined(*pair)]
        for seed, (op, typecode) in enumerate(pairs):
            for count in (1, 19, 1500):
                root = seed % ranks
                mine = data(op, typecode, rank, count, seed)
                result = np.zeros_like(mine)
                if collective == "allreduce":
                    comm.Allreduce(mine, result, getattr(MPI, op))
                else:
                    comm.Reduce(mine, result if rank == root else None, getattr(MPI, op), root)
                if collective == "allreduce" or rank == root:
                    what = (collective, name, op, typecode, count)
                    check(result, expected(op, typecode, ranks, count, seed), what)
        if not hasattr(comm.engine, "span"):          # over nodes it is the name of a stage
            explanation = comm.explain(collective, nbytes=8000)
            assert (explanation.path, explanation.algorithm) == ("shared memory", name)


@pytest.mark.mpi(2, 3, 5, 7, 8)
@pytest.mark.parametrize(
    "collective, name", [pair for pair in NAMED if pair[0] in ("reduce", "allreduce")]
)
def test_same_bits_on_every_rank_and_every_time(comm_world, collective, name):
    rank, ranks = comm_world.rank, comm_world.size
    root = ranks - 1
    random = np.random.default_rng(rank)
    config = smcoll.Config(segment_size=4096)
    with (placed(uneven(ranks, 3)), smcoll.Comm(comm_world, config) as comm,
          by_name(comm, collective, name, None)):
        for typecode, count in itertools.product("fdgFD", (1, 3, 30, 700, 9001)):
            mine = random.standard_normal(count).astype(typecode)
            mine *= (10.0 ** random.integers(-6, 7, count)).astype(mine.real.dtype)
            if typecode in COMPLEX:
                mine += 1j * random.standard_normal(count).astype(mine.real.dtype)
            results = []
            for _ in range(3):
                result = np.zeros_like(mine)
                if collective == "allreduce":
                    comm.Allreduce(mine, result)
                else:
                    comm.Reduce(mine, result, root=root)
                results.append(bits(result))
            assert results[0] == results[1] == results[2], (typecode, count)
            everyone = np.empty((ranks, count), typecode)
            comm_world.Allgather(mine, everyone)
            # What dissemination gives differs from rank to rank, and is asked for by name only.
            if collective == "allreduce" and name != "dissemination":
                checksums = np.empty(ranks, "L")
                comm_world.Allgather(np.array([zlib.crc32(results[0])], "L"), checksums)
                assert len(set(checksums)) == 1, (typecode, count, checksums)
            if collective == "allreduce" or rank == root:
                scale = np.abs(everyone).sum(axis=0)
                error = np.abs(result - everyone.sum(axis=0))
                assert (error <= 4 * ranks * np.finfo(typecode).eps * scale).all()


@pytest.mark.mpi(2)
def test_64_megabytes(comm_world):
    count = (64 << 20) // 8
    with smcoll.Comm(comm_world) as comm:
        mine = data("SUM", "d", comm.rank, count, 1)
        wanted = expected("SUM", "d", comm.size, count, 1)
        result = np.empty_like(mine)
        comm.Allreduce(mine, result)
        check(result, wanted, "Allreduce")
        result[:] = 0
        comm.Reduce(mine, result, root=1)
        check(result, wanted if comm.rank == 1 else np.zeros(count), "Reduce")
        comm.Bcast(mine, root=1)
        check(mine, data("SUM", "d", 1, count, 1), "Bcast")


# -------------------------------------------------------------------- buffers, as mpi4py has them


def as_bytearray(values):
    return bytearray(values.tobytes())


def as_memoryview(values):
    return memoryview(bytearray(values.tobytes())).cast(values.dtype.char)


def as_array(values):
    return array.array(values.dtype.char, values.tolist())


def as_fortran(values):
    return np.asfortranarray(values.reshape(-1, 2))


def content(buffer) -> bytes:
    if isinstance(buffer, np.ndarray):
        return buffer.tobytes(order="A")
    return bytes(buffer)


@pytest.mark.mpi(1, 2, 5)
@pytest.mark.parametrize("count", [20, 6000])
def test_kinds_of_buffers(comm_world, count):
    kinds = (as_bytearray, as_memoryview, as_array, as_fortran)
    with smcoll.Comm(comm_world) as comm:
        rank, ranks = comm.rank, comm.size
        mine = data("SUM", "i", rank, count, 3)
        wanted = expected("SUM", "i", ranks, count, 3).tobytes()
        for kind in kinds:
            at_root = data("SUM", "i", ranks - 1, count, 3)
            buffer = kind(mine)
            comm.Bcast(buffer, root=ranks - 1)
            assert content(buffer) == content(kind(at_root)), kind
            if kind is as_bytearray:
                send, recv = [kind(mine), MPI.INT], [kind(mine * 0), MPI.INT]
            else:
                send, recv = kind(mine), kind(mine * 0)
            comm.Allreduce(send, recv)
            if kind is not as_fortran:
                assert content(recv[0] if kind is as_bytearray else recv) == wanted, kind
            else:
                sums = np.frombuffer(wanted, "i").reshape(-1, 2)
                assert np.array_equal(recv, sums)
            comm.Reduce(send, recv if rank == 0 else None, root=0)
            comm.Allreduce(MPI.IN_PLACE, recv, MPI.MAX)
        # Bytes without a type are unsigned numbers.
        sent, total = bytearray([rank + 1] * count), bytearray(count)
        comm.Allreduce(sent, total)
        assert set(total) == {ranks * (ranks + 1) // 2}
        text = b"read only is fine to send"
        if rank == 0:
            comm.Bcast(text, root=0)
        else:
            buffer = bytearray(len(text))
            comm.Bcast(buffer, root=0)
            assert buffer == text


SPECIFICATIONS = {
    "buf": lambda buf, n: buf[:n],
    "(buf, count)": lambda buf, n: (buf, n),
    "(buf, type)": lambda buf, n: (buf[:n], MPI.FLOAT),
    "(buf, typecode)": lambda buf, n: (buf[:n], "f"),
    "[buf, type]": lambda buf, n: [buf[:n], MPI.FLOAT],
    "(buf, count, type)": lambda buf, n: (buf, n, MPI.FLOAT),
    "(buf, (count, displ))": lambda buf, n: (buf, (n, 2)),
    "(buf, (count, displ), type)": lambda buf, n: (buf, (n, 2), MPI.FLOAT),
    "[buf, [count, displ], typecode]": lambda buf, n: [buf, [n, 2], "f"],
    "(buf, count, displ, type)": lambda buf, n: (buf, n, 2, MPI.FLOAT),
}


@pytest.mark.mpi(1, 2, 5)
@pytest.mark.parametrize("count", [7, 5000])
def test_specifications(comm_world, count):
    """Each rank may say it in another way: the way is a local property."""
    with smcoll.Comm(comm_world) as comm:
        rank, ranks = comm.rank, comm.size
        ways = list(SPECIFICATIONS.items())
        for i in range(len(ways)):
            name, specify = ways[(i + rank) % len(ways)]
            start = 2 if "displ" in name else 0
            send = np.full(count + 4, -1, "f")
            send[start : start + count] = data("SUM", "f", rank, count, i)
            recv = np.full(count + 4, -2, "f")
            result = recv[start : start + count]
            outside = np.r_[recv[:start], recv[start + count :]]
            comm.Allreduce(specify(send, count), specify(recv, count))
            check(result, expected("SUM", "f", ranks, count, i), name)
            comm.Allreduce(None, specify(recv, count), MPI.MAX)
            check(result, expected("SUM", "f", ranks, count, i), name)
            root = i % ranks
            comm.Reduce(specify(send, count), specify(recv, count) if rank == root else None,
                        MPI.MIN, root)
            if rank == root:
                check(result, expected("MIN", "f", ranks, count, i), name)
            comm.Bcast(specify(send, count), root)
            check(send[start : start + count], data("SUM", "f", root, count, i), name)
            assert (outside == -2).all(), name


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("blocks", [5, 4000])
def test_derived_datatypes(comm_world, blocks):
    """Every other column of a matrix, alone or against contiguous data on other ranks."""
    types = {
        "vector": MPI.INT.Create_vector(blocks, 1, 2),
        "resized": MPI.INT.Create_resized(0, 8),
        "contiguous": MPI.INT.Create_contiguous(blocks),
        "basic": MPI.INT,
    }
    counts = {"vector": 1, "resized": blocks, "contiguous": 1, "basic": blocks}
    steps = {"vector": 2, "resized": 2, "contiguous": 1, "basic": 1}
    for kind in types.values():
        if kind is not MPI.INT:
            kind.Commit()
    with smcoll.Comm(comm_world) as comm:
        rank, ranks = comm.rank, comm.size
        for i, (at_root, elsewhere) in enumerate(itertools.product(types, types)):
            root = i % ranks
            kind = at_root if rank == root else elsewhere
            values = np.full(2 * blocks, -1, "i")
            part = values[:: steps[kind]][:blocks]
            if rank == root:
                part[:] = data("SUM", "i", root, blocks, i)
            comm.Bcast([values, counts[kind], types[kind]], root)
            check(part, data("SUM", "i", root, blocks, i), (at_root, elsewhere))
            rest = values[1::2] if steps[kind] == 2 else values[blocks:]
            assert (rest == -1).all(), (at_root, elsewhere)
        path = comm.explain("bcast", nbytes=4 * blocks).path
        assert path != "MPI"
    for kind in types.values():
        if kind is not MPI.INT:
            kind.Free()


# ---------------------------------------------------------------------- what goes to MPI


@pytest.mark.mpi(2, 3, 5)
def test_operations_and_types_without_a_kernel(comm_world):
    """User-defined operations, MAXLOC, float16 ...: right, in order, and in step with the rest."""
    def first_nonzero(source, target, _datatype):
        one, two = np.frombuffer(source, "q"), np.frombuffer(target, "q")
        two[:] = np.where(one != 0, one, two)

    ordered = MPI.Op.Create(first_nonzero, commute=False)
    with smcoll.Comm(comm_world) as comm:
        rank, ranks = comm.rank, comm.size
        for turn in range(5):
            mine = np.where(np.arange(40) % ranks <= rank, rank + 1, 0).astype("q")
            result = np.zeros_like(mine)
            comm.Allreduce(mine, result, ordered)
            check(result, (np.arange(40) % ranks + 1).astype("q"), "user-defined")
            pairs = np.zeros(9, np.dtype([("value", "d"), ("index", "i")], align=True))
            pairs["value"], pairs["index"] = (rank * 5 + np.arange(9)) % 7, rank
            best = np.zeros_like(pairs)
            comm.Allreduce([pairs, MPI.DOUBLE_INT], [best, MPI.DOUBLE_INT], MPI.MAXLOC)
            values = (np.arange(ranks)[:, None] * 5 + np.arange(9)) % 7
            assert (best["value"] == values.max(axis=0)).all()
            assert (best["index"] == values.argmax(axis=0)).all()
            total = np.zeros(3)
            comm.Allreduce(np.full(3, turn + rank, "d"), total)
            assert (total == turn * ranks + ranks * (ranks - 1) / 2).all()
            assert "MPI" not in {row["path"] for row in comm.stats()}
    ordered.Free()


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("typecode", ["e", "G"])
def test_types_without_a_kernel(comm_world, typecode):
    """float16 and complex long double: whatever MPI itself does, result or exception."""
    mine = data("SUM", "d", comm_world.rank, 30, 4).astype(typecode)
    with smcoll.Comm(comm_world) as comm:
        outcomes = []
        for other in (comm_world, comm):
            result = np.zeros_like(mine)
            try:
                other.Allreduce(mine, result)
                outcomes.append(bits(result.astype("D")))
            except Exception as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]
        total = np.zeros(1)
        comm.Allreduce(np.ones(1), total)
        assert total[0] == comm.size


@pytest.mark.mpi(2, 3)
def test_in_place_given_with_count_and_type(comm_world):
    """mpi4py hands the address on, and MPI knows it."""
    ranks, rank = comm_world.size, comm_world.rank
    in_place = [MPI.IN_PLACE, 4, MPI.DOUBLE]
    total = np.arange(4.0) * ranks + sum(range(ranks))
    with smcoll.Comm(comm_world) as comm:
        for method, expected in (
            (comm.Allreduce, total),
            (comm.Scan, np.arange(4.0) * (rank + 1) + sum(range(rank + 1))),
        ):
            data = np.arange(4.0) + rank
            method(in_place, data)
            assert np.array_equal(data, expected), method
        data = np.arange(4.0) + rank
        comm.Reduce(in_place if rank == 1 else data, data, root=1)
        assert rank != 1 or np.array_equal(data, total)
        whole = np.arange(4.0 * ranks) * ranks + sum(range(ranks))
        for method, arguments in ((comm.Reduce_scatter_block, ()),
                                  (comm.Reduce_scatter, ([4] * ranks,))):
            data = np.arange(4.0 * ranks) + rank
            method([MPI.IN_PLACE, 4 * ranks, MPI.DOUBLE], data, *arguments)
            assert np.array_equal(data[:4], whole[4 * rank:4 * rank + 4]), method
