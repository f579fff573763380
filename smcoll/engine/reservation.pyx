"""Memory beyond the flags: data regions and streams, reserved when a call first needs them.

On all ranks or on none.
"""

import errno
import os
import sys
from collections import Counter

cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

from smcoll.barrier cimport begin_call
from smcoll.base.kernels cimport OP_MIN, TYPE_INT64, Operation, reduction_kernel_for
from smcoll.base.signature cimport COLLECTIVE_RESERVE, NO_OPERATION, NO_TYPE, pack_signature
from smcoll.coll.all_read cimport allreduce_all_read_inline
from smcoll.coll.pipeline cimport Call
from smcoll.coll.streams cimport Stream, init_streams
from smcoll.engine.call cimport CallProtocol
from smcoll.engine.member cimport Member
from smcoll.sync.team cimport FAILED_EXCEPTION

from smcoll.errors import SegmentError
from smcoll.topology.pages import pages_by_node


@cython.final
cdef class Reservation:
    """Reserves what calls need, and agrees on it."""

    def __cinit__(self, Member member not None, CallProtocol protocol not None):
        self.member = member
        self.protocol = protocol
        self.mapping = member.mapping
        self.team = &member.team

    def __dealloc__(self):
        free(self.streams)

    cdef int have_data_regions(self, uint64_t signature, size_t nbytes) except -1:
        """CARRIED_OUT when the call can go on, USE_MPI when all ranks agree that it can't."""
        if self.mapping.data_reserved:
            # By another thread's call, while this one waited for the GIL.
            return CARRIED_OUT
        if self.data_refused:
            if self.member.config.strict:
                raise SegmentError("the data regions could not be reserved")
            return USE_MPI
        return self.reserve(DATA_REGIONS, signature, nbytes)

    cdef int have_streams(self, uint64_t signature, uint64_t nbytes=0) except -1:
        """The same for the streams."""
        if self.mapping.streams_reserved:
            return CARRIED_OUT
        if self.streams_refused:
            if self.member.config.strict:
                raise SegmentError("the streams could not be reserved")
            return USE_MPI
        return self.reserve(STREAMS, signature, nbytes)

    def reserve_all(self):
        """Reserve the data regions and the streams now, not at first use. Collective."""
        cdef uint64_t signature = pack_signature(COLLECTIVE_RESERVE, NO_OPERATION, NO_TYPE, 0, 0)
        cdef uint64_t number = self.team.number
        try:
            # Where the first could not be had the second is left for when a call needs it.
            if self.reserve(DATA_REGIONS, signature, 0) == CARRIED_OUT:
                self.reserve(STREAMS, signature, 0)
        finally:
            self.protocol.is_later_stage = False
            self.team.number = number      # no call of the user's

    cdef reserve_part(self, int part):
        if part == DATA_REGIONS:
            self.mapping.reserve_data()
            return
        self.streams = <Stream *> malloc(self.team.size * sizeof(Stream))
        if self.streams == NULL:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self.mapping.reserve_streams()
        init_streams(self.team, self.streams, self.member.start)

    cdef map_of_peers(self, int part):
        if part == DATA_REGIONS:
            self.mapping.map_data_of_peers()
        else:
            self.mapping.map_streams_of_peers()

    cdef reserve_mine(self, int part, size_t wanted):
        """This rank's part; the problem, or None."""
        try:
            self.member.budget.claim(wanted, self.mapping.kind)
        except (OSError, MemoryError) as error:
            return error
        try:
            self.reserve_part(part)
        except (OSError, MemoryError) as error:
            self.member.budget.give_back(wanted)
            return error
        except BaseException:
            self.member.budget.give_back(wanted)
            raise
        return None

    cdef int reserve(self, int part, uint64_t signature, uint64_t nbytes) except -1:
        """Reserve the data regions or the streams on all ranks, or on none (protocol rules 4, 5).

        ``signature`` and ``nbytes``: of the call that needs them, for the ranks to compare.
        """
        cdef int64_t mine = 1, everyone = 0
        cdef Call call
        cdef size_t wanted = (self.team.layout.data if part == DATA_REGIONS
                              else self.team.layout.streams)
        cdef Operation minimum
        cdef bint peers_are_here = self.protocol.is_later_stage
        # First of all: a call that is refused here must leave nothing changed.
        self.protocol.enter(True)
        try:
            problem = self.reserve_mine(part, wanted)
        except BaseException as error:
            if not peers_are_here:
                self.team.number -= 1
                self.protocol.turn_away()
                raise
            self.member.attendant.fail(error)
            self.protocol.leave(FAILED_EXCEPTION)
        mine = problem is None
        begin_call(self.team, signature, nbytes)
        minimum.kernel = reduction_kernel_for(OP_MIN, TYPE_INT64, self.member.instruction_set)
        call.team = self.team
        call.send = <const char *> &mine
        call.recv = <char *> &everyone
        call.nbytes = sizeof(mine)
        call.elements = 1
        call.operation = &minimum
        call.sources = self.member.sources
        self.protocol.leave(allreduce_all_read_inline(&call))
        # What needed the memory follows at once, on all ranks.
        self.protocol.is_later_stage = True
        if everyone:
            self.map_of_peers(part)
            return CARRIED_OUT
        if mine:
            self.member.budget.give_back(wanted)
        title = "data regions" if part == DATA_REGIONS else "streams"
        affected = "large messages" if part == DATA_REGIONS else "Gather, Scatter and Alltoall"
        if part == DATA_REGIONS:
            self.mapping.give_data_back()
            self.data_refused = True
        else:
            self.mapping.give_streams_back()
            self.streams_refused = True
        message = (f"the {title} ({wanted} bytes per rank) could not be "
                   f"reserved{'' if problem is None else f': {problem}'}")
        if self.member.config.strict:
            self.protocol.is_later_stage = False
            raise SegmentError(message)
        if self.team.rank == 0:
            print(f"smcoll: {message}; {affected} of this communicator go through MPI",
                  file=sys.stderr, flush=True)
        return USE_MPI

    def pages_by_node(self):
        """Pages of this rank's reserved memory by NUMA node; None where the kernel can't say."""
        found = [pages_by_node(*part) for part in self.mapping.reserved_ranges()]
        if None in found:
            return None
        return dict(sum(map(Counter, found), Counter()))
