/* Kinds of stores of the copy kernels: what every layer may include.
 *
 * The kernels themselves are in copy_kernels.h, compiled once, by kernels.pyx only. */
#ifndef SMCOLL_COPY_KINDS_H
#define SMCOLL_COPY_KINDS_H

#include <stddef.h>

enum {
    STORES_ORDINARY,     /* vector stores, which leave the lines in this core's caches */
    STORES_STRING,       /* the processor's string copy (rep movsb), where it has a fast one */
    STORES_NON_TEMPORAL, /* around the caches; fenced before the kernel returns */
    STORES_KINDS
};

typedef void (*copy_kernel)(void *out, const void *source, size_t bytes);

#endif
