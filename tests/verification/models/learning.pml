/* Rank 0 tells all others what calls follow from now on: engine/learning.pyx (lead, tell),
 * engine/plans.pyx (learned).
 *
 * CALLS calls, each of which is synchronising or not, in every order. Before each one a rank
 * chooses what it follows: it loads rank 0's word, and heeds it if it holds already. Rank 0 may
 * tell something new before it enters a synchronising call. Whatever a rank follows in a call
 * is compared with what the others follow there.
 *
 * A word is the number of calls that a rank must have been in (News.after); an odd one holds for
 * one call only (a trial), an even one for good. What it stands for is the word itself. (Which
 * calls belong to a trial each rank counts for itself; all have the same calls.)
 *
 * (A trial may be cut short by the next word: it is, on all ranks at the same call. That rank 0
 * waits for its end has another reason: it reads what the trial's calls took.)
 *
 * Mutants: RELAXED_FLAG (with WEAK), TELLS_AFTER_ENTERING, HOLDS_AT_ONCE, TELLS_TOO_SOON,
 * ONLY_SOME_HEED (calls that follow something else do not look at the word).
 */

#ifndef CALLS
#define CALLS 6
#endif

#define FLAG 0
#define TOLD 1
#define WORDS 2
#define PERIOD 1

#include "memory.pml"

#define IS_TRIAL(word) ((word) & 1)

bool synchronises[CALLS + 1];
byte followed[CALLS + 1];             /* by the first rank that came there */
bool chosen[CALLS + 1];

#ifdef HOLDS_AT_ONCE
#define AFTER (number)
#else
#define AFTER (number + 2)
#endif

#ifdef TELLS_TOO_SOON
#define HAS_SYNCHRONISED true
#else
#define HAS_SYNCHRONISED (over < synchronised && synchronised <= number)
#endif

/* What the call after the first `number` ones follows. */
inline choose() {
#ifdef ONLY_SOME_HEED
    if
    :: !(number & 1) -> goto chosen_this
    :: else
    fi;
#endif
    if
    :: self == 0 -> word = told       /* its own store, whether it has left the buffer or not */
    :: else -> word = SHARED(0, TOLD)
    fi;
    atomic {
        if
        :: word != heeded && word <= number ->
            heeded = word;
            trial = word;
            if
            :: IS_TRIAL(word)
            :: else -> good = word
            fi
        :: else
        fi;
        if
        :: IS_TRIAL(trial) && number < trial + 1 -> word = trial
        :: else -> word = good
        fi;
        assert(!chosen[number + 1] || followed[number + 1] == word);
        chosen[number + 1] = true;
        followed[number + 1] = word;
        word = 0
    };
#ifdef ONLY_SOME_HEED
chosen_this:
    skip
#endif
}

inline tell() {
    if
    :: self == 0 && synchronises[number + 1] && HAS_SYNCHRONISED ->
        if
        :: skip                       /* nothing to tell */
        :: store(TOLD, AFTER, 0);
            told = AFTER;
            over = AFTER
        fi
    :: else
    fi
}

inline synchronise() {
    if
    :: synchronises[number + 1] ->
        store(FLAG, number + 1, RELEASE);
#ifdef TELLS_AFTER_ENTERING
        tell();
#endif
        i = 0;
        do
        :: i < RANKS -> atomic { i == self || SHARED(i, FLAG) > number -> i++ }
        :: else -> break
        od;
        i = 0;
        synchronised = number + 1
    :: else
    fi
}

proctype rank(byte self) {
    byte i, number, word, told, heeded, trial, good, over, synchronised;
    do
    :: number < CALLS ->
        choose();
#ifndef TELLS_AFTER_ENTERING
        tell();
#endif
        synchronise();
        number++
    :: else -> break
    od
}

init {
    byte i;
    i = 0;
    do
    :: i < RANKS * WORDS -> memory[i] = 0; i++
    :: else -> break
    od;
    i = 1;
    do
    :: i <= CALLS ->
        if
        :: synchronises[i] = true
        :: synchronises[i] = false
        fi;
        i++
    :: else -> break
    od;
    atomic {
        i = 0;
        do
        :: i < RANKS ->
            run rank(i);
            run memory_system(i);
            i++
        :: else -> break
        od;
        i = 0
    }
}
