"""Messages with holes, walked a chunk at a time.

The layout of a message is its rank's own business (protocol rule 3), so its bytes travel in the
order of the type map, as MPI_Pack would lay them out; unlike MPI_Pack a cursor can stop anywhere.
"""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from smcoll.kernels.kernels cimport STORES_ORDINARY, copy_bytes, copy_result, copy_stored

cdef enum:
    COPIED_AT_ONCE = 4096


cdef void start_cursor(Cursor *cursor, char *address, const Runs *runs,
                       size_t nbytes) noexcept nogil:
    """At the beginning of a message of ``nbytes`` bytes (holes not counted)."""
    cursor.address = address
    cursor.runs = runs
    cursor.nbytes = nbytes
    cursor.done = cursor.element = cursor.run = cursor.within = 0
    cursor.streaming = False


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


cdef void pack_next(Cursor *cursor, char *out, size_t nbytes,
                    int stores=STORES_ORDINARY) noexcept nogil:
    """The next ``nbytes`` bytes of the message, to contiguous memory, with this kind of stores."""
    cdef size_t piece
    cdef char *place
    if nbytes == 0:
        return  # an empty message may have no address
    if cursor.runs == NULL:
        copy_stored(stores, out, cursor.address + cursor.done, nbytes)
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
    if nbytes == 0:
        return
    if cursor.runs == NULL:
        copy_result(cursor.address + cursor.done, data, nbytes, cursor.streaming)
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
