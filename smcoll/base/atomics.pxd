from libc.stdint cimport int64_t, uint64_t


cdef extern from "atomics.h" nogil:
    uint64_t load_acquire(const uint64_t *word) noexcept
    void store_release(uint64_t *word, uint64_t value) noexcept
    uint64_t load_relaxed(const uint64_t *word) noexcept
    void store_relaxed(uint64_t *word, uint64_t value) noexcept
    void fence_acquire() noexcept
    void fence_release() noexcept
    void fence_full() noexcept
    int load_relaxed_int(const int *word) noexcept
    void store_relaxed_int(int *word, int value) noexcept
    bint sleep_for(const int *word, int seen, int64_t ns) noexcept
    void wake(const int *word) noexcept
    int try_lock(int *word) noexcept
    void unlock(int *word) noexcept
    void cpu_pause() noexcept
    void prefetch_line(const uint64_t *word) noexcept
    int64_t monotonic_ns() noexcept
    int64_t thread_cpu_ns() noexcept


# Has `flag` reached `value`? The load is an acquire. Signed difference: right across a wrap of the
# counter.
cdef inline bint acquire_reached(const uint64_t *flag, uint64_t value) noexcept nogil:
    return <int64_t> (load_acquire(flag) - value) >= 0
