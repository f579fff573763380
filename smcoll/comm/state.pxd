from smcoll.engine.engine cimport Engine


cdef class State:
    cdef Engine engine
    cdef readonly object config
    cdef readonly object reason
    cdef readonly object name
    cdef object failure        # what made its set-up end on this rank alone
    cdef bint in_set_up
    cdef bint established
    cdef bint owned            # the handle was made by smcoll, for the object that it returned
    cdef bint closed           # the handle was freed, or the object given up
    cdef bint collected        # closed because no object was left, though the handle lives
    cdef int users             # Python objects that have this state at hand
    cdef dict mpi_calls
    cdef object __weakref__

    cdef make(self, comm)
    cdef attach_to(self, comm)


cdef class Keyvals:
    # The two attributes on a communicator's handle. Made when MPI is initialised for sure.
    cdef int state
    cdef int config            # copied: a duplicate has its parent's settings


cdef Keyvals keyvals()
cdef State state_of(comm)
cdef State new_state(comm, config)
cdef settings_for(comm)
cdef bint is_predefined(comm) except -1
cdef installed_config()
cdef set_installed_config(config)
cdef count_fallback(comm, collective)
cdef check_root(Engine engine, int root)


# The engine of a communicator; None where all its collectives are MPI's own.
cdef inline Engine engine_of(comm):
    cdef State state
    try:
        state = comm._state
    except AttributeError:
        state = state_of(comm)
    if state.established:
        return state.engine
    state.make(comm)
    return state.engine
