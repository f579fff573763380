/* Loops of collectives as a C library makes them, through MPI_X and through PMPI_X; libraries.py
   compiles this, loads it into ranks and calls it.

   Without mpi.h: handles are as wide as a register everywhere, and 32 bits of it count for MPICH and
   Intel MPI. MPI_X is what the dynamic linker finds first when this is loaded, PMPI_X always the
   MPI's own. */

#include <stdint.h>
#include <time.h>

typedef uintptr_t Handle;

#define DECLARE(name, declared) int MPI_##name declared; int PMPI_##name declared;

DECLARE(Barrier, (Handle))
DECLARE(Bcast, (void *, int, Handle, int, Handle))
DECLARE(Reduce, (const void *, void *, int, Handle, Handle, int, Handle))
DECLARE(Allreduce, (const void *, void *, int, Handle, Handle, Handle))
DECLARE(Allgather, (const void *, int, Handle, void *, int, Handle, Handle))
DECLARE(Comm_dup, (Handle, Handle *))
DECLARE(Comm_free, (Handle *))

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* `data`: the first number differs from call to call, so that nobody can keep a result. */
#define LOOP(call)                                  \
    for (long i = 0; i < calls; i++) {              \
        data[0] = (double)i;                        \
        failed |= call;                             \
    }                                               \
    break;

#define EITHER(name, passed)                        \
    if (own) { LOOP(PMPI_##name passed) } else { LOOP(MPI_##name passed) }

/* Seconds that `calls` calls take on this rank, all ranks beginning together; -1: an error. */
double block(int own, int what, double *data, double *result, int count, Handle type, Handle op,
             Handle comm, Handle start, long calls)
{
    int failed = PMPI_Barrier(start);
    double began = now();
    switch (what) {
    case 0: EITHER(Barrier, (comm))
    case 1: EITHER(Bcast, (data, count, type, 0, comm))
    case 2: EITHER(Reduce, (data, result, count, type, op, 0, comm))
    case 3: EITHER(Allreduce, (data, result, count, type, op, comm))
    case 4: EITHER(Allgather, (data, count, type, result, count, type, comm))
    case 5:
        for (long i = 0; i < calls; i++) {
            Handle made = 0;
            data[0] = (double)i;
            if (own) {
                failed |= PMPI_Comm_dup(comm, &made);
                failed |= PMPI_Allreduce(data, result, count, type, op, made);
                failed |= PMPI_Comm_free(&made);
            } else {
                failed |= MPI_Comm_dup(comm, &made);
                failed |= MPI_Allreduce(data, result, count, type, op, made);
                failed |= MPI_Comm_free(&made);
            }
        }
        break;
    default: failed = 1;
    }
    return failed ? -1 : now() - began;
}

/* Where these functions lie: the same place if nobody is in between. */
void *place_of_allreduce(int own)
{
    return own ? (void *)PMPI_Allreduce : (void *)MPI_Allreduce;
}
