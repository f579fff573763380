"""Bad arguments raise what mpi4py raises, in every collective; the communicator goes on."""

import ctypes

import numpy as np
import pytest
from mpi4py import MPI

import smcoll

SYMMETRIC = ("Allreduce", "Scan", "Exscan", "Reduce_scatter_block", "Allgather", "Alltoall",
             "Allgatherv", "Alltoallv", "Reduce_scatter")
ROOTED = ("Gather", "Gatherv", "Scatter", "Scatterv", "Reduce")


def good(size):
    return np.zeros(4 * size)


def frozen():
    array = np.zeros(8)
    array.flags.writeable = False
    return array


# Each gives the bad argument; it replaces the send or the receive buffer.
BAD = {
    "a scalar": lambda size: 5,
    "None for a buffer": lambda size: [None, 3, MPI.DOUBLE],
    "text": lambda size: "text",
    "not contiguous": lambda size: np.zeros((4, 2 * size))[:, ::2],
    "big-endian": lambda size: np.zeros(4 * size, ">f8"),
    "a structured type": lambda size: np.zeros(4 * size, [("a", "i"), ("b", "f")]),
    "objects": lambda size: np.zeros(4 * size, object),
    "an unknown type": lambda size: [np.zeros(4 * size), "no-such-type"],
    "too many items": lambda size: [np.zeros(4 * size), 1, 1, MPI.DOUBLE, 1],
    "too few items": lambda size: [np.zeros(4 * size)],
    "a negative count": lambda size: [np.zeros(4 * size), -1, MPI.DOUBLE],
    "a count that is no number": lambda size: [np.zeros(4 * size), "x", MPI.DOUBLE],
    "a negative displacement": lambda size: [np.zeros(4 * size), (1, -1), MPI.DOUBLE],
    "a part of an element": lambda size: [np.zeros(13, "b"), MPI.DOUBLE],
}
# mpi4py hands these to MPI where counts are vectors; MPI then aborts or reads from address 0.
UNCHECKED = ("a negative count", "None for a buffer", "a negative displacement")
RECEIVE_ONLY = {"read-only": lambda size: frozen(), "bytes": lambda size: b"12345678" * size}
VECTORS = {
    "too few counts": lambda size: [np.zeros(4 * size), [1] * (size - 1)],
    "too many counts": lambda size: [np.zeros(4 * size), [1] * (size + 1)],
    "counts that are no numbers": lambda size: [np.zeros(4 * size), ["x"] * size],
    "too few displacements": lambda size: [np.zeros(4 * size), ([1] * size, [0] * (size - 1))],
}


def raised(call):
    """The type of what a call raises, and the error class where MPI raises it; None if nothing."""
    try:
        call()
    except MPI.Exception as error:
        return MPI.Exception, error.Get_error_class()
    except Exception as error:
        return (type(error),)
    return None


@pytest.fixture
def pair(comm_world):
    plain = comm_world.Dup()
    with smcoll.Comm(comm_world) as ours:
        yield plain, ours
        total = np.zeros(1)
        ours.Allreduce(np.ones(1), total)
        assert total[0] == ours.size
        assert ours.gather(ours.rank, 0) == (list(range(ours.size)) if ours.rank == 0 else None)
    plain.Free()


def check(pair, what, call):
    """mpi4py's own call first: what raises there before it communicates must raise here too."""
    plain, ours = pair
    expected = raised(lambda: call(plain))
    if expected is None:
        return
    assert raised(lambda: call(ours)) == expected, what


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("side", ["send", "receive"])
@pytest.mark.parametrize("method", SYMMETRIC)
def test_every_rank_has_a_bad_buffer(pair, method, side):
    size = pair[0].size
    bad = dict(BAD)
    if side == "receive":
        bad |= RECEIVE_ONLY
    if method.endswith("v"):
        bad |= VECTORS
    for what, argument in bad.items():
        if method.endswith("v") and what in UNCHECKED:
            continue
        buffers = [good(size), good(size)]
        buffers[side == "receive"] = argument(size)
        check(pair, f"{method}: {what}", lambda comm, b=buffers: getattr(comm, method)(*b))


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("method", ROOTED)
def test_the_root_has_a_bad_buffer(pair, method):
    """Every rank is the root of nobody else: the others must not be left waiting, so all call it
    with a bad argument of their own."""
    size, rank = pair[0].size, pair[0].rank
    gathers = method.startswith(("Gather", "Reduce"))
    for what, argument in BAD.items():
        if method.endswith("v") and what in UNCHECKED:
            continue

        def call(comm, argument=argument):
            bad = argument(size)
            at_root = rank == 0
            if gathers:
                getattr(comm, method)(good(size) if at_root else bad, bad if at_root else None,
                                      root=0)
            else:
                getattr(comm, method)(bad if at_root else None, good(size) if at_root else bad,
                                      root=0)
        check(pair, f"{method}: {what}", call)


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("method", [*ROOTED, "Bcast"])
def test_a_root_that_is_no_rank(pair, method):
    size, ours = pair[0].size, pair[1]
    for root in (-1, size, 1 << 20):
        def call(comm, root=root):
            if method == "Bcast":
                comm.Bcast(good(size), root)
            else:
                getattr(comm, method)(good(size), good(size), root=root)
        assert raised(lambda call=call: call(ours)) == (MPI.Exception, MPI.ERR_ROOT)


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("method", ["Allreduce", "Scan", "Exscan", "Reduce_scatter_block"])
def test_operations_that_mpi_refuses_for_the_type(pair, method):
    size = pair[0].size
    for typecode, operation in (("D", MPI.MAX), ("d", MPI.BAND), ("d", MPI.MAXLOC),
                                ("q", MPI.OP_NULL)):
        received = np.zeros(2 if method == "Reduce_scatter_block" else 2 * size, typecode)
        expected = raised(lambda t=typecode, o=operation: MPI.COMM_SELF.Allreduce(
            np.zeros(1, t), np.zeros(1, t), o))
        got = raised(lambda r=received, t=typecode, o=operation: getattr(pair[1], method)(
            np.zeros(2 * size, t), r, o))
        assert got == expected and got is not None


@pytest.mark.mpi(2, 3)
def test_mismatched_counts_and_types_of_a_reduction(pair):
    size = pair[0].size
    for method in ("Allreduce", "Scan", "Exscan", "Reduce_scatter_block"):
        check(pair, f"{method}: counts", lambda comm, m=method: getattr(comm, m)(
            np.zeros(2 * size), np.zeros(3)))
        check(pair, f"{method}: types", lambda comm, m=method: getattr(comm, m)(
            np.zeros(2 * size), np.zeros(2 * size, "f")))
    check(pair, "counts", lambda comm: comm.Reduce_scatter(
        np.zeros(2 * size), np.zeros(2), [3] * size))
    check(pair, "counts", lambda comm: comm.Reduce_scatter(
        np.zeros(2 * size), np.zeros(2), [2] * (size + 1)))
    check(pair, "operation", lambda comm: comm.Allreduce(good(size), good(size), 3))


@pytest.mark.mpi(2)
def test_a_freed_communicator(comm_world):
    ours = smcoll.Comm(comm_world)
    ours.Barrier()
    ours.Free()
    for call in (lambda: ours.Gather(np.zeros(1), np.zeros(2)), lambda: ours.Alltoall(
            np.zeros(2), np.zeros(2)), lambda: ours.allgather(1), lambda: ours.Scan(
            np.zeros(1), np.zeros(1)), ours.Barrier):
        with pytest.raises(MPI.Exception):
            call()


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("nothing", [MPI.IN_PLACE, MPI.BOTTOM], ids=["IN_PLACE", "BOTTOM"])
def test_an_address_that_is_none_is_refused_before_anything_is_read(comm_world, nothing):
    """mpi4py hands such a buffer on, MPI refuses it; reading it would be the end."""
    data, nowhere = np.ones(4), [nothing, 4, MPI.DOUBLE]
    with smcoll.Comm(comm_world) as comm:
        calls = [lambda: comm.Bcast(nowhere), lambda: comm.Allreduce(data, nowhere),
                 lambda: comm.Scan(data, nowhere), lambda: comm.Reduce_scatter_block(data, nowhere),
                 lambda: comm.Reduce_scatter(data, nowhere, [4] * comm.size)]
        if comm.rank != 0:
            calls.append(lambda: comm.Reduce(nowhere, None))
        if nothing is MPI.BOTTOM:
            calls.append(lambda: comm.Allreduce(nowhere, data))
        for call in calls:
            with pytest.raises((MPI.Exception, ValueError)):
                call()
        comm.Allreduce(MPI.IN_PLACE, data)
        assert (data == comm.size).all()


@pytest.mark.mpi(2, 3)
def test_counts_whose_sum_wraps_round_are_refused_on_all_ranks(comm_world):
    ranks = comm_world.size
    with smcoll.Comm(comm_world) as comm:
        # The first call finds that there is a kernel, later ones take the short way.
        comm.Reduce_scatter(np.ones(ranks), np.zeros(1), [1] * ranks)
        # 2^60 doubles are 2^63 bytes.
        wrapping = [2**60, 2**60] + [4] * (ranks - 2)
        with pytest.raises(ValueError):
            comm.Reduce_scatter(MPI.IN_PLACE, np.zeros(4 * (ranks - 2)), wrapping)
        with pytest.raises(ValueError):
            comm.Reduce_scatter(np.ones(4 * (ranks - 2)), np.zeros(4), wrapping)
        comm.Barrier()


@pytest.mark.mpi(2, 3)
def test_a_wrong_vector_where_counts_are_gathered_leaves_nobody_waiting(comm_world):
    """Of Reduce_scatter(recvcounts=None): the others are in its second stage by then."""
    with smcoll.Comm(comm_world) as comm:
        wrong = comm.rank == 0
        with pytest.raises(ValueError if wrong else smcoll.PeerError):
            comm.Reduce_scatter(np.ones(2 * comm.size + wrong), np.zeros(2), None)


@pytest.mark.mpi(2, 3)
def test_what_all_ranks_refuse_of_gathered_counts_costs_nothing(comm_world):
    with smcoll.Comm(comm_world) as comm:
        with pytest.raises(MPI.Exception):
            comm.Reduce_scatter(np.ones(comm.size), np.zeros(1), None, MPI.BAND)
        result = np.zeros(1)
        comm.Reduce_scatter(np.ones(comm.size), result, None)
        assert result[0] == comm.size


def test_what_split_gives_to_ranks_left_out_is_named():
    for make in (smcoll.Comm, smcoll.wrap):
        with pytest.raises(TypeError, match="not COMM_NULL"):
            make(MPI.COMM_NULL)


class Bfloats:
    """What holds elements that MPI has no type for, as a tensor of another library does."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        capsule = self.array.__dlpack__(**keywords)
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype, get_pointer.argtypes = ctypes.c_size_t, [ctypes.py_object,
                                                                      ctypes.c_char_p]
        # DLTensor: address, device (two int32), dimensions (int32), then the type's code. Before
        # it, where it has one: version, two pointers, flags.
        versioned = "dltensor_versioned" in repr(capsule)
        name, offset = (b"dltensor_versioned", 32 + 20) if versioned else (b"dltensor", 20)
        ctypes.c_uint8.from_address(get_pointer(capsule, name) + offset).value = 4
        return capsule

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.mpi(2, 3)
def test_elements_of_no_mpi_type_are_bytes_to_move_and_no_numbers(pair):
    ours = pair[1]
    numbers = np.arange(4, dtype="u2") + ours.rank
    ours.Bcast(Bfloats(numbers), 1)
    assert (numbers == np.arange(4) + 1).all()
    check(pair, "bytes are no uint8", lambda comm: comm.Allreduce(
        np.zeros(8, "u1"), Bfloats(np.zeros(4, "u2"))))


@pytest.mark.mpi(2, 3)
def test_an_alltoall_onto_its_own_send_buffer_is_refused(comm_world):
    with smcoll.Comm(comm_world) as comm:
        data = np.arange(float(comm.size))
        for call in (lambda: comm.Alltoall(data, data),
                     lambda: comm.Alltoallv([data, [1] * comm.size], [data, [1] * comm.size])):
            with pytest.raises(MPI.Exception) as refused:
                call()
            assert refused.value.Get_error_class() == MPI.ERR_BUFFER
        comm.Alltoall(MPI.IN_PLACE, data)
        assert (data == comm.rank).all()


@pytest.mark.mpi(2, 3)
def test_an_alltoallw_of_disjoint_parts_of_one_array_is_none_of_these(comm_world):
    with smcoll.Comm(comm_world) as comm:
        halves = np.arange(2 * comm.size, dtype=float).reshape(2, comm.size)
        halves[0] += 100 * comm.rank
        sent = [MPI.DOUBLE.Create_subarray(halves.shape, (1, 1), (0, rank)).Commit()
                for rank in range(comm.size)]
        received = [MPI.DOUBLE.Create_subarray(halves.shape, (1, 1), (1, rank)).Commit()
                    for rank in range(comm.size)]
        ones, zeros = [1] * comm.size, [0] * comm.size
        comm.Alltoallw([halves, (ones, zeros), sent], [halves, (ones, zeros), received])
        assert (halves[1] == comm.rank + 100 * np.arange(comm.size)).all()
