from smcoll.coll.pipeline cimport Call, Section

cdef enum:
    # From STEP_IN on.
    STEP_FOLDED = 2            # own half of a folded pair is reduced
    STEP_READY = 3             # + s: ready for step s of the power-of-two part


# Largest power of two not above `ranks`, and its logarithm.
cdef inline int power_of_two(int ranks) noexcept nogil:
    cdef int n = 1
    while 2 * n <= ranks:
        n *= 2
    return n


cdef inline int steps_of(int ranks) noexcept nogil:
    cdef int n = 1, steps = 0
    while 2 * n <= ranks:
        n *= 2
        steps += 1
    return steps


cdef int pair_off(Call *call, Section *section, size_t result) noexcept nogil
cdef int halve(Call *call, Section *section) noexcept nogil
cdef int gather_slices(Call *call, Section *section) noexcept nogil
