"""Buffer arguments with a block for each rank: equal ones, and those of the v- and w-variants.

``buf``, ``(buf, counts)``, ``(buf, (counts, displs))``, ``(buf, type)``, ``(buf, counts, type)``,
``(buf, (counts, displs), type)``, ``(buf, counts, displs, type)``; for Alltoallw ``(buf, types)``,
``(buf, (counts, displs), types)``, ``(buf, counts, displs, types)`` with displacements in bytes.
Accepted and refused as mpi4py 4.1 does, in its order: the receive side first, except in Scatter.
What mpi4py leaves to MPI is checked when both sides are parsed.
"""

cimport cython
from mpi4py import MPI

from libc.stdlib cimport calloc, free

from smcoll.base.kernels cimport element_size
from smcoll.buffers.buffers cimport (
    BOTTOM, IN_PLACE_ADDRESS, Datatype, Message, Specification, TypeLayout, code_of_type, entries,
    in_place, layout_of_type, locate, parse, parse_moved, plain_array, split,
)
from smcoll.datatype.convertor cimport start_convertor
from smcoll.datatype.datatypes cimport Typemap, typemap_of

cdef extern from "Python.h":
    object PyNumber_Index(object)

cdef int PROC_NULL = MPI.PROC_NULL
cdef object BYTE = MPI.BYTE


@cython.freelist(8)
cdef class Blocks:
    """One block for each rank."""

    def __dealloc__(self):
        free(self.block)
        free(self.counts)

    cdef lay_out(self):
        """As ``Specification.lay_out``, for each rank's block."""
        if not self.contiguous:
            self.typemaps = [
                typemap_of(datatype, self.counts == NULL or self.counts[rank] > 0)
                for rank, datatype in enumerate(self.datatypes or [self.datatype] * self.ranks)]

    cdef const Runs *runs(self, int rank):
        cdef Typemap typemap = None
        if self.typemaps is not None:
            typemap = self.typemaps[rank]
        return NULL if typemap is None else &typemap.runs

    cdef void place(self, Convertor *convertor, int rank):
        start_convertor(convertor, self.block[rank].address, self.runs(rank),
                        self.block[rank].nbytes)

    cdef void send(self, Messages messages, int rank):
        """This rank's block for another one."""
        messages.send(rank, self.block[rank].address, self.block[rank].nbytes, self.runs(rank))

    cdef Transfer *receive(self, Messages messages, int rank):
        """The block from another one."""
        return messages.receive(rank, self.block[rank].address, self.block[rank].nbytes,
                                self.runs(rank))


@cython.freelist(4)
cdef class Sides:
    """The parsed arguments of one call: a side with a block for each rank, and the other side."""

    cdef lay_out(self):
        if self.blocks is not None:
            self.blocks.lay_out()
        if self.message is not None:
            self.message.lay_out()
        if self.sent is not None:
            self.sent.lay_out()


cdef Blocks new_blocks(int ranks, bint vector):
    cdef Blocks result = Blocks.__new__(Blocks)
    result.ranks = ranks
    result.block = <Block *> calloc(ranks, sizeof(Block))
    if result.block == NULL:
        raise MemoryError
    if vector:
        result.counts = <Py_ssize_t *> calloc(2 * ranks, sizeof(Py_ssize_t))
        if result.counts == NULL:
            raise MemoryError
        result.displacements = result.counts + ranks
    return result


cdef bint plain_blocks(object spec, bint writable, int ranks, Message *block) noexcept:
    """Whether a buffer is a plain array of equal blocks; ``block`` is the first of them."""
    if not plain_array(spec, writable, block) or block.count % <size_t> ranks != 0:
        return False
    block.count //= <size_t> ranks
    block.nbytes //= <size_t> ranks
    return True


cdef Blocks parse_blocks(object spec, bint writable, int ranks):
    """Equal blocks, one behind the other."""
    cdef Blocks result = new_blocks(ranks, False)
    cdef Specification first
    cdef Message plain
    cdef Py_ssize_t distance
    cdef size_t nbytes
    cdef int i
    if plain_blocks(spec, writable, ranks, &plain):
        result.contiguous = True
        result.owner = spec
        result.base = plain.address
        distance = nbytes = plain.nbytes
    else:
        first = parse(spec, writable, ranks)
        result.owner = first
        result.datatype = first.datatype
        result.contiguous = first.contiguous
        result.base = first.message.address
        nbytes = first.message.nbytes
        distance = first.count * layout_of_type(first.datatype).extent
    result.total = nbytes * <size_t> ranks
    for i in range(ranks):
        result.block[i].nbytes = nbytes
        result.block[i].address = result.base + i * distance
    return result


cdef Blocks parse_vector(object spec, bint writable, int ranks):
    """Counts and displacements, both in elements, for each rank.

    Without counts the elements are dealt out evenly, without displacements the blocks lie one
    behind the other; a single displacement is a stride.
    """
    cdef Blocks result = new_blocks(ranks, True)
    cdef Specification whole = None
    cdef TypeLayout layout
    cdef Message plain
    cdef Py_ssize_t count, total = 0
    cdef int i, code = -1
    buffer, counts, displacements, kind = split(spec, True)
    if counts is not None and isinstance(kind, Datatype):
        code = code_of_type(kind)
    if (kind is None or code >= 0) and plain_array(buffer, writable, &plain):
        layout.size = layout.extent = element_size(plain.element_type if kind is None else code)
        layout.contiguous = True
        result.owner = buffer
        result.base = plain.address
    else:
        whole = locate(buffer, kind, writable)
        layout = layout_of_type(whole.datatype)
        result.owner = whole
        result.datatype = whole.datatype
        result.base = whole.base
    if counts is None:
        count = plain.count if whole is None else entries(whole, whole.length)
        for i in range(ranks):
            result.counts[i] = count // ranks + (i < count % ranks)
    elif is_integer(counts):
        count = PyNumber_Index(counts)
        for i in range(ranks):
            result.counts[i] = count
    else:
        read_integers(counts, ranks, result.counts)
    if displacements is None:
        for i in range(ranks):
            result.displacements[i] = total
            total += result.counts[i]
    elif is_integer(displacements):
        count = PyNumber_Index(displacements)
        for i in range(ranks):
            result.displacements[i] = i * count
    else:
        read_integers(displacements, ranks, result.displacements)
    result.contiguous = layout.contiguous
    for i in range(ranks):
        result.block[i].address = result.base + result.displacements[i] * layout.extent
        result.block[i].nbytes = <size_t> result.counts[i] * <size_t> layout.size
        result.total += result.block[i].nbytes
    return result


cdef Blocks parse_vector_w(object spec, bint writable, int ranks):
    """A count, a displacement in bytes and a datatype for each rank."""
    cdef Blocks result = new_blocks(ranks, True)
    cdef Specification whole
    cdef TypeLayout layout
    cdef Message plain
    cdef int i
    counts = displacements = known = None
    if len(spec) == 2:
        buffer, types = spec
    elif len(spec) == 3:
        buffer, (counts, displacements), types = spec
    elif len(spec) == 4:
        buffer, counts, displacements, types = spec
    else:
        raise ValueError("message: expecting 2 to 4 items")
    if buffer is None or buffer is BOTTOM:
        if counts is None:
            raise ValueError("message: BOTTOM requires counts")
        if displacements is None:
            raise ValueError("message: BOTTOM requires displs")
    if plain_array(buffer, writable, &plain):
        result.owner = buffer
        result.base = plain.address
    else:
        whole = locate(buffer, BYTE, writable)
        result.owner = whole
        result.base = whole.base
    if counts is None and displacements is None:
        for i in range(ranks):
            result.counts[i] = 1
    else:
        read_integers(counts, ranks, result.counts)
        read_integers(displacements, ranks, result.displacements)
    if len(types) != ranks:
        raise ValueError(f"expecting {ranks} items, got {len(types)}")
    result.datatypes = []
    result.contiguous = True
    for i in range(ranks):
        datatype = types[i]
        if i == 0 or datatype is not known:
            if not isinstance(datatype, Datatype):
                raise TypeError(f"Cannot convert {type(datatype).__name__} to mpi4py.MPI.Datatype")
            layout = layout_of_type(datatype)
            known = datatype
        result.datatypes.append(datatype)
        result.contiguous = result.contiguous and layout.contiguous
        result.block[i].address = result.base + result.displacements[i]
        result.block[i].nbytes = <size_t> result.counts[i] * <size_t> layout.size
        result.total += result.block[i].nbytes
    return result


cdef bint is_integer(value):
    """Whether one number is given for all ranks: an array of no dimensions is one, too."""
    if type(value) is list or type(value) is tuple:
        return False
    if not hasattr(value, "__index__"):
        return False
    try:
        len(value)
    except Exception:
        pass
    else:
        return False
    try:
        PyNumber_Index(value)
    except Exception:
        return False
    return True


cdef int read_integers(object sequence, int ranks, Py_ssize_t *integers) except -1:
    cdef Py_ssize_t i, value, length = len(sequence)
    if type(sequence) is list and length == ranks:
        for i in range(length):
            integers[i] = PyNumber_Index((<list> sequence)[i])
        return 0
    # All are looked at first: one that is no integer is told before a wrong number of them.
    for i in range(length):
        value = PyNumber_Index(sequence[i])
        if i < ranks:
            integers[i] = value
    if length != ranks:
        raise ValueError(f"expecting {ranks} items, got {length}")
    return 0


# ---------------------------------------------------------------------- what MPI checks

cdef int check_blocks(Blocks blocks) except -1:
    """What mpi4py hands on and MPI refuses; without this we would read or write anywhere."""
    cdef int i
    if blocks.base == IN_PLACE_ADDRESS:
        refuse_in_place()
    if blocks.counts == NULL:
        return 0
    for i in range(blocks.ranks):
        if blocks.counts[i] < 0:
            raise MPI.Exception(MPI.ERR_COUNT)
        if blocks.block[i].address == NULL and blocks.contiguous and blocks.block[i].nbytes:
            raise MPI.Exception(MPI.ERR_BUFFER)
    return 0


cdef int check_message(Specification spec) except -1:
    """The same for a single message."""
    if spec.message.address == IN_PLACE_ADDRESS:
        refuse_in_place()
    if spec.message.address == NULL and spec.contiguous and spec.message.nbytes:
        raise MPI.Exception(MPI.ERR_BUFFER)
    return 0


cdef int refuse_in_place() except -1:
    raise MPI.Exception(MPI.ERR_ARG if MPI.get_vendor()[0] == "Open MPI" else MPI.ERR_BUFFER)


# ---------------------------------------------------------------------- per collective

cdef Specification message_or_in_place(argument, bint writable):
    """None: in place."""
    cdef Specification spec
    if in_place(argument):
        return None
    spec = parse_moved(argument, writable)
    return None if spec.message.address == IN_PLACE_ADDRESS else spec


cdef Sides rooted_sides(blocks_parser parse_side, blocks, message, bint scatters, int root,
                        int rank, int size):
    """Of a Gather, or a Scatter: the root has a block for each rank, every rank a message."""
    cdef Sides sides = Sides.__new__(Sides)
    if rank == root:
        sides.blocks = parse_side(blocks, not scatters, size)
        sides.message = message_or_in_place(message, scatters)
        sides.in_place = sides.message is None
        check_blocks(sides.blocks)
    elif root != PROC_NULL:
        sides.message = parse_moved(message, scatters)
        check_message(sides.message)
    return sides


cdef Sides allgather_sides(blocks_parser parse_side, sendbuf, recvbuf, int rank, int size):
    """Every rank has what the root of a Gather has."""
    return rooted_sides(parse_side, recvbuf, sendbuf, False, rank, rank, size)


cdef Sides alltoall_sides(blocks_parser parse_side, sendbuf, recvbuf, int size):
    cdef Sides sides = Sides.__new__(Sides)
    sides.blocks = parse_side(recvbuf, True, size)
    if not in_place(sendbuf):
        sides.sent = parse_side(sendbuf, False, size)
        if sides.sent.base == IN_PLACE_ADDRESS:
            sides.sent = None
    sides.in_place = sides.sent is None
    check_blocks(sides.blocks)
    if not sides.in_place:
        check_blocks(sides.sent)
    return sides


# ---------------------------------------------------------------------- for tests

def parse_sides(str method, sendbuf, recvbuf, int rank=0, int size=1, int root=0):
    """What ``method`` ("Gather" to "Alltoallw") of such a rank makes of its arguments. For tests.

    ``{"send": side, "recv": side}``; a side is a list of (address, bytes): one for a message, one
    for each rank for blocks; "in place", or None for what this rank does not have.
    """
    cdef blocks_parser parse_side = parse_blocks
    cdef Sides sides
    if method[-1] in "vw":
        parse_side = parse_vector if method[-1] == "v" else parse_vector_w
        method = method[:-1]
    if method == "Gather":
        sides = rooted_sides(parse_side, recvbuf, sendbuf, False, root, rank, size)
    elif method == "Scatter":
        sides = rooted_sides(parse_side, sendbuf, recvbuf, True, root, rank, size)
    elif method == "Allgather":
        sides = allgather_sides(parse_side, sendbuf, recvbuf, rank, size)
    elif method == "Alltoall":
        sides = alltoall_sides(parse_side, sendbuf, recvbuf, size)
    else:
        raise ValueError(f"{method} has no blocks")
    blocks = describe_blocks(sides.blocks)
    other = "in place"
    if not sides.in_place:
        other = describe_blocks(sides.sent)
        if sides.message is not None:
            other = [(<size_t> sides.message.message.address, sides.message.message.nbytes)]
    if method == "Scatter":
        return {"send": blocks, "recv": other}
    return {"send": other, "recv": blocks}


cdef describe_blocks(Blocks blocks):
    if blocks is None:
        return None
    return [(<size_t> blocks.block[i].address, blocks.block[i].nbytes)
            for i in range(blocks.ranks)]
