/* C11 atomics on shared words, sleeping on one, the pause instruction and two clocks.
 *
 * Every flag in the shared mapping is written with store_release and read with load_acquire:
 * what the writer stored before its release is visible to whoever acquires that value. */
#ifndef SMCOLL_ATOMICS_H
#define SMCOLL_ATOMICS_H

#include <linux/futex.h>
#include <limits.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t load_acquire(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void store_release(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline uint64_t load_relaxed(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void store_relaxed(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* Orders the loads before it with the loads after it (the reader's side of a sequence check). */
static inline void fence_acquire(void)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

/* Orders the stores before it with the stores after it (the writer's side of a sequence check). */
static inline void fence_release(void)
{
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* Orders all before it with all after it, a store with a later load too. */
static inline void fence_full(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline int load_relaxed_int(const int *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void store_relaxed_int(int *word, int value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* Sleep until `wake`, at most so many nanoseconds; not at all where the word is not `seen`. True
   where `wake` ended it. */
static inline int sleep_for(const int *word, int seen, int64_t ns)
{
    struct timespec limit = {ns / 1000000000, ns % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0) == 0;
}

static inline void wake(const int *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* 0 -> 1 by one thread only; the loser sees 0 returned. */
static inline int try_lock(int *word)
{
    int expected = 0;
    return __atomic_compare_exchange_n(word, &expected, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void unlock(int *word)
{
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
}

/* A hint: fetch the line meanwhile. Orders nothing. */
static inline void prefetch_line(const uint64_t *word)
{
    __builtin_prefetch(word);
}

static inline void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static inline int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* CPU time of this thread: what others do while it is off the CPU doesn't count. */
static inline int64_t thread_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

#endif
