from libc.stdint cimport int64_t

# One element of a datatype: runs of bytes in type-map order, which is that of MPI_Pack.
cdef struct Runs:
    size_t count
    const int64_t *offsets     # from the element's address
    const size_t *lengths
    size_t size                # bytes of an element
    int64_t extent             # from one element to the next


# A position inside a message.
cdef struct Convertor:
    char *address              # of its first element
    const Runs *runs           # NULL: contiguous bytes
    size_t nbytes, done        # of the whole message, and moved so far
    size_t element, run, within
    bint streaming             # contiguous bytes are laid out around the caches


cdef void start_convertor(Convertor *convertor, char *address, const Runs *runs,
                          size_t nbytes) noexcept nogil
cdef void pack_next(Convertor *convertor, char *out, size_t nbytes, int stores=*) noexcept nogil
cdef void unpack_next(Convertor *convertor, const char *data, size_t nbytes,
                      int written=*) noexcept nogil
cdef void copy_message(Convertor *source, Convertor *target, size_t nbytes) noexcept nogil
