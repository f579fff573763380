/* OpenMP's reduction of vectors, as Reduce does it: each thread has a vector of its own, and the sum
 * of all of them goes into one (Li, Hoefler & Snir 2013, section 3.5).
 *
 *     openmp_reduce THREADS SECONDS BLOCKS COUNT...
 *
 * For each count of doubles a line "COUNT VALID MICROSECONDS...": 1 when the sums were right, and the
 * mean time per call of each block. SECONDS is the time that one count may take. Before each call
 * every thread writes new data into its vector; that is not timed. GCC keeps the threads' private
 * copies of the array section on their stacks: OMP_STACKSIZE and the stack's limit must be as large.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int threads;
    long count;
    double *sum;
    double **vectors;  /* of each thread */
    double **data[2];  /* what is written into them by turns */
} Vectors;

static double value(int thread, long i, int change)
{
    return (double)(i % 1000 + thread + 1 + 7 * change);  /* sums are exact in any order */
}

static double *allocate(long count)
{
    double *vector = malloc(count * sizeof *vector);
    if (vector == NULL) {
        fprintf(stderr, "no memory for %ld doubles\n", count);
        exit(1);
    }
    return vector;
}

/* Each thread allocates and touches what is its own. */
static void create(Vectors *v, int threads, long count)
{
    v->threads = threads;
    v->count = count;
    v->sum = allocate(count);
    v->vectors = malloc(threads * sizeof *v->vectors);
    for (int change = 0; change < 2; change++)
        v->data[change] = malloc(threads * sizeof *v->data[change]);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        v->vectors[thread] = allocate(count);
        for (int change = 0; change < 2; change++) {
            v->data[change][thread] = allocate(count);
            for (long i = 0; i < count; i++)
                v->data[change][thread][i] = value(thread, i, change);
        }
    }
}

static void destroy(Vectors *v)
{
    for (int thread = 0; thread < v->threads; thread++) {
        free(v->vectors[thread]);
        free(v->data[0][thread]);
        free(v->data[1][thread]);
    }
    free(v->vectors);
    free(v->data[0]);
    free(v->data[1]);
    free(v->sum);
}

static void write_new_data(Vectors *v, int change)
{
    memset(v->sum, 0, v->count * sizeof *v->sum);
#pragma omp parallel for schedule(static, 1) num_threads(v->threads)
    for (int thread = 0; thread < v->threads; thread++)
        memcpy(v->vectors[thread], v->data[change][thread], v->count * sizeof(double));
}

static void reduce(Vectors *v)
{
    double *a = v->sum;
    long n = v->count;
#pragma omp parallel for reduction(+ : a[:n]) schedule(static, 1) num_threads(v->threads)
    for (int thread = 0; thread < v->threads; thread++) {
        const double *mine = v->vectors[thread];
        for (long i = 0; i < n; i++)
            a[i] += mine[i];
    }
}

/* Seconds per call. */
static double block(Vectors *v, long calls)
{
    double seconds = 0;
    for (long call = 0; call < calls; call++) {
        write_new_data(v, call % 2);
        double start = omp_get_wtime();
        reduce(v);
        seconds += omp_get_wtime() - start;
    }
    return seconds / calls;
}

static int right(Vectors *v)
{
    for (int change = 0; change < 2; change++) {
        write_new_data(v, change);
        reduce(v);
        for (long i = 0; i < v->count; i++) {
            double expected = 0;
            for (int thread = 0; thread < v->threads; thread++)
                expected += value(thread, i, change);
            if (v->sum[i] != expected)
                return 0;
        }
    }
    return 1;
}

/* As many as fit into so many seconds, writing included, from a few calls. */
static long calls_in(Vectors *v, double seconds)
{
    for (long calls = 1;; calls *= 2) {
        double start = omp_get_wtime();
        block(v, calls);
        double taken = omp_get_wtime() - start;
        if (taken > seconds / 4 || calls >= 1 << 20)
            return calls * seconds / taken < 1 ? 1 : (long)(calls * seconds / taken);
    }
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: openmp_reduce THREADS SECONDS BLOCKS COUNT...\n");
        return 2;
    }
    int threads = atoi(argv[1]), blocks = atoi(argv[3]);
    double seconds = atof(argv[2]);
    omp_set_dynamic(0);
    for (int argument = 4; argument < argc; argument++) {
        Vectors vectors;
        create(&vectors, threads, atol(argv[argument]));
        printf("%ld %d", vectors.count, right(&vectors));
        long calls = calls_in(&vectors, seconds / blocks);
        for (int number = 0; number < blocks; number++)
            printf(" %.4f", block(&vectors, calls) * 1e6);
        printf("\n");
        fflush(stdout);
        destroy(&vectors);
    }
    return 0;
}
