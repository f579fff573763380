/* The C headers on another processor: the program prints the same lines on each.
 *
 * Every reduction kernel on small whole numbers, as a checksum of the bits of its result (long
 * double, whose bits differ between processors, as values); copies at odd addresses; and atomics
 * that hand values over between two threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "atomics.h"
#include "copy_kernels.h"
#include "reduction_kernels.h"

enum { TURNS = 20000, WORDS = 64, ELEMENTS = 1003, OPERANDS = 3, WIDEST = 16 };

static uint64_t data[WORDS], flag, seen;

static void *write_values(void *unused)
{
    (void)unused;
    for (uint64_t turn = 1; turn <= TURNS; turn++) {
        for (uint64_t i = 0; i < WORDS; i++)
            data[i] = turn * (i + 1);
        store_release(&flag, turn);
        while (load_acquire(&seen) != turn)
            cpu_pause();
    }
    return NULL;
}

static void hand_over(void)
{
    pthread_t writer;
    int wrong = 0;
    pthread_create(&writer, NULL, write_values, NULL);
    for (uint64_t turn = 1; turn <= TURNS; turn++) {
        while (load_acquire(&flag) != turn)
            cpu_pause();
        for (uint64_t i = 0; i < WORDS; i++)
            wrong += data[i] != turn * (i + 1);
        store_release(&seen, turn);
    }
    pthread_join(writer, NULL);
    printf("handed over: %d wrong\n", wrong);
}

static void locks_and_clocks(void)
{
    int word = 0;
    int64_t before = monotonic_ns(), used = thread_cpu_ns();
    int first = try_lock(&word), second = try_lock(&word);
    unlock(&word);
    printf("lock: %d %d %d, clocks: %d %d\n", first, second, try_lock(&word),
           monotonic_ns() >= before, thread_cpu_ns() >= used);
}

static void fill(unsigned char *at, int type, int operand)
{
    for (int i = 0; i < ELEMENTS; i++) {
        int number = (i * 7 + operand * 5) % 23 - 11;
        float one = (float)number;
        double two = number;
        long double four = number;
        uint64_t integer = (uint64_t)(int64_t)number * 0x0101010101010101u;
        size_t size = element_size(type);
        unsigned char *place = at + (size_t)i * size;
        switch (type) {
        case TYPE_BOOL: *place = number > 0; break;
        case TYPE_FLOAT: memcpy(place, &one, size); break;
        case TYPE_DOUBLE: memcpy(place, &two, size); break;
        case TYPE_LONG_DOUBLE: memset(place, 0, size); memcpy(place, &four, size); break;
        case TYPE_COMPLEX_FLOAT:
            memcpy(place, &one, 4); memcpy(place + 4, &one, 4); break;
        case TYPE_COMPLEX_DOUBLE:
            memcpy(place, &two, 8); memcpy(place + 8, &two, 8); break;
        default: memcpy(place, &integer, size);
        }
    }
}

static uint64_t checksum(const unsigned char *bytes, size_t count, int type)
{
    uint64_t sum = 14695981039346656037u;
    if (type == TYPE_LONG_DOUBLE) {
        for (size_t i = 0; i < ELEMENTS; i++) {
            long double value;
            memcpy(&value, bytes + i * sizeof value, sizeof value);
            sum = (sum ^ (uint64_t)(int64_t)value) * 1099511628211u;
        }
        return sum;
    }
    for (size_t i = 0; i < count; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    return sum;
}

static void reduce_everything(void)
{
    static unsigned char operands[OPERANDS][ELEMENTS * WIDEST + 1], out[ELEMENTS * WIDEST + 1];
    for (int op = 0; op < OPS; op++) {
        for (int type = 0; type < TYPES; type++) {
            reduction_kernel kernel = kernels_of_baseline[op][type];
            const void *sources[OPERANDS];
            if (kernel == NULL)
                continue;
            for (int i = 0; i < OPERANDS; i++) {
                /* One operand at an odd address. */
                fill(operands[i] + (i == 1), type, i);
                sources[i] = operands[i] + (i == 1);
            }
            kernel(out + 1, sources, OPERANDS, ELEMENTS);
            printf("op %d type %d: %016llx\n", op, type,
                   (unsigned long long)checksum(out + 1, ELEMENTS * element_size(type), type));
        }
    }
}

static void copy_everything(void)
{
    static unsigned char source[5000], out[5000];
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (unsigned char)(i * 31 % 251);
    for (size_t at = 0; at < 70; at += 3) {
        memset(out, 0, sizeof out);
        copy_kernel around = find_copy_kernel(STORES_NON_TEMPORAL, INSTRUCTIONS_BASELINE);
        find_copy_kernel(STORES_ORDINARY, INSTRUCTIONS_BASELINE)(out + at, source + at / 2, 2000 + at);
        around(out + 2500 + at, source + at / 2, 2000 + at);
        printf("copy at %zu: %016llx\n", at,
               (unsigned long long)checksum(out, sizeof out, TYPE_UINT8));
    }
}

int main(void)
{
    reduce_everything();
    copy_everything();
    locks_and_clocks();
    hand_over();
    return 0;
}
