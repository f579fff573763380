"""The lower-case collectives: Python objects through the segment.

Python's and numpy's scalars travel as tagged values, everything else pickled (by mpi4py's
``MPI.pickle``, as the user may have set it up). Kind and length are the sender's business alone, so
both travel with the object: in an Allgather or a broadcast every rank first publishes a packet of
a fixed size, which holds the object if it is short and else its length, so that all ranks know
what follows.
"""

import numpy
from mpi4py import MPI

cimport numpy as cnp
from cpython.bool cimport PyBool_FromLong
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.complex cimport PyComplex_CheckExact
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memset

from smcoll.base.kernels cimport copy_bytes
from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_BCAST, COLLECTIVE_OBJECT_ALLGATHER,
    COLLECTIVE_OBJECT_ALLREDUCE, COLLECTIVE_OBJECT_ALLTOALL, COLLECTIVE_OBJECT_BCAST,
    COLLECTIVE_OBJECT_EXSCAN, COLLECTIVE_OBJECT_GATHER, COLLECTIVE_OBJECT_REDUCE,
    COLLECTIVE_OBJECT_SCAN, COLLECTIVE_OBJECT_SCATTER,
)
from smcoll.buffers.messages cimport Gathered, Messages
from smcoll.comm.state cimport check_root, engine_of, count_fallback
from smcoll.engine.engine cimport Engine, stream_signature
from smcoll.engine.reservation cimport USE_MPI

from smcoll.errors import Error

cnp.import_array()

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
    long long PyLong_AsLongLongAndOverflow(object, int *overflow) except? -1

cdef extern from "numpy/arrayobject.h":
    object PyArray_Scalar(void *data, cnp.dtype descr, object base)

cdef object SUM = MPI.SUM
# numpy's scalar types that are their bytes: not strings, dates, records or objects.
cdef dict _number_of_scalar = {
    dtype.type: dtype.num
    for dtype in map(numpy.dtype, "?bhilqBHILQefdgFDG")
}
cdef list _dtype_of_number = [None] * 64
for _dtype in map(numpy.dtype, "?bhilqBHILQefdgFDG"):
    _dtype_of_number[_dtype.num] = _dtype


# ---------------------------------------------------------------------- objects and bytes

cdef inline Label label_of(const char *packet) noexcept nogil:
    """A copy: packets lie anywhere, labels only where 8 divides the address."""
    cdef Label label
    memcpy(&label, packet, LABEL)
    return label


cdef size_t encode_short(value, char *out) except? 0:
    """Label and bytes of a scalar at ``out`` (SHORT_OBJECT bytes); 0 where it must be pickled."""
    cdef Label label
    cdef char *place = out + LABEL
    cdef int overflow = 0
    cdef int64_t integer
    cdef double real, imaginary
    cdef object number
    if value is None:
        label.kind, label.nbytes = KIND_NONE, 0
    elif value is True or value is False:
        label.kind, label.nbytes = KIND_BOOL, 1
        place[0] = value is True
    elif PyFloat_CheckExact(value):
        label.kind, label.nbytes = KIND_FLOAT, 8
        real = value
        memcpy(place, &real, 8)
    elif PyLong_CheckExact(value):
        integer = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return 0
        label.kind, label.nbytes = KIND_INT, 8
        memcpy(place, &integer, 8)
    elif PyComplex_CheckExact(value):
        label.kind, label.nbytes = KIND_COMPLEX, 16
        real, imaginary = value.real, value.imag
        memcpy(place, &real, 8)
        memcpy(place + 8, &imaginary, 8)
    else:
        number = _number_of_scalar.get(type(value))
        if number is None:
            return 0
        label.kind, label.nbytes = KIND_NUMPY + <int> number, value.itemsize
        cnp.PyArray_ScalarAsCtype(value, place)
    memcpy(out, &label, LABEL)
    return LABEL + label.nbytes


cdef bytes encode(value):
    """Label and bytes of any object."""
    cdef char short_object[SHORT_OBJECT]
    cdef size_t nbytes = encode_short(value, short_object)
    if nbytes > 0:
        return PyBytes_FromStringAndSize(short_object, nbytes)
    return labelled(MPI.pickle.dumps(value))


cdef bytes labelled(bytes pickled):
    cdef Label label
    cdef bytes packet
    label.kind, label.nbytes = KIND_PICKLE, PyBytes_GET_SIZE(pickled)
    packet = PyBytes_FromStringAndSize(NULL, LABEL + label.nbytes)
    memcpy(PyBytes_AS_STRING(packet), &label, LABEL)
    copy_bytes(PyBytes_AS_STRING(packet) + LABEL, PyBytes_AS_STRING(pickled), label.nbytes)
    return packet


cdef size_t packet_bytes(Engine engine, const char *packet) except 0:
    """Bytes of the whole packet. What came through shared memory is checked (protocol rule 10)."""
    cdef uint64_t nbytes = label_of(packet).nbytes
    if nbytes > <uint64_t> PY_SSIZE_T_MAX - LABEL:
        # Peers that read another length may have gone on to a second stage.
        engine.abandon()
        raise damaged()
    return LABEL + nbytes


cdef damaged():
    return Error("an object in shared memory is damaged: no object has such a kind or length")


cdef object decode(const char *packet, memory):
    """The object of the packet, whose bytes are those of ``memory`` where that is not None.

    At ``packet`` lie SHORT_OBJECT bytes, or as many as its label says.
    """
    cdef Label label = label_of(packet)
    cdef const char *place = packet + LABEL
    cdef int64_t integer
    cdef double real, imaginary
    if label.kind == KIND_FLOAT:
        memcpy(&real, place, 8)
        return real
    if label.kind == KIND_INT:
        memcpy(&integer, place, 8)
        return integer
    if label.kind == KIND_BOOL:
        return PyBool_FromLong(place[0])
    if label.kind == KIND_NONE:
        return None
    if label.kind == KIND_COMPLEX:
        memcpy(&real, place, 8)
        memcpy(&imaginary, place + 8, 8)
        return complex(real, imaginary)
    if label.kind >= KIND_NUMPY:
        return decode_numpy(label.kind - KIND_NUMPY, place)
    if label.kind != KIND_PICKLE:
        raise damaged()
    if memory is None:
        memory = PyBytes_FromStringAndSize(place, label.nbytes)
    else:
        memory = memoryview(memory)[LABEL:]
    # What mpi4py hands to a `loads` of the user's, too.
    return MPI.pickle.loads(MPI.buffer.frombuffer(memory, readonly=True))


cdef object decode_numpy(uint64_t number, const char *place):
    cdef object dtype = None
    if number < <uint64_t> len(_dtype_of_number):
        dtype = _dtype_of_number[number]
    if dtype is None:
        raise damaged()
    return PyArray_Scalar(<void *> place, dtype, None)


cdef object decode_packet(bytes packet):
    cdef char short_object[SHORT_OBJECT]
    cdef const char *place = PyBytes_AS_STRING(packet)
    cdef size_t nbytes = PyBytes_GET_SIZE(packet)
    if nbytes < LABEL:
        raise damaged()
    if nbytes < SHORT_OBJECT:
        # Whatever kind its label says, the bytes that this kind has are there.
        memset(short_object, 0, SHORT_OBJECT)
        memcpy(short_object, place, nbytes)
        place = short_object
    return decode(place, packet)


cdef object fold(items, op):
    """From the first operand to the last."""
    cdef object result = None
    cdef bint first = True
    for item in items:
        if first:
            result, first = item, False
        elif op is SUM:
            result = result + item
        else:
            result = op(result, item)
    return result


# ---------------------------------------------------------------------- the exchanges

cdef list allgather_objects(comm, Engine engine, value, int collective, method):
    """Every rank's object, on every rank, each a copy."""
    cdef int size = engine.size, rank
    cdef size_t room = engine.inline_size
    cdef char *packets = <char *> PyMem_Malloc(room * size)
    cdef char short_object[SHORT_OBJECT]
    cdef Gathered gathered = Gathered(size)
    cdef bytes packet = None
    cdef list result = [None] * size
    cdef size_t nbytes, longest = 0
    if packets == NULL:
        raise MemoryError
    try:
        nbytes = encode_short(value, short_object)
        if nbytes > 0:
            gathered.contribute(short_object, nbytes, NULL)
        else:
            packet = labelled(MPI.pickle.dumps(value))
            nbytes = PyBytes_GET_SIZE(packet)
            gathered.contribute(PyBytes_AS_STRING(packet), nbytes if nbytes <= room else LABEL,
                                NULL)
        for rank in range(size):
            # A label that does not arrive (a length in shared memory was damaged) is no length.
            memset(packets + rank * room, 0, LABEL)
            gathered.room(rank, packets + rank * room, room, NULL)
        copy_bytes(packets + engine.rank * room, gathered.all.send.address,
                   gathered.all.send_bytes)
        if engine.allgather_(&gathered.all, collective,
                             engine.plans.choose(COLLECTIVE_ALLGATHER, room), True) == USE_MPI:
            # Over several nodes only: on one this stage needs no memory that could be refused.
            engine.call_is_over()
            count_fallback(comm, method)
            return MPI.Comm.allgather(comm, value)
        for rank in range(size):
            longest = max(longest, packet_bytes(engine, packets + rank * room))
        if longest > room:
            allgather_long(comm, engine, packets, room, packet, result, collective)
        # Only now: what raises here leaves no peer waiting.
        for rank in range(size):
            if result[rank] is None:
                result[rank] = decode(packets + rank * room, None)
            else:
                result[rank] = decode_packet(result[rank])
    finally:
        PyMem_Free(packets)
    return result


cdef allgather_long(comm, Engine engine, const char *packets, size_t room, bytes packet,
                    list memories, int collective):
    """The packets that were too long for the first exchange: their lengths are known by now.

    The peers are in this second stage for sure, so what goes wrong here ends the communicator.
    """
    cdef Gathered gathered
    cdef size_t nbytes
    cdef int rank, mine = engine.rank
    engine.go_on()
    try:
        gathered = Gathered(engine.size)
        gathered.contribute(NULL, 0, NULL)
        for rank in range(engine.size):
            nbytes = packet_bytes(engine, packets + rank * room)
            if nbytes <= room:
                gathered.room(rank, NULL, 0, NULL)
                continue
            if rank == mine:
                memories[rank] = packet
                gathered.contribute(PyBytes_AS_STRING(packet), PyBytes_GET_SIZE(packet), NULL)
            else:
                memories[rank] = PyBytes_FromStringAndSize(NULL, nbytes)
            gathered.room(rank, PyBytes_AS_STRING(memories[rank]), nbytes, NULL)
        if engine.allgather_(&gathered.all, collective,
                             engine.plans.choose(COLLECTIVE_ALLGATHER, gathered.all.longest),
                             True) == USE_MPI:
            allgather_through_mpi(comm, engine, memories)
    except BaseException:
        engine.abandon()
        raise


cdef allgather_through_mpi(comm, Engine engine, list memories):
    counts = [0 if memory is None else len(memory) for memory in memories]
    together = bytearray(sum(counts))
    mine = memories[engine.rank] or b""
    engine.through_mpi("allgather", lambda: MPI.Comm.Iallgatherv(
        comm, [mine, MPI.BYTE], [together, counts, None, MPI.BYTE]))
    view, at = memoryview(together), 0
    for rank, count in enumerate(counts):
        if count:
            memories[rank] = bytes(view[at:at + count])
        at += count


cdef object bcast_object(comm, Engine engine, value, int root):
    """The root's object; a copy there, too, as mpi4py makes one."""
    cdef size_t room = min(engine.rooted_inline_size, <size_t> FIRST_PACKET)
    cdef char *packet = <char *> PyMem_Malloc(room)
    cdef bytes memory = None
    if packet == NULL:
        raise MemoryError
    try:
        memset(packet, 0, room)
        if engine.rank == root and encode_short(value, packet) == 0:
            memory = labelled(MPI.pickle.dumps(value))
            copy_bytes(packet, PyBytes_AS_STRING(memory),
                       min(<size_t> PyBytes_GET_SIZE(memory), room))
        if engine.bcast_(COLLECTIVE_OBJECT_BCAST, packet, room, root,
                         engine.plans.choose(COLLECTIVE_BCAST, room), True) == USE_MPI:
            engine.call_is_over()
            count_fallback(comm, "bcast")
            return MPI.Comm.bcast(comm, value, root)
        if packet_bytes(engine, packet) <= room:
            return decode(packet, None)
        memory = bcast_long(comm, engine, memory, packet_bytes(engine, packet), root)
    finally:
        PyMem_Free(packet)
    return decode_packet(memory)


cdef bytes bcast_long(comm, Engine engine, bytes memory, size_t nbytes, int root):
    """The second stage, as in allgather_long."""
    engine.go_on()
    try:
        if memory is None:
            memory = PyBytes_FromStringAndSize(NULL, nbytes)
        if engine.bcast_(COLLECTIVE_OBJECT_BCAST, PyBytes_AS_STRING(memory), nbytes, root,
                         engine.plans.choose(COLLECTIVE_BCAST, nbytes), True) == USE_MPI:
            together = bytearray(memory)
            engine.through_mpi("bcast", lambda: MPI.Comm.Ibcast(comm, [together, MPI.BYTE], root),
                               root=root)
            memory = bytes(together)
    except BaseException:
        engine.abandon()
        raise
    return memory


cdef list gather_objects(Engine engine, bytes packet, int root, int collective):
    """Every rank's object at the root, None elsewhere; ``packet``: this rank's."""
    cdef int rank
    cdef Messages messages = Messages(engine.size)
    if engine.rank != root:
        messages.send_bytes(root, packet)
        engine.exchange(collective, root, messages, len(packet))
        return None
    for rank in range(engine.size):
        if rank != root:
            messages.receive_any_length(rank)
    engine.exchange(collective, root, messages, len(packet))
    messages.grown[root] = packet
    return [decode_packet(packet) for packet in messages.grown]


cdef list as_list(values, int size):
    items = [None] * size if values is None else list(values)
    if len(items) != size:
        raise ValueError(f"expecting {size} items, got {len(items)}")
    return items


cdef list encode_each(list items):
    return [encode(item) for item in items]


cdef object scatter_objects(Engine engine, list packets, int root):
    """This rank's object of those that the root has."""
    cdef int rank
    cdef Messages messages = Messages(engine.size)
    if engine.rank != root:
        messages.receive_any_length(root)
        engine.exchange(COLLECTIVE_OBJECT_SCATTER, root, messages, 0)
        return decode_packet(messages.grown[root])
    for rank in range(engine.size):
        if rank != root:
            messages.send_bytes(rank, packets[rank])
    engine.exchange(COLLECTIVE_OBJECT_SCATTER, root, messages, sum(map(len, packets)))
    return decode_packet(packets[root])


cdef list alltoall_objects(Engine engine, list packets):
    cdef int i, peer, mine = engine.rank, size = engine.size
    cdef Messages messages = Messages(size)
    for i in range(size - 1):
        peer = (mine + 1 + i) % size
        messages.send_bytes(peer, packets[peer])
        messages.receive_any_length(peer)
    engine.exchange(COLLECTIVE_OBJECT_ALLTOALL, 0, messages, sum(map(len, packets)))
    messages.grown[mine] = packets[mine]
    return [decode_packet(packet) for packet in messages.grown]


cdef bint have_streams(comm, Engine engine, collective, int number, int root) except -1:
    """Agreed by all ranks; else the call goes to mpi4py's own."""
    if engine.have_streams(stream_signature(number, root)) == USE_MPI:
        engine.call_is_over()
        count_fallback(comm, collective)
        return False
    return True


class Objects:
    """The methods for Python objects; mixed into mpi4py's communicator classes."""

    __slots__ = ()

    def barrier(self):
        """Synchronise all ranks."""
        self.Barrier()

    def bcast(self, obj, int root=0):
        """Broadcast a Python object."""
        cdef Engine engine = engine_of(self)
        if engine is None:
            count_fallback(self, "bcast")
            return MPI.Comm.bcast(self, obj, root)
        check_root(engine, root)
        return bcast_object(self, engine, obj, root)

    def gather(self, sendobj, int root=0):
        """Gather Python objects: a list at ``root``, None elsewhere."""
        cdef Engine engine = engine_of(self)
        if engine is None:
            count_fallback(self, "gather")
            return MPI.Comm.gather(self, sendobj, root)
        check_root(engine, root)
        packet = encode(sendobj)
        if not have_streams(self, engine, "gather", COLLECTIVE_OBJECT_GATHER, root):
            return MPI.Comm.gather(self, sendobj, root)
        return gather_objects(engine, packet, root, COLLECTIVE_OBJECT_GATHER)

    def scatter(self, sendobj, int root=0):
        """Scatter a sequence of as many Python objects as ranks."""
        cdef Engine engine = engine_of(self)
        cdef list packets = None
        if engine is None:
            count_fallback(self, "scatter")
            return MPI.Comm.scatter(self, sendobj, root)
        check_root(engine, root)
        if engine.rank == root:
            sendobj = as_list(sendobj, engine.size)
            packets = encode_each(sendobj)
        if not have_streams(self, engine, "scatter", COLLECTIVE_OBJECT_SCATTER, root):
            return MPI.Comm.scatter(self, sendobj, root)
        return scatter_objects(engine, packets, root)

    def allgather(self, sendobj):
        """Gather Python objects: a list, on all ranks."""
        cdef Engine engine = engine_of(self)
        if engine is None:
            count_fallback(self, "allgather")
            return MPI.Comm.allgather(self, sendobj)
        return allgather_objects(self, engine, sendobj, COLLECTIVE_OBJECT_ALLGATHER, "allgather")

    def alltoall(self, sendobj):
        """Send the r-th object of a sequence to rank r; the list of what the ranks sent here."""
        cdef Engine engine = engine_of(self)
        cdef list packets
        if engine is None:
            count_fallback(self, "alltoall")
            return MPI.Comm.alltoall(self, sendobj)
        sendobj = as_list(sendobj, engine.size)
        packets = encode_each(sendobj)
        if not have_streams(self, engine, "alltoall", COLLECTIVE_OBJECT_ALLTOALL, 0):
            return MPI.Comm.alltoall(self, sendobj)
        return alltoall_objects(engine, packets)

    def reduce(self, sendobj, op=SUM, int root=0):
        """Reduce Python objects to ``root`` in rank order; ``op``: an MPI.Op or a function."""
        cdef Engine engine = engine_of(self)
        if engine is None:
            count_fallback(self, "reduce")
            return MPI.Comm.reduce(self, sendobj, op, root)
        check_root(engine, root)
        packet = encode(sendobj)
        if not have_streams(self, engine, "reduce", COLLECTIVE_OBJECT_REDUCE, root):
            return MPI.Comm.reduce(self, sendobj, op, root)
        items = gather_objects(engine, packet, root, COLLECTIVE_OBJECT_REDUCE)
        return None if items is None else fold(items, op)

    def allreduce(self, sendobj, op=SUM):
        """Reduce Python objects in rank order, on all ranks alike."""
        cdef Engine engine = engine_of(self)
        if engine is None:
            count_fallback(self, "allreduce")
            return MPI.Comm.allreduce(self, sendobj, op)
        return fold(allgather_objects(self, engine, sendobj, COLLECTIVE_OBJECT_ALLREDUCE,
                                      "allreduce"), op)

    def scan(self, sendobj, op=SUM):
        """Inclusive prefix reduction of Python objects."""
        cdef Engine engine = engine_of(self)
        if engine is None:
            count_fallback(self, "scan")
            return MPI.Intracomm.scan(self, sendobj, op)
        return fold(allgather_objects(self, engine, sendobj, COLLECTIVE_OBJECT_SCAN,
                                      "scan")[:engine.rank + 1], op)

    def exscan(self, sendobj, op=SUM):
        """Exclusive prefix reduction of Python objects; None on rank 0."""
        cdef Engine engine = engine_of(self)
        if engine is None:
            count_fallback(self, "exscan")
            return MPI.Intracomm.exscan(self, sendobj, op)
        return fold(allgather_objects(self, engine, sendobj, COLLECTIVE_OBJECT_EXSCAN,
                                      "exscan")[:engine.rank], op)
