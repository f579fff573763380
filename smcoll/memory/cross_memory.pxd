from libc.stdint cimport uint64_t

cdef enum:
    TRIAL_BYTES = 16


# Where another process is, and what proves that it is still the one of the set-up.
cdef struct OtherProcess:
    int process
    uint64_t trial             # address there of the bytes below
    char bytes[TRIAL_BYTES]


cdef bint read_memory(const OtherProcess *other, uint64_t address, char *target,
                      size_t nbytes) noexcept nogil
cdef fill_process(OtherProcess *other, record)
