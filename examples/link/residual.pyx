# cython: language_level=3
"""Another compiled module on top of smcoll: an allreduce inside a loop that never takes the GIL.

By the functions of ``smcoll.h``, which C code finds in the same way. Build: ``python setup.py
build_ext --inplace`` in this folder, with smcoll installed.
"""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_Import

from libc.math cimport sqrt

from smcoll.comm.c_api cimport (
    OP_MAX, OP_SUM, SMCOLL_CAPSULE, SMCOLL_SUCCESS, SMCOLL_USE_MPI, TYPE_DOUBLE, smcoll_api,
    smcoll_engine,
)

cdef const smcoll_api *api = <const smcoll_api *> PyCapsule_Import(SMCOLL_CAPSULE, 0)


def norms(comm, double[::1] values, int steps):
    """2-norm and maximum norm of a distributed vector that is halved ``steps`` times.

    ``comm``: a smcoll communicator. RuntimeError where its ranks share no segment, or a call fails.
    """
    cdef object owner = comm.engine      # keeps it alive
    cdef smcoll_engine *engine = <smcoll_engine *> <PyObject *> owner
    cdef char sentence[500]
    cdef double squares, largest, size
    cdef Py_ssize_t i
    cdef int step, code = SMCOLL_SUCCESS
    if owner is None:
        raise RuntimeError("this communicator has no shared segment")
    with nogil:
        for step in range(steps + 1):
            squares = largest = 0
            for i in range(values.shape[0]):
                if step > 0:
                    values[i] /= 2
                size = values[i] if values[i] > 0 else -values[i]
                squares += values[i] * values[i]
                largest = size if size > largest else largest
            code = api.allreduce(engine, &squares, &squares, 1, TYPE_DOUBLE, OP_SUM)
            if code == SMCOLL_SUCCESS:
                code = api.allreduce(engine, &largest, &largest, 1, TYPE_DOUBLE, OP_MAX)
            if code != SMCOLL_SUCCESS:
                break
    if code == SMCOLL_USE_MPI:
        raise RuntimeError("smcoll's shared memory could not be reserved")
    if code != SMCOLL_SUCCESS:
        api.error(engine, sentence, sizeof(sentence))
        raise RuntimeError(sentence.decode())
    return sqrt(squares), largest
