"""What a program calls its communicators."""

from mpi4py import MPI


def name_of(comm: MPI.Comm) -> str:
    """The communicator's name; "" where it is no UTF-8: an MPI may cut it within a character."""
    try:
        return MPI.Comm.Get_name(comm)
    except UnicodeDecodeError:
        return ""
