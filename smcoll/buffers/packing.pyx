"""A buffer argument's elements as bytes and back, like MPI_Pack and MPI_Unpack.

Not used by collectives, which pack straight into shared memory: for tests of the convertor.
"""

from smcoll.buffers.buffers cimport Specification, parse
from smcoll.datatype.convertor cimport Convertor, pack_next, unpack_next


def pack(buffer, count, datatype):
    """``count`` elements at the start of ``buffer`` as bytes, like MPI_Pack."""
    cdef Specification spec = parse([buffer, count, datatype], False)
    cdef Convertor convertor
    cdef bytearray packed = bytearray(spec.message.nbytes)
    spec.lay_out()
    spec.place(&convertor)
    pack_next(&convertor, packed, spec.message.nbytes)
    return bytes(packed)


def unpack(data, buffer, count, datatype, size_t chunk=1 << 30):
    """Lay ``data`` out in ``buffer`` like MPI_Unpack, ``chunk`` bytes at a time."""
    cdef Specification spec = parse([buffer, count, datatype], True)
    cdef Convertor convertor
    cdef const unsigned char[::1] view = bytes(data) + b"\0"
    cdef size_t at = 0, piece
    spec.lay_out()
    spec.place(&convertor)
    while at < spec.message.nbytes:
        piece = min(chunk, spec.message.nbytes - at)
        unpack_next(&convertor, <const char *> &view[at], piece)
        at += piece
