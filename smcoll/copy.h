/* Copies: ordinary, and with non-temporal stores that leave the destination out of the caches. */
#ifndef SMCOLL_COPY_H
#define SMCOLL_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

static inline void copy_bytes(void *out, const void *source, size_t bytes)
{
    memcpy(out, source, bytes);
}

#ifdef __x86_64__

/* Whole destination cache lines go around the caches; the ragged ends are copied as usual. */
static inline void copy_bytes_streaming(void *out, const void *source, size_t bytes)
{
    enum { CACHE_LINE = 64 };
    unsigned char *to = (unsigned char *)out;
    const unsigned char *from = (const unsigned char *)source;
    size_t head = -(uintptr_t)to % CACHE_LINE;
    if (head > bytes)
        head = bytes;
    memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    for (; bytes >= CACHE_LINE; bytes -= CACHE_LINE) {
        const __m128i a = _mm_loadu_si128((const __m128i *)from);
        const __m128i b = _mm_loadu_si128((const __m128i *)from + 1);
        const __m128i c = _mm_loadu_si128((const __m128i *)from + 2);
        const __m128i d = _mm_loadu_si128((const __m128i *)from + 3);
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)to + 1, b);
        _mm_stream_si128((__m128i *)to + 2, c);
        _mm_stream_si128((__m128i *)to + 3, d);
        to += CACHE_LINE;
        from += CACHE_LINE;
    }
    memcpy(to, from, bytes);
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
