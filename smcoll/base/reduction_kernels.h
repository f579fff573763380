/* Reduction kernels: operation x element type x instruction set. Included by kernels.pyx only.
 *
 * The header includes itself once per instruction set. Every set runs the same element-wise C, in
 * source order and without reassociation, so all give the same bits (protocol rule 7). A fused
 * multiply-add would change complex products. -ffp-contract=off is not enough: gcc 12 was seen to
 * vectorise them to vfmaddsub all the same. So they are compiled for targets without FMA, and since
 * AVX-512 implies it, the AVX-512 set uses the products of the AVX2 set. One thing C leaves open:
 * which payload comes out where *both* operands of + or * are (different) NaNs. */
#ifndef REDUCTION_SET

#ifndef SMCOLL_REDUCTION_KERNELS_H
#define SMCOLL_REDUCTION_KERNELS_H

#include <string.h>

#include "copy_kernels.h"
#include "reduction_types.h"

#ifdef __FAST_MATH__
#error "-ffast-math breaks the promise that every rank gets the same bits"
#endif

/* Element types as they lie in user memory: at any address, and possibly declared as another type
 * there. Signed integers share the unsigned kernels (wrap-around without undefined behaviour)
 * wherever the bits of the result are the same. */
#define ANYWHERE __attribute__((aligned(1), may_alias))
typedef int8_t int8_anywhere ANYWHERE;
typedef int16_t int16_anywhere ANYWHERE;
typedef int32_t int32_anywhere ANYWHERE;
typedef int64_t int64_anywhere ANYWHERE;
typedef uint8_t uint8_anywhere ANYWHERE;
typedef uint16_t uint16_anywhere ANYWHERE;
typedef uint32_t uint32_anywhere ANYWHERE;
typedef uint64_t uint64_anywhere ANYWHERE;
typedef float float_anywhere ANYWHERE;
typedef double double_anywhere ANYWHERE;
typedef long double long_double_anywhere ANYWHERE;
typedef struct { float_anywhere real, imaginary; } ANYWHERE complex_float_anywhere;
typedef struct { double_anywhere real, imaginary; } ANYWHERE complex_double_anywhere;

/* The operations on two operands. 1u keeps products of small unsigned types from being computed
 * in (signed, overflowing) int. MAX and MIN are written as the SIMD instructions define them:
 * the second operand when either is a NaN. */
#define SUM(a, b) ((a) + (b))
#define PROD(a, b) ((a) * (b))
#define INTEGER_PROD(a, b) (1u * (a) * (b))
#define MAX_OF(a, b) ((a) > (b) ? (a) : (b))
#define MIN_OF(a, b) ((a) < (b) ? (a) : (b))
#define LAND(a, b) (((a) != 0) & ((b) != 0))
#define BAND(a, b) ((a) & (b))
#define LOR(a, b) (((a) | (b)) != 0)
#define BOR(a, b) ((a) | (b))
#define LXOR(a, b) (((a) != 0) ^ ((b) != 0))
#define BXOR(a, b) ((a) ^ (b))
#define COMPLEX_SUM(a, b) {(a).real + (b).real, (a).imaginary + (b).imaginary}
#define COMPLEX_PROD(a, b) \
    {(a).real * (b).real - (a).imaginary * (b).imaginary, \
     (a).real * (b).imaginary + (a).imaginary * (b).real}

/* Iterations are independent of each other even when `out` is one of the sources: element i is
 * read and written by iteration i alone. */
#ifdef __clang__
#define INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
/* That long double loops cannot be vectorised is no news. */
#pragma clang diagnostic ignored "-Wpass-failed"
#else
#define INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

enum { SOURCES_AT_ONCE = 4, BLOCK_BYTES = 2048 };

/* One source alone. */
static inline void copy_operand(void *out, const void *source, size_t bytes)
{
    if (out == source)
        return;
    if (bytes < COPY_LINE)
        memcpy(out, source, bytes);
    else
        copy_ordinary_baseline(out, source, bytes);
}

/* More sources than a kernel takes at once: block by block through an accumulator of its own,
 * since `out` may be a source that is still to be read. */
static inline void reduce_in_blocks(reduction_kernel kernel, size_t element_bytes, void *out,
                                    const void *const *sources, int count, size_t elements)
{
    _Alignas(64) unsigned char partial[BLOCK_BYTES];
    const size_t elements_per_block = BLOCK_BYTES / element_bytes;
    for (size_t done = 0; done < elements; done += elements_per_block) {
        const size_t left = elements - done;
        const size_t block = left < elements_per_block ? left : elements_per_block;
        const size_t offset = done * element_bytes;
        const void *operands[SOURCES_AT_ONCE];
        int taken = 0, next = 0;
        while (next < count) {
            if (next > 0)
                operands[taken++] = partial;
            while (taken < SOURCES_AT_ONCE && next < count)
                operands[taken++] = (const unsigned char *)sources[next++] + offset;
            kernel(next < count ? (void *)partial : (unsigned char *)out + offset, operands, taken,
                   block);
            taken = 0;
        }
    }
}

/* KERNEL(SUM, sum expression, double, double) defines SUM_double_<set>: `value` is the type that
 * is computed with, `type`_anywhere the one that is read and written. */
#define JOIN_TOKENS(op, type, set) op##_##type##_##set
#define JOIN(op, type, set) JOIN_TOKENS(op, type, set)
#define KERNEL(op, combine, type, value) \
REDUCTION_TARGET static void JOIN(op, type, REDUCTION_SET)( \
    void *out_address, const void *const *sources, int count, size_t elements) \
{ \
    type##_anywhere *out = (type##_anywhere *)out_address; \
    const type##_anywhere *a = (const type##_anywhere *)sources[0], *b, *c, *d; \
    switch (count) { \
    case 1: \
        copy_operand(out, a, elements * sizeof(value)); \
        break; \
    case 2: \
        b = (const type##_anywhere *)sources[1]; \
        INDEPENDENT_ITERATIONS \
        for (size_t i = 0; i < elements; i++) { \
            const value ab = combine(a[i], b[i]); \
            out[i] = ab; \
        } \
        break; \
    case 3: \
        b = (const type##_anywhere *)sources[1]; \
        c = (const type##_anywhere *)sources[2]; \
        INDEPENDENT_ITERATIONS \
        for (size_t i = 0; i < elements; i++) { \
            const value ab = combine(a[i], b[i]); \
            const value abc = combine(ab, c[i]); \
            out[i] = abc; \
        } \
        break; \
    case 4: \
        b = (const type##_anywhere *)sources[1]; \
        c = (const type##_anywhere *)sources[2]; \
        d = (const type##_anywhere *)sources[3]; \
        INDEPENDENT_ITERATIONS \
        for (size_t i = 0; i < elements; i++) { \
            const value ab = combine(a[i], b[i]); \
            const value abc = combine(ab, c[i]); \
            const value abcd = combine(abc, d[i]); \
            out[i] = abcd; \
        } \
        break; \
    default: \
        reduce_in_blocks(JOIN(op, type, REDUCTION_SET), sizeof(value), out, sources, count, \
                         elements); \
    } \
}

/* The rows of one set's table. */
#define ENTRY(op, type) JOIN(op, type, REDUCTION_SET)
#define ON_UNSIGNED(op) \
    [TYPE_INT8] = ENTRY(op, uint8), [TYPE_INT16] = ENTRY(op, uint16), \
    [TYPE_INT32] = ENTRY(op, uint32), [TYPE_INT64] = ENTRY(op, uint64), \
    [TYPE_UINT8] = ENTRY(op, uint8), [TYPE_UINT16] = ENTRY(op, uint16), \
    [TYPE_UINT32] = ENTRY(op, uint32), [TYPE_UINT64] = ENTRY(op, uint64)
#define ON_BOTH_SIGNS(op) \
    [TYPE_INT8] = ENTRY(op, int8), [TYPE_INT16] = ENTRY(op, int16), \
    [TYPE_INT32] = ENTRY(op, int32), [TYPE_INT64] = ENTRY(op, int64), \
    [TYPE_UINT8] = ENTRY(op, uint8), [TYPE_UINT16] = ENTRY(op, uint16), \
    [TYPE_UINT32] = ENTRY(op, uint32), [TYPE_UINT64] = ENTRY(op, uint64)
/* No instruction set has SIMD for long double: all use the baseline's. */
#define ON_REAL(op) \
    [TYPE_FLOAT] = ENTRY(op, float), [TYPE_DOUBLE] = ENTRY(op, double), \
    [TYPE_LONG_DOUBLE] = op##_long_double_baseline
#define ON_COMPLEX(op, set) \
    [TYPE_COMPLEX_FLOAT] = JOIN(op, complex_float, set), \
    [TYPE_COMPLEX_DOUBLE] = JOIN(op, complex_double, set)
#define ON_BOOL(op) [TYPE_BOOL] = ENTRY(op, uint8)

#ifdef __x86_64__
/* Also when the whole build is for a newer CPU (-march=native). */
#define WITHOUT_FMA "no-fma,no-fma4,no-avx512f"
#define REDUCTION_TARGET __attribute__((target(WITHOUT_FMA)))
#else
#define REDUCTION_TARGET
#endif
#define REDUCTION_SET baseline
#define COMPLEX_PROD_SET baseline
#include "reduction_kernels.h"
#undef REDUCTION_SET
#undef REDUCTION_TARGET
#undef COMPLEX_PROD_SET

#ifdef __x86_64__
#define REDUCTION_SET avx2
#define COMPLEX_PROD_SET avx2
#define REDUCTION_TARGET __attribute__((target("avx2," WITHOUT_FMA)))
#include "reduction_kernels.h"
#undef REDUCTION_SET
#undef REDUCTION_TARGET
#undef COMPLEX_PROD_SET

#define REDUCTION_SET avx512
#define COMPLEX_PROD_SET avx2
#define REDUCTION_HAS_FMA
#ifdef __clang__
#define REDUCTION_TARGET \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), min_vector_width(512)))
#else
#define REDUCTION_TARGET \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#include "reduction_kernels.h"
#undef REDUCTION_SET
#undef REDUCTION_TARGET
#undef COMPLEX_PROD_SET
#undef REDUCTION_HAS_FMA
#endif

/* The best of INSTRUCTIONS_* that this CPU and its operating system can run. */
static inline int detect_instruction_set(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return INSTRUCTIONS_AVX512;
    if (__builtin_cpu_supports("avx2"))
        return INSTRUCTIONS_AVX2;
#endif
    return INSTRUCTIONS_BASELINE;
}

/* NULL where MPI defines no such reduction, or this build has no such instruction set. */
static inline reduction_kernel find_reduction_kernel(int op, int element_type, int instruction_set)
{
    if (op < 0 || op >= OPS || element_type < 0 || element_type >= TYPES)
        return NULL;
    switch (instruction_set) {
    case INSTRUCTIONS_BASELINE:
        return kernels_of_baseline[op][element_type];
#ifdef __x86_64__
    case INSTRUCTIONS_AVX2:
        return kernels_of_avx2[op][element_type];
    case INSTRUCTIONS_AVX512:
        return kernels_of_avx512[op][element_type];
#endif
    default:
        return NULL;
    }
}

#endif /* SMCOLL_REDUCTION_KERNELS_H */

#else /* REDUCTION_SET: the kernels of one instruction set */

#define KERNELS_ON_UNSIGNED(type) \
    KERNEL(SUM, SUM, type, type##_t) \
    KERNEL(PROD, INTEGER_PROD, type, type##_t) \
    KERNEL(LAND, LAND, type, type##_t) \
    KERNEL(BAND, BAND, type, type##_t) \
    KERNEL(LOR, LOR, type, type##_t) \
    KERNEL(BOR, BOR, type, type##_t) \
    KERNEL(LXOR, LXOR, type, type##_t) \
    KERNEL(BXOR, BXOR, type, type##_t)
#define KERNELS_MAX_MIN(type, value) \
    KERNEL(MAX, MAX_OF, type, value) \
    KERNEL(MIN, MIN_OF, type, value)
#define KERNELS_ON_REAL(type, value) \
    KERNEL(SUM, SUM, type, value) \
    KERNEL(PROD, PROD, type, value) \
    KERNELS_MAX_MIN(type, value)
#define KERNEL_ON_COMPLEX(op, combine, type) \
    KERNEL(op, combine, type, type##_anywhere)

KERNELS_ON_UNSIGNED(uint8)
KERNELS_ON_UNSIGNED(uint16)
KERNELS_ON_UNSIGNED(uint32)
KERNELS_ON_UNSIGNED(uint64)
KERNELS_MAX_MIN(uint8, uint8_t)
KERNELS_MAX_MIN(uint16, uint16_t)
KERNELS_MAX_MIN(uint32, uint32_t)
KERNELS_MAX_MIN(uint64, uint64_t)
KERNELS_MAX_MIN(int8, int8_t)
KERNELS_MAX_MIN(int16, int16_t)
KERNELS_MAX_MIN(int32, int32_t)
KERNELS_MAX_MIN(int64, int64_t)
KERNELS_ON_REAL(float, float)
KERNELS_ON_REAL(double, double)
KERNEL_ON_COMPLEX(SUM, COMPLEX_SUM, complex_float)
KERNEL_ON_COMPLEX(SUM, COMPLEX_SUM, complex_double)
#ifndef REDUCTION_HAS_FMA
KERNEL_ON_COMPLEX(PROD, COMPLEX_PROD, complex_float)
KERNEL_ON_COMPLEX(PROD, COMPLEX_PROD, complex_double)
#endif
#ifndef SMCOLL_LONG_DOUBLE_KERNELS
#define SMCOLL_LONG_DOUBLE_KERNELS
KERNELS_ON_REAL(long_double, long double)
#endif

#undef KERNELS_ON_UNSIGNED
#undef KERNELS_MAX_MIN
#undef KERNELS_ON_REAL
#undef KERNEL_ON_COMPLEX

/* Missing entries are NULL: MPI's arithmetic operations exist on numbers, MAX and MIN on ordered
 * ones, logical operations on integers and booleans, bitwise operations on integers. */
static const reduction_kernel JOIN(kernels, of, REDUCTION_SET)[OPS][TYPES] = {
    [OP_SUM] = {ON_UNSIGNED(SUM), ON_REAL(SUM), ON_COMPLEX(SUM, REDUCTION_SET)},
    [OP_PROD] = {ON_UNSIGNED(PROD), ON_REAL(PROD), ON_COMPLEX(PROD, COMPLEX_PROD_SET)},
    [OP_MAX] = {ON_BOTH_SIGNS(MAX), ON_REAL(MAX)},
    [OP_MIN] = {ON_BOTH_SIGNS(MIN), ON_REAL(MIN)},
    [OP_LAND] = {ON_UNSIGNED(LAND), ON_BOOL(LAND)},
    [OP_BAND] = {ON_UNSIGNED(BAND)},
    [OP_LOR] = {ON_UNSIGNED(LOR), ON_BOOL(LOR)},
    [OP_BOR] = {ON_UNSIGNED(BOR)},
    [OP_LXOR] = {ON_UNSIGNED(LXOR), ON_BOOL(LXOR)},
    [OP_BXOR] = {ON_UNSIGNED(BXOR)},
};

#endif /* REDUCTION_SET */
