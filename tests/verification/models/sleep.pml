/* Sleeping on a flag until its poster wakes one: waiting.pyx (sleep_until_woken, wake_sleepers),
 * atomics.h (sleep_on, wake_all).
 *
 * Rank 0 posts its flag CALLS times; each of the others waits for every value, and may go to sleep
 * at any time. Here a sleep has no limit, so a lost wake-up is a deadlock (in the code it costs the
 * limit, 1 ms). As in the kernel, comparing the flag and lying down is one step, beside which
 * nobody is woken. A full fence waits until the own store buffer is empty.
 *
 * Mutants: NO_FENCE_AFTER_POST, NO_FENCE_BEFORE_LOOK, NO_COMPARISON, WAKES_FIRST.
 */

#ifndef RANKS
#define RANKS 3
#endif
#ifndef CALLS
#define CALLS 4
#endif

#define FLAG 0
#define ASLEEP 1
#define WORDS 2

#include "memory.pml"

bool lies[RANKS];                     /* the kernel's queue of rank 0's flag */

inline fence_full() {
    buffer[self].length == 0
}

inline wake_sleepers() {
    i = 1;
    do
    :: i < RANKS ->
        if
        :: SHARED(i, ASLEEP) == 1 ->
            d_step {
                i = 1;
                do
                :: i < RANKS -> lies[i] = false; i++
                :: else -> break
                od
            }
        :: else -> i++
        fi
    :: else -> break
    od;
    i = 0
}

proctype poster(byte self) {
    byte i, posted, call = START;
    do
    :: posted < CALLS ->
        call = NUMBER(call + 1);
#ifdef WAKES_FIRST
        wake_sleepers();
#endif
        store(FLAG, call, RELEASE);
#ifndef NO_FENCE_AFTER_POST
        fence_full();
#endif
#ifndef WAKES_FIRST
        wake_sleepers();
#endif
        posted++
    :: else -> break
    od
}

#ifdef NO_COMPARISON
#define UNCHANGED true
#else
#define UNCHANGED (SHARED(0, FLAG) == seen)
#endif

inline sleep_until_woken() {
    store(ASLEEP, 1, 0);
#ifndef NO_FENCE_BEFORE_LOOK
    fence_full();
#endif
    seen = SHARED(0, FLAG);
    if
    :: !REACHED(SHARED(0, FLAG), call) ->
        atomic {
            if
            :: UNCHANGED -> lies[self] = true
            :: else
            fi
        };
        !lies[self]
    :: else
    fi;
    store(ASLEEP, 0, 0);
    seen = 0
}

proctype sleeper(byte self) {
    byte seen, waited, call = START;
    do
    :: waited < CALLS ->
        call = NUMBER(call + 1);
        do
        :: REACHED(SHARED(0, FLAG), call) -> break
        :: !REACHED(SHARED(0, FLAG), call) -> sleep_until_woken()
        od;
        waited++
    :: else -> break
    od
}

init {
    byte i;
    atomic {
        memory[FLAG] = START;
        i = 1;
        run poster(0);
        run memory_system(0);
        do
        :: i < RANKS ->
            run sleeper(i);
            run memory_system(i);
            i++
        :: else -> break
        od;
        i = 0
    }
}
