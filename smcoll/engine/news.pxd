from libc.stdint cimport uint64_t

# What rank 0 tells the others in one word (segment.pxd: told_by): a class follows a variant of its
# plan, for good or on trial. From the lowest bit up: variant (8 bits; 0: the table's row), class
# (5), collective (5), whether it is a trial (1), `after` (45).
cdef struct News:
    uint64_t after             # holds where the caller has been in so many of the user's calls
    int collective, size_class, variant
    bint is_trial


cdef inline uint64_t pack_news(uint64_t after, bint is_trial, int collective, int size_class,
                               int variant) noexcept nogil:
    return (after << 19 | <uint64_t> is_trial << 18 | <uint64_t> collective << 13
            | <uint64_t> size_class << 8 | <uint64_t> variant)


cdef inline uint64_t after_in(uint64_t word) noexcept nogil:
    return word >> 19


cdef inline News unpack_news(uint64_t word) noexcept nogil:
    cdef News news
    news.after = after_in(word)
    news.is_trial = <int> (word >> 18) & 1
    news.collective = <int> (word >> 13) & 31
    news.size_class = <int> (word >> 8) & 31
    news.variant = <int> word & 255
    return news
