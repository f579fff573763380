/* Operations and element types of the reduction kernels: what every layer may include.
 *
 * The kernels themselves are in reduction_kernels.h, compiled once, by kernels.pyx only. */
#ifndef SMCOLL_REDUCTION_TYPES_H
#define SMCOLL_REDUCTION_TYPES_H

#include <stddef.h>
#include <stdint.h>

enum {
    OP_SUM, OP_PROD, OP_MAX, OP_MIN, OP_LAND, OP_BAND, OP_LOR, OP_BOR, OP_LXOR, OP_BXOR, OPS
};

enum {
    TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64,
    TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64,
    TYPE_BOOL, TYPE_FLOAT, TYPE_DOUBLE, TYPE_LONG_DOUBLE, TYPE_COMPLEX_FLOAT, TYPE_COMPLEX_DOUBLE,
    TYPES
};

enum { INSTRUCTIONS_BASELINE, INSTRUCTIONS_AVX2, INSTRUCTIONS_AVX512, INSTRUCTION_SETS };

/* out[i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) op ... for `elements` elements.
 *
 * At least one source (one alone is copied). `out` may be the same address as any of the sources,
 * but may not overlap one partly. No alignment is needed. */
typedef void (*reduction_kernel)(void *out, const void *const *sources, int count_of_sources,
                                 size_t elements);

/* Bytes of one element, 0 when there is no such type. */
static inline size_t element_size(int element_type)
{
    static const size_t sizes[TYPES] = {
        [TYPE_INT8] = 1, [TYPE_INT16] = 2, [TYPE_INT32] = 4, [TYPE_INT64] = 8,
        [TYPE_UINT8] = 1, [TYPE_UINT16] = 2, [TYPE_UINT32] = 4, [TYPE_UINT64] = 8,
        [TYPE_BOOL] = 1,
        [TYPE_FLOAT] = sizeof(float),
        [TYPE_DOUBLE] = sizeof(double),
        [TYPE_LONG_DOUBLE] = sizeof(long double),
        [TYPE_COMPLEX_FLOAT] = 2 * sizeof(float),
        [TYPE_COMPLEX_DOUBLE] = 2 * sizeof(double),
    };
    return element_type >= 0 && element_type < TYPES ? sizes[element_type] : 0;
}

#endif
