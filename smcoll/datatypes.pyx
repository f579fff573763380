"""Datatypes with holes: flattened once to runs of bytes, walked a chunk at a time.

The layout of a message is its rank's own business (DESIGN rule 3), so its bytes travel in the order
of the type map, as MPI_Pack would lay them out; unlike MPI_Pack a cursor can stop anywhere.
"""

import numpy
from mpi4py import MPI

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from smcoll.buffers cimport Specification, parse
from smcoll.typemap import flatten

cdef enum:
    COPIED_AT_ONCE = 4096

# The object itself: install() may rebind the name.
cdef object _one_rank = MPI.COMM_SELF


cdef void start(Cursor *cursor, char *address, const Runs *runs, size_t nbytes) noexcept nogil:
    """At the beginning of a message of ``nbytes`` bytes (holes not counted)."""
    cursor.address = address
    cursor.runs = runs
    cursor.nbytes = nbytes
    cursor.done = cursor.element = cursor.run = cursor.within = 0


cdef inline void copy_run(char *out, const char *source, size_t nbytes) noexcept nogil:
    # Of a size that the compiler knows for the commonest element types.
    if nbytes == 8:
        memcpy(out, source, 8)
    elif nbytes == 4:
        memcpy(out, source, 4)
    elif nbytes == 16:
        memcpy(out, source, 16)
    else:
        memcpy(out, source, nbytes)


cdef inline size_t run_at(const Cursor *cursor, size_t nbytes, char **place) noexcept nogil:
    """Where the cursor stands, and how many of ``nbytes`` bytes lie there in one piece."""
    cdef const Runs *runs = cursor.runs
    place[0] = (cursor.address + <int64_t> cursor.element * runs.extent
                + runs.offsets[cursor.run] + cursor.within)
    return min(nbytes, runs.lengths[cursor.run] - cursor.within)


cdef inline void step(Cursor *cursor, size_t nbytes) noexcept nogil:
    cursor.within += nbytes
    if cursor.within == cursor.runs.lengths[cursor.run]:
        cursor.within = 0
        cursor.run += 1
        if cursor.run == cursor.runs.count:
            cursor.run = 0
            cursor.element += 1


cdef void pack_next(Cursor *cursor, char *out, size_t nbytes) noexcept nogil:
    """The next ``nbytes`` bytes of the message, to contiguous memory."""
    cdef size_t piece
    cdef char *place
    if cursor.runs == NULL:
        memcpy(out, cursor.address + cursor.done, nbytes)
        cursor.done += nbytes
        return
    cursor.done += nbytes
    while nbytes > 0:
        piece = run_at(cursor, nbytes, &place)
        copy_run(out, place, piece)
        step(cursor, piece)
        out += piece
        nbytes -= piece


cdef void unpack_next(Cursor *cursor, const char *data, size_t nbytes) noexcept nogil:
    """The next ``nbytes`` bytes of the message, from contiguous memory."""
    cdef size_t piece
    cdef char *place
    if cursor.runs == NULL:
        memcpy(cursor.address + cursor.done, data, nbytes)
        cursor.done += nbytes
        return
    cursor.done += nbytes
    while nbytes > 0:
        piece = run_at(cursor, nbytes, &place)
        copy_run(place, data, piece)
        step(cursor, piece)
        data += piece
        nbytes -= piece


cdef void copy_message(Cursor *source, Cursor *target, size_t nbytes) noexcept nogil:
    """The next ``nbytes`` bytes from one layout to another."""
    cdef char between[COPIED_AT_ONCE]
    cdef size_t piece
    if target.runs == NULL:
        pack_next(source, target.address + target.done, nbytes)
        target.done += nbytes
        return
    while nbytes > 0:
        piece = nbytes
        if source.runs == NULL:
            unpack_next(target, source.address + source.done, piece)
            source.done += piece
        else:
            piece = min(nbytes, <size_t> COPIED_AT_ONCE)
            pack_next(source, between, piece)
            unpack_next(target, between, piece)
        nbytes -= piece


cdef class Typemap:
    """A datatype's runs and the memory that they are in."""

    def __cinit__(self, datatype):
        cdef const int64_t[::1] offsets
        cdef const size_t[::1] lengths
        self.offsets, found = flatten(datatype)
        self.lengths = found.astype(numpy.uintp)
        self.runs.count = len(self.offsets)
        self.runs.size = datatype.Get_size()
        self.runs.extent = datatype.Get_extent()[1]
        if self.runs.count > 0:
            offsets, lengths = self.offsets, self.lengths
            self.runs.offsets = &offsets[0]
            self.runs.lengths = &lengths[0]

    cdef bint contiguous(self):
        return self.runs.size == 0 or (
            self.runs.count == 1 and self.runs.offsets[0] == 0
            and self.runs.extent == <int64_t> self.runs.size)


# Of predefined types by handle; of others as an attribute, which ends with the type: a handle's
# value may come to stand for another one.
cdef dict _predefined = {}
cdef int _keyval = MPI.KEYVAL_INVALID


cdef Typemap typemap_of(datatype):
    """The runs of a datatype; None where its elements are contiguous bytes.

    Raises what MPI raises for a null or uncommitted datatype.
    """
    global _keyval
    if datatype == MPI.DATATYPE_NULL:
        refuse(datatype)
    if datatype.is_predefined:
        key = datatype.handle
        if key not in _predefined:
            _predefined[key] = made(datatype)
        return _predefined[key]
    if _keyval == MPI.KEYVAL_INVALID:
        _keyval = MPI.Datatype.Create_keyval()
    kept = datatype.Get_attr(_keyval)
    if kept is None:
        refuse(datatype)
        kept = (made(datatype),)
        datatype.Set_attr(_keyval, kept)
    return kept[0]


cdef Typemap made(datatype):
    cdef Typemap typemap = Typemap(datatype)
    return None if typemap.contiguous() else typemap


cdef refuse(datatype):
    # What MPI refuses it refuses on a communicator of one rank, too, where nothing is communicated.
    MPI.Intracomm.Bcast(_one_rank, [bytearray(1), 1, datatype], 0)


def pack(buffer, count, datatype):
    """``count`` elements at the start of ``buffer`` as bytes, like MPI_Pack. For tests."""
    cdef Specification spec = parse([buffer, count, datatype], False)
    cdef Typemap typemap = typemap_of(datatype)
    cdef Cursor cursor
    cdef bytearray packed = bytearray(spec.message.nbytes)
    start(&cursor, spec.message.address, NULL if typemap is None else &typemap.runs,
          spec.message.nbytes)
    pack_next(&cursor, packed, spec.message.nbytes)
    return bytes(packed)


def unpack(data, buffer, count, datatype, size_t chunk=1 << 30):
    """Lay ``data`` out in ``buffer`` like MPI_Unpack, ``chunk`` bytes at a time. For tests."""
    cdef Specification spec = parse([buffer, count, datatype], True)
    cdef Typemap typemap = typemap_of(datatype)
    cdef Cursor cursor
    cdef const unsigned char[::1] view = bytes(data) + b"\0"
    cdef size_t at = 0, piece
    start(&cursor, spec.message.address, NULL if typemap is None else &typemap.runs,
          spec.message.nbytes)
    while at < spec.message.nbytes:
        piece = min(chunk, spec.message.nbytes - at)
        unpack_next(&cursor, <const char *> &view[at], piece)
        at += piece
