"""Communicators made from a smcoll communicator are smcoll communicators of their kind.

mpi4py's constructors keep a subclass in Dup, Clone and Idup only. Each method here is mpi4py's own
call, on whose result ``_accelerated`` puts the class that belongs to it: same handle, same
parameters, same errors. A process that gets no communicator has what mpi4py returns, an object of
mpi4py's class that holds COMM_NULL.
"""

from __future__ import annotations

import functools

from mpi4py import MPI


def _accelerating(method):
    """mpi4py's ``method``, with its name, signature and text, whose result is accelerated."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return self._accelerated(method(self, *args, **kwargs))

    return call


class Creation:
    """The constructors that intra- and inter-communicators have.

    Collective as mpi4py's are, and no more than that: a segment is made at a communicator's first
    collective (``eager``: here, but not by Idup, whose result can't communicate yet).
    """

    __slots__ = ()

    Dup = _accelerating(MPI.Comm.Dup)
    Dup_with_info = _accelerating(MPI.Comm.Dup_with_info)
    Clone = _accelerating(MPI.Comm.Clone)
    Split = _accelerating(MPI.Comm.Split)
    Split_type = _accelerating(MPI.Comm.Split_type)
    Create = _accelerating(MPI.Comm.Create)
    if hasattr(MPI.Comm, "Shrink"):
        Shrink = _accelerating(MPI.Comm.Shrink)

    @functools.wraps(MPI.Comm.Idup)
    def Idup(self, *args, **kwargs):
        self._keep_settings()    # MPI copies them
        return MPI.Comm.Idup(self, *args, **kwargs)

    @functools.wraps(MPI.Comm.Idup_with_info)
    def Idup_with_info(self, *args, **kwargs):
        self._keep_settings()
        return MPI.Comm.Idup_with_info(self, *args, **kwargs)


class IntracommCreation(Creation):
    """The constructors of intra-communicators."""

    __slots__ = ()

    @functools.wraps(MPI.Comm.Split_type)
    def Split_type(self, split_type, key=0, info=MPI.INFO_NULL):
        # MPI 4's hardware types are smcoll.topology's, whatever the MPI underneath makes of them.
        from smcoll.topology import communicators

        made = communicators.split_type_of(self, split_type, key, info)
        if made is None:
            made = self._accelerated(MPI.Comm.Split_type(self, split_type, key, info))
        return made

    Create_group = _accelerating(MPI.Intracomm.Create_group)
    Create_cart = _accelerating(MPI.Intracomm.Create_cart)
    Create_graph = _accelerating(MPI.Intracomm.Create_graph)
    Create_dist_graph = _accelerating(MPI.Intracomm.Create_dist_graph)
    Create_dist_graph_adjacent = _accelerating(MPI.Intracomm.Create_dist_graph_adjacent)
    Create_intercomm = _accelerating(MPI.Intracomm.Create_intercomm)

    @classmethod
    @functools.wraps(MPI.Intracomm.Create_from_group)
    def Create_from_group(cls, *args, **kwargs):
        return cls._accelerated_new(MPI.Intracomm.Create_from_group(*args, **kwargs))

    @functools.wraps(MPI.Comm.free)
    def free(self):
        # mpi4py leaves its constants alone, and sets other objects with their handles to null:
        # here that would be the program's MPI.COMM_WORLD.
        if not self._is_predefined():
            MPI.Comm.free(self)


class CartcommCreation(IntracommCreation):
    """The constructors of Cartesian communicators."""

    __slots__ = ()

    Sub = _accelerating(MPI.Cartcomm.Sub)


class IntercommCreation(Creation):
    """The constructors of inter-communicators."""

    __slots__ = ()

    Merge = _accelerating(MPI.Intercomm.Merge)
