"""Bad input: what mpi4py raises, smcoll raises too, on the same ranks, and goes on working."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
from mpi4py import MPI

import smcoll
from smcoll.internode.spanning import SpanningEngine


def doubles(count=6):
    return np.ones(count)


def read_only():
    array = np.zeros(6)
    array.flags.writeable = False
    return array


def uncommitted():
    return [np.zeros(8), 1, MPI.DOUBLE.Create_vector(2, 1, 2)]


def vector_of_doubles():
    kind = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    return [np.zeros(8), 1, kind]


def structured():
    return np.zeros(6, [("a", "i"), ("b", "d")])


def everyone(comm):
    return True


def not_rank_0(comm):
    """A buffer that is wrong to receive into: rank 0 is the root and does not call."""
    return comm.Get_rank() != 0


class Bad:
    """A wrong call, and which ranks make it; where the others would be left alone, they don't."""

    def __init__(self, call, who=everyone):
        self.call = call
        self.who = who


# Buffers that are wrong both to send from and to receive into.
WRONG_BUFFERS = {
    "not contiguous": lambda: np.zeros(12)[::2],
    "big-endian": lambda: np.zeros(6, ">f8"),
    "objects": lambda: np.array([None] * 6),
    "structured": structured,
    "a number": lambda: 1.5,
    "a string": lambda: "text",
    "a list of numbers": lambda: [1.0, 2.0, 3.0],
    "empty tuple": tuple,
    "five values": lambda: (doubles(), 1, 0, MPI.DOUBLE, 7),
    "negative count": lambda: (doubles(), -1, MPI.DOUBLE),
    "count is a string": lambda: (doubles(), "six", MPI.DOUBLE),
    "unknown typecode": lambda: (doubles(), "no such type"),
    "type is a number": lambda: (doubles(), 6, 6.5),
    "DATATYPE_NULL": lambda: (doubles(), 6, MPI.DATATYPE_NULL),
    "uncommitted": uncommitted,
    "dict": lambda: {"buf": doubles()},
    "count and displacement too many": lambda: (doubles(), (1, 2, 3), MPI.DOUBLE),
    "not a whole number of elements": lambda: (bytearray(11), MPI.DOUBLE),
}

CASES: dict[str, Bad] = {}
for name, make in WRONG_BUFFERS.items():
    CASES |= {
        f"Bcast: {name}": Bad(lambda comm, make=make: comm.Bcast(make(), root=0)),
        f"Allreduce: send {name}": Bad(lambda comm, make=make: comm.Allreduce(make(), doubles())),
        f"Allreduce: receive {name}": Bad(
            lambda comm, make=make: comm.Allreduce(doubles(), make())),
        f"Allreduce: in place {name}": Bad(
            lambda comm, make=make: comm.Allreduce(MPI.IN_PLACE, make())),
        # Every rank takes itself for the root: nobody can send before the error is found.
        f"Reduce: receive {name}": Bad(
            lambda comm, make=make: comm.Reduce(doubles(), make(), root=comm.rank)),
        f"Reduce: send {name}": Bad(
            lambda comm, make=make: comm.Reduce(make(), doubles(), root=comm.rank)),
    }  # fmt: skip
CASES |= {
    "Bcast: read-only": Bad(lambda comm: comm.Bcast(read_only(), root=0), not_rank_0),
    "Bcast: bytes": Bad(lambda comm: comm.Bcast(b"bytes", root=0), not_rank_0),
    "Allreduce: read-only": Bad(lambda comm: comm.Allreduce(doubles(), read_only())),
    "Allreduce: in place read-only": Bad(lambda comm: comm.Allreduce(MPI.IN_PLACE, read_only())),
    "Reduce: read-only": Bad(lambda comm: comm.Reduce(doubles(), read_only(), root=comm.rank)),
    "Bcast: root -1": Bad(lambda comm: comm.Bcast(doubles(), root=-1)),
    "Bcast: root too large": Bad(lambda comm: comm.Bcast(doubles(), root=comm.size)),
    "Bcast: root 0.5": Bad(lambda comm: comm.Bcast(doubles(), root=0.5)),
    "Bcast: root None": Bad(lambda comm: comm.Bcast(doubles(), root=None)),
    "Bcast: root a string": Bad(lambda comm: comm.Bcast(doubles(), root="0")),
    "Bcast: root huge": Bad(lambda comm: comm.Bcast(doubles(), root=1 << 40)),
    "Bcast: no argument": Bad(lambda comm: comm.Bcast()),
    "Barrier: an argument": Bad(lambda comm: comm.Barrier(1)),
    "Reduce: root -1": Bad(lambda comm: comm.Reduce(doubles(), doubles(), root=-1)),
    "Reduce: root too large": Bad(lambda comm: comm.Reduce(doubles(), doubles(), root=comm.size)),
    "Reduce: root too large, no result": Bad(
        lambda comm: comm.Reduce(doubles(), None, root=comm.size)),
    "Reduce: no receive buffer at root": Bad(
        lambda comm: comm.Reduce(doubles(), "", root=comm.rank)),
    "Allreduce: receive short": Bad(lambda comm: comm.Allreduce(doubles(6), doubles(5))),
    "Allreduce: receive long": Bad(lambda comm: comm.Allreduce(doubles(6), doubles(7))),
    "Allreduce: receive empty": Bad(lambda comm: comm.Allreduce(doubles(6), doubles(0))),
    "Allreduce: receive string": Bad(lambda comm: comm.Allreduce(doubles(6), "")),
    "Reduce: receive short": Bad(
        lambda comm: comm.Reduce(doubles(6), doubles(5), root=comm.rank)),
    "Allreduce: types": Bad(lambda comm: comm.Allreduce(doubles(), np.zeros(6, "q"))),
    "Allreduce: types of a size": Bad(
        lambda comm: comm.Allreduce(np.zeros(6, "i"), np.zeros(6, "f"))),
    "Reduce: types": Bad(
        lambda comm: comm.Reduce(doubles(), np.zeros(6, "q"), root=comm.rank)),
    "Allreduce: op None": Bad(lambda comm: comm.Allreduce(doubles(), doubles(), None)),
    "Allreduce: op a string": Bad(lambda comm: comm.Allreduce(doubles(), doubles(), "sum")),
    "Allreduce: op a function": Bad(lambda comm: comm.Allreduce(doubles(), doubles(), max)),
    "Allreduce: OP_NULL": Bad(lambda comm: comm.Allreduce(doubles(), doubles(), MPI.OP_NULL)),
    "Reduce: OP_NULL": Bad(
        lambda comm: comm.Reduce(doubles(), doubles(), MPI.OP_NULL, root=comm.rank)),
    "Allreduce: derived type and SUM": Bad(
        lambda comm: comm.Allreduce(vector_of_doubles(), vector_of_doubles())),
    "Allreduce: one buffer only": Bad(lambda comm: comm.Allreduce(doubles())),
}  # fmt: skip
for op_name, typecode in [
    ("SUM", "?"), ("MAX", "?"), ("PROD", "?"), ("BAND", "?"), ("MAX", "F"), ("MIN", "D"),
    ("LAND", "D"), ("BAND", "f"), ("BOR", "d"), ("BXOR", "g"), ("LAND", "d"), ("LXOR", "f"),
    ("SUM", "S1"), ("MAXLOC", "d"), ("MINLOC", "i"), ("REPLACE", "i"), ("NO_OP", "i"),
]:  # fmt: skip
    for collective in ("Allreduce", "Reduce"):
        CASES[f"{collective}: {op_name} of {typecode}"] = Bad(
            lambda comm, op=op_name, code=typecode, collective=collective: getattr(
                comm, collective)(np.zeros(6, code), np.zeros(6, code), getattr(MPI, op))
        )


def outcome(case: Bad, comm):
    """None, or the exception's type and MPI error class."""
    try:
        case.call(comm)
    except MPI.Exception as error:
        return MPI.Exception, MPI.Get_error_string(error.Get_error_class())
    except Exception as error:
        return type(error), None
    return None


def check_works(comm) -> None:
    rank, ranks = comm.Get_rank(), comm.Get_size()
    for count in (3, 5000):
        total = np.zeros(count)
        comm.Allreduce(np.full(count, rank + 1.0), total)
        assert (total == ranks * (ranks + 1) / 2).all()
        comm.Reduce(np.full(count, rank + 1.0), total, MPI.MAX, ranks - 1)
        assert (total == (ranks if rank == ranks - 1 else ranks * (ranks + 1) / 2)).all()
        comm.Bcast(total, ranks - 1)
        assert (total == ranks).all()
    comm.Barrier()


@pytest.fixture
def communicators(comm_world):
    plain = comm_world.Dup()
    with smcoll.Comm(comm_world) as comm:
        yield plain, comm
    plain.Free()


@pytest.mark.mpi(1, 2, 3)
@pytest.mark.parametrize("name", CASES)
def test_raises_what_mpi4py_raises(communicators, name):
    plain, comm = communicators
    if name == "Allreduce: in place DATATYPE_NULL" and MPI.get_vendor()[0] != "Open MPI":
        pytest.skip("MPICH and Intel MPI abort on a null datatype here, without smcoll too")
    case = CASES[name]
    # Before the segment is made, and after; by all ranks, and by one alone (protocol rule 13: an
    # error is found before anything is published, so the others never know).
    if case.who(plain):
        wanted = outcome(case, plain)
        assert outcome(case, comm) == wanted
    else:
        wanted = None
    check_works(comm)
    if case.who(plain):
        assert outcome(case, comm) == wanted
    check_works(comm)
    alone = plain.size - 1
    if comm.rank == alone and wanted is not None:
        assert outcome(case, comm) == wanted
    check_works(comm)


@pytest.mark.mpi(1, 2)
@pytest.mark.parametrize("used_before", [False, True])
def test_freed_communicator(comm_world, used_before):
    plain, comm = comm_world.Dup(), smcoll.Comm(comm_world)
    second = smcoll.Comm(comm_world)
    if used_before:
        check_works(comm)
    plain.Free()
    comm.Free()
    assert comm == MPI.COMM_NULL
    calls = {
        "Barrier": lambda c: c.Barrier(),
        "Bcast": lambda c: c.Bcast(doubles()),
        "Reduce": lambda c: c.Reduce(doubles(), doubles()),
        "Allreduce": lambda c: c.Allreduce(doubles(), doubles()),
        "Free": lambda c: c.Free(),
        "Dup": lambda c: c.Dup(),
    }
    for name, call in calls.items():
        assert outcome(Bad(call), comm) == outcome(Bad(call), plain), name
        assert outcome(Bad(call), comm) is not None, name
    check_works(second)
    second.Free()


@pytest.mark.mpi(2)
def test_comm_null(comm_world):
    with pytest.raises((TypeError, ValueError, MPI.Exception)):
        smcoll.Comm(MPI.COMM_NULL)
    with pytest.raises(TypeError):
        smcoll.Comm("not a communicator")
    with pytest.raises(TypeError):
        smcoll.Comm(comm_world, config={"banks": 2})


# ---------------------------------------------------------------------- ranks that disagree


def call_barrier(comm):
    comm.Barrier()


def call_allreduce(comm, count=3, op=MPI.SUM, code="d"):
    comm.Allreduce(np.ones(count, code), np.ones(count, code), op)


def call_bcast(comm, count=3, root=0):
    comm.Bcast(np.ones(count), root)


def call_reduce(comm, count=3, root=0, op=MPI.SUM):
    comm.Reduce(np.ones(count), np.ones(count), op, root)


DISAGREEMENTS = {
    "collective": (call_barrier, call_allreduce, ("Barrier", "Allreduce")),
    "bcast and reduce": (call_bcast, call_reduce, ("Bcast", "Reduce")),
    "count": (call_allreduce, lambda c: call_allreduce(c, 4), ("24 B", "32 B")),
    "count above and below inline": (
        call_allreduce, lambda c: call_allreduce(c, 9000), ("24 B", "72000 B")),
    "long counts": (
        lambda c: call_allreduce(c, 9000), lambda c: call_allreduce(c, 9001),
        ("72000 B", "72008 B")),
    "op": (call_allreduce, lambda c: call_allreduce(c, op=MPI.MAX), ("SUM", "MAX")),
    "type": (call_allreduce, lambda c: call_allreduce(c, code="q"), ("float64", "int64")),
    "root": (call_bcast, lambda c: call_bcast(c, root=1), ("root=0", "root=1")),
    "root of reduce": (call_reduce, lambda c: call_reduce(c, root=1), ("root=0", "root=1")),
    "bcast count": (call_bcast, lambda c: call_bcast(c, 5), ("24 B", "40 B")),
    "long bcast count": (
        lambda c: call_bcast(c, 70_000), lambda c: call_bcast(c, 70_001), ("560000", "560008")),
    "reduce count": (call_reduce, lambda c: call_reduce(c, 5), ("24 B", "40 B")),
    "one goes to MPI": (
        call_allreduce,
        lambda c: c.Allreduce([bytearray(32), 2, MPI.DOUBLE_INT],
                              [bytearray(32), 2, MPI.DOUBLE_INT], MPI.MAXLOC),
        ("SUM",)),
}  # fmt: skip


# (disagreement, who is the odd one) in which every rank of two is a root of Bcast or a leaf of
# Reduce: nobody waits, so nobody notices, and nobody gets data.
NOBODY_WAITS = {("bcast and reduce", "last"), ("root", "last"), ("root of reduce", "first")}

# Over several nodes who only sends goes on, and a later call of that rank may be what is found.
SENT_AND_GONE_ON = {"bcast and reduce", "root", "root of reduce"}


def disagree(comm, name, odd_one) -> None:
    """All ranks but one make the first call, that one the second; then barriers until it shows."""
    one, other, _ = DISAGREEMENTS[name]
    odd = 0 if odd_one == "first" else comm.Get_size() - 1
    (other if comm.Get_rank() == odd else one)(comm)
    for _ in range(100):
        comm.Barrier()
        time.sleep(0.001)


@pytest.mark.mpi(2, 3, 5)
@pytest.mark.parametrize("odd_one", ["first", "last"])
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_mismatch(comm_world, name, odd_one):
    """Every rank raises, in this call or in the next ones; those that raise name both sides."""
    comm = smcoll.Comm(comm_world, smcoll.Config(timeout=20))
    comm.Barrier()
    # Over several nodes the news of a mismatch may overtake the last messages of the call before.
    comm_world.Barrier()
    errors = smcoll.MismatchError
    if (name, odd_one) in NOBODY_WAITS:
        # What the ranks do afterwards is right, or the mismatch is told; never wrong data.
        with contextlib.suppress(errors):
            disagree(comm, name, odd_one)
            check_works(comm)
        return
    with pytest.raises(errors) as raised:
        disagree(comm, name, odd_one)
    text = str(raised.value)
    sides = all(side in text for side in DISAGREEMENTS[name][2])
    if isinstance(comm.engine, SpanningEngine) and "inline" in name:
        # Ranks agree on memory before a call that needs some: that is what they are told.
        sides = "reserving shared memory" in text
    if isinstance(comm.engine, SpanningEngine) and name in SENT_AND_GONE_ON:
        sides = any(side in text for side in DISAGREEMENTS[name][2])
    assert any(comm_world.allgather(sides)), text
    assert isinstance(raised.value, MPI.Exception)
    # From now on the communicator refuses, and other communicators work.
    with pytest.raises(errors):
        comm.Barrier()
    with smcoll.Comm(comm_world) as fresh:
        check_works(fresh)


@pytest.mark.mpi(1, 2)
def test_explain_does_not_answer_for_a_misspelt_collective(comm_world):
    with smcoll.Comm(comm_world) as comm:
        with pytest.raises(ValueError, match=r"'allredcue' is no collective: 'allreduce'\?"):
            comm.explain("allredcue", 8)
        assert comm.explain("Neighbor_allgather").path == "MPI"
        assert comm.explain("Alltoallw").collective == "alltoall"
