"""The tiled reduction of LHS 2.4, staged: each rank reduces one slice of all vectors at once.

Shared by Allreduce and Reduce. Operands are combined in rank order.
"""

from libc.string cimport memcpy

from smcoll.barrier cimport DONE, next_rank
from smcoll.kernels cimport reduce_operands
from smcoll.pipeline cimport Call, Section, deliver, heard, heard_all, post, region, writable

cdef enum:
    STEP_IN = 1                # our vector, but for our own slice, is in our region
    STEP_RESULT = 2            # our slice of the result is
    LINE = 64                  # slices are cut at cache lines
    STRIP = 8192               # bytes reduced before they are copied


# Start of `rank`'s slice in bytes; `rank` = ranks gives the end of the last one. An element whose
# size does not divide a line is not cut.
cdef inline size_t tile(Call *call, Section *section, int rank) noexcept nogil:
    cdef size_t unit = LINE if LINE % call.element_size == 0 else call.element_size
    cdef size_t units = (section.nbytes + unit - 1) // unit
    cdef size_t at = units * <size_t> rank // <size_t> call.team.size * unit
    return at if at < section.nbytes else section.nbytes


cdef int copy_in_others(Call *call, Section *section) noexcept nogil:
    """Copy all but the own slice into the own region: nobody else reads that."""
    cdef int rank = call.team.rank, status = writable(call, section)
    cdef size_t begin, end
    cdef char *own = region(call, section, rank)
    cdef const char *user = call.send + section.offset
    if status != DONE:
        return status
    begin = tile(call, section, rank)
    end = tile(call, section, rank + 1)
    memcpy(own, user, begin)
    memcpy(own + end, user + end, section.nbytes - end)
    post(call, section, STEP_IN)
    return DONE


cdef inline void reduce_slice(Call *call, Section *section, char *out, size_t begin,
                              size_t end) noexcept nogil:
    cdef int rank
    for rank in range(call.team.size):
        call.sources[rank] = region(call, section, rank) + begin
    call.sources[call.team.rank] = call.send + section.offset + begin
    reduce_operands(call.operation, out, call.sources, call.team.size,
                    (end - begin) // call.element_size)


cdef int reduce_own_slice_for_all(Call *call, Section *section) noexcept nogil:
    """The own slice of all sources at once; into the own region for the others to read."""
    cdef int rank = call.team.rank, status = heard_all(call, section, STEP_IN)
    cdef size_t begin, end, strip, strip_bytes
    cdef char *own = region(call, section, rank)
    if status != DONE:
        return status
    begin = tile(call, section, rank)
    end = tile(call, section, rank + 1)
    # A strip at a time, so that the second copy of the result is made from the first-level cache.
    # Not where each reduction is a call into Python.
    strip_bytes = end - begin
    if call.operation.kernel != NULL:
        strip_bytes = STRIP - STRIP % call.element_size
    while begin < end:
        strip = min(begin + strip_bytes, end)
        reduce_slice(call, section, own + begin, begin, strip)
        deliver(call, section.offset + begin, own + begin, strip - begin)
        begin = strip
    post(call, section, STEP_RESULT)
    return DONE


cdef int reduce_own_slice_for_root(Call *call, Section *section) noexcept nogil:
    """The same where only the root wants the result; its own slice goes straight to the user."""
    cdef int rank = call.team.rank, status = heard_all(call, section, STEP_IN)
    cdef size_t begin, end
    if status != DONE:
        return status
    begin = tile(call, section, rank)
    end = tile(call, section, rank + 1)
    if rank == call.root:
        reduce_slice(call, section, call.recv + section.offset + begin, begin, end)
    else:
        reduce_slice(call, section, region(call, section, rank) + begin, begin, end)
        post(call, section, STEP_RESULT)
    return DONE


cdef int copy_out_others(Call *call, Section *section) noexcept nogil:
    """Copy the other ranks' slices of the result."""
    cdef int owner, status
    cdef size_t begin, end
    while section.progress < call.team.size - 1:
        owner = next_rank(call.team, section.progress + 1)
        status = heard(call, section, owner, STEP_RESULT)
        if status != DONE:
            return status
        begin = tile(call, section, owner)
        end = tile(call, section, owner + 1)
        deliver(call, section.offset + begin, region(call, section, owner) + begin, end - begin)
        section.progress += 1
    return DONE


cdef int copy_out_at_root(Call *call, Section *section) noexcept nogil:
    if call.team.rank != call.root:
        return DONE
    return copy_out_others(call, section)
