/* Collectives called from C, as a library would: test_calls.py calls these by ctypes.

   Without mpi.h: handles are as wide as a register everywhere, and 32 bits of it count for MPICH and
   Intel MPI. Python passes the handles. What MPI_X is, the dynamic linker decides when this is
   loaded. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uintptr_t Handle;
typedef int (*UserFunction)(void *, void *, int *, void *);

#define FORWARD(name, declared, passed) \
    int MPI_##name declared;            \
    int call_##name declared { return MPI_##name passed; }

FORWARD(Barrier, (Handle comm), (comm))
FORWARD(Bcast, (void *b, int n, Handle t, int root, Handle comm), (b, n, t, root, comm))
FORWARD(Gather, (const void *s, int n, Handle t, void *r, int m, Handle u, int root, Handle comm),
        (s, n, t, r, m, u, root, comm))
FORWARD(Gatherv, (const void *s, int n, Handle t, void *r, const int *m, const int *d, Handle u,
                  int root, Handle comm), (s, n, t, r, m, d, u, root, comm))
FORWARD(Scatter, (const void *s, int n, Handle t, void *r, int m, Handle u, int root, Handle comm),
        (s, n, t, r, m, u, root, comm))
FORWARD(Scatterv, (const void *s, const int *n, const int *d, Handle t, void *r, int m, Handle u,
                   int root, Handle comm), (s, n, d, t, r, m, u, root, comm))
FORWARD(Allgather, (const void *s, int n, Handle t, void *r, int m, Handle u, Handle comm),
        (s, n, t, r, m, u, comm))
FORWARD(Allgatherv, (const void *s, int n, Handle t, void *r, const int *m, const int *d, Handle u,
                     Handle comm), (s, n, t, r, m, d, u, comm))
FORWARD(Alltoall, (const void *s, int n, Handle t, void *r, int m, Handle u, Handle comm),
        (s, n, t, r, m, u, comm))
FORWARD(Alltoallv, (const void *s, const int *n, const int *d, Handle t, void *r, const int *m,
                    const int *e, Handle u, Handle comm), (s, n, d, t, r, m, e, u, comm))
/* Arrays of types: of int for MPICH, of pointers for Open MPI; Python makes them. */
FORWARD(Alltoallw, (const void *s, const int *n, const int *d, const void *t, void *r, const int *m,
                    const int *e, const void *u, Handle comm), (s, n, d, t, r, m, e, u, comm))
FORWARD(Reduce, (const void *s, void *r, int n, Handle t, Handle op, int root, Handle comm),
        (s, r, n, t, op, root, comm))
FORWARD(Allreduce, (const void *s, void *r, int n, Handle t, Handle op, Handle comm),
        (s, r, n, t, op, comm))
FORWARD(Reduce_scatter, (const void *s, void *r, const int *n, Handle t, Handle op, Handle comm),
        (s, r, n, t, op, comm))
FORWARD(Reduce_scatter_block, (const void *s, void *r, int n, Handle t, Handle op, Handle comm),
        (s, r, n, t, op, comm))
FORWARD(Scan, (const void *s, void *r, int n, Handle t, Handle op, Handle comm),
        (s, r, n, t, op, comm))
FORWARD(Exscan, (const void *s, void *r, int n, Handle t, Handle op, Handle comm),
        (s, r, n, t, op, comm))
/* A handle is written as wide as it is; the caller's place for it is zero before. */
FORWARD(Comm_dup, (Handle comm, Handle *made), (comm, made))
FORWARD(Comm_split, (Handle comm, int color, int key, Handle *made), (comm, color, key, made))
FORWARD(Comm_free, (Handle *comm), (comm))
FORWARD(Op_create, (UserFunction function, int commutes, Handle *op), (function, commutes, op))
FORWARD(Op_free, (Handle *op), (op))

/* MPI-4's forms with wide counts; not every MPI has them. */
#define FORWARD_LARGE(name, declared, passed)                                  \
    int MPI_##name declared __attribute__((weak));                             \
    int has_##name(void) { return MPI_##name != NULL; }                        \
    int call_##name declared { return MPI_##name ? MPI_##name passed : -1; }

FORWARD_LARGE(Bcast_c, (void *b, intptr_t n, Handle t, int root, Handle comm),
              (b, n, t, root, comm))
FORWARD_LARGE(Allreduce_c, (const void *s, void *r, intptr_t n, Handle t, Handle op, Handle comm),
              (s, r, n, t, op, comm))
FORWARD_LARGE(Allgatherv_c, (const void *s, intptr_t n, Handle t, void *r, const int64_t *m,
                             const intptr_t *d, Handle u, Handle comm), (s, n, t, r, m, d, u, comm))
FORWARD_LARGE(Alltoallv_c, (const void *s, const int64_t *n, const intptr_t *d, Handle t, void *r,
                            const int64_t *m, const intptr_t *e, Handle u, Handle comm),
              (s, n, d, t, r, m, e, u, comm))

/* inout = in * inout for each 2 x 2 matrix: the order of the ranks matters. */
int multiply(void *in, void *inout, int *count, void *type)
{
    (void)type;
    for (int i = 0; i < *count; i++) {
        const uint64_t *a = (const uint64_t *)in + 4 * i;
        uint64_t *b = (uint64_t *)inout + 4 * i, c[4];
        c[0] = a[0] * b[0] + a[1] * b[2];
        c[1] = a[0] * b[1] + a[1] * b[3];
        c[2] = a[2] * b[0] + a[3] * b[2];
        c[3] = a[2] * b[1] + a[3] * b[3];
        memcpy(b, c, sizeof c);
    }
    return 0;
}

/* inout = the bits that are in an odd number of them. */
int odd_bits(void *in, void *inout, int *count, void *type)
{
    (void)type;
    for (int i = 0; i < *count; i++)
        ((uint64_t *)inout)[i] ^= ((const uint64_t *)in)[i];
    return 0;
}

UserFunction function_multiply(void) { return multiply; }
UserFunction function_odd_bits(void) { return odd_bits; }

/* How many results were wrong in so many sums of one number. */
long sum_loop(Handle comm, Handle int64, Handle sum, int rank, int size, long repeats)
{
    long wrong = 0;
    for (long i = 0; i < repeats; i++) {
        int64_t mine = i * (rank + 1), all = -1;
        if (MPI_Allreduce(&mine, &all, 1, int64, sum, comm) != 0
            || all != i * (int64_t)size * (size + 1) / 2)
            wrong++;
        int64_t told = rank == i % size ? i + 7 : -1;
        if (MPI_Bcast(&told, 1, int64, (int)(i % size), comm) != 0 || told != i + 7)
            wrong++;
    }
    return wrong;
}

/* The same on a duplicate that lives for one sum. */
long dup_loop(Handle comm, Handle int64, Handle sum, int rank, int size, long repeats)
{
    long wrong = 0;
    for (long i = 0; i < repeats; i++) {
        Handle made = 0;
        int64_t mine = i * (rank + 1), all = -1;
        if (MPI_Comm_dup(comm, &made) != 0
            || MPI_Allreduce(&mine, &all, 1, int64, sum, made) != 0
            || all != i * (int64_t)size * (size + 1) / 2)
            wrong++;
        MPI_Comm_free(&made);
    }
    return wrong;
}
