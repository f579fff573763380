"""MPI's operations: their codes in ``smcoll.base.kernels``, and which types MPI takes them for.

Operations without a kernel (user-defined ones, MINLOC and MAXLOC, types that the kernels don't
know) are carried out by MPI's own ``Op.Reduce_local``, an operation like any other to the
algorithms.
"""

from smcoll.base.kernels cimport copy_bytes

from mpi4py import MPI

from smcoll.base import kernels

cdef object SUM = MPI.SUM
cdef dict _CODE_OF_HANDLE = {getattr(MPI, name).handle: code
                             for name, code in kernels.OPERATIONS.items()}
cdef int _SUM = kernels.OPERATIONS["SUM"]
# (operation, datatype) handles that MPI was seen to take.
cdef set _accepted_pairs = set()

# The object itself: install() may rebind the name.
cdef object _one_rank = MPI.COMM_SELF


cdef int code_of_op(op) except -2:
    """The code of a predefined operation; NO_OP for others; TypeError if it is no operation."""
    if op is SUM:
        return _SUM
    if not isinstance(op, MPI.Op):
        raise TypeError(f"Argument 'op' has incorrect type (expected mpi4py.MPI.Op, "
                        f"got {type(op).__name__})")
    return _CODE_OF_HANDLE.get(op.handle, NO_OP)


cdef bint mpi_takes(op, datatype) except -1:
    """True where MPI has this operation for this type; raises what MPI raises if not.

    MPI is asked once for each pair of a predefined operation and type, on a communicator of one
    rank, where nothing is communicated. A user's operation takes what the user says.
    """
    if op != MPI.OP_NULL and not op.is_predefined:
        return True
    pair = (op.handle, datatype.handle)
    if pair not in _accepted_pairs:
        room = 64 if datatype == MPI.DATATYPE_NULL else max(64, datatype.Get_true_extent()[1])
        one, other = bytearray(room), bytearray(room)
        MPI.Intracomm.Allreduce(_one_rank, [one, 1, datatype], [other, 1, datatype], op)
        # The handle of a derived type may come to stand for another one.
        if datatype.is_predefined:
            _accepted_pairs.add(pair)
    return True


cdef class LocalReduction:
    """An operation by ``Op.Reduce_local``, in the order of the operands.

    Elements lie ``extent`` bytes apart, in shared memory too, so that the operation finds them as
    the datatype says.
    """

    def __cinit__(self, op, datatype):
        self.op = op
        self.datatype = datatype
        self.extent = datatype.Get_extent()[1]
        self.operation.kernel = NULL
        self.operation.function = reduce_locally
        self.operation.context = <void *> self

    def fits(self):
        """Whether elements side by side, an extent each, hold all of the type's bytes."""
        lower, true_extent = self.datatype.Get_true_extent()
        return self.extent > 0 and lower >= 0 and lower + true_extent <= self.extent

    def check(self):
        """Raise what a reduction raised; algorithms can't stop for it half-way."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


cdef void reduce_locally(void *context, void *out, const void *const *sources, int count,
                         size_t elements) noexcept with gil:
    cdef LocalReduction self = <LocalReduction> context
    cdef size_t nbytes = elements * self.extent
    cdef bytearray total
    cdef int i
    if self.failure is not None:
        return                 # the first failure is the one to tell
    try:
        # `out` may be one of the sources, so the total grows elsewhere, from the last operand to
        # the first: Reduce_local puts its first argument to the left.
        total = bytearray(nbytes)
        copy_bytes(<char *> total, sources[count - 1], nbytes)
        for i in range(count - 2, -1, -1):
            left = MPI.memory.fromaddress(<size_t> sources[i], nbytes)
            self.op.Reduce_local([left, elements, self.datatype],
                                 [total, elements, self.datatype])
        copy_bytes(out, <char *> total, nbytes)
    except BaseException as error:
        self.failure = error
