"""The loops over elements: copies with each kind of stores, and MPI's operations on MPI's types.

They know addresses and lengths only, nothing of ranks.
"""
