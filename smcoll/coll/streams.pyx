"""Messages between pairs of ranks: Gather(v), Scatter(v) and Alltoall(v, w) are made of them.

How long a message is only its sender knows for sure (protocol rule 3), so nothing here is agreed
between ranks but which pairs have a message in this call. From every rank to every other leads a
stream: a ring of cells, each a flag line whose payload holds a short message, and as many rooms for
the chunks of long ones. The first cell of a message says how long it is, and how long its chunks
are: that is the sender's choice.

Shared words and their pairing, for the stream from rank s to rank d:

=================  ==============================  ==============================================
word               stored by                       loaded by
=================  ==============================  ==============================================
``Line.flag``      s, release, after the cell or   d, acquire, before it reads them
                   chunk and the rest of the line
credit word        d, release, after it has read   s, acquire, before it writes cell ``n``: d has
                   cells up to that number         read cell ``n - cells``, the last one there
refusal word       d, before that credit           s, after it
``Offer.cell``     d, release, after the place     s, acquire, before it writes the message there
                   and the room that it offers
written word       s, release, after it has        d, acquire, before it leaves the call
                   written that message
=================  ==============================  ==============================================

**Two streams between two ranks share the rooms for their chunks**, and change them in each pass:
what a rank has read it writes next, which is faster with far cores (``pipeline.plan_call`` says the
same of data regions). In both streams the chunks of a call begin at the same position
(``begin_chunks``), so at one position they lie in different rooms. What s is about to write over,
at position ``t`` of call e, has been read:

- what d wrote there: s has read all of earlier calls; of this one it lies at ``t - cells`` or
  before, and s is no more than a pass ahead of what has come, until no more chunks will;
- what s wrote there itself, in call e'. If a later call than e' has brought s anything from d, then
  d has left e'. If not, only s has sent since e', at positions that follow each other, and it comes
  back to a room after ``2 * cells`` of them. Where it has sent ``cells`` chunks since that one, d's
  credit says it. Else d's message of e' went on for a pass behind it; d had to read it before it
  could send so much, and all of that has come to s.

A long message that lies in its sender's shared heap (``docs/heap.md``) is one cell with its offset:
the receiver reads it where it is, and gives credit at once, for which the sender waits. So is one
in private memory that receivers may read through the kernel (``cross_memory``; ``may_be_read``). A
receiver that can't read it there (the kernel refuses, its own data have holes, or what they would
overwrite has to be sent first) says so beside the credit, in ``refusal_word``, and the message
follows in chunks.

In a Gather or Alltoall it is the sender that copies from heap to heap. A Gather's root copies its
own block meanwhile; and cores that are far from each other write faster than they read. Each
receiver begins its call by an offer to each sender: the number of the next cell, and where in its
heap that message is wanted. Who has put a message in place into that very cell writes there what
fits of it, and waits for no credit; both ranks know that it does so, and the offer stays until it
has.

Cells are counted from the communicator's start and never reset. A message of no bytes has a cell
too. Why nothing deadlocks: a rank moves all its messages, in both directions, as far as they go,
and waits for any of them to move; a sender without credit has filled the ring for a receiver whose
call has the same message, and which therefore reads it. A sender that is a pass ahead of what has
come waits for chunks of a rank that can't be a pass ahead itself, and which needs none of the
chunks that this one has yet to send: in place, too, where both are cut at the same places.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from smcoll.barrier cimport post_line_length, same_kind_of_call
from smcoll.base.atomics cimport (
    acquire_reached, load_acquire, load_relaxed, monotonic_ns, store_relaxed, store_release,
)
from smcoll.base.kernels cimport STORES_ORDINARY, copy_result
from smcoll.base.signature cimport COLLECTIVE_ALLGATHER, COLLECTIVE_ALLTOALL, collective_in
from smcoll.coll.peer_buffers cimport (
    find, own_offset, read_address, read_chunk, read_offset, still_in_the_call,
)
from smcoll.coll.stores cimport (
    UNKNOWN_STORES, add_store_sample, end_reading, next_stores, start_reading, store_class_of,
    tell_overlap, tell_stores, told_stores,
)
from smcoll.coll.truncation cimport fitting
from smcoll.datatype.convertor cimport copy_message, pack_next, unpack_next
from smcoll.memory.cross_memory cimport read_memory
from smcoll.memory.heap cimport STAGED
from smcoll.segment cimport (
    LINE_BYTES, Layout, Line, Offer, credit_word, is_fresh_chunk, offer_to, places_in_turn,
    refusal_word, stream_chunk, stream_line, whole_lines, written_word,
)
from smcoll.sync.team cimport (
    AGAIN, DONE, FAILED_DAMAGED, FAILED_MISMATCH, FAILED_POISONED, StoreClass, Team,
)
from smcoll.sync.waiting cimport wait_until


cdef enum:
    # Bytes. (Measured: docs/notebook-stores.md.)
    SHORT_CHUNK = 16384
    WORTH_READING = 32768      # through the kernel: only what is longer


cdef void init_streams(Team *team, Stream *streams, uint64_t start) noexcept nogil:
    """Start all streams of this rank at ``start``, before any peer may read them."""
    cdef Layout *layout = &team.layout
    cdef int other, cell
    for other in range(team.size):
        streams[other].sent = streams[other].received = streams[other].credit = start
        streams[other].began = streams[other].chunks_sent = streams[other].chunks_received = 0
        streams[other].messages = streams[other].next_messages = 0
        streams[other].is_turned = False
        streams[other].answered = 0
        if other == team.rank:
            continue
        store_relaxed(refusal_word(layout, team.base, team.rank, other), start)
        store_relaxed(&offer_to(layout, team.base, team.rank, other).cell, start)
        store_relaxed(written_word(layout, team.base, team.rank, other), start)
        store_release(credit_word(layout, team.base, team.rank, other), start)
        for cell in range(layout.stream_cells):
            store_release(&stream_line(layout, team.base, team.rank, other,
                                       <uint64_t> cell).flag, start)


cdef StoreClass *stream_class(Team *team, size_t nbytes) noexcept nogil:
    """The choice of stores for a message of this call.

    An Allgather by messages is an Alltoall as its stores go. Its own class is that of the data
    regions, a ring of another length.
    """
    cdef int collective = collective_in(team.signature)
    return store_class_of(
        team, COLLECTIVE_ALLTOALL if collective == COLLECTIVE_ALLGATHER else collective, nbytes)


cdef void begin_exchange(Exchange *exchange) noexcept nogil:
    """Nothing has moved yet. The caller has filled in peers, convertors, lengths and rooms."""
    cdef int i
    for i in range(exchange.sends):
        exchange.streams[exchange.outgoing[i].peer].next_messages |= OUTGOING
    for i in range(exchange.receives):
        exchange.streams[exchange.incoming[i].peer].next_messages |= INCOMING
    for i in range(exchange.sends):
        begin_chunks(&exchange.streams[exchange.outgoing[i].peer])
        exchange.outgoing[i].done = 0
        exchange.outgoing[i].begun = exchange.outgoing[i].finished = False
        exchange.outgoing[i].heap_offset = offset_for(exchange, &exchange.outgoing[i])
        exchange.outgoing[i].address = address_for(exchange, &exchange.outgoing[i])
        exchange.outgoing[i].is_offered = exchange.outgoing[i].address != 0
        exchange.outgoing[i].chunk = chunk_bytes(exchange.team, exchange.outgoing[i].nbytes,
                                                 exchange.receives > 0)
        exchange.outgoing[i].chosen = NULL
        if exchange.outgoing[i].convertor.runs == NULL:
            # (Run by run other stores are used.)
            exchange.outgoing[i].chosen = stream_class(exchange.team, exchange.outgoing[i].nbytes)
        if exchange.outgoing[i].chosen != NULL:
            tell_overlap(exchange.team, exchange.outgoing[i].chosen,
                         1 if exchange.receives > 0 else
                         exchange.outgoing[i].nbytes // exchange.outgoing[i].chunk)
    for i in range(exchange.receives):
        begin_chunks(&exchange.streams[exchange.incoming[i].peer])
        exchange.streams[exchange.incoming[i].peer].awaits = True
        exchange.incoming[i].done = exchange.incoming[i].nbytes = 0
        exchange.incoming[i].begun = exchange.incoming[i].finished = False
        exchange.incoming[i].heap_offset = STAGED
        exchange.incoming[i].address = 0
        exchange.incoming[i].has_offer = offer_place(exchange, &exchange.incoming[i])
        exchange.incoming[i].is_written = False
        exchange.incoming[i].is_offered = False
        exchange.incoming[i].chosen = NULL
        if exchange.incoming[i].behind != NULL:
            # In place: what arrives overwrites it.
            (<Transfer *> exchange.incoming[i].behind).heap_offset = STAGED
            (<Transfer *> exchange.incoming[i].behind).address = 0
            (<Transfer *> exchange.incoming[i].behind).is_offered = False
    exchange.unfinished = exchange.sends + exchange.receives
    exchange.unplaced = NULL


cdef void begin_chunks(Stream *stream) noexcept nogil:
    """Both ranks put this exchange's chunks behind those of the one before, at the same position.

    One that answers (a Gather behind a Scatter, say: what had one direction only has the other one)
    takes the very rooms of the one before, for its sender has just read there. One that answers an
    answer goes on behind both.
    """
    cdef uint64_t longest = max(stream.chunks_sent, stream.chunks_received)
    cdef bint answers
    if stream.next_messages == 0:
        return                     # it has begun: this is the other message of the two
    answers = (stream.next_messages ^ stream.messages == OUTGOING | INCOMING
               and stream.messages != 0 and stream.next_messages != OUTGOING | INCOMING)
    if answers and not stream.is_turned:
        stream.answered = longest
    else:
        stream.began += max(stream.answered, longest) if answers else longest
        stream.answered = 0
    stream.is_turned ^= answers
    stream.both_send = answers or stream.next_messages == OUTGOING | INCOMING
    stream.messages = stream.next_messages
    stream.next_messages = 0
    stream.chunks_sent = stream.chunks_received = 0
    stream.awaits = False


cdef uint64_t offset_for(Exchange *exchange, Transfer *message) noexcept nogil:
    """Short messages are staged wherever they lie: a copy is less than the wait for its reader."""
    if (message.convertor.runs != NULL or message.nbytes < exchange.direct_from
            or in_cell(exchange.team, message.nbytes)):
        return STAGED
    return own_offset(exchange.team, message.convertor.address, message.nbytes)


cdef uint64_t address_for(Exchange *exchange, Transfer *message) noexcept nogil:
    if (not exchange.may_be_read or message.heap_offset != STAGED or message.convertor.runs != NULL
            or message.nbytes <= min(<size_t> WORTH_READING,
                                     exchange.team.layout.stream_chunk)):
        return 0
    return <uint64_t> <void *> message.convertor.address


cdef bint offer_place(Exchange *exchange, const Transfer *message) noexcept nogil:
    """Before its sender can have it ready: then it need not wait for us."""
    cdef Team *team = exchange.team
    cdef Offer *offer = offer_to(&team.layout, team.base, team.rank, message.peer)
    cdef uint64_t place
    if (not exchange.may_be_written or message.room < exchange.direct_from
            or message.convertor.runs != NULL or message.behind != NULL):
        return False
    place = own_offset(team, message.convertor.address, message.room)
    if place == STAGED:
        return False
    store_relaxed(&offer.place, place)
    store_relaxed(&offer.room, message.room)
    store_release(&offer.cell, exchange.streams[message.peer].received + 1)
    return True


cdef inline bint in_cell(const Team *team, size_t nbytes) noexcept nogil:
    return nbytes <= team.layout.stream_inline


cdef size_t chunk_bytes(const Team *team, size_t nbytes, bint also_receives) noexcept nogil:
    """How long the chunks of a message of so many bytes are: whole lines, about equal.

    Where its sender only sends, a quarter of it, so that sender and receiver copy at the same time.
    Who also receives copies in before it copies out, and so does its peer; there only the last one
    is shorter: the two messages may wait for each other's chunks, and in place for what has left,
    also where a program has made them unlike.
    """
    cdef size_t longest = nbytes if also_receives else max((nbytes + 3) // 4, <size_t> SHORT_CHUNK)
    cdef size_t pieces
    longest = max(min(longest, team.layout.stream_chunk), <size_t> LINE_BYTES)
    if also_receives:
        return whole_lines(longest)
    pieces = max((nbytes + longest - 1) // longest, <size_t> 1)
    return max(whole_lines((nbytes + pieces - 1) // pieces), <size_t> LINE_BYTES)


# In how many places of their rooms the message's chunks begin by turns: the same on both ranks. In
# one where the two write by turns: while they go on so, each has read last what it writes.
cdef inline uint64_t places_of_chunks(const Team *team, const Stream *stream,
                                      const Transfer *message) noexcept nogil:
    if stream.both_send:
        return 1
    return places_in_turn(&team.layout, message.chunk, team.layout.stream_room,
                          2 * <uint64_t> team.layout.stream_cells, message.nbytes)


cdef inline size_t next_piece(const Team *team, const Transfer *message) noexcept nogil:
    """How much of a message the next cell carries. Incoming: once it has begun."""
    if in_cell(team, message.nbytes) or message.heap_offset != STAGED:
        return message.nbytes
    return min(message.nbytes - message.done, message.chunk)


cdef inline bint would_overwrite(const Team *team, const Transfer *message) noexcept nogil:
    """In place: has what the next piece overwrites not been sent yet?"""
    return message.behind != NULL and message.behind.done < min(
        message.done + next_piece(team, message), message.behind.nbytes)


# Does the next cell of an outgoing message have a chunk?
cdef inline bint needs_room(const Team *team, const Transfer *message) noexcept nogil:
    return (not in_cell(team, message.nbytes) and message.heap_offset == STAGED
            and message.address == 0)


cdef bint may_write(Exchange *exchange, const Transfer *message) noexcept nogil:
    """Has everything been read that lies where the message's next cell is to be written?"""
    cdef Stream *stream = &exchange.streams[message.peer]
    cdef Team *team = exchange.team
    cdef uint64_t cells = team.layout.stream_cells
    cdef uint64_t needed = stream.sent + 1 - cells
    if (stream.awaits and stream.chunks_sent >= stream.chunks_received + cells
            and needs_room(team, message)):
        return False
    if <long long> (stream.credit - needed) >= 0:
        return True
    stream.credit = load_acquire(credit_word(&team.layout, team.base, message.peer, team.rank))
    return <long long> (stream.credit - needed) >= 0


# Has the receiver read the message that we published in place?
cdef bint was_read(Exchange *exchange, Transfer *message) noexcept nogil:
    cdef Stream *stream = &exchange.streams[message.peer]
    cdef Team *team = exchange.team
    stream.credit = load_acquire(credit_word(&team.layout, team.base, message.peer, team.rank))
    return <long long> (stream.credit - message.cell) >= 0


# Does the receiver want it in chunks? (Once it was_read.)
cdef inline bint was_refused(Exchange *exchange, Transfer *message) noexcept nogil:
    cdef Team *team = exchange.team
    return message.address != 0 and message.cell == load_relaxed(
        refusal_word(&team.layout, team.base, message.peer, team.rank))


# Does the receiver of the message that we published in place leave it to us to write it?
cdef inline bint is_ours_to_write(Exchange *exchange, const Transfer *message) noexcept nogil:
    cdef Team *team = exchange.team
    cdef Offer *offer = offer_to(&team.layout, team.base, message.peer, team.rank)
    return (exchange.may_be_written and message.heap_offset != STAGED
            and load_acquire(&offer.cell) == message.cell)


cdef int write_message(Exchange *exchange, Transfer *message) noexcept nogil:
    """DONE or a FAILED code."""
    cdef Team *team = exchange.team
    cdef Offer *offer = offer_to(&team.layout, team.base, message.peer, team.rank)
    cdef char *place
    # It stays until we say that we have written: what does not fit is left out here, as by a
    # receiver that reads.
    cdef size_t nbytes = min(message.nbytes, load_relaxed(&offer.room))
    cdef int status = find(team, message.peer, load_relaxed(&offer.place), nbytes, &place)
    if status == DONE and place == NULL:
        team.awaited_rank = message.peer
        status = FAILED_DAMAGED
    if status == DONE:
        status = still_in_the_call(team, message.peer)
    if status != DONE:
        return status
    copy_result(place, message.convertor.address, nbytes, message.convertor.streaming)
    team.direct_bytes += nbytes
    store_release(written_word(&team.layout, team.base, team.rank, message.peer), message.cell)
    return DONE


# Has the sender written the message that we have left to it?
cdef inline bint was_written(Exchange *exchange, const Transfer *message) noexcept nogil:
    cdef Team *team = exchange.team
    return exchange.streams[message.peer].received + 1 == load_acquire(
        written_word(&team.layout, team.base, message.peer, team.rank))


cdef int send_more(Exchange *exchange, Transfer *message) noexcept nogil:
    """Fill cells as long as there are free ones: DONE, AGAIN or a FAILED code."""
    cdef Team *team = exchange.team
    cdef Stream *stream = &exchange.streams[message.peer]
    cdef Line *line
    cdef char *place
    cdef size_t piece
    cdef uint64_t places
    cdef int stores = STORES_ORDINARY
    cdef bint sampled = False
    cdef int64_t began = 0
    cdef uint64_t number = 0
    if message.begun:
        if is_ours_to_write(exchange, message):
            return write_message(exchange, message)
        if not was_read(exchange, message):
            return AGAIN
        if not was_refused(exchange, message):
            return DONE
        message.begun = False
        message.address = 0
    while may_write(exchange, message):
        line = stream_line(&team.layout, team.base, team.rank, message.peer, stream.sent + 1)
        piece = next_piece(team, message)
        if in_cell(team, message.nbytes):
            place = line.payload
        else:
            # Where it lies; the receiver asks the first cell only.
            memcpy(line.payload, &message.heap_offset, sizeof(uint64_t))
            memcpy(line.payload + sizeof(uint64_t), &message.address, sizeof(uint64_t))
            memcpy(line.payload + 3 * sizeof(uint64_t), &message.chunk, sizeof(uint64_t))
            places = places_of_chunks(team, stream, message)
            place = stream_chunk(&team.layout, team.base, team.rank, message.peer,
                                 stream.began + stream.chunks_sent, stream.is_turned, places,
                                 message.chunk)
        if message.heap_offset != STAGED or message.address != 0:
            stream.sent += 1
            message.cell = stream.sent
            message.begun = True
            post_line_length(team, line, stream.sent, message.nbytes)
            return AGAIN
        if place != line.payload:
            if message.chosen != NULL:
                number = message.chosen.sections
                message.chosen.sections += 1
            stores = next_stores(
                team, message.chosen, number, team.layout.stream_cells,
                is_fresh_chunk(&team.layout, stream.began + stream.chunks_sent, places), &sampled)
            tell_stores(line, stores)
            stream.chunks_sent += 1
        if sampled:
            began = monotonic_ns()
        pack_next(&message.convertor, place, piece, stores)
        if sampled:
            add_store_sample(message.chosen, stores, monotonic_ns() - began, piece)
        stream.sent += 1
        post_line_length(team, line, stream.sent, message.nbytes)
        message.done += piece
        if message.done == message.nbytes:
            return DONE
    return AGAIN


cdef inline void give_credit(Team *team, Stream *stream, int peer, bint ends) noexcept nogil:
    """``ends``: that was the last of several pieces of a message."""
    # Half a ring at a time: each store costs the sender a cache miss. A message may fill the whole
    # ring; without the credit for its last pieces the next one would wait for its receiver.
    if stream.received % <uint64_t> (team.layout.stream_cells // 2) == 0 or ends:
        store_release(credit_word(&team.layout, team.base, team.rank, peer), stream.received)


cdef int read_through_kernel(Team *team, Transfer *message, size_t wanted) noexcept nogil:
    """DONE, AGAIN where it can't be read, or FAILED_POISONED."""
    if (team.processes == NULL or message.convertor.runs != NULL or message.behind != NULL
            or not read_memory(&team.processes[message.peer], message.address,
                               message.convertor.address, wanted)):
        return AGAIN
    team.direct_bytes += wanted
    return still_in_the_call(team, message.peer)


cdef inline void finish(Stream *stream, Transfer *message) noexcept nogil:
    message.finished = True
    stream.awaits = False


cdef int receive_more(Exchange *exchange, Transfer *message) noexcept nogil:
    """Empty cells as long as there are full ones."""
    cdef Team *team = exchange.team
    cdef Stream *stream = &exchange.streams[message.peer]
    cdef Line *line
    cdef size_t piece, wanted
    cdef const char *place
    cdef char *lies_at
    cdef uint64_t places
    cdef int64_t began
    cdef int kind, status
    cdef bint has_chunk, is_fresh = False
    while True:
        if message.is_written:
            if not was_written(exchange, message):
                return AGAIN
            stream.received += 1
            store_release(credit_word(&team.layout, team.base, team.rank, message.peer),
                          stream.received)
            message.done = message.nbytes
            finish(stream, message)
            return DONE
        line = stream_line(&team.layout, team.base, message.peer, team.rank, stream.received + 1)
        if not acquire_reached(&line.flag, stream.received + 1):
            return AGAIN
        if not same_kind_of_call(team, line):
            team.awaited_rank = message.peer
            return FAILED_MISMATCH
        if not message.begun:
            message.begun = True
            # Read once: what is checked here is what is used below (protocol rule 10).
            message.nbytes = load_relaxed(&line.nbytes)
            message.heap_offset = STAGED
            if message.convertor.runs == NULL:
                message.chosen = stream_class(team, message.nbytes)
            if not in_cell(team, message.nbytes):
                message.heap_offset = read_offset(line)
                message.address = read_address(line)
                message.is_offered = message.address != 0
                message.chunk = read_chunk(line)
                if not LINE_BYTES <= message.chunk <= team.layout.stream_chunk:
                    team.awaited_rank = message.peer
                    return FAILED_DAMAGED
            if in_cell(team, message.nbytes) or message.heap_offset != STAGED:
                stream.awaits = False      # any chunk
            if message.nbytes > message.room and message.grows:
                exchange.unplaced = message
                return NEEDS_MEMORY
            fitting(exchange.truncation, message.peer, message.nbytes, message.room)
        if message.address != 0:
            status = read_through_kernel(team, message, min(message.nbytes, message.room))
            if status == FAILED_POISONED:
                return status
            stream.received += 1
            if status == AGAIN:
                store_relaxed(refusal_word(&team.layout, team.base, team.rank, message.peer),
                              stream.received)
            message.address = 0
            store_release(credit_word(&team.layout, team.base, team.rank, message.peer),
                          stream.received)
            if status == AGAIN:
                continue
            message.done = message.nbytes
            finish(stream, message)
            return DONE
        if in_cell(team, message.nbytes):
            place = line.payload
        elif message.heap_offset != STAGED and message.has_offer:
            message.is_written = True
            continue
        elif message.heap_offset != STAGED:
            status = find(team, message.peer, message.heap_offset, message.nbytes, &lies_at)
            if status != DONE:
                return status
            place = lies_at
        else:
            places = places_of_chunks(team, stream, message)
            is_fresh = is_fresh_chunk(&team.layout, stream.began + stream.chunks_received, places)
            place = stream_chunk(&team.layout, team.base, message.peer, team.rank,
                                 stream.began + stream.chunks_received, stream.is_turned, places,
                                 message.chunk)
        if would_overwrite(team, message):
            return AGAIN
        piece = next_piece(team, message)
        # What does not fit is read all the same: the stream goes on with the next message.
        wanted = 0
        if message.done < message.room:
            wanted = min(piece, message.room - message.done)
        has_chunk = message.heap_offset == STAGED and place != line.payload
        kind = told_stores(line) if has_chunk else UNKNOWN_STORES
        began = start_reading(message.chosen, kind, wanted, is_fresh)
        unpack_next(&message.convertor, place, wanted, kind)
        end_reading(message.chosen, kind, began, wanted)
        message.done += piece
        stream.received += 1
        stream.chunks_received += has_chunk
        if message.heap_offset != STAGED:
            status = still_in_the_call(team, message.peer)
            if status != DONE:
                return status
            team.direct_bytes += wanted
            store_release(credit_word(&team.layout, team.base, team.rank, message.peer),
                          stream.received)
        else:
            give_credit(team, stream, message.peer,
                        message.done == message.nbytes and message.done > piece)
        if message.done == message.nbytes:
            finish(stream, message)
            return DONE


cdef int advance_exchange(Exchange *exchange) noexcept nogil:
    """Move every message as far as it goes: DONE, AGAIN, NEEDS_MEMORY or a FAILED code."""
    cdef Transfer *message
    cdef int i, status
    for i in range(exchange.sends):
        message = &exchange.outgoing[i]
        if not message.finished:
            status = send_more(exchange, message)
            if status == DONE:
                message.finished = True
                exchange.unfinished -= 1
            elif status != AGAIN:
                return status
    for i in range(exchange.receives):
        message = &exchange.incoming[i]
        if not message.finished:
            status = receive_more(exchange, message)
            if status == DONE:
                exchange.unfinished -= 1
            elif status != AGAIN:
                return status
    if exchange.unfinished == 0:
        return DONE
    return AGAIN


cdef bint something_moves(void *context) noexcept nogil:
    """Whether any message can go on; the team's awaited rank is the first that can't."""
    cdef Exchange *exchange = <Exchange *> context
    cdef Team *team = exchange.team
    cdef Transfer *message
    cdef Stream *stream
    cdef Line *line
    cdef int i, awaited = -1
    for i in range(exchange.receives):
        message = &exchange.incoming[i]
        if message.finished:
            continue
        stream = &exchange.streams[message.peer]
        if message.is_written:
            if was_written(exchange, message):
                return True
            if awaited < 0:
                awaited = message.peer
            continue
        # In place, a full cell may have to wait until our own message is out of its way; that one
        # is unfinished then and counts below. How long the incoming one is, its first cell says.
        line = stream_line(&team.layout, team.base, message.peer, team.rank, stream.received + 1)
        if acquire_reached(&line.flag, stream.received + 1) and not (
                message.begun and would_overwrite(team, message)):
            return True
        if awaited < 0:
            awaited = message.peer
    for i in range(exchange.sends):
        message = &exchange.outgoing[i]
        if message.finished:
            continue
        if (was_read(exchange, message) or is_ours_to_write(exchange, message) if message.begun
                else may_write(exchange, message)):
            return True
        if awaited < 0:
            awaited = message.peer
    team.awaited_rank = awaited
    return False


cdef int complete_exchange(Exchange *exchange) noexcept nogil:
    """The blocking form: wait for whatever moves next, until all messages are through."""
    cdef int status = advance_exchange(exchange)
    if exchange.own != NULL:
        # Now that the others have something to read.
        copy_message(exchange.own, exchange.own_place,
                     fitting(exchange.truncation, exchange.team.rank, exchange.own.nbytes,
                             exchange.own_place.nbytes))
        exchange.own = NULL
    while status == AGAIN:
        status = wait_until(exchange.team, something_moves, exchange)
        if status == DONE:
            status = advance_exchange(exchange)
    return status
