/* The ring of published signatures: barrier.pxd (publish_call), failure.pyx (published_call). A
 * sequence lock: a waiter in trouble may look at any entry at any time, and must never take one
 * call's signature for another's. (That it finds nothing is no error.)
 *
 * Rank 0 publishes CALLS calls in a ring of ENTRIES; another rank looks for a call of its choice,
 * as often as it likes. The fence between the number's invalidation and the entry is a release
 * store of the entry here: it follows all that stands before the fence.
 *
 * Mutants: RELAXED_FLAG, DROPPED_FENCE (both with WEAK), NOT_INVALIDATED, NO_SECOND_LOOK.
 */

#ifndef CALLS
#define CALLS 8
#endif
#ifndef ENTRIES
#define ENTRIES 2
#endif

#define RANKS 1
#define COUNT(call) ((call) % ENTRIES)
#define ENTRY_OF(call) (ENTRIES + (call) % ENTRIES)
#define WORDS (2 * ENTRIES)

#include "memory.pml"

#ifdef DROPPED_FENCE
#define FENCED 0
#else
#define FENCED 1
#endif

proctype publisher(byte self) {
    byte call = START, published;
    do
    :: published < CALLS ->
        call = NUMBER(call + 1);
#ifndef NOT_INVALIDATED
        store(COUNT(call), NUMBER(call - 1), 0);
#endif
        store(ENTRY_OF(call), call, FENCED);
        store(COUNT(call), call, RELEASE);
        published++
    :: else -> break
    od
}

proctype waiter() {
    byte wanted, signature;
end:
    do
    :: true ->
        select(wanted : 1 .. CALLS);
        wanted = NUMBER(START + wanted);
        if
        :: SHARED(0, COUNT(wanted)) == wanted ->
            signature = SHARED(0, ENTRY_OF(wanted));
#ifdef NO_SECOND_LOOK
            assert(signature == wanted);
#else
            atomic {
                if
                :: SHARED(0, COUNT(wanted)) == wanted -> assert(signature == wanted)
                :: else
                fi
            }
#endif
        :: else
        fi;
        atomic { wanted = 0; signature = 0 }
    od
}

init {
    byte i;
    atomic {
        do
        :: i < WORDS ->
            if
            :: i < ENTRIES -> memory[i] = START
            :: else -> memory[i] = NOTHING
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        run publisher(0);
        run memory_system(0);
        run waiter()
    }
}
