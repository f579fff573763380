/* Streams between pairs of ranks: smcoll/coll/streams.pyx (send_more, receive_more, may_write,
 * give_credit, something_moves), with all messages of a call moved in both directions.
 *
 * CALLS calls (FOREVER: without end). In each, every rank has a message to every other (Alltoall)
 * and chooses its length, 1 to LONGEST cells: only the first cell says it. With ONE_WAY calls may
 * also have messages from lower ranks to higher ones only (Scatter), or the other way round.
 *
 * Every piece is a cell and a chunk. Both words carry the call (modulo 4), the length and its number,
 * so a reader that finds another piece or call has lost one or reads a stale one. With IN_PLACE what
 * arrives may overwrite only what has left (Transfer.behind). The order in which a rank tries its
 * messages is left open, so every order that the code may take is among the runs.
 *
 * Two streams between two ranks change their rooms for chunks in each pass (stream_chunk).
 *
 * Mutants: RELAXED_FLAG (with WEAK), POST_BEFORE_COPY, CREDIT_BEFORE_READING, ONE_CELL_TOO_MANY,
 * NO_CREDIT, CREDIT_TOO_HIGH, SEND_ALL_FIRST, OVERWRITES_WHAT_IT_SENDS (with IN_PLACE),
 * IGNORES_LENGTH; of rooms: IGNORES_WHAT_COMES, COUNTS_ONLY_WHAT_IT_SENDS (with ONE_WAY),
 * ANSWERS_WHAT_IT_SENT (with ONE_WAY).
 *
 * With IN_PRIVATE_MEMORY a message may be one cell that says where it lies; its sender waits for
 * the credit and changes it then. Its receiver reads it there or, beside the credit, asks for pieces.
 * Mutants: OWNER_DOES_NOT_WAIT, REFUSES_AFTER_CREDIT, NO_LOOK_AT_REFUSAL.
 *
 * With IN_HEAPS it lies in a shared heap, where it can always be read, and rank 0's are in place: it
 * sends pieces, and all of them before it reads such a message.
 * Mutant: WAITS_FOR_CHUNKS_IN_VAIN.
 *
 * With BY_SENDER (and IN_HEAPS) a receiver may offer a place in its heap for the next message, and
 * the sender of one that lies in a heap writes it there (offer_place, is_ours_to_write,
 * write_message, was_written). Behind its call each rank uses that place for something else.
 * Mutants: RECEIVER_DOES_NOT_WAIT, SAYS_SO_BEFORE_WRITING, READS_ALL_THE_SAME.
 */

#ifdef IN_HEAPS
#define IN_PRIVATE_MEMORY
#define IN_PLACE
#ifdef BY_SENDER
#define IS_IN_PLACE false
#else
#define IS_IN_PLACE (self == 0)
#endif
#else
#define IS_IN_PLACE true
#endif

#ifndef CELLS
#define CELLS 2
#endif
#ifndef LONGEST
#define LONGEST 3
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifdef FOREVER
#define MORE true
#else
#define MORE (done < CALLS)
#endif

/* The words of a rank: for each other rank (1 .. RANKS - 1 places further) a ring of cells, rooms
 * for their chunks, and a credit. */
#define OTHERS (RANKS - 1)
#define RING(distance) (((distance) - 1) * CELLS)
#define FLAG(distance, count) (RING(distance) + (count) % CELLS)
#define CELL(distance, count) (OTHERS * CELLS + FLAG(distance, count))
#define ROOM(distance, position) (2 * OTHERS * CELLS + RING(distance) + (position) % CELLS)
#define CREDIT(distance) (3 * OTHERS * CELLS + (distance) - 1)
#ifdef IN_PRIVATE_MEMORY
#define REFUSAL(distance) (3 * OTHERS * CELLS + OTHERS + (distance) - 1)
#define LIES_AT(distance) (3 * OTHERS * CELLS + 2 * OTHERS + (distance) - 1)
/* The number of the cell whose message is wanted in PLACE; the last one that was WRITTEN there. */
#define OFFER(distance) (3 * OTHERS * CELLS + 3 * OTHERS + (distance) - 1)
#define WRITTEN(distance) (3 * OTHERS * CELLS + 4 * OTHERS + (distance) - 1)
#define PLACE(distance) (3 * OTHERS * CELLS + 5 * OTHERS + (distance) - 1)
#ifdef BY_SENDER
#define WORDS (3 * OTHERS * CELLS + 6 * OTHERS)
#else
#define WORDS (3 * OTHERS * CELLS + 3 * OTHERS)
#endif
#else
#define WORDS (3 * OTHERS * CELLS + OTHERS)
#endif

/* Words are numbered through all ranks: a rank stores into rooms of others, too. */
#define HOME(owner) 0
#define OWN(word) (self * WORDS + (word))

#include "memory.pml"

/* Rank and, seen from it, our own place. */
#define PEER(distance) ((self + (distance)) % RANKS)
#define BACK(distance) (RANKS - (distance))

/* Where the chunk at a position lies, of the stream to the peer, and of the one from it. */
#define OURS(d, position) (self * WORDS + ROOM(d, position))
#define THEIRS(d, position) (PEER(d) * WORDS + ROOM(BACK(d), position))
#define PASS(position) ((position) / CELLS % 2)
#define CHANGED(d, position) ((PASS(position) + with[d].is_turned) % 2)
#define SENT_IN(d, position) (CHANGED(d, position) * THEIRS(d, position) + \
                              (1 - CHANGED(d, position)) * OURS(d, position))
#define CAME_IN(d, position) (CHANGED(d, position) * OURS(d, position) + \
                              (1 - CHANGED(d, position)) * THEIRS(d, position))

#define PIECE(call, length, number) (((call) & 3) * 64 + (length) * 8 + (number))
#define LENGTH_IN(piece) (((piece) / 8) & 7)
#define NO_PIECE 7                    /* a number that no piece has: this one lies elsewhere */

/* One message each way with the peer at each distance. */
typedef Transfer {
    byte sent;                  /* of the stream, since set-up */
    byte received;
    byte outgoing;              /* pieces of this call's message, 0: all gone */
    byte out_done;
    byte incoming;              /* 0: not begun */
    byte in_done;
    bool in_finished;
    byte began;                 /* position of this call's first chunks, modulo 2 * CELLS */
    byte gone;                  /* chunks of this call to it, */
    byte come;                  /* and from it */
    bool is_turned;
    byte answered;              /* chunks of the call that this one answers */
    byte before;                /* what the call before had: 1 a message to it, 2 one from it */
    bool in_pieces;             /* this call's message to it goes in cells */
    bool published;             /* it lies in private memory, and waits for its reader */
    bool offered;               /* we have offered a place for the one from it, */
    bool is_written             /* and it writes there */
}

#if defined(NO_CREDIT)
#define HAS_CREDIT(d) true
#elif defined(ONE_CELL_TOO_MANY)
#define HAS_CREDIT(d) REACHED(SHARED(PEER(d), CREDIT(BACK(d))), NUMBER(with[d].sent - CELLS))
#else
#define HAS_CREDIT(d) REACHED(SHARED(PEER(d), CREDIT(BACK(d))), NUMBER(with[d].sent + 1 - CELLS))
#endif

#ifdef OWNER_DOES_NOT_WAIT
#define WAS_READ(d) true
#else
#define WAS_READ(d) REACHED(SHARED(PEER(d), CREDIT(BACK(d))), with[d].sent)
#endif

#ifdef BY_SENDER
#define IS_OURS_TO_WRITE(d) (SHARED(PEER(d), OFFER(BACK(d))) == with[d].sent)
#ifdef RECEIVER_DOES_NOT_WAIT
#define WAS_WRITTEN(d) true
#else
#define WAS_WRITTEN(d) (SHARED(PEER(d), WRITTEN(BACK(d))) == NUMBER(with[d].received + 1))
#endif
#else
#define IS_OURS_TO_WRITE(d) false
#define WAS_WRITTEN(d) true
#endif
#ifdef READS_ALL_THE_SAME
#define LEFT_TO_SENDER(d) false
#else
#define LEFT_TO_SENDER(d) with[d].offered
#endif

#define ELSEWHERE(d) (SHARED(PEER(d), CELL(BACK(d), with[d].received + 1)) % 8 == NO_PIECE)

/* may_write: of a chunk */
#define NEXT_OUT(d) (with[d].began + with[d].gone)
#define NEXT_IN(d) (with[d].began + with[d].come)
#ifdef IGNORES_WHAT_COMES
#define ROOM_IS_FREE(d) true
#else
#define ROOM_IS_FREE(d) (with[d].in_finished || NO_CHUNK_COMES(d) || \
                         with[d].gone < with[d].come + CELLS)
#endif
#if defined(IN_HEAPS) && !defined(WAITS_FOR_CHUNKS_IN_VAIN)
#define NO_CHUNK_COMES(d) (ARRIVED(d) && ELSEWHERE(d))
#else
#define NO_CHUNK_COMES(d) false
#endif
#ifdef IN_PRIVATE_MEMORY
#define MAY_SEND_MORE(d) (HAS_CREDIT(d) && (!with[d].in_pieces || ROOM_IS_FREE(d)))
#else
#define MAY_SEND_MORE(d) (HAS_CREDIT(d) && ROOM_IS_FREE(d))
#endif
#define MAY_SEND(d) (with[d].outgoing != 0 && (with[d].published -> \
                     (WAS_READ(d) || IS_OURS_TO_WRITE(d)) : MAY_SEND_MORE(d)))

#define ARRIVED(d) REACHED(SHARED(PEER(d), FLAG(BACK(d), with[d].received + 1)), \
                           NUMBER(with[d].received + 1))
/* Both messages of a pair are equally long in place, and so are their pieces. */
#if defined(IN_PLACE) && !defined(OVERWRITES_WHAT_IT_SENDS)
#define OUT_OF_THE_WAY(d) (!IS_IN_PLACE || with[d].outgoing == 0 || \
                           (!ELSEWHERE(d) && with[d].out_done > with[d].in_done))
#else
#define OUT_OF_THE_WAY(d) true
#endif
#ifdef SEND_ALL_FIRST
#define ALL_SENT (unsent == 0)
#else
#define ALL_SENT true
#endif
#define MAY_RECEIVE(d) (!with[d].in_finished && (with[d].is_written -> WAS_WRITTEN(d) : \
                        (ARRIVED(d) && OUT_OF_THE_WAY(d) && ALL_SENT)))

/* send_more: a message in private memory */
inline publish_message(d) {
    store(OWN(LIES_AT(d)), call, 0);
    store(OWN(CELL(d, with[d].sent + 1)), PIECE(call, with[d].outgoing, NO_PIECE), 0);
    store(OWN(FLAG(d, with[d].sent + 1)), NUMBER(with[d].sent + 1), RELEASE);
    d_step { with[d].sent = NUMBER(with[d].sent + 1); with[d].published = true }
}

/* was_refused, once it was_read */
inline take_it_back(d) {
    atomic {
        with[d].published = false;
#ifdef NO_LOOK_AT_REFUSAL
        refused = false;
#else
        refused = SHARED(PEER(d), REFUSAL(BACK(d))) == with[d].sent;
#endif
    }
    if
    :: refused -> with[d].in_pieces = true
    :: else ->
        store(OWN(LIES_AT(d)), NOTHING, 0);
        atomic { with[d].outgoing = 0; unsent-- }
    fi;
    refused = false
}

/* write_message: into the receiver's heap, and it says so in a word of its own */
inline write_message(d) {
    assert(SHARED(PEER(d), PLACE(BACK(d))) == NOTHING);
#ifdef SAYS_SO_BEFORE_WRITING
    store(OWN(WRITTEN(d)), with[d].sent, RELEASE);
    store(PEER(d) * WORDS + PLACE(BACK(d)), PIECE(call, with[d].outgoing, NO_PIECE), 0);
#else
    store(PEER(d) * WORDS + PLACE(BACK(d)), PIECE(call, with[d].outgoing, NO_PIECE), 0);
    store(OWN(WRITTEN(d)), with[d].sent, RELEASE);
#endif
    atomic { with[d].published = false; with[d].outgoing = 0; unsent-- }
}

/* receive_more, once it was_written */
inline receive_written(d) {
    assert(SHARED(self, PLACE(d)) == PIECE(call, with[d].incoming, NO_PIECE));
    with[d].received = NUMBER(with[d].received + 1);
    store(OWN(CREDIT(d)), with[d].received, 1);
    atomic { with[d].is_written = false; with[d].in_finished = true; unreceived-- }
}

/* receive_more: read_through_kernel, or not */
inline receive_elsewhere(d) {
    d_step {
        piece = SHARED(PEER(d), CELL(BACK(d), with[d].received + 1));
        with[d].incoming = LENGTH_IN(piece);
        assert(piece == PIECE(call, with[d].incoming, NO_PIECE));
        with[d].received = NUMBER(with[d].received + 1);
        piece = 0
    }
    if
    :: assert(SHARED(PEER(d), LIES_AT(BACK(d))) == call);
       store(OWN(CREDIT(d)), with[d].received, 1);
       atomic { with[d].in_finished = true; unreceived-- }
#ifndef IN_HEAPS
    :: true ->
#ifdef REFUSES_AFTER_CREDIT
       store(OWN(CREDIT(d)), with[d].received, 1);
       store(OWN(REFUSAL(d)), with[d].received, 1)
#else
       store(OWN(REFUSAL(d)), with[d].received, 0);
       store(OWN(CREDIT(d)), with[d].received, 1)
#endif
#endif
    fi
}

/* send_more, one cell */
inline send_piece(d) {
#ifdef IN_PLACE
    assert(!IS_IN_PLACE || with[d].in_done <= with[d].out_done);
#endif
#ifdef POST_BEFORE_COPY
    store(OWN(FLAG(d, with[d].sent + 1)), NUMBER(with[d].sent + 1), RELEASE);
#endif
    store(OWN(CELL(d, with[d].sent + 1)), PIECE(call, with[d].outgoing, with[d].out_done), 0);
    store(SENT_IN(d, NEXT_OUT(d)), PIECE(call, with[d].outgoing, with[d].out_done), 0);
#ifndef POST_BEFORE_COPY
    store(OWN(FLAG(d, with[d].sent + 1)), NUMBER(with[d].sent + 1), RELEASE);
#endif
    d_step {
        with[d].sent = NUMBER(with[d].sent + 1);
        with[d].gone++;
        with[d].out_done++;
        if
        :: with[d].out_done == with[d].outgoing -> with[d].outgoing = 0; unsent--
        :: else
        fi
    }
}

#ifdef CREDIT_TOO_HIGH
#define READ_SO_FAR(d) NUMBER(with[d].received + 1)
#else
#define READ_SO_FAR(d) with[d].received
#endif

/* give_credit: half a ring at a time. */
inline give_credit(d) {
    if
    :: with[d].received % (CELLS / 2) == 0 -> store(OWN(CREDIT(d)), READ_SO_FAR(d), 1)
    :: else
    fi
}

#ifdef IGNORES_LENGTH
#define LAST_PIECE(d) (with[d].in_done == LONGEST)
#else
#define LAST_PIECE(d) (with[d].in_done == with[d].incoming)
#endif

/* receive_more, one cell */
inline receive_piece(d) {
#ifdef CREDIT_BEFORE_READING
    with[d].received = NUMBER(with[d].received + 1);
    give_credit(d);
    with[d].received = NUMBER(with[d].received - 1);
#endif
    d_step {
        piece = SHARED(PEER(d), CELL(BACK(d), with[d].received + 1));
        if
        :: with[d].incoming == 0 -> with[d].incoming = LENGTH_IN(piece)
        :: else
        fi;
        assert(piece == PIECE(call, with[d].incoming, with[d].in_done));
        assert(piece == memory[CAME_IN(d, NEXT_IN(d))]);
        with[d].in_done++;
        with[d].come++;
        with[d].received = NUMBER(with[d].received + 1);
        if
        :: LAST_PIECE(d) -> with[d].in_finished = true; unreceived--
        :: else
        fi;
        piece = 0
    }
#ifndef CREDIT_BEFORE_READING
    give_credit(d)
#endif
}

/* Which messages a call has: 0 all, 1 to higher ranks, 2 to lower ones. */
byte way[4];
#define SENDS_TO(d) (way[call] == 0 || (way[call] == 1) == (self < PEER(d)))
#define RECEIVES_FROM(d) (way[call] == 0 || (way[call] == 1) == (self > PEER(d)))

/* offer_place, by each receiver that has one; before it the user's own data are there */
inline offer_places() {
    d = 1;
    do
    :: d < RANKS ->
        if
        :: RECEIVES_FROM(d) ->
            store(OWN(PLACE(d)), NOTHING, 0);
            store(OWN(OFFER(d)), NUMBER(with[d].received + 1), RELEASE);
            with[d].offered = true
        :: true -> with[d].offered = false
        fi;
        d++
    :: else -> break
    od;
    d = 0
}

/* What the user does with the places behind the call. */
inline use_places() {
    d = 1;
    do
    :: d < RANKS ->
        if
        :: with[d].offered -> store(OWN(PLACE(d)), call, 0)
        :: else
        fi;
        d++
    :: else -> break
    od;
    d = 0
}

#ifdef COUNTS_ONLY_WHAT_IT_SENDS
#define CHUNKS(d) with[d].gone
#else
#define CHUNKS(d) (with[d].gone > with[d].come -> with[d].gone : with[d].come)
#endif

#define HAS(d) (SENDS_TO(d) + 2 * RECEIVES_FROM(d))
#ifdef ANSWERS_WHAT_IT_SENT
#define IS_ANSWER(d) (HAS(d) == with[d].before && HAS(d) % 3 != 0)
#else
#define IS_ANSWER(d) (HAS(d) + with[d].before == 3 && HAS(d) % 3 != 0)
#endif

inline begin_chunks(d) {
    if
    :: CHUNKS(d) > with[d].answered -> with[d].answered = CHUNKS(d)
    :: else
    fi;
    if
    :: IS_ANSWER(d) && !with[d].is_turned -> with[d].is_turned = true
    :: else ->
        with[d].began = with[d].began + (IS_ANSWER(d) -> with[d].answered : CHUNKS(d));
        with[d].began = with[d].began % (2 * CELLS);
        with[d].answered = 0;
        if
        :: IS_ANSWER(d) -> with[d].is_turned = false
        :: else
        fi
    fi;
    with[d].before = HAS(d);
    with[d].gone = 0;
    with[d].come = 0
}

inline begin_exchange() {
    d = 1;
    unsent = 0;
    unreceived = 0;
    do
    :: d < RANKS ->
        if
        :: SENDS_TO(d) -> select(length : 1 .. LONGEST)
        :: else -> length = 0
        fi;
        atomic {
            begin_chunks(d);
            with[d].outgoing = length;
            with[d].out_done = 0;
            with[d].incoming = 0;
            with[d].in_done = 0;
            with[d].in_finished = !RECEIVES_FROM(d);
            with[d].in_pieces = false;
            unsent = unsent + (length > 0);
            unreceived = unreceived + RECEIVES_FROM(d);
            d++
        }
    :: else -> break
    od;
    atomic { d = 0; length = 0 }
}

#ifdef IN_PRIVATE_MEMORY
inline send(d) {
    if
    :: with[d].published && !IS_OURS_TO_WRITE(d) -> take_it_back(d)
#ifdef BY_SENDER
    :: with[d].published && IS_OURS_TO_WRITE(d) -> write_message(d)
#endif
#ifdef IN_HEAPS
    :: !with[d].published && !with[d].in_pieces && !IS_IN_PLACE -> publish_message(d)
#else
    :: !with[d].published && !with[d].in_pieces -> publish_message(d)
#endif
    :: !with[d].published && ROOM_IS_FREE(d) -> with[d].in_pieces = true; send_piece(d)
    fi
}
inline receive(d) {
    if
#ifdef BY_SENDER
    :: with[d].is_written -> receive_written(d)
    :: !with[d].is_written && ELSEWHERE(d) && LEFT_TO_SENDER(d) -> d_step {
           with[d].incoming = LENGTH_IN(SHARED(PEER(d), CELL(BACK(d), with[d].received + 1)));
           with[d].is_written = true
       }
#endif
    :: !with[d].is_written && ELSEWHERE(d) && !LEFT_TO_SENDER(d) -> receive_elsewhere(d)
    :: !with[d].is_written && !ELSEWHERE(d) -> receive_piece(d)
    fi
}
#else
#define send send_piece
#define receive receive_piece
#endif

proctype rank(byte self) {
    bool refused;
    byte call, done, d, length, piece, unsent, unreceived;
    Transfer with[RANKS];
    d_step {
        do
        :: d < RANKS ->
            with[d].sent = START;
            with[d].received = START;
            d++
        :: else -> break
        od;
        d = 0
    }
    do
    :: MORE ->
        atomic {
            call = (call + 1) & 3;
#ifndef FOREVER
            done++;
#endif
            begin_exchange()
        }
#ifdef BY_SENDER
        offer_places();
#endif
        do
        :: unsent + unreceived > 0 ->
            if
            :: atomic { MAY_SEND(1) -> d = 1 } send(d)
            :: atomic { MAY_RECEIVE(1) -> d = 1 } receive(d)
#if RANKS > 2
            :: atomic { MAY_SEND(2) -> d = 2 } send(d)
            :: atomic { MAY_RECEIVE(2) -> d = 2 } receive(d)
#endif
            fi;
            d = 0
        :: else -> break
        od;
#ifdef BY_SENDER
        use_places()
#endif
    :: else -> break
    od
}

/* init_streams; the agreement at reservation follows it. */
init {
    byte i, word;
    atomic {
        do
        :: i < RANKS * WORDS ->
            word = i % WORDS;
            if
            :: word < OTHERS * CELLS || word >= 3 * OTHERS * CELLS -> memory[i] = START
            :: else -> memory[i] = NOTHING
            fi;
            i++
        :: else -> break
        od;
        i = 0;
#ifdef ONE_WAY
        do
        :: i < 4 && i <= CALLS -> select(word : 0 .. 2); way[i] = word; i++
        :: else -> break
        od;
        i = 0;
#endif
        do
        :: i < RANKS -> run rank(i); run memory_system(i); i++
        :: else -> break
        od;
        i = 0; word = 0
    }
}
