"""Setting an attribute of a class written in C, which Python's ``setattr`` refuses.

For class methods of mpi4py's that a program calls by name (``MPI.Comm.fromhandle``): no subclass
and no rebinding can reach those. It is what Cython does for its own classes when they are made.
"""

from cpython.object cimport PyObject, PyTypeObject
from cpython.type cimport PyType_Modified


cdef extern from "Python.h":
    ctypedef struct _Type "PyTypeObject":
        PyObject *tp_dict


def set_attribute(type cls, str name, value):
    """``cls.name = value`` for a class that is no builtin of Python's own."""
    (<dict> (<_Type *> <PyTypeObject *> cls).tp_dict)[name] = value
    PyType_Modified(cls)
