"""Derived datatypes, flattened once each to runs of bytes."""

import numpy
from mpi4py import MPI

from libc.stdint cimport int64_t

from smcoll.datatype.typemap import flatten

# The object itself: install() may rebind the name.
cdef object _one_rank = MPI.COMM_SELF


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


cdef Typemap typemap_of(datatype, bint is_used=True):
    """The runs of a datatype; None where its elements are contiguous bytes.

    Raises what MPI raises for a null or uncommitted datatype. ``is_used``: of any elements; some
    MPIs don't look at it where there are none.
    """
    global _keyval
    if datatype == MPI.DATATYPE_NULL:
        refuse(datatype, is_used)
        return None
    if datatype.is_predefined:
        key = datatype.handle
        if key not in _predefined:
            _predefined[key] = made(datatype)
        return _predefined[key]
    if _keyval == MPI.KEYVAL_INVALID:
        _keyval = MPI.Datatype.Create_keyval()
    kept = datatype.Get_attr(_keyval)
    if kept is None:
        refuse(datatype, is_used)
        if not is_used:
            return None
        kept = (made(datatype),)
        datatype.Set_attr(_keyval, kept)
    return kept[0]


cdef Typemap made(datatype):
    cdef Typemap typemap = Typemap(datatype)
    return None if typemap.contiguous() else typemap


cdef refuse(datatype, int count):
    # What MPI refuses it refuses on a communicator of one rank, too, where nothing is communicated.
    MPI.Intracomm.Bcast(_one_rank, [bytearray(1), count, datatype], 0)
