# For other packages' compiled modules: `from smcoll.engine cimport Engine`.
from smcoll.engine.engine cimport CARRIED_OUT, USE_MPI, Engine
