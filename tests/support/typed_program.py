"""A program as a type checker sees it: the stubs must let it pass. Checked by mypy, never run."""

import numpy as np
from mpi4py import MPI

import smcoll


def use(world: MPI.Intracomm) -> float:
    comm = smcoll.Comm(world, smcoll.Config(segment_size="32K", fan_in=4))
    send, recv = np.ones(4), np.zeros(4)
    comm.Allreduce(send, recv, op=MPI.SUM)
    comm.Gather(send, [recv, MPI.DOUBLE], root=0)
    comm.Alltoallv([send, ([1, 1], [0, 1])], [recv, ([1, 1], [0, 1])])
    total: float = comm.allreduce(1.0)
    cart: smcoll.Cartcomm = comm.Create_cart([2, 2])
    cart.Barrier()
    half: smcoll.Comm = comm.Split(0, 0)
    print(half.explain("allreduce", nbytes=8).algorithm, comm.stats()[0]["calls"])
    engine = comm.engine
    if engine is not None:
        print(engine.bytes_mapped, engine.decisions["allreduce"][0].algorithm)
    try:
        with smcoll.wrap(world) as wrapped:
            same: smcoll.Comm = wrapped
            same.Barrier()
        wrapped_cart: smcoll.Cartcomm = smcoll.wrap(cart)
        wrapped_cart.Get_coords(0)
    except (smcoll.PeerError, smcoll.MismatchError) as error:
        print(error.Get_error_class())
    smcoll.install()
    smcoll.uninstall()
    return total
