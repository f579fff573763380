from smcoll.coll.pipeline cimport Functions

cdef enum:
    MAX_ALGORITHMS = 16        # of one collective


cdef const Functions *functions_of(int collective, int algorithm) noexcept nogil
