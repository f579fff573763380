"""Messages with holes, walked a chunk at a time.

The layout of a message is its rank's own business (protocol rule 3), so its bytes travel in the
order of the type map, as MPI_Pack would lay them out; unlike MPI_Pack a convertor can stop
anywhere.
"""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from smcoll.base.kernels cimport STORES_ORDINARY, copy_bytes, copy_result, copy_stored

cdef enum:
    COPIED_AT_ONCE = 4096


cdef void start_convertor(Convertor *convertor, char *address, const Runs *runs,
                          size_t nbytes) noexcept nogil:
    """At the beginning of a message of ``nbytes`` bytes (holes not counted)."""
    convertor.address = address
    convertor.runs = runs
    convertor.nbytes = nbytes
    convertor.done = convertor.element = convertor.run = convertor.within = 0
    convertor.streaming = False


cdef inline void copy_run(char *out, const char *source, size_t nbytes) noexcept nogil:
    # Of a size that the compiler knows for the commonest element types.
    if nbytes == 8:
        memcpy(out, source, 8)
    elif nbytes == 4:
        memcpy(out, source, 4)
    elif nbytes == 16:
        memcpy(out, source, 16)
    else:
        copy_bytes(out, source, nbytes)


cdef inline size_t run_at(const Convertor *convertor, size_t nbytes, char **place) noexcept nogil:
    """Where the convertor stands, and how many of ``nbytes`` bytes lie there in one piece."""
    cdef const Runs *runs = convertor.runs
    place[0] = (convertor.address + <int64_t> convertor.element * runs.extent
                + runs.offsets[convertor.run] + convertor.within)
    return min(nbytes, runs.lengths[convertor.run] - convertor.within)


cdef inline void step(Convertor *convertor, size_t nbytes) noexcept nogil:
    convertor.within += nbytes
    if convertor.within == convertor.runs.lengths[convertor.run]:
        convertor.within = 0
        convertor.run += 1
        if convertor.run == convertor.runs.count:
            convertor.run = 0
            convertor.element += 1


cdef inline void copy_runs(Convertor *convertor, char *contiguous, size_t nbytes,
                           bint packs) noexcept nogil:
    """Run by run, to contiguous memory (``packs``) or from there."""
    cdef size_t piece
    cdef char *place
    while nbytes > 0:
        piece = run_at(convertor, nbytes, &place)
        if packs:
            copy_run(contiguous, place, piece)
        else:
            copy_run(place, contiguous, piece)
        step(convertor, piece)
        contiguous += piece
        nbytes -= piece


cdef void pack_next(Convertor *convertor, char *out, size_t nbytes,
                    int stores=STORES_ORDINARY) noexcept nogil:
    """The next ``nbytes`` bytes of the message, to contiguous memory, with this kind of stores."""
    if nbytes == 0:
        return  # an empty message may have no address
    if convertor.runs == NULL:
        copy_stored(stores, out, convertor.address + convertor.done, nbytes)
    else:
        copy_runs(convertor, out, nbytes, True)
    convertor.done += nbytes


cdef void unpack_next(Convertor *convertor, const char *data, size_t nbytes,
                      int written=STORES_ORDINARY) noexcept nogil:
    """The next ``nbytes`` bytes of the message, from contiguous memory that was ``written`` so."""
    if nbytes == 0:
        return
    if convertor.runs == NULL:
        copy_result(convertor.address + convertor.done, data, nbytes, convertor.streaming,
                    written)
    else:
        copy_runs(convertor, <char *> data, nbytes, False)
    convertor.done += nbytes


cdef void copy_message(Convertor *source, Convertor *target, size_t nbytes) noexcept nogil:
    """The next ``nbytes`` bytes from one layout to another."""
    cdef char between[COPIED_AT_ONCE]
    cdef size_t piece
    if source.runs == NULL:
        unpack_next(target, source.address + source.done, nbytes)
        source.done += nbytes
        return
    if target.runs == NULL:
        pack_next(source, target.address + target.done, nbytes)
        target.done += nbytes
        return
    while nbytes > 0:
        piece = min(nbytes, <size_t> COPIED_AT_ONCE)
        pack_next(source, between, piece)
        unpack_next(target, between, piece)
        nbytes -= piece
