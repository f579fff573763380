# A message that was longer than the room for it. What fits is delivered and the call goes on: the
# error is the receiver's alone, and is raised when the call is over (`comm.movement`).

cdef enum:
    NOBODY = -1

# One of a call, mostly the first.
cdef struct Truncation:
    int sender                 # NOBODY: all messages have fit
    size_t nbytes, room


# How much of a message there is room for; remembers one that is too long.
cdef inline size_t fitting(Truncation *truncation, int sender, size_t nbytes,
                           size_t room) noexcept nogil:
    if nbytes <= room:
        return nbytes
    if truncation.sender == NOBODY:
        truncation.sender = sender
        truncation.nbytes = nbytes
        truncation.room = room
    return room
