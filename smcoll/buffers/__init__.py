"""What mpi4py's methods accept as buffers, parsed: one message, or one for each rank.

Objects of the buffer protocol, DLPack and the CUDA array interface.
"""
