"""Starting jobs: which mpiexec, on which hosts and CPUs, with which settings of the MPI.

No MPI is loaded here.
"""
