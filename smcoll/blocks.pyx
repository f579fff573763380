"""Buffer arguments with a block for each rank: equal ones, and those of the v- and w-variants.

``buf``, ``(buf, counts)``, ``(buf, (counts, displs))``, ``(buf, type)``, ``(buf, counts, type)``,
``(buf, (counts, displs), type)``, ``(buf, counts, displs, type)``; for Alltoallw ``(buf, types)``,
``(buf, (counts, displs), types)``, ``(buf, counts, displs, types)`` with displacements in bytes.
Accepted and refused as mpi4py 4.1 does, in its order: the receive side first, except in Scatter.
"""

from operator import index

from mpi4py import MPI

from libc.stdlib cimport calloc, free

from smcoll.buffers cimport (
    Message, Specification, entries, is_contiguous, locate, parse, parse_moved, plain_array, split,
)

cdef object IN_PLACE = MPI.IN_PLACE

ctypedef Blocks (*blocks_parser)(object, bint, int)


cdef class Blocks:
    """One block for each rank."""

    def __cinit__(self, int ranks):
        self.ranks = ranks
        self.block = <Block *> calloc(ranks, sizeof(Block))
        if self.block == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.block)

    def describe(self):
        """``(address, bytes)`` of each block."""
        return [(<size_t> self.block[i].address, self.block[i].nbytes)
                for i in range(self.ranks)]


cdef class Sides:
    """The parsed arguments of one call."""


cdef Blocks parse_blocks(object spec, bint writable, int ranks):
    """Equal blocks, one behind the other."""
    cdef Blocks result = Blocks(ranks)
    cdef Specification first
    cdef Message plain
    cdef Py_ssize_t distance
    cdef int i
    if plain_array(spec, writable, &plain) and plain.count % <size_t> ranks == 0:
        result.contiguous = True
        result.total = plain.nbytes
        result.owner = spec
        for i in range(ranks):
            result.block[i].nbytes = plain.nbytes // <size_t> ranks
            result.block[i].address = plain.address + <size_t> i * result.block[i].nbytes
        return result
    first = parse(spec, writable, ranks)
    result.owner = first
    result.datatype = first.datatype
    result.contiguous = first.contiguous
    result.total = first.message.nbytes * <size_t> ranks
    distance = 0 if first.count == 0 else first.count * extent_or_0(first.datatype)
    for i in range(ranks):
        result.block[i].nbytes = first.message.nbytes
        result.block[i].address = first.message.address + i * distance
    return result


cdef Blocks parse_vector(object spec, bint writable, int ranks):
    """Counts and displacements, both in elements, for each rank.

    Without counts the elements are dealt out evenly, without displacements the blocks lie one
    behind the other; a single displacement is a stride.
    """
    cdef Blocks result = Blocks(ranks)
    cdef Specification whole
    cdef Py_ssize_t size = 0, extent = 0
    cdef int i
    buffer, counts, displacements, kind = split(spec, True)
    whole = locate(buffer, kind, writable)
    if counts is None:
        quotient, rest = divmod(entries(whole, whole.length), ranks)
        counts = [quotient + (i < rest) for i in range(ranks)]
    elif hasattr(counts, "__index__") and not hasattr(counts, "__len__"):
        counts = [index(counts)] * ranks
    else:
        counts = numbers(counts, ranks)
    if displacements is None:
        displacements = running_sums(counts)
    elif hasattr(displacements, "__index__") and not hasattr(displacements, "__len__"):
        displacements = [i * index(displacements) for i in range(ranks)]
    else:
        displacements = numbers(displacements, ranks)
    if min(counts) < 0:
        raise MPI.Exception(MPI.ERR_COUNT)
    result.owner = whole
    result.datatype = whole.datatype
    if whole.datatype != MPI.DATATYPE_NULL:
        size = whole.datatype.Get_size()
        extent = extent_or_0(whole.datatype)
        result.contiguous = is_contiguous(whole.datatype)
    for i in range(ranks):
        result.block[i].address = whole.base + <Py_ssize_t> displacements[i] * extent
        result.block[i].nbytes = <size_t> counts[i] * <size_t> size
        result.total += result.block[i].nbytes
    return result


cdef Blocks parse_vector_w(object spec, bint writable, int ranks):
    """A count, a displacement in bytes and a datatype for each rank."""
    cdef Blocks result = Blocks(ranks)
    cdef Specification whole
    cdef int i
    counts = displacements = None
    if len(spec) == 2:
        buffer, types = spec
    elif len(spec) == 3:
        buffer, (counts, displacements), types = spec
    elif len(spec) == 4:
        buffer, counts, displacements, types = spec
    else:
        raise ValueError("message: expecting 2 to 4 items")
    if buffer is None or buffer is MPI.BOTTOM:
        if counts is None:
            raise ValueError("message: BOTTOM requires counts")
        if displacements is None:
            raise ValueError("message: BOTTOM requires displs")
    whole = locate(buffer, MPI.BYTE, writable)
    if counts is None and displacements is None:
        counts, displacements = [1] * ranks, [0] * ranks
    else:
        counts, displacements = numbers(counts, ranks), numbers(displacements, ranks)
    if len(types) != ranks:
        raise ValueError(f"expecting {ranks} items, got {len(types)}")
    for datatype in types:
        if not isinstance(datatype, MPI.Datatype):
            raise TypeError(f"Cannot convert {type(datatype).__name__} to mpi4py.MPI.Datatype")
    if min(counts) < 0:
        raise MPI.Exception(MPI.ERR_COUNT)
    result.owner = whole
    result.datatypes = list(types)
    result.contiguous = True
    for i in range(ranks):
        datatype = result.datatypes[i]
        result.contiguous = result.contiguous and is_contiguous(datatype)
        result.block[i].address = whole.base + <Py_ssize_t> displacements[i]
        if counts[i] != 0 and datatype != MPI.DATATYPE_NULL:
            result.block[i].nbytes = <size_t> counts[i] * <size_t> datatype.Get_size()
        result.total += result.block[i].nbytes
    return result


cdef Py_ssize_t extent_or_0(datatype) except? -1:
    return 0 if datatype == MPI.DATATYPE_NULL else datatype.Get_extent()[1]


cdef list numbers(sequence, int ranks):
    result = [index(value) for value in sequence]
    if len(result) != ranks:
        raise ValueError(f"expecting {ranks} items, got {len(result)}")
    return result


cdef list running_sums(counts):
    result, total = [], 0
    for count in counts:
        result.append(total)
        total += count
    return result


# ---------------------------------------------------------------------- per collective

cdef inline bint in_place(argument):
    return argument is None or argument is IN_PLACE


cdef Sides gather_sides(blocks_parser parse_side, sendbuf, recvbuf, int root, int rank, int size):
    cdef Sides sides = Sides()
    if rank == root:
        sides.recv_blocks = parse_side(recvbuf, True, size)
        sides.send_in_place = in_place(sendbuf)
    if not sides.send_in_place:
        sides.send_message = parse_moved(sendbuf, False)
    return sides


cdef Sides scatter_sides(blocks_parser parse_side, sendbuf, recvbuf, int root, int rank, int size):
    cdef Sides sides = Sides()
    if rank == root:
        sides.send_blocks = parse_side(sendbuf, False, size)
        sides.recv_in_place = in_place(recvbuf)
    if not sides.recv_in_place:
        sides.recv_message = parse_moved(recvbuf, True)
    return sides


cdef Sides allgather_sides(blocks_parser parse_side, sendbuf, recvbuf, int size):
    cdef Sides sides = Sides()
    sides.recv_blocks = parse_side(recvbuf, True, size)
    sides.send_in_place = in_place(sendbuf)
    if not sides.send_in_place:
        sides.send_message = parse_moved(sendbuf, False)
    return sides


cdef Sides alltoall_sides(blocks_parser parse_side, sendbuf, recvbuf, int size):
    cdef Sides sides = Sides()
    sides.recv_blocks = parse_side(recvbuf, True, size)
    sides.send_in_place = in_place(sendbuf)
    if not sides.send_in_place:
        sides.send_blocks = parse_side(sendbuf, False, size)
    return sides


cdef Sides parse_gather(sendbuf, recvbuf, int root, int rank, int size):
    return gather_sides(parse_blocks, sendbuf, recvbuf, root, rank, size)


cdef Sides parse_gatherv(sendbuf, recvbuf, int root, int rank, int size):
    return gather_sides(parse_vector, sendbuf, recvbuf, root, rank, size)


cdef Sides parse_scatter(sendbuf, recvbuf, int root, int rank, int size):
    return scatter_sides(parse_blocks, sendbuf, recvbuf, root, rank, size)


cdef Sides parse_scatterv(sendbuf, recvbuf, int root, int rank, int size):
    return scatter_sides(parse_vector, sendbuf, recvbuf, root, rank, size)


cdef Sides parse_allgather(sendbuf, recvbuf, int rank, int size):
    return allgather_sides(parse_blocks, sendbuf, recvbuf, size)


cdef Sides parse_allgatherv(sendbuf, recvbuf, int rank, int size):
    return allgather_sides(parse_vector, sendbuf, recvbuf, size)


cdef Sides parse_alltoall(sendbuf, recvbuf, int rank, int size):
    return alltoall_sides(parse_blocks, sendbuf, recvbuf, size)


cdef Sides parse_alltoallv(sendbuf, recvbuf, int rank, int size):
    return alltoall_sides(parse_vector, sendbuf, recvbuf, size)


cdef Sides parse_alltoallw(sendbuf, recvbuf, int rank, int size):
    return alltoall_sides(parse_vector_w, sendbuf, recvbuf, size)
