# cython: language_level=3
"""Another compiled module on top of smcoll: an allreduce inside a loop that never takes the GIL.

Build: ``python setup.py build_ext --inplace`` in this folder, with smcoll installed.
"""

from libc.math cimport sqrt

from smcoll.engine cimport CARRIED_OUT, Engine
from smcoll.kernels cimport OP_MAX, OP_SUM, TYPE_DOUBLE


def norms(comm, double[::1] values, int steps):
    """2-norm and maximum norm of a distributed vector that is halved ``steps`` times.

    ``comm``: a smcoll communicator. RuntimeError where its ranks share no segment.
    """
    cdef Engine engine = comm.engine
    cdef double squares, largest, size
    cdef Py_ssize_t i
    cdef int step, path = CARRIED_OUT
    if engine is None:
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
            path |= engine.allreduce_nogil(&squares, &squares, 1, TYPE_DOUBLE, OP_SUM)
            path |= engine.allreduce_nogil(&largest, &largest, 1, TYPE_DOUBLE, OP_MAX)
    if path != CARRIED_OUT:
        raise RuntimeError("smcoll's shared memory could not be reserved")
    return sqrt(squares), largest
