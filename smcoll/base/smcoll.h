/* smcoll's blocking collectives for other compiled code: on raw pointers, with or without Python's
 * GIL.
 *
 * The functions stand in a table, in a capsule:
 *
 *     const smcoll_api *api = PyCapsule_Import(SMCOLL_CAPSULE, 0);
 *     if (api == NULL || api->version < 1) ...
 *
 * The engine is the attribute `engine` of a smcoll communicator: a Python object, to be kept alive
 * as long as it is used. It is None where the ranks have no shared memory.
 *
 * Every function returns
 *     SMCOLL_SUCCESS   the call is complete on this rank;
 *     SMCOLL_USE_MPI   nothing was done, on any rank: shared memory can't do this. Carry the same
 *                      call out by MPI;
 *     another number   an MPI error code. `error` has a sentence.
 *
 * All ranks make the same calls in the same order, as with MPI, and count Python's calls on the
 * same communicator, too. One call at a time for each communicator. Lengths are in bytes where
 * nothing is reduced. SMCOLL_IN_PLACE stands where MPI_IN_PLACE does; operands and result of a
 * reduction may also have the same address.
 *
 * The GIL is not needed. Long waits take it for a moment all the same, held or not, for signals and
 * to drive MPI, and other Python threads may run then. Gather, Scatter, Alltoall, and everything
 * over several nodes take it for themselves. */
#ifndef SMCOLL_H
#define SMCOLL_H

#include <stddef.h>
#include <stdint.h>

#include "reduction_types.h" /* OP_SUM ..., TYPE_INT32 ...: operations and element types */

#define SMCOLL_API_VERSION 1
#define SMCOLL_CAPSULE "smcoll.c_api"
#define SMCOLL_IN_PLACE ((void *)(intptr_t)-1)

enum { SMCOLL_SUCCESS = 0, SMCOLL_USE_MPI = -1 };

/* A Python object: `comm.engine`. */
typedef struct _object smcoll_engine;

typedef struct smcoll_api {
    int version;

    /* Codes of MPI's handles, as an unsigned number of the handle's own width; -1 where the kernels
     * do not know them. Take the GIL. */
    int (*type_of)(uintptr_t mpi_datatype);
    int (*op_of)(uintptr_t mpi_op);

    /* The sentence of the last error, cut to `size` bytes, and its length. Takes the GIL. */
    size_t (*error)(smcoll_engine *, char *text, size_t size);

    int (*barrier)(smcoll_engine *);
    int (*bcast)(smcoll_engine *, void *buffer, size_t nbytes, int root);

    /* Of `count` elements: `type` is a TYPE_, `op` an OP_ number. An error where MPI has no such
     * reduction. `recv` counts at the root only in a Reduce. */
    int (*reduce)(smcoll_engine *, const void *send, void *recv, size_t count, int type, int op,
                  int root);
    int (*allreduce)(smcoll_engine *, const void *send, void *recv, size_t count, int type, int op);
    int (*scan)(smcoll_engine *, const void *send, void *recv, size_t count, int type, int op);
    int (*exscan)(smcoll_engine *, const void *send, void *recv, size_t count, int type, int op);
    /* `counts`: elements of each rank's block; `count`: of everybody's. */
    int (*reduce_scatter)(smcoll_engine *, const void *send, void *recv, const size_t *counts,
                          int type, int op);
    int (*reduce_scatter_block)(smcoll_engine *, const void *send, void *recv, size_t count,
                                int type, int op);

    /* Blocks of equal length, one behind the other. */
    int (*allgather)(smcoll_engine *, const void *send, void *recv, size_t nbytes);
    int (*gather)(smcoll_engine *, const void *send, void *recv, size_t nbytes, int root);
    int (*scatter)(smcoll_engine *, const void *send, void *recv, size_t nbytes, int root);
    int (*alltoall)(smcoll_engine *, const void *send, void *recv, size_t nbytes);

    /* Blocks of any length: `lengths` of each rank's, and where it begins in the buffer (`starts`),
     * all in bytes. They count where MPI's do. */
    int (*allgatherv)(smcoll_engine *, const void *send, size_t nbytes, void *recv,
                      const size_t *lengths, const ptrdiff_t *starts);
    int (*gatherv)(smcoll_engine *, const void *send, size_t nbytes, void *recv,
                   const size_t *lengths, const ptrdiff_t *starts, int root);
    int (*scatterv)(smcoll_engine *, const void *send, const size_t *lengths,
                    const ptrdiff_t *starts, void *recv, size_t nbytes, int root);
    int (*alltoallv)(smcoll_engine *, const void *send, const size_t *send_lengths,
                     const ptrdiff_t *send_starts, void *recv, const size_t *lengths,
                     const ptrdiff_t *starts);
} smcoll_api;

#endif
