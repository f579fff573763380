"""Copy and reduction loops. The SIMD code itself is compiled into kernels.pyx only."""

from libc.string cimport memcpy

cdef extern from "reduction_types.h" nogil:
    ctypedef void (*reduction_kernel)(void *out, const void *const *sources,
                                      int count_of_sources, size_t elements) noexcept nogil
    size_t element_size(int element_type) noexcept

    enum:
        OP_SUM, OP_PROD, OP_MAX, OP_MIN, OP_LAND, OP_BAND, OP_LOR, OP_BOR, OP_LXOR, OP_BXOR, OPS

    enum:
        TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64
        TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64
        TYPE_BOOL, TYPE_FLOAT, TYPE_DOUBLE, TYPE_LONG_DOUBLE
        TYPE_COMPLEX_FLOAT, TYPE_COMPLEX_DOUBLE, TYPES

    enum:
        INSTRUCTIONS_BASELINE, INSTRUCTIONS_AVX2, INSTRUCTIONS_AVX512, INSTRUCTION_SETS


cdef extern from "copy_kinds.h" nogil:
    enum:
        STORES_ORDINARY, STORES_STRING, STORES_NON_TEMPORAL, STORES_KINDS


cdef enum:
    SHORT_COPY = 256           # up to so many bytes the C library's memcpy is as good as any
    # Bytes worth reading in four places by turns: a page in each. (Measured: 32 KiB and more.
    # Behind string stores on AMD's family 26 only: a tenth faster with far cores, even with near.)
    INTERLEAVED_FROM = 16384
    # Bytes from which a string copy, where it is fast at any alignment, gains more by not fetching
    # what it overwrites than it takes to begin. (Measured on AMD's family 26: 8 to 32 KiB.)
    STRING_FROM = 32768


# With stores of that kind; ordinary ones where this processor has no such (has_stores).
cdef void copy_long(int stores, void *out, const void *source, size_t nbytes) noexcept nogil
# The kind of stores of long copies into an array that no other rank reads.
cdef int long_copy_stores
# Into an array that no other rank reads.
cdef void copy_own(void *out, const void *source, size_t nbytes) noexcept nogil
# From lines that lie in memory, or in a cache far away; ordinary stores.
cdef void copy_interleaved(void *out, const void *source, size_t nbytes) noexcept nogil
cdef bint has_stores(int stores) noexcept nogil


# A copy between arrays that do not overlap, at any alignment. Data paths call this or copy_stored,
# never memcpy, whose speed depends on the processor and the C library (copy_kernels.h).
cdef inline void copy_bytes(void *out, const void *source, size_t nbytes) noexcept nogil:
    if nbytes <= SHORT_COPY:
        memcpy(out, source, nbytes)
    else:
        copy_own(out, source, nbytes)


cdef inline void copy_stored(int stores, void *out, const void *source,
                             size_t nbytes) noexcept nogil:
    if nbytes <= SHORT_COPY:
        memcpy(out, source, nbytes)
    else:
        copy_long(stores, out, source, nbytes)


# To where the user finds the result: around the caches where it is too large for them. `written`:
# the kind of stores that the source was written with, if that is known.
cdef inline void copy_result(void *out, const void *source, size_t nbytes, bint streaming,
                             int written=STORES_ORDINARY) noexcept nogil:
    if streaming:
        copy_stored(STORES_NON_TEMPORAL, out, source, nbytes)
    elif nbytes >= INTERLEAVED_FROM and (written == STORES_NON_TEMPORAL
                                         or written == STORES_STRING == long_copy_stores):
        copy_interleaved(out, source, nbytes)
    else:
        copy_bytes(out, source, nbytes)


# NULL where MPI has no such reduction. `instruction_set`: not above best_instruction_set().
cdef reduction_kernel reduction_kernel_for(int op, int element_type,
                                           int instruction_set) noexcept nogil
cdef int best_instruction_set() noexcept nogil


# Reduces by calling something else, in the order of the sources. Takes the GIL if it needs it.
ctypedef void (*reduction_function)(void *context, void *out, const void *const *sources,
                                    int count_of_sources, size_t elements) noexcept nogil


# An operation on elements of one type, as the algorithms see it.
cdef struct Operation:
    reduction_kernel kernel    # NULL: there is none, `function` does it
    reduction_function function
    void *context


# `out` = sources[0] op sources[1] op ... in that order; `out` may be one of them.
cdef inline void reduce_operands(const Operation *operation, void *out, const void **sources,
                                 int count, size_t elements) noexcept nogil:
    if operation.kernel != NULL:
        operation.kernel(out, sources, count, elements)
    elif elements > 0:
        operation.function(operation.context, out, sources, count, elements)


cdef enum:
    STRIP = 8192               # bytes reduced before they are copied, from the first-level cache


# Bytes of whole elements; all at once where it is a function's to do: that may be a call into
# Python.
cdef inline size_t strip_bytes(const Operation *operation, size_t nbytes,
                               size_t element_size) noexcept nogil:
    return nbytes if operation.kernel == NULL else STRIP - STRIP % element_size


# Reduces to `out`, and copies that from the first-level cache to `copy`, with stores of a kind of
# their own. `sources` is used up.
cdef inline void reduce_and_copy(const Operation *operation, char *out, char *copy, int stores,
                                 const void **sources, int count, size_t nbytes,
                                 size_t element_size) noexcept nogil:
    cdef size_t longest = strip_bytes(operation, nbytes, element_size), strip
    while nbytes > 0:
        strip = min(nbytes, longest)
        reduce_operands(operation, out, sources, count, strip // element_size)
        copy_stored(stores, copy, out, strip)
        skip_strip(sources, count, strip)
        out += strip
        copy += strip
        nbytes -= strip


# The same without an array for the result but `copy`.
cdef inline void reduce_stored(const Operation *operation, char *copy, int stores,
                               const void **sources, int count, size_t nbytes,
                               size_t element_size) noexcept nogil:
    cdef char between[STRIP]
    cdef size_t strip
    if stores == STORES_ORDINARY or operation.kernel == NULL:
        reduce_operands(operation, copy, sources, count, nbytes // element_size)
        return
    while nbytes > 0:
        strip = min(nbytes, strip_bytes(operation, nbytes, element_size))
        reduce_operands(operation, between, sources, count, strip // element_size)
        copy_stored(stores, copy, between, strip)
        skip_strip(sources, count, strip)
        copy += strip
        nbytes -= strip


cdef inline void skip_strip(const void **sources, int count, size_t strip) noexcept nogil:
    cdef int i
    for i in range(count):
        sources[i] = <const char *> sources[i] + strip
