"""The MPI's handles of predefined datatypes and operations, learned at run time: there is no mpi.h.

Written once, before the first call is served; only read from then on, but for a type's ``ops``.
"""

from libc.stdint cimport uintptr_t

from smcoll.buffers.buffers cimport code_of_type
from smcoll.datatype.operations cimport NO_OP, code_of_op
from smcoll.interpose.functions cimport word


def learn():
    """Ask mpi4py for them; MPI is initialised."""
    from mpi4py import MPI

    cdef Basic *basic
    known.bits = <uintptr_t> -1 if MPI._sizeof(MPI.Comm) == 8 else 0xFFFFFFFF
    known.null_comm = <uintptr_t> handle_of(MPI.COMM_NULL)
    known.in_place = <word> <Py_ssize_t> int(MPI.IN_PLACE)
    known.double_type, known.sum_op = handle_of(MPI.DOUBLE), handle_of(MPI.SUM)
    known.null_type = handle_of(MPI.DATATYPE_NULL)
    known.truncated = MPI.ERR_TRUNCATE
    for datatype in predefined(MPI.Datatype):
        if datatype != MPI.DATATYPE_NULL and is_dense(datatype):
            basic = type_of(handle_of(datatype))
            basic.handle, basic.code = handle_of(datatype), code_of_type(datatype)
            basic.size = datatype.Get_size()
    for op in predefined(MPI.Op):
        if op != MPI.OP_NULL and code_of_op(op) != NO_OP:
            basic = op_of(handle_of(op))
            basic.handle, basic.size, basic.code = handle_of(op), 1, code_of_op(op)


cdef predefined(kind):
    """MPI's predefined datatypes or operations, as mpi4py names them."""
    from mpi4py import MPI

    return [one for one in vars(MPI).values() if isinstance(one, kind)]


cdef bint is_dense(datatype):
    """Whether its elements lie side by side without holes."""
    return datatype.Get_extent() == (0, datatype.Get_size())


cdef word handle_of(mpi_object):
    return <word> (<uintptr_t> (mpi_object.handle & 0xFFFFFFFFFFFFFFFF) & known.bits)
