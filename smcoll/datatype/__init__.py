"""MPI's datatypes and operations: layouts flattened to runs of bytes, and a cursor through them.

Operations are given their kernels here.
"""
