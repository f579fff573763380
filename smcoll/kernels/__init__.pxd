# For other packages' compiled modules: the codes of types and operations.
from smcoll.kernels.kernels cimport *
