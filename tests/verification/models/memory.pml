/* The shared words of RANKS ranks, each with a store buffer. Included by the models beside it.
 *
 * Where a rank stores into its own words only, its own range is all that its buffer holds. In
 * direct.pml, pipeline.pml and streams.pml words are numbered through all ranks (HOME). A rank never
 * reads back what it stored (the code does, in program order: it knows what it stored). A store
 * leaves the buffer at any later time, one by one:
 *
 *   default   in the order of the program: x86-TSO.
 *   WEAK      in any order, but (1) two stores to one word in their order, (2) a release store
 *             after all before it. What follows a release store may pass it.
 *
 * A buffer holds CAPACITY stores; a rank that finds it full waits, as a core does.
 *
 * Loads are steps of their own, executed at any time between the wait before them and the next
 * store of a flag. A core may delay a load past later plain stores, which tell nobody anything; it
 * may not delay it past a release store.
 *
 * The numbers of the protocol start just below NUMBERS and wrap, as in the code they do at 2 ** 64,
 * and are compared by signed differences. With NUMBERS = 256 a run is bounded. Where every flag is
 * written again within a few steps (exchange slots, streams), FOREVER takes NUMBERS = 8: the run
 * has no end and finitely many states. (A slot of rooted calls may keep a flag from long ago, which
 * with so small numbers would come round and look new.)
 */

#ifndef RANKS
#define RANKS 2
#endif
#ifndef CAPACITY
#define CAPACITY 3
#endif
#ifdef FOREVER
#define NUMBERS 8
#else
#define NUMBERS 256
#endif
#define START (NUMBERS - 2)           /* all counters start here: soon they wrap */
#define NOTHING 255                   /* what lies in memory before the first store */

#define NUMBER(n) ((n) & (NUMBERS - 1))
/* atomics.pxd: acquire_reached */
#define REACHED(flag, value) (NUMBER((flag) - (value)) < NUMBERS / 2)

#ifdef RELAXED_FLAG
#define RELEASE 0
#else
#define RELEASE 1
#endif

/* Where the words that a rank's store buffer holds are counted from. */
#ifndef HOME
#define HOME(owner) ((owner) * WORDS)
#endif

byte memory[RANKS * WORDS];
#define SHARED(rank, word) memory[(rank) * WORDS + (word)]

typedef StoreBuffer {
    byte length;
    byte word[CAPACITY];
    byte value[CAPACITY];
    bool release[CAPACITY]
}
StoreBuffer buffer[RANKS];

/* A store as this rank's program gives it; blocks while the buffer is full. */
inline store(where, what, is_release) {
    atomic {
        buffer[self].length < CAPACITY ->
        buffer[self].word[buffer[self].length] = where;
        buffer[self].value[buffer[self].length] = what;
        buffer[self].release[buffer[self].length] = is_release;
        buffer[self].length++
    }
}

#define ENTRY(field, i) buffer[owner].field[i]
#ifdef WEAK
#define SAME_WORD(i, j) (ENTRY(word, i) == ENTRY(word, j))
#define MAY_LEAVE_1 (buffer[owner].length > 1 && !ENTRY(release, 1) && !SAME_WORD(1, 0))
#define MAY_LEAVE_2 (buffer[owner].length > 2 && !ENTRY(release, 2) && !SAME_WORD(2, 0) \
                     && !SAME_WORD(2, 1))
#define MAY_LEAVE_3 (buffer[owner].length > 3 && !ENTRY(release, 3) && !SAME_WORD(3, 0) \
                     && !SAME_WORD(3, 1) && !SAME_WORD(3, 2))
#endif

inline leave_buffer(i) {
    d_step {
        memory[HOME(owner) + ENTRY(word, i)] = ENTRY(value, i);
        place = i;
        do
        :: place + 1 < buffer[owner].length ->
            ENTRY(word, place) = ENTRY(word, place + 1);
            ENTRY(value, place) = ENTRY(value, place + 1);
            ENTRY(release, place) = ENTRY(release, place + 1);
            place++
        :: else -> break
        od;
        ENTRY(word, place) = 0;
        ENTRY(value, place) = 0;
        ENTRY(release, place) = 0;
        buffer[owner].length--;
        place = 0
    }
}

/* The memory system at work for one rank. */
proctype memory_system(byte owner) {
    byte place;
end:
    do
    :: atomic { buffer[owner].length > 0 -> leave_buffer(0) }
#ifdef WEAK
    :: atomic { MAY_LEAVE_1 -> leave_buffer(1) }
#if CAPACITY > 2
    :: atomic { MAY_LEAVE_2 -> leave_buffer(2) }
#endif
#if CAPACITY > 3
    :: atomic { MAY_LEAVE_3 -> leave_buffer(3) }
#endif
#endif
    od
}
