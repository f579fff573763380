"""The engine of one communicator on one node: collectives on raw memory.

It enters and leaves calls, notices who failed, reserves memory and chooses the algorithm.
"""
