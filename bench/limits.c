/* The machine's own limits, one measurement a run; bench/limits.py compiles and calls this.
 *
 *     limits MEASUREMENT CPUS BYTES SECONDS
 *
 * CPUS (comma-separated) names the CPU of each process; processes, not threads, because ranks are
 * processes. Prints one sample a line: nanoseconds of one operation, the slowest process counts.
 * What is shared lies in an anonymous shared mapping, which has the pages of POSIX shared memory;
 * the other buffers are private.
 *
 *     there_and_back  a cache line from the first CPU to the second and back (two flags)
 *     exchange        both write a flag of their own, then wait for the other's
 *     sched_yield     one call, all processes calling
 *     copy            BYTES from one private buffer to another (memcpy), all processes at once
 *     reduction       a[i] += b[i] on private buffers of BYTES (double), all at once
 *     modified        one dependent read of a line that the last CPU has just written; all lines of
 *                     BYTES in random order, which no prefetcher knows (but one that fetches a
 *                     line's neighbour, or its region, can be lucky); page-table misses included
 *     handover        BYTES of payload and a flag, one way: written by one, copied by the other
 *     one_to_all      BYTES that the first CPU has just written, copied by all others at once
 *     rewrite         BYTES that the second CPU has just read, written by the first with stores
 *     rewrite_copy    the same with memcpy
 *     pass_ordinary   BYTES passed on by the first CPU to the second through a ring of 16 sections of
 *     pass_string     32 KiB, with a flag for each, as a pipelined broadcast does: stored there with
 *     pass_non_temporal  this kind of stores (copy_kernels.h), copied out with ordinary ones; private
 *                     arrays begin 16 bytes behind a page, as numpy's do
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "reduction_kernels.h"

enum {
    LINE = 64,              /* bytes; the unit in which one process sees another's writes */
    APART = 256,            /* between flags: prefetchers fetch neighbouring lines too */
    MAX_PROCESSES = 1024,
    MAX_SAMPLES = 2000,
    MIN_SAMPLES = 3,
    HUGE_FROM = 4 << 20,    /* bytes from which numpy asks for huge pages */
    SECTION = 32 << 10, RING = 16,
    OFFSET = 16,            /* of arrays in their first page, where malloc puts large ones */
};
static const double SHORTEST_SAMPLE = 50e3; /* ns: the clock's own time must not count */

struct flag {
    _Alignas(APART) _Atomic uint64_t value;
};

struct shared {
    struct flag arrived, released;        /* barrier */
    struct flag flags[2];                 /* there_and_back, exchange, handover */
    struct flag passes, samples;          /* of a sample, of all; decided by process 0 */
    _Alignas(APART) double elapsed[MAX_SAMPLES][MAX_PROCESSES];
};

/* What one process works on. */
struct work {
    struct shared *shared;
    int rank, processes;
    bool one_cpu;           /* all processes: who waits must yield at once */
    size_t bytes;
    char *source, *target;  /* private */
    char *payload;          /* shared */
    uint64_t round;         /* of flags: grows for ever */
};

/* Does the operation `passes` times; ns that it took. Every process calls it equally often. */
typedef double measurement(struct work *, uint64_t passes);

static void fail(const char *what)
{
    perror(what);
    exit(EXIT_FAILURE);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

/* ns that reading the clock takes: part of every interval of a single pass. */
static double clock_cost(void)
{
    double least = 1e9;
    for (int i = 0; i < 200; i++) {
        double start = now();
        double elapsed = now() - start;
        if (elapsed < least)
            least = elapsed;
    }
    return least;
}

static void *map(size_t bytes, int kind)
{
    void *memory = mmap(NULL, bytes ? bytes : LINE, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS,
                        -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    if (kind == MAP_PRIVATE && bytes >= HUGE_FROM)
        madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static void bind_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fail("sched_setaffinity");
}

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void wait_for(_Atomic uint64_t *flag, uint64_t value)
{
    while (atomic_load_explicit(flag, memory_order_acquire) < value)
        ;
}

static void publish(_Atomic uint64_t *flag, uint64_t value)
{
    atomic_store_explicit(flag, value, memory_order_release);
}

/* All processes. */
static void barrier(struct work *work)
{
    struct shared *shared = work->shared;
    uint64_t count = atomic_fetch_add(&shared->arrived.value, 1) + 1;
    uint64_t generation = (count + (uint64_t)work->processes - 1) / (uint64_t)work->processes;
    if (count == generation * (uint64_t)work->processes)
        publish(&shared->released.value, generation);
    while (atomic_load(&shared->released.value) < generation)
        if (work->one_cpu)
            sched_yield();
        else
            pause_briefly();
}

/* Keeps the compiler from merging passes. */
static void forget_memory(void)
{
    __asm__ volatile("" ::: "memory");
}

/* ---------------------------------------------------------------- measurements */

static double there_and_back(struct work *work, uint64_t passes)
{
    struct flag *flags = work->shared->flags;
    double start = now();
    for (uint64_t i = 0; i < passes; i++) {
        work->round++;
        if (work->rank == 0) {
            publish(&flags[0].value, work->round);
            wait_for(&flags[1].value, work->round);
        } else {
            wait_for(&flags[0].value, work->round);
            publish(&flags[1].value, work->round);
        }
    }
    return now() - start;
}

static double exchange(struct work *work, uint64_t passes)
{
    struct flag *flags = work->shared->flags;
    double start = now();
    for (uint64_t i = 0; i < passes; i++) {
        publish(&flags[work->rank].value, ++work->round);
        wait_for(&flags[1 - work->rank].value, work->round);
    }
    return now() - start;
}

static double yield(struct work *work, uint64_t passes)
{
    (void)work;
    double start = now();
    for (uint64_t i = 0; i < passes; i++)
        sched_yield();
    return now() - start;
}

static double copy(struct work *work, uint64_t passes)
{
    double start = now();
    for (uint64_t i = 0; i < passes; i++) {
        memcpy(work->target, work->source, work->bytes);
        forget_memory();
    }
    return now() - start;
}

static __attribute__((noinline)) void add(double *restrict into, const double *restrict from,
                                          size_t count)
{
    for (size_t i = 0; i < count; i++)
        into[i] += from[i];
}

static double reduction(struct work *work, uint64_t passes)
{
    double start = now();
    for (uint64_t i = 0; i < passes; i++) {
        add((double *)work->target, (const double *)work->source, work->bytes / sizeof(double));
        forget_memory();
    }
    return now() - start;
}

/* Each line holds the offset of the next: one random cycle through all of them (Sattolo). The
 * order, kept in private memory, is the same on every call. */
static void link_lines(struct work *work)
{
    size_t lines = work->bytes / LINE;
    uint64_t *next = (uint64_t *)work->source;
    uint64_t state = 88172645463325252u; /* xorshift64, Marsaglia 2003 */
    for (size_t i = 0; i < lines; i++)
        next[i] = i;
    for (size_t i = lines - 1; i > 0; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        size_t other = state % i;
        uint64_t held = next[i];
        next[i] = next[other], next[other] = held;
    }
}

/* One pass only: what has been read once is in the reader's cache. The last process writes, the
 * first reads; alone, it reads what it has written itself. */
static double modified(struct work *work, uint64_t passes)
{
    size_t lines = work->bytes / LINE;
    if (work->rank == work->processes - 1) {
        const uint64_t *next = (const uint64_t *)work->source;
        for (size_t i = 0; i < lines; i++)
            *(volatile uint64_t *)(work->payload + i * LINE) = next[i];
    }
    barrier(work);
    if (work->rank != 0)
        return 0;
    uint64_t line = 0;
    double start = now();
    for (size_t i = 0; i < lines; i++)
        line = *(volatile uint64_t *)(work->payload + line * LINE);
    double elapsed = now() - start;
    if (line != 0) { /* the cycle closes where it began */
        fprintf(stderr, "modified: the chain of lines is broken\n");
        exit(EXIT_FAILURE);
    }
    return (double)passes * elapsed / (double)lines;
}

static void write_lines(char *into, size_t bytes, uint64_t value)
{
    uint64_t *words = (uint64_t *)into;
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = value;
    forget_memory();
}

/* Both directions, half of it counts: the clocks of two CPUs need not agree. */
static double handover(struct work *work, uint64_t passes)
{
    struct flag *flags = work->shared->flags;
    size_t room = work->bytes + APART;
    double start = now();
    for (uint64_t i = 0; i < passes; i++) {
        work->round++;
        for (int sender = 0; sender < 2; sender++) {
            char *payload = work->payload + (size_t)sender * room;
            if (work->rank == sender) {
                write_lines(payload, work->bytes, work->round);
                publish(&flags[sender].value, work->round);
            } else {
                wait_for(&flags[sender].value, work->round);
                memcpy(work->target, payload, work->bytes);
                forget_memory();
            }
        }
    }
    return (now() - start) / 2;
}

/* One pass only, as `modified`. */
static double one_to_all(struct work *work, uint64_t passes)
{
    if (work->rank == 0)
        write_lines(work->payload, work->bytes, ++work->round);
    barrier(work);
    if (work->rank == 0)
        return 0;
    double start = now();
    memcpy(work->target, work->payload, work->bytes);
    forget_memory();
    return (double)passes * (now() - start);
}

/* One pass only: the first process owns the lines afterwards. */
static double rewrite_with(struct work *work, uint64_t passes, bool copied)
{
    if (work->rank == 1) {
        memcpy(work->target, work->payload, work->bytes);
        forget_memory();
    }
    barrier(work);
    if (work->rank == 1)
        return 0;
    double start = now();
    if (copied) {
        memcpy(work->payload, work->source, work->bytes);
        forget_memory();
    } else {
        write_lines(work->payload, work->bytes, ++work->round);
    }
    return (double)passes * (now() - start);
}

static double rewrite(struct work *work, uint64_t passes)
{
    return rewrite_with(work, passes, false);
}

static double rewrite_copy(struct work *work, uint64_t passes)
{
    return rewrite_with(work, passes, true);
}

static double pass_on(struct work *work, uint64_t passes, int stores)
{
    const int set = detect_instruction_set();
    const copy_kernel put = find_copy_kernel(stores, set);
    const copy_kernel take = find_copy_kernel(STORES_ORDINARY, set);
    const size_t section = work->bytes < SECTION ? work->bytes : SECTION;
    struct flag *full = &work->shared->flags[0], *freed = &work->shared->flags[1];
    double start = now();
    for (uint64_t pass = 0; pass < passes; pass++) {
        for (size_t at = 0; at < work->bytes; at += section) {
            char *place = work->payload + work->round % RING * section;
            work->round++;
            if (work->rank == 0) {
                if (work->round > RING)
                    wait_for(&freed->value, work->round - RING);
                put(place, work->source + OFFSET + at, section);
                publish(&full->value, work->round);
            } else {
                wait_for(&full->value, work->round);
                take(work->target + OFFSET + at, place, section);
                publish(&freed->value, work->round);
            }
        }
    }
    if (work->rank == 0)
        wait_for(&freed->value, work->round);
    return now() - start;
}

static double pass_ordinary(struct work *work, uint64_t passes)
{
    return pass_on(work, passes, STORES_ORDINARY);
}

static double pass_string(struct work *work, uint64_t passes)
{
    return pass_on(work, passes, STORES_STRING);
}

static double pass_non_temporal(struct work *work, uint64_t passes)
{
    return pass_on(work, passes, STORES_NON_TEMPORAL);
}

static const struct {
    const char *name;
    measurement *measure;
    int processes;  /* needed; 0: any number */
    bool one_pass;  /* data must be written again before each pass */
} MEASUREMENTS[] = {
    {"there_and_back", there_and_back, 2, false},
    {"exchange", exchange, 2, false},
    {"sched_yield", yield, 0, false},
    {"copy", copy, 0, false},
    {"reduction", reduction, 0, false},
    {"modified", modified, 0, true},
    {"handover", handover, 2, false},
    {"one_to_all", one_to_all, 0, true},
    {"rewrite", rewrite, 2, true},
    {"rewrite_copy", rewrite_copy, 2, true},
    {"pass_ordinary", pass_ordinary, 2, false},
    {"pass_string", pass_string, 2, false},
    {"pass_non_temporal", pass_non_temporal, 2, false},
};
enum { COUNT = sizeof MEASUREMENTS / sizeof *MEASUREMENTS };

/* ---------------------------------------------------------------- samples */

/* Passes that fill the shortest sample. The least of some trials counts: a disturbed one
 * is long. */
static uint64_t passes_for_a_sample(struct work *work, measurement *measure)
{
    enum { TRIALS = 3 };
    struct shared *shared = work->shared;
    for (uint64_t passes = 1;; passes *= 2) {
        double least = 1e300;
        for (int i = 0; i < TRIALS; i++) {
            barrier(work);
            double elapsed = measure(work, passes);
            least = elapsed < least ? elapsed : least;
        }
        if (work->rank == 0 && least >= SHORTEST_SAMPLE)
            publish(&shared->passes.value, passes);
        barrier(work);
        if (atomic_load(&shared->passes.value))
            return passes;
    }
}

static void run(struct work *work, int which, double seconds)
{
    struct shared *shared = work->shared;
    measurement *measure = MEASUREMENTS[which].measure;
    bool one_pass = MEASUREMENTS[which].one_pass;
    work->source = map(work->bytes + OFFSET, MAP_PRIVATE);
    work->target = map(work->bytes + OFFSET, MAP_PRIVATE);
    memset(work->source, 0, work->bytes);
    memset(work->target, 0, work->bytes);
    if (measure == modified)
        link_lines(work);
    double overhead = one_pass ? clock_cost() : 0;
    if (measure == modified)
        overhead /= (double)(work->bytes / LINE);
    barrier(work);
    measure(work, 1); /* page tables */
    uint64_t passes = one_pass ? 1 : passes_for_a_sample(work, measure);
    barrier(work);
    double end = now() + 1e9 * seconds;
    for (uint64_t i = 0; i < MAX_SAMPLES && !atomic_load(&shared->samples.value); i++) {
        barrier(work);
        shared->elapsed[i][work->rank] = measure(work, passes) / (double)passes - overhead;
        if (work->rank == 0 && (i + 1 == MAX_SAMPLES || (i + 1 >= MIN_SAMPLES && now() >= end)))
            publish(&shared->samples.value, i + 1);
        barrier(work);
    }
}

static int parse_cpus(char *text, int *cpus)
{
    int count = 0;
    for (char *part = strtok(text, ","); part && count < MAX_PROCESSES; part = strtok(NULL, ","))
        cpus[count++] = atoi(part);
    return count;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: limits MEASUREMENT CPUS BYTES SECONDS\n");
        return 2;
    }
    int cpus[MAX_PROCESSES], which = 0;
    while (which < COUNT && strcmp(argv[1], MEASUREMENTS[which].name))
        which++;
    int processes = parse_cpus(argv[2], cpus);
    if (which == COUNT || processes < 1 ||
        (MEASUREMENTS[which].processes && MEASUREMENTS[which].processes != processes)) {
        fprintf(stderr, "limits: unknown measurement, or not for this many CPUs\n");
        return 2;
    }
    struct work work = {.processes = processes, .bytes = strtoull(argv[3], NULL, 10)};
    work.one_cpu = processes > 1 && cpus[0] == cpus[1];
    work.shared = map(sizeof *work.shared, MAP_SHARED);
    work.payload = map(2 * (work.bytes + APART) + RING * SECTION, MAP_SHARED);
    pid_t parent = getpid();
    for (work.rank = 0; work.rank < processes; work.rank++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork"); /* the children that there are die with this process */
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(EXIT_FAILURE);
            bind_to(cpus[work.rank]);
            run(&work, which, atof(argv[4]));
            _exit(EXIT_SUCCESS);
        }
    }
    for (int i = 0; i < processes; i++) {
        int status;
        if (wait(&status) < 0 || status != 0) {
            fprintf(stderr, "limits: a process of %s failed\n", argv[1]);
            return EXIT_FAILURE;
        }
    }
    uint64_t samples = atomic_load(&work.shared->samples.value);
    for (uint64_t i = 0; i < samples; i++) {
        double slowest = 0;
        for (int rank = 0; rank < processes; rank++)
            if (work.shared->elapsed[i][rank] > slowest)
                slowest = work.shared->elapsed[i][rank];
        printf("%.4f\n", slowest);
    }
    return EXIT_SUCCESS;
}
