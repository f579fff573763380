/* Arrays in shared heaps, read and written where they lie: smcoll/coll/direct.pyx
 * (allreduce_shared_heap with nobody staging, reduce_own_slice, hand_out; bcast_shared_heap),
 * peer_buffers.pyx (publish_buffers, find, still_in_the_call, end_in_agreement), failure.pyx
 * (poison).
 *
 * CALLS calls, each an Allreduce (REDUCTION), or a Bcast from any root (HANDOVER; to one reader it
 * is also what a message in its sender's heap is, with a credit for READ). Before each call a
 * rank's program writes its operand into one of two arrays, as it likes. In place the result comes
 * there, else (with SEPARATE) into the other array. A slice is one word; so is all that a line
 * publishes before its flag: the call's number and the place.
 *
 * A rank may give up at any wait: it poisons its word, and then its program writes CHANGED into its
 * arrays and never calls again. Another that waits may find that out, and gives up too.
 *
 * What is claimed: who returns from a call has the sum of all operands of that call in all slices
 * (rank r's sum of slice r is right if all operands that it read were), a Bcast's reader has the
 * root's data. So nobody read or wrote too early, or when the owner had left the call, and what a
 * rank changed after it gave up is returned by nobody. Without GIVES_UP, nothing deadlocks either.
 *
 * Mutants: RELAXED_FLAG (with WEAK), READ_BEFORE_WAITING (places before their flag),
 * NO_CLOSING_EXCHANGE, CLOSES_BEFORE_READING, CLOSES_BEFORE_WRITING,
 * OWNER_DOES_NOT_WAIT (Bcast); with GIVES_UP: NO_LOOK_AT_POISON, LOOKS_BEFORE_READING,
 * LOOKS_AFTER_CLOSING (RANKS=3), CHANGES_BEFORE_POISON, NO_FENCE_BEHIND_POISON (WEAK).
 */

#ifndef CALLS
#define CALLS 3
#endif
#ifndef RANKS
#define RANKS 2
#endif
#ifndef PLACES
#define PLACES 2                      /* arrays of a rank that it uses */
#endif
#ifndef KINDS
#define KINDS (1 + RANKS)             /* 1: Allreduce only */
#endif

/* The words of a rank. */
#define EXCHANGE_FLAG(parity) (parity)
#define EXCHANGE_DATA(parity) (2 + (parity))
#define POISON 4
#define LINE_FLAG 5
#define LINE_DATA 6
#define ARRAY(place, slice) (7 + (place) * RANKS + (slice))
#define WORDS (7 + 2 * RANKS)
#define AT(rank, word) ((rank) * WORDS + (word))
#define HOME(owner) 0

#include "memory.pml"

/* Calls: 0 is an Allreduce, then Bcast from each root. */
#define REDUCTION 0
#define ROOT(kind) ((kind) - 1)

/* What stands in arrays: operand and result of call `call`, and other things. */
#define OPERAND (2 * call)
#define RESULT (2 * call + 1)
#define WRONG 254
#define CHANGED 253
/* A line's data: call and place. */
#define PUBLISHED(place) (2 * call + (place))

#define PARITY (exchanges & 1)
#ifdef NO_FENCE_BEHIND_POISON
#define FENCED 0
#else
#define FENCED 1
#endif
#ifdef SEPARATE
#define RESULT_PLACE(place) (1 - (place))
#else
#define RESULT_PLACE(place) (place)
#endif

/* wait_line: goes on when the flag is there; or gives up, by itself (a signal, a timeout) or
because
 * it finds another rank's poison. Only once it has arrived (`own`) does a rank count its waits. */
inline wait_for(rank, flag, value) {
    if
    :: REACHED(SHARED(rank, flag), value)
#ifdef GIVES_UP
    :: goto gives_up
    :: SHARED(rank, POISON) != 0 -> goto gives_up
#endif
    fi
}

byte script[CALLS];

#define OTHER(i) ((self + (i)) % RANKS)

inline publish(data, what, flag, value) {
    store(AT(self, data), what, 0);
    store(AT(self, flag), value, RELEASE)
}

inline next_exchange() {
    exchanges = NUMBER(exchanges + 1)
}

/* still_in_the_call: poison is loaded behind the reads. */
inline look_at_poison(rank) {
    if
    :: SHARED(rank, POISON) == 0
    :: else -> goto gives_up
    fi
}

inline look_at_everybodys_poison() {
    i = 1;
    do
    :: i < RANKS -> look_at_poison(OTHER(i)); i++
    :: else -> break
    od
}

/* The program's own data before a call: what others will read. */
inline write_operand() {
    i = 0;
    do
    :: i < RANKS ->
        if
        :: i != self -> store(AT(self, ARRAY(place, i)), OPERAND, 0)
        :: else
        fi;
        i++
    :: else -> break
    od
}

/* publish_buffers, then everybody's: exchange_buffers. */
inline exchange_buffers() {
    next_exchange();
    publish(EXCHANGE_DATA(PARITY), PUBLISHED(place), EXCHANGE_FLAG(PARITY), exchanges);
    i = 1;
    do
    :: i < RANKS ->
#ifdef READ_BEFORE_WAITING
        seen = SHARED(OTHER(i), EXCHANGE_DATA(PARITY));
#endif
        wait_for(OTHER(i), EXCHANGE_FLAG(PARITY), exchanges);
        atomic {
#ifndef READ_BEFORE_WAITING
            seen = SHARED(OTHER(i), EXCHANGE_DATA(PARITY));
#endif
            assert((seen & 254) == OPERAND);
            places[i] = seen & 1;
            seen = 0;
            i++
        }
    :: else -> break
    od
}

/* reduce_own_slice: the operands of slice `self` ... */
inline read_slices() {
    i = 1;
    do
    :: i < RANKS ->
        atomic {
            wrong = wrong || SHARED(OTHER(i), ARRAY(places[i], self)) != OPERAND;
            i++
        }
    :: else -> break
    od
}

/* ... and hand_out. */
inline write_slices() {
    i = 1;
    do
    :: i < RANKS ->
        store(AT(OTHER(i), ARRAY(RESULT_PLACE(places[i]), self)), (wrong -> WRONG : RESULT), 0);
        i++
    :: else -> break
    od
}

inline post_closing() {
    next_exchange();
    store(AT(self, EXCHANGE_FLAG(PARITY)), exchanges, RELEASE)
}

inline await_closing() {
    i = 1;
    do
    :: i < RANKS -> wait_for(OTHER(i), EXCHANGE_FLAG(PARITY), exchanges); i++
    :: else -> break
    od
}

/* The call is complete: what the program finds. */
inline check_result() {
    atomic {
        assert(!wrong);
        i = 1;
        do
        :: i < RANKS ->
            assert(SHARED(self, ARRAY(RESULT_PLACE(place), OTHER(i))) == RESULT);
            i++
        :: else -> break
        od;
        i = 0
    }
}

/* allreduce_shared_heap */
inline reduction() {
    exchange_buffers();
#ifdef LOOKS_BEFORE_READING
    look_at_everybodys_poison();
#endif
#ifdef CLOSES_BEFORE_READING
    post_closing();
#endif
    read_slices();
#ifdef CLOSES_BEFORE_WRITING
    post_closing();
#endif
    write_slices();
#if !defined(NO_LOOK_AT_POISON) && !defined(LOOKS_BEFORE_READING) && !defined(LOOKS_AFTER_CLOSING)
    look_at_everybodys_poison();
#endif
#ifndef NO_CLOSING_EXCHANGE
#if !defined(CLOSES_BEFORE_READING) && !defined(CLOSES_BEFORE_WRITING)
    post_closing();
#endif
#ifdef LOOKS_AFTER_CLOSING
    look_at_everybodys_poison();
#endif
    await_closing();
#endif
    check_result()
}

/* bcast_shared_heap: a segment's line, whose bank is modelled in pipeline.pml. */
inline handover(root) {
    atomic { first = NUMBER(tick + 1); tick = NUMBER(tick + 2); i = 1 }
    if
    :: self == root ->
        publish(LINE_DATA, PUBLISHED(place), LINE_FLAG, first);
#ifndef OWNER_DOES_NOT_WAIT
        do
        :: i < RANKS -> wait_for(OTHER(i), LINE_FLAG, tick); i++
        :: else -> break
        od
#endif
    :: else ->
        wait_for(root, LINE_FLAG, first);
        atomic {
            seen = SHARED(root, LINE_DATA);
            assert((seen & 254) == OPERAND);
            places[0] = seen & 1;
            seen = 0
        }
#ifdef LOOKS_BEFORE_READING
        look_at_poison(root);
#endif
#ifdef CLOSES_BEFORE_READING
        store(AT(self, LINE_FLAG), tick, RELEASE);
#endif
        wrong = SHARED(root, ARRAY(places[0], self)) != OPERAND;
#if !defined(NO_LOOK_AT_POISON) && !defined(LOOKS_BEFORE_READING)
        look_at_poison(root);
#endif
        assert(!wrong);
#ifndef CLOSES_BEFORE_READING
        store(AT(self, LINE_FLAG), tick, RELEASE)
#endif
    fi
}

/* What the program does with its arrays when its call has failed. */
inline change_arrays() {
    i = 0;
    do
    :: i < RANKS ->
        if
        :: i != self ->
            store(AT(self, ARRAY(place, i)), CHANGED, FENCED)
        :: else
        fi;
        i++
    :: else -> break
    od
}

proctype rank(byte self) {
    byte exchanges = START, tick = START, first, call, i, seen, kind, place;
    byte places[RANKS];
    bool wrong;
    do
    :: call < CALLS ->
        atomic {
            call++;
            kind = script[call - 1];
            select(place : 0 .. PLACES - 1)
        }
        write_operand();
        if
        :: kind == REDUCTION -> reduction()
        :: else -> handover(ROOT(kind))
        fi;
        atomic {
            i = 0; first = 0;
            do
            :: i < RANKS -> places[i] = 0; i++
            :: else -> break
            od;
            i = 0
        }
    :: else -> break
    od;
    goto done;
gives_up:
#ifdef CHANGES_BEFORE_POISON
    change_arrays();
#endif
    store(AT(self, POISON), 1, RELEASE);
#ifndef CHANGES_BEFORE_POISON
    change_arrays();
#endif
done:
    skip
}

init {
    byte i, choice;
    atomic {
        do
        :: i < RANKS * WORDS ->
            if
            :: i % WORDS < 2 || i % WORDS == LINE_FLAG -> memory[i] = START
            :: i % WORDS == POISON
            :: else -> memory[i] = NOTHING
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < CALLS -> select(choice : 0 .. KINDS - 1); script[i] = choice; i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < RANKS -> run rank(i); run memory_system(i); i++
        :: else -> break
        od;
        i = 0; choice = 0
    }
}
