/* Copies: ordinary, and with non-temporal stores that leave the destination out of the caches. */
#ifndef SMCOLL_COPY_H
#define SMCOLL_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

static inline void copy_bytes(void *out, const void *source, size_t bytes)
{
    memcpy(out, source, bytes);
}

#ifdef __x86_64__

enum { COPY_LINE = 64 };

static inline void stream_lines(unsigned char *to, const unsigned char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += COPY_LINE) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(from + i));
        const __m128i b = _mm_loadu_si128((const __m128i *)(from + i) + 1);
        const __m128i c = _mm_loadu_si128((const __m128i *)(from + i) + 2);
        const __m128i d = _mm_loadu_si128((const __m128i *)(from + i) + 3);
        _mm_stream_si128((__m128i *)(to + i), a);
        _mm_stream_si128((__m128i *)(to + i) + 1, b);
        _mm_stream_si128((__m128i *)(to + i) + 2, c);
        _mm_stream_si128((__m128i *)(to + i) + 3, d);
    }
}

/* Two stores a line instead of four: a fifth faster where two cores write at once
 * (docs/performance.md); AVX-512's one gains nothing beyond that. */
__attribute__((target("avx"))) static inline void
stream_lines_avx(unsigned char *to, const unsigned char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += COPY_LINE) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)(from + i));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(from + i) + 1);
        _mm256_stream_si256((__m256i *)(to + i), a);
        _mm256_stream_si256((__m256i *)(to + i) + 1, b);
    }
}

/* Whole destination cache lines go around the caches; the ragged ends are copied as usual. */
static inline void copy_bytes_streaming(void *out, const void *source, size_t bytes)
{
    unsigned char *to = (unsigned char *)out;
    const unsigned char *from = (const unsigned char *)source;
    size_t head = -(uintptr_t)to % COPY_LINE, lines;
    if (head > bytes)
        head = bytes;
    memcpy(to, from, head);
    lines = (bytes - head) / COPY_LINE * COPY_LINE;
    if (__builtin_cpu_supports("avx"))
        stream_lines_avx(to + head, from + head, lines);
    else
        stream_lines(to + head, from + head, lines);
    memcpy(to + head + lines, from + head + lines, bytes - head - lines);
    /* A release store that follows does not order non-temporal stores before it (rule 14). */
    _mm_sfence();
}

#else

static inline void copy_bytes_streaming(void *out, const void *source, size_t bytes)
{
    memcpy(out, source, bytes);
}

#endif

#endif
