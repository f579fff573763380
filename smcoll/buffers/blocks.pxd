from smcoll.buffers.buffers cimport Message, Specification
from smcoll.buffers.messages cimport Messages
from smcoll.coll.streams cimport Transfer
from smcoll.datatype.convertor cimport Convertor, Runs

# What goes to one rank, or comes from it.
cdef struct Block:
    char *address
    size_t nbytes              # bytes of the type signature


# A buffer argument that has a block for each rank.
cdef class Blocks:
    cdef Block *block
    cdef readonly int ranks
    cdef readonly object datatype   # of all blocks; None for a plain array, and where
    cdef readonly list datatypes    # each block has its own
    cdef readonly bint contiguous   # no datatype has holes
    cdef readonly size_t total      # bytes of all blocks
    cdef object owner               # keeps the memory alive
    cdef char *base                 # where the buffer begins
    cdef Py_ssize_t *counts         # as given, one a rank; NULL for equal blocks
    cdef Py_ssize_t *displacements
    cdef list typemaps              # once laid out, one for each rank; None: no type has holes

    cdef lay_out(self)
    cdef const Runs *runs(self, int rank)
    cdef void place(self, Convertor *convertor, int rank)
    cdef void send(self, Messages messages, int rank)
    cdef Transfer *receive(self, Messages messages, int rank)


# The parsed arguments of one call at one rank: a side with a block for each rank (in an Alltoall
# the one that receives), None where this rank has none; the other side, None where in place.
cdef class Sides:
    cdef readonly Blocks blocks
    cdef readonly Specification message  # the other side: one buffer,
    cdef readonly Blocks sent            # or blocks, too, in an Alltoall
    cdef readonly bint in_place

    cdef lay_out(self)


ctypedef Blocks (*blocks_parser)(object, bint, int)

cdef Blocks new_blocks(int ranks, bint vector)
cdef int check_message(Specification spec) except -1
cdef int read_integers(object sequence, int ranks, Py_ssize_t *integers) except -1
cdef bint plain_blocks(object spec, bint writable, int ranks, Message *block) noexcept
cdef Blocks parse_blocks(object spec, bint writable, int ranks)
cdef Blocks parse_vector(object spec, bint writable, int ranks)
cdef Blocks parse_vector_w(object spec, bint writable, int ranks)
cdef Sides rooted_sides(blocks_parser parse_side, blocks, message, bint scatters, int root,
                        int rank, int size)
cdef Sides allgather_sides(blocks_parser parse_side, sendbuf, recvbuf, int rank, int size)
cdef Sides alltoall_sides(blocks_parser parse_side, sendbuf, recvbuf, int size)
