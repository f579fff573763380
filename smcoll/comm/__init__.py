"""The communicators that programs use: mpi4py's classes with smcoll's collectives.

Their methods by kind, their set-up in agreement of all ranks, and ``install``.
"""
