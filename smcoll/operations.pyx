"""MPI's operations: their codes in ``smcoll.kernels``, and which types MPI takes them for."""

from mpi4py import MPI

from smcoll import kernels

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
    """True where MPI has this operation for this predefined type; raises what MPI raises if not.

    MPI is asked once for each pair, on a communicator of one rank, where nothing is communicated.
    """
    pair = (op.handle, datatype.handle)
    if pair not in _accepted_pairs:
        one, other = bytearray(32), bytearray(32)
        MPI.Intracomm.Allreduce(_one_rank, [one, 1, datatype], [other, 1, datatype], op)
        _accepted_pairs.add(pair)
    return True
