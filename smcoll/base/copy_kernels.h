/* Copy kernels: kind of stores x instruction set. Included by kernels.pyx only.
 *
 * The C library's memcpy is none of them: its kind of stores depends on the processor, the size and
 * the C library's version, and on AMD's Zen 3 it falls from 40 to 2 GB/s where the destination lies
 * 1 to 31 bytes further into its page than the source: where numpy puts its arrays. */
#ifndef SMCOLL_COPY_KERNELS_H
#define SMCOLL_COPY_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "copy_kinds.h"
#include "reduction_types.h"

enum { COPY_LINE = 64, COPY_PAGE = 4096 };

/* Every kernel: any alignment, any length of at least COPY_LINE, no overlap. */

/* ------------------------------------------------------------------------ ordinary stores
 *
 * The first line's worth is stored where it is, and so is the last, over what the loop stored: so
 * the loop stores whole lines, and no byte is copied alone. */
#define ORDINARY_KERNEL(NAME, TARGET, VECTOR, LOAD, STORE) \
TARGET static void NAME(void *out, const void *source, size_t bytes) \
{ \
    enum { WIDTH = sizeof(VECTOR), VECTORS = COPY_LINE / WIDTH, AT_ONCE = 2 * COPY_LINE }; \
    unsigned char *to = (unsigned char *)out, *const last = to + bytes - COPY_LINE; \
    const unsigned char *from = (const unsigned char *)source; \
    const unsigned char *const last_from = from + bytes - COPY_LINE; \
    const size_t head = COPY_LINE - (uintptr_t)to % COPY_LINE; \
    VECTOR kept[VECTORS], moved[2 * VECTORS]; \
    for (int i = 0; i < VECTORS; i++) \
        kept[i] = LOAD(from + i * WIDTH); \
    for (int i = 0; i < VECTORS; i++) \
        STORE(to + i * WIDTH, kept[i]); \
    to += head, from += head; \
    for (; to + AT_ONCE <= last + COPY_LINE; to += AT_ONCE, from += AT_ONCE) { \
        for (int i = 0; i < 2 * VECTORS; i++) \
            moved[i] = LOAD(from + i * WIDTH); \
        for (int i = 0; i < 2 * VECTORS; i++) \
            STORE(to + i * WIDTH, moved[i]); \
    } \
    if (to < last) { \
        for (int i = 0; i < VECTORS; i++) \
            kept[i] = LOAD(from + i * WIDTH); \
        for (int i = 0; i < VECTORS; i++) \
            STORE(to + i * WIDTH, kept[i]); \
    } \
    for (int i = 0; i < VECTORS; i++) \
        kept[i] = LOAD(last_from + i * WIDTH); \
    for (int i = 0; i < VECTORS; i++) \
        STORE(last + i * WIDTH, kept[i]); \
}

/* ------------------------------------------------------------------------ interleaved
 *
 * The same from lines that no near cache holds: a quarter of the bytes each, two lines of each by
 * turns. The processor's prefetchers follow all four places. */
enum { COPY_QUARTERS = 4, COPY_AT_ONCE = 2 * COPY_LINE };

#define INTERLEAVED_KERNEL(NAME, TARGET, VECTOR, LOAD, STORE, REST) \
TARGET static void NAME(void *out, const void *source, size_t bytes) \
{ \
    enum { WIDTH = sizeof(VECTOR) }; \
    unsigned char *const to = (unsigned char *)out; \
    const unsigned char *const from = (const unsigned char *)source; \
    /* What is over, at least a line, is copied at the end. */ \
    const size_t quarter = (bytes - COPY_LINE) / COPY_QUARTERS / COPY_AT_ONCE * COPY_AT_ONCE; \
    for (size_t i = 0; i < quarter; i += COPY_AT_ONCE) \
        for (int part = 0; part < COPY_QUARTERS; part++) \
            for (int j = 0; j < COPY_AT_ONCE; j += WIDTH) { \
                const size_t at = part * quarter + i + j; \
                STORE(to + at, LOAD(from + at)); \
            } \
    REST(to + COPY_QUARTERS * quarter, from + COPY_QUARTERS * quarter, \
         bytes - COPY_QUARTERS * quarter); \
}

/* ------------------------------------------------------------------------ non-temporal stores
 *
 * Whole destination lines go around the caches, the ragged ends through them. */
#define AROUND_KERNEL(NAME, TARGET, VECTOR, LOAD, STREAM, FENCE) \
TARGET static void NAME(void *out, const void *source, size_t bytes) \
{ \
    enum { WIDTH = sizeof(VECTOR), VECTORS = COPY_LINE / WIDTH }; \
    unsigned char *to = (unsigned char *)out, *const end = to + bytes; \
    const unsigned char *from = (const unsigned char *)source; \
    const size_t head = -(uintptr_t)to % COPY_LINE; \
    memcpy(to, from, head); \
    to += head, from += head; \
    for (; to + COPY_LINE <= end; to += COPY_LINE, from += COPY_LINE) { \
        VECTOR moved[VECTORS]; \
        for (int i = 0; i < VECTORS; i++) \
            moved[i] = LOAD(from + i * WIDTH); \
        for (int i = 0; i < VECTORS; i++) \
            STREAM(to + i * WIDTH, moved[i]); \
    } \
    memcpy(to, from, end - to); \
    FENCE; \
}

#ifdef __x86_64__

/* A release store that follows does not order non-temporal stores before it (protocol rule 14). */
#define LOAD_128(at) _mm_loadu_si128((const __m128i *)(at))
#define STORE_128(at, value) _mm_storeu_si128((__m128i *)(at), value)
#define STREAM_128(at, value) _mm_stream_si128((__m128i *)(at), value)
#define LOAD_256(at) _mm256_loadu_si256((const __m256i *)(at))
#define STORE_256(at, value) _mm256_storeu_si256((__m256i *)(at), value)
#define STREAM_256(at, value) _mm256_stream_si256((__m256i *)(at), value)
#define LOAD_512(at) _mm512_loadu_si512(at)
#define STORE_512(at, value) _mm512_storeu_si512(at, value)
#define STREAM_512(at, value) _mm512_stream_si512((__m512i *)(at), value)
#define TARGET_256 __attribute__((target("avx2")))
#define TARGET_512 __attribute__((target("avx512f")))

ORDINARY_KERNEL(copy_ordinary_baseline, , __m128i, LOAD_128, STORE_128)
ORDINARY_KERNEL(copy_ordinary_avx2, TARGET_256, __m256i, LOAD_256, STORE_256)
ORDINARY_KERNEL(copy_ordinary_avx512, TARGET_512, __m512i, LOAD_512, STORE_512)
AROUND_KERNEL(copy_around_baseline, , __m128i, LOAD_128, STREAM_128, _mm_sfence())
AROUND_KERNEL(copy_around_avx2, TARGET_256, __m256i, LOAD_256, STREAM_256, _mm_sfence())
AROUND_KERNEL(copy_around_avx512, TARGET_512, __m512i, LOAD_512, STREAM_512, _mm_sfence())

INTERLEAVED_KERNEL(copy_interleaved_baseline, , __m128i, LOAD_128, STORE_128,
                   copy_ordinary_baseline)
INTERLEAVED_KERNEL(copy_interleaved_avx2, TARGET_256, __m256i, LOAD_256, STORE_256,
                   copy_ordinary_avx2)

static const copy_kernel copy_ordinary_kernels[INSTRUCTION_SETS] = {
    copy_ordinary_baseline, copy_ordinary_avx2, copy_ordinary_avx512};
/* (With wider vectors it is a little slower.) */
static const copy_kernel copy_interleaved_kernels[INSTRUCTION_SETS] = {
    copy_interleaved_baseline, copy_interleaved_avx2, copy_interleaved_avx2};
static const copy_kernel copy_around_kernels[INSTRUCTION_SETS] = {
    copy_around_baseline, copy_around_avx2, copy_around_avx512};

/* Whether the string copy has Zen 3's slow case (see the top). */
static int has_slow_case = 1;

/* The processor's own string copy: it may take whole lines without asking for what is in them. */
static void copy_string_x86(void *out, const void *source, size_t bytes)
{
    if (has_slow_case && ((uintptr_t)out - (uintptr_t)source - 1) % COPY_PAGE < 31) {
        copy_ordinary_baseline(out, source, bytes);
        return;
    }
    __asm__ volatile("rep movsb" : "+D"(out), "+S"(source), "+c"(bytes) : : "memory");
}

/* Enhanced REP MOVSB (CPUID leaf 7): without it, it copies byte by byte. */
static inline int has_string_copy(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 9 & 1);
}

/* Cycles for a string copy from a page's begin to page + 16, or for one with ordinary stores: the
 * least of several, in the first-level cache. */
static unsigned long long cycles_to_copy(int string, int instruction_set)
{
    enum { BYTES = 8192, TIMES = 5 };
    unsigned char memory[2 * BYTES + COPY_PAGE] __attribute__((aligned(COPY_PAGE)));
    unsigned long long least = ~0ull;
    memset(memory, 0, sizeof memory);
    for (int i = 0; i < TIMES; i++) {
        void *out = memory + BYTES + 16;
        const void *source = memory;
        size_t bytes = BYTES;
        const unsigned long long began = __rdtsc();
        if (string)
            __asm__ volatile("rep movsb" : "+D"(out), "+S"(source), "+c"(bytes) : : "memory");
        else
            copy_ordinary_kernels[instruction_set](out, source, bytes);
        const unsigned long long taken = __rdtsc() - began;
        least = taken < least ? taken : least;
    }
    return least;
}

/* Measured, since there are more processors than are known here; takes some microseconds. */
static inline void look_for_slow_case(int instruction_set)
{
    has_slow_case = !has_string_copy() || cycles_to_copy(1, instruction_set)
                                              > 2 * cycles_to_copy(0, instruction_set);
}

#else /* arm64 and others */

typedef uint8_t copy_vector __attribute__((vector_size(16), aligned(1), may_alias));

#define LOAD_VECTOR(at) (*(const copy_vector *)(at))
#define STORE_VECTOR(at, value) (*(copy_vector *)(at) = (value))
ORDINARY_KERNEL(copy_ordinary_baseline, , copy_vector, LOAD_VECTOR, STORE_VECTOR)
static const copy_kernel copy_ordinary_kernels[INSTRUCTION_SETS] = {copy_ordinary_baseline};
INTERLEAVED_KERNEL(copy_interleaved_baseline, , copy_vector, LOAD_VECTOR, STORE_VECTOR,
                   copy_ordinary_baseline)
static const copy_kernel copy_interleaved_kernels[INSTRUCTION_SETS] = {copy_interleaved_baseline};

#ifdef __aarch64__
/* STNP is a hint; as for any store, a later release store orders it. */
#define STREAM_VECTOR(at, value) \
    __asm__ volatile("stnp %d1, %d2, [%0]" : : "r"(at), \
                     "w"(((const double *)&(value))[0]), "w"(((const double *)&(value))[1]) \
                     : "memory")
AROUND_KERNEL(copy_around_baseline, , copy_vector, LOAD_VECTOR, STREAM_VECTOR, (void)0)
static const copy_kernel copy_around_kernels[INSTRUCTION_SETS] = {copy_around_baseline};
#endif

#endif

/* Whether string copies are fast at any alignment. */
static inline int is_string_copy_fast(int instruction_set)
{
#ifdef __x86_64__
    look_for_slow_case(instruction_set);
    return !has_slow_case;
#else
    return 0;
#endif
}

static inline copy_kernel find_interleaved_kernel(int instruction_set)
{
    return copy_interleaved_kernels[instruction_set];
}

/* NULL where this processor or build has no such stores. */
static inline copy_kernel find_copy_kernel(int stores, int instruction_set)
{
    switch (stores) {
    case STORES_ORDINARY:
        return copy_ordinary_kernels[instruction_set];
#if defined(__x86_64__) || defined(__aarch64__)
    case STORES_NON_TEMPORAL:
        return copy_around_kernels[instruction_set];
#endif
#ifdef __x86_64__
    case STORES_STRING:
        return has_string_copy() ? copy_string_x86 : NULL;
#endif
    default:
        return NULL;
    }
}

#endif
