"""PETSc's conjugate gradients for a Laplacian, bound by dot products: prints the residuals.

    mpiexec -n 2 python tests/libraries/petsc_ksp.py [--libraries] [--side 64] [--solves 10]

Every iteration has two dot products and a norm, each an MPI_Allreduce of one number that PETSc
makes in C, on a communicator that it duplicated. ``--pipelined`` uses MPI_Iallreduce instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time

import begin
import numpy as np


def laplacian(PETSc, comm, side: int):
    """The matrix of the five-point formula on side x side points."""
    n = side * side
    matrix = PETSc.Mat().createAIJ([n, n], nnz=5, comm=comm)
    first, end = matrix.getOwnershipRange()
    for row in range(first, end):
        i, j = divmod(row, side)
        matrix.setValue(row, row, 4.0)
        for k, other in ((i > 0, row - side), (i < side - 1, row + side), (j > 0, row - 1),
                         (j < side - 1, row + 1)):
            if k:
                matrix.setValue(row, other, -1.0)
    matrix.assemble()
    return matrix


def main() -> int:
    """Exit code 1: the residuals differ between ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", action="store_true", help="smcoll.install(libraries=True)")
    parser.add_argument("--side", type=int, default=64, help="points in each direction (64)")
    parser.add_argument("--solves", type=int, default=10)
    parser.add_argument("--pipelined", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    MPI = begin.begin(arguments.libraries)
    import petsc4py

    petsc4py.init([])
    from petsc4py import PETSc

    comm = MPI.COMM_WORLD
    matrix = laplacian(PETSc, PETSc.COMM_WORLD, arguments.side)
    solution, right = matrix.createVecs()
    # The same numbers however many ranks there are.
    first, end = right.getOwnershipRange()
    right.setArray(np.sin(np.arange(first, end) * 0.37) + 1.0)
    solver = PETSc.KSP().create(PETSc.COMM_WORLD)
    solver.setOperators(matrix)
    solver.setType("pipecg" if arguments.pipelined else "cg")
    solver.getPC().setType("jacobi")
    solver.setTolerances(rtol=1e-10, max_it=2000)
    solver.setConvergenceHistory(length=2001, reset=True)
    history, iterations = None, 0
    same_again = True
    comm.Barrier()
    began = time.perf_counter()
    for solve in range(arguments.solves):
        solution.set(0.0)
        solver.solve(right, solution)
        iterations += solver.getIterationNumber()
        found = np.array(solver.getConvergenceHistory())
        # In the first one calls go from MPI to smcoll, which adds up in another order.
        same_again &= solve < 2 or bool(np.array_equal(found, history))
        history = found
    seconds = comm.allreduce(time.perf_counter() - began, op=MPI.MAX)

    # Dot products alone, as the iterations make them.
    calls = 5000
    short, other = PETSc.Vec().createMPI(comm.size, comm=PETSc.COMM_WORLD), None
    short.set(1.0)
    other = short.copy()
    comm.Barrier()
    began = time.perf_counter()
    for _ in range(calls):
        short.dot(other)
    dot_us = comm.allreduce((time.perf_counter() - began) / calls * 1e6, op=MPI.MAX)

    text = "".join(f"{residual:.9e}\n" for residual in history)
    everywhere = comm.allgather(text)
    result = {
        "ranks": comm.size, "unknowns": arguments.side**2, "solves": arguments.solves,
        "iterations": iterations, "residuals": len(history),
        "first": float(history[0]), "last": float(history[-1]),
        # Sums in another order differ in the last digits, and the iterations carry that on: what
        # a comparison may rely on is `history` up to a tolerance.
        "checksum": hashlib.sha256(text.encode()).hexdigest()[:16],
        "history": [float(residual) for residual in history],
        "same_in_every_solve": same_again, "seconds": seconds, "dot_us": dot_us,
        "libraries": arguments.libraries,
    }
    if arguments.libraries:
        result["served"] = begin.served()
    if comm.rank == 0:
        if arguments.json:
            print(json.dumps(result), flush=True)
        else:
            for name, value in result.items():
                print(f"{name}: {value if name != 'history' else ''}", flush=True)
            for number, residual in enumerate(history):
                print(f"  {number:4d} {residual:.9e}")
    return 0 if all(one == text for one in everywhere) else 1


if __name__ == "__main__":
    sys.exit(main())
