"""Reduce, Allreduce, Reduce_scatter(_block), Scan and Exscan of a communicator.

A method first tries the common case without any Python object made: contiguous numpy arrays of a
plain type, a predefined operation that is known to be defined for it. Everything else is parsed in
full, checked as MPI would, and takes a path that is a function of what MPI wants to be the same on
all ranks: operation, datatype and count.
"""

from functools import partial
from operator import index

import numpy
from mpi4py import MPI

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from smcoll.base.kernels cimport OPS, element_size
from smcoll.base.signature cimport (
    COLLECTIVE_ALLREDUCE, COLLECTIVE_EXSCAN, COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_SCAN,
)
from smcoll.buffers.blocks cimport check_message, read_integers
from smcoll.buffers.buffers cimport (
    IN_PLACE_ADDRESS, Message, Specification, in_place, parse, plain_array,
)
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.coll.reduce_scatter cimport Partition
from smcoll.comm.movement cimport NOT_PLAIN, gather_counts
from smcoll.comm.state cimport check_root, engine_of, count_fallback
from smcoll.datatype.convertor cimport Convertor, copy_message, start_convertor
from smcoll.datatype.datatypes cimport Typemap, typemap_of
from smcoll.datatype.operations cimport NO_OP, LocalReduction, code_of_op, mpi_takes
from smcoll.engine.engine cimport Engine, signature_of
from smcoll.engine.reservation cimport CARRIED_OUT, USE_MPI

cdef enum:
    NUMPY_TYPES = 64

# [operation][numpy type]: MPI takes the pair and we have a kernel for it. Filled when first asked.
cdef bint _known_pair[OPS][NUMPY_TYPES]

_NAMES = {COLLECTIVE_ALLREDUCE: "allreduce", COLLECTIVE_REDUCE: "reduce",
          COLLECTIVE_REDUCE_SCATTER: "reduce_scatter", COLLECTIVE_SCAN: "scan",
          COLLECTIVE_EXSCAN: "exscan"}


cdef inline bint known(int op_code, Message *message) noexcept:
    return op_code != NO_OP and _known_pair[op_code][message.numpy_type]


# Send and receive arrays of the common case, in `send` and `recv`. The first call of an operation
# and a type is not common: have_kernel looks at it.
cdef inline bint plain_pair(sendbuf, recvbuf, int op_code, Message *send, Message *recv):
    if not plain_array(recvbuf, True, recv) or not known(op_code, recv):
        return False
    send[0] = recv[0]
    return in_place(sendbuf) or (
        plain_array(sendbuf, False, send) and send.numpy_type == recv.numpy_type
        and send.count == recv.count)


# The same for a vector of which each rank gets a block; in place the vector is where that ends.
cdef inline bint plain_vector(sendbuf, recvbuf, int op_code, Message *send, Message *recv):
    if not plain_array(recvbuf, True, recv) or not known(op_code, recv):
        return False
    send[0] = recv[0]
    return in_place(sendbuf) or (
        plain_array(sendbuf, False, send) and send.numpy_type == recv.numpy_type)


class Reductions:
    """The reducing methods; mixed into mpi4py's communicator classes."""

    __slots__ = ()

    def Reduce(self, sendbuf, recvbuf, op=MPI.SUM, int root=0):
        """Reduce to ``root``, along a fan-in tree (GS 3.2).

        Long vectors of more than two ranks: by the tiled reduction (LHS 2.4).
        """
        cdef Engine engine = engine_of(self)
        cdef Message send, recv
        cdef int op_code
        if engine is None:
            count_fallback(self, "reduce")
            return MPI.Comm.Reduce(self, sendbuf, recvbuf, op, root)
        op_code = code_of_op(op)
        if 0 <= root < engine.size:
            if engine.rank == root:
                if plain_pair(sendbuf, recvbuf, op_code, &send, &recv):
                    if engine.reduction_(
                            COLLECTIVE_REDUCE, send.address, recv.address, recv.count,
                            recv.element_type, op_code, root,
                            engine.plans.choose(COLLECTIVE_REDUCE, recv.nbytes),
                            True) == CARRIED_OUT:
                        return
            elif plain_array(sendbuf, False, &send) and known(op_code, &send):
                if engine.reduction_(
                        COLLECTIVE_REDUCE, send.address, NULL, send.count, send.element_type,
                        op_code, root, engine.plans.choose(COLLECTIVE_REDUCE, send.nbytes), True
                        ) == CARRIED_OUT:
                    return
        reduce_any(self, engine, sendbuf, recvbuf, op, op_code, root)

    def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        """Reduce to all ranks, bitwise the same result on each.

        By size: all-read exchange (``coll/all_read.pyx``), tiled reduction (``coll/tiled.pyx``;
        of more than two ranks, by default from 128 KiB / ranks on); GS 3.1's algorithms by name.
        """
        cdef Engine engine = engine_of(self)
        cdef Message send, recv
        cdef int op_code
        if engine is None:
            count_fallback(self, "allreduce")
            return MPI.Comm.Allreduce(self, sendbuf, recvbuf, op)
        op_code = code_of_op(op)
        if plain_pair(sendbuf, recvbuf, op_code, &send, &recv):
            # The plan: the table's row for so many bytes (tuning.select), or what was learned.
            if engine.reduction_(
                    COLLECTIVE_ALLREDUCE, send.address, recv.address, recv.count,
                    recv.element_type, op_code, 0,
                    engine.plans.choose(COLLECTIVE_ALLREDUCE, recv.nbytes), True) == CARRIED_OUT:
                return
        symmetric(self, engine, COLLECTIVE_ALLREDUCE, sendbuf, recvbuf, op, op_code)

    def Scan(self, sendbuf, recvbuf, op=MPI.SUM):
        """Inclusive prefix reduction: rank r gets that of ranks 0 to r, in rank order."""
        scan(self, COLLECTIVE_SCAN, sendbuf, recvbuf, op)

    def Exscan(self, sendbuf, recvbuf, op=MPI.SUM):
        """Exclusive prefix reduction: rank r gets that of ranks 0 to r - 1, rank 0 nothing."""
        scan(self, COLLECTIVE_EXSCAN, sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=MPI.SUM):
        """Reduce a vector of equal blocks; rank r gets block r."""
        cdef Engine engine = engine_of(self)
        cdef Specification send, recv
        cdef Message plain_send, plain_recv
        cdef int op_code, size
        if engine is None:
            count_fallback(self, "reduce_scatter")
            return MPI.Comm.Reduce_scatter_block(self, sendbuf, recvbuf, op)
        op_code = code_of_op(op)
        size = engine.size
        if (plain_vector(sendbuf, recvbuf, op_code, &plain_send, &plain_recv)
                and plain_send.count % <size_t> size == 0):
            if reduce_plain_blocks(engine, &plain_send, &plain_recv, None, op_code,
                                   in_place(sendbuf)) == CARRIED_OUT:
                return
        recv = parse_checked(recvbuf, True)
        send = send_side(sendbuf, recv, size)
        if send is recv:
            send = recv = parse_checked(recvbuf, True, size)
        else:
            check_types(send, recv)
            check_counts(send.count, recv.count)
        scatter_reduction(self, engine, send, recv, [recv.count] * size, op, op_code, send is recv,
                          recvbuf,
                          partial(MPI.Comm.Ireduce_scatter_block, self, sendbuf, recvbuf, op))

    def Reduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=MPI.SUM):
        """Reduce a vector of ``recvcounts[r]`` elements for each rank r; rank r gets its block.

        ``recvcounts``: the same on all ranks; ``None``: each rank's own receive count.
        """
        cdef Engine engine = engine_of(self)
        cdef Specification send, recv
        cdef Message plain_send, plain_recv
        cdef int op_code, size
        if engine is None:
            count_fallback(self, "reduce_scatter")
            return MPI.Comm.Reduce_scatter(self, sendbuf, recvbuf, recvcounts, op)
        op_code = code_of_op(op)
        size = engine.size
        if recvcounts is not None and plain_vector(sendbuf, recvbuf, op_code, &plain_send,
                                                   &plain_recv):
            if reduce_plain_blocks(engine, &plain_send, &plain_recv, recvcounts, op_code,
                                   in_place(sendbuf)) == CARRIED_OUT:
                return
        recv = parse_checked(recvbuf, True)
        send = send_side(sendbuf, recv)
        if send is not recv:
            check_types(send, recv)
        if recvcounts is not None or send is recv:
            counts = counts_of(recvcounts, size)
            check_vector(engine, send, recv, counts)
            scatter_reduction(
                self, engine, send, recv, counts, op, op_code, send is recv, recvbuf,
                partial(MPI.Comm.Ireduce_scatter, self, sendbuf, recvbuf, counts, op))
            return
        mpi_takes(op, send.datatype)
        counts = counts_of(gather_counts(self, engine, recv.count), size)
        engine.go_on()
        try:
            check_vector(engine, send, recv, counts)
            scatter_reduction(
                self, engine, send, recv, counts, op, op_code, False, recvbuf,
                partial(MPI.Comm.Ireduce_scatter, self, sendbuf, recvbuf, counts, op))
        except BaseException:
            # The peers are in this second stage for sure.
            engine.abandon()
            raise


# ---------------------------------------------------------------------- checks

cdef check_types(Specification send, Specification recv):
    if send.datatype != recv.datatype:
        raise ValueError("mismatch in send and receive MPI datatypes")


cdef check_vector(Engine engine, Specification send, Specification recv, list counts):
    """Of a Reduce_scatter."""
    check_counts(send.count, sum(counts), "receive count" if send is recv else "send count",
                 "sum(counts)")
    if send is not recv and recv.count != counts[engine.rank]:
        raise ValueError(f"mismatch in receive count {recv.count} and "
                         f"counts[{engine.rank}] {counts[engine.rank]}")
    if min(counts) < 0:
        raise MPI.Exception(MPI.ERR_COUNT)


cdef check_counts(send, recv, send_title="send count", recv_title="receive count"):
    if send != recv:
        raise ValueError(f"mismatch in {send_title} {send} and {recv_title} {recv}")


cdef list counts_of(recvcounts, int size):
    counts = [index(recvcounts[i]) for i in range(len(recvcounts))]
    if len(counts) != size:
        raise ValueError(f"expecting {size} items, got {len(counts)}")
    return counts


cdef bint have_kernel(Engine engine, int op_code, Specification spec, original):
    """Whether a compiled kernel does this; remembers plain arrays for the next call."""
    cdef Message plain
    if op_code == NO_OP or spec.message.element_type < 0:
        return False
    if engine.kernel_of(op_code, spec.message.element_type) == NULL:
        return False
    if plain_array(original, False, &plain):
        _known_pair[op_code][plain.numpy_type] = True
    return True


# ---------------------------------------------------------------------- any buffers

cdef Specification send_side(sendbuf, Specification recv, int blocks=1):
    """``recv`` where the operands are in place; ``[IN_PLACE, count, type]`` says so, too."""
    cdef Specification send
    if in_place(sendbuf):
        return recv
    send = parse(sendbuf, False, blocks)
    if send.message.address == IN_PLACE_ADDRESS:
        return recv
    check_message(send)
    return send


cdef Specification parse_checked(buffer, bint writable, int blocks=1):
    """Refuses what mpi4py leaves to MPI: an address that is none."""
    cdef Specification spec = parse(buffer, writable, blocks)
    check_message(spec)
    return spec


cdef reduce_any(comm, Engine engine, sendbuf, recvbuf, op, int op_code, int root):
    cdef Specification recv = None, send = None
    cdef bint at_root = engine.rank == root
    if at_root:
        recv = parse_checked(recvbuf, True)
    send = send_side(sendbuf, recv) if at_root else parse_checked(sendbuf, False)
    if at_root and send is not recv:
        check_types(send, recv)
        check_counts(send.count, recv.count)
    check_root(engine, root)
    reduce_parsed(comm, engine, COLLECTIVE_REDUCE, send, recv, op, op_code, root,
                  recvbuf if send is recv else sendbuf,
                  partial(MPI.Comm.Ireduce, comm, sendbuf, recvbuf, op, root))


cdef symmetric(comm, Engine engine, int collective, sendbuf, recvbuf, op, int op_code):
    """A reduction whose ranks all send and receive as much."""
    cdef Specification recv = parse_checked(recvbuf, True), send = send_side(sendbuf, recv)
    if send is not recv:
        check_types(send, recv)
        check_counts(send.count, recv.count)
    reduce_parsed(comm, engine, collective, send, recv, op, op_code, 0, recvbuf,
                  partial(getattr(MPI.Intracomm, f"I{_NAMES[collective]}"), comm, sendbuf, recvbuf,
                          op))


cdef scan(comm, int collective, sendbuf, recvbuf, op):
    cdef Engine engine = engine_of(comm)
    cdef Message send, recv
    cdef int op_code
    if engine is None:
        count_fallback(comm, _NAMES[collective])
        method = _NAMES[collective].capitalize()
        return getattr(MPI.Intracomm, method)(comm, sendbuf, recvbuf, op)
    op_code = code_of_op(op)
    if plain_pair(sendbuf, recvbuf, op_code, &send, &recv):
        if engine.reduction_(
                collective, send.address, recv.address, recv.count, recv.element_type, op_code, 0,
                engine.plans.choose(collective, recv.nbytes), True) == CARRIED_OUT:
            return
    symmetric(comm, engine, collective, sendbuf, recvbuf, op, op_code)


cdef reduce_parsed(comm, Engine engine, int collective, Specification send, Specification recv,
                   op, int op_code, int root, original, nonblocking):
    """By a kernel, by Op.Reduce_local, or by MPI: in this order, and alike on all ranks."""
    cdef Call call
    cdef LocalReduction local
    cdef _Staged staged
    cdef const Plan *plan
    mpi_takes(op, send.datatype)
    if have_kernel(engine, op_code, send, original):
        plan = engine.plans.choose(collective, send.message.nbytes)
        if engine.reduction_(collective, send.message.address,
                             recv.message.address if recv is not None else NULL,
                             send.message.count, send.message.element_type, op_code, root, plan,
                             True) == CARRIED_OUT:
            return
    else:
        staged = _Staged(send, recv, send.message.count, op)
        local = staged.local
        plan = engine.ordered_plan(_NAMES[collective], send.message.count * local.extent,
                                   op.Is_commutative())
        if staged.possible and engine.holds(plan, local.extent):
            engine.fill_call(&call, staged.send, staged.recv, send.message.count,
                             local.extent, &local.operation, root)
            if engine.carry_out(collective,
                                signature_of(collective, op_code, send.message.element_type, plan,
                                             root), &call, plan, NULL) == CARRIED_OUT:
                if recv is not None and not (
                        collective == COLLECTIVE_EXSCAN and engine.rank == 0):
                    staged.unpack(send.message.count)
                local.check()
                return
    engine.through_mpi(_NAMES[collective], nonblocking, root=root, op=op_code,
                       element_type=send.message.element_type, nbytes=send.message.nbytes)


cdef class _Staged:
    """Operands of Op.Reduce_local. Elements with holes are reduced in copies: what lies in the
    holes of the user's result stays as it is."""

    cdef LocalReduction local
    cdef const char *send
    cdef char *recv
    cdef bint possible
    cdef Specification result
    cdef Typemap typemap
    cdef object copies

    def __cinit__(self, Specification send, Specification recv, size_t count, op):
        self.typemap = typemap_of(send.datatype)
        self.local = LocalReduction(op, send.datatype)
        self.possible = self.local.fits()
        self.send = send.message.address
        self.recv = NULL if recv is None else recv.message.address
        self.result = recv
        if self.possible and self.typemap is not None:
            copies = numpy.zeros((2, max(count * self.local.extent, <size_t> 1)), numpy.uint8)
            self.copies = copies
            self.send = <const char *> <size_t> copies[0].ctypes.data
            self.recv = <char *> <size_t> copies[1].ctypes.data
            self.copy(send.message.address, <char *> self.send, count)

    cdef copy(self, char *source, char *target, size_t count):
        cdef Convertor one, other
        cdef size_t nbytes = count * self.typemap.runs.size
        start_convertor(&one, source, &self.typemap.runs, nbytes)
        start_convertor(&other, target, &self.typemap.runs, nbytes)
        copy_message(&one, &other, nbytes)

    cdef unpack(self, size_t count):
        if self.typemap is not None:
            self.copy(self.recv, self.result.message.address, count)


cdef int reduce_plain_blocks(Engine engine, Message *send, Message *recv, recvcounts, int op_code,
                             bint keeps_place) except -1:
    """Reduce_scatter by a kernel; ``recvcounts`` of None: equal blocks.

    NOT_PLAIN where the counts don't fit the arrays, for the checks to say so.
    """
    cdef Partition blocks
    cdef int rank, size = engine.size, path = NOT_PLAIN
    cdef size_t unit = element_size(send.element_type)
    cdef Py_ssize_t *counts = <Py_ssize_t *> malloc(size * sizeof(Py_ssize_t))
    cdef size_t *begin = <size_t *> malloc((size + 1) * sizeof(size_t))
    cdef size_t left = send.count
    try:
        if counts == NULL or begin == NULL:
            raise MemoryError
        if recvcounts is None:
            for rank in range(size):
                counts[rank] = send.count // <size_t> size
        else:
            read_integers(recvcounts, size, counts)
        begin[0] = 0
        blocks.longest = 0
        for rank in range(size):
            # One by one, so that no sum of wrong counts wraps round to a right one.
            if counts[rank] < 0 or <size_t> counts[rank] > left:
                return NOT_PLAIN
            left -= counts[rank]
            begin[rank + 1] = begin[rank] + <size_t> counts[rank] * unit
            blocks.longest = max(blocks.longest, begin[rank + 1] - begin[rank])
        if left == 0 and (keeps_place or <size_t> counts[engine.rank] == recv.count):
            blocks.begin = begin
            blocks.in_place = keeps_place
            path = engine.reduce_scatter_(
                send.address, recv.address, &blocks, send.element_type, op_code,
                engine.plans.choose(COLLECTIVE_REDUCE_SCATTER, send.nbytes), True)
    finally:
        free(begin)
        free(counts)
    return path


cdef scatter_reduction(comm, Engine engine, Specification send, Specification recv, list counts,
                       op, int op_code, bint keeps_place, original, nonblocking):
    """Rank r gets the reduction of its ``counts[r]`` elements of the vector."""
    cdef Call call
    cdef Partition blocks
    cdef LocalReduction local = None
    cdef _Staged staged = None
    cdef const Plan *plan
    cdef size_t unit
    cdef size_t *begin
    cdef int rank, path = USE_MPI
    cdef int64_t total = sum(counts)
    mpi_takes(op, send.datatype)
    if have_kernel(engine, op_code, send, original):
        unit = element_size(send.message.element_type)
        plan = engine.plans.choose(COLLECTIVE_REDUCE_SCATTER, total * unit)
    else:
        staged = _Staged(send, recv, total, op)
        local = staged.local
        unit = local.extent
        plan = engine.ordered_plan("reduce_scatter", total * unit, op.Is_commutative())
    begin = <size_t *> malloc((engine.size + 1) * sizeof(size_t))
    if begin == NULL:
        raise MemoryError
    try:
        begin[0] = 0
        blocks.longest = 0
        for rank in range(engine.size):
            begin[rank + 1] = begin[rank] + <size_t> counts[rank] * unit
            blocks.longest = max(blocks.longest, begin[rank + 1] - begin[rank])
        blocks.begin = begin
        if staged is None:
            blocks.in_place = keeps_place
            path = engine.reduce_scatter_(send.message.address, recv.message.address, &blocks,
                                          send.message.element_type, op_code, plan, True)
        elif staged.possible and engine.holds(plan, unit):
            blocks.in_place = False
            if staged.typemap is None:
                blocks.in_place = keeps_place
            engine.fill_call(&call, staged.send, staged.recv, total, unit, &local.operation, 0)
            path = engine.carry_out(
                COLLECTIVE_REDUCE_SCATTER,
                signature_of(COLLECTIVE_REDUCE_SCATTER, op_code, send.message.element_type, plan,
                             0), &call, plan, &blocks)
            if path == CARRIED_OUT:
                staged.unpack(counts[engine.rank])
                local.check()
    finally:
        free(begin)
    if path == USE_MPI:
        engine.through_mpi("reduce_scatter", nonblocking, op=op_code,
                           element_type=send.message.element_type,
                           nbytes=total * send.datatype.Get_size())
