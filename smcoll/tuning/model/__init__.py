"""The performance model: what a collective should take, on this machine and on others. No MPI.

LHS = Li, Hoefler & Snir 2013, GJMM = Goglin, Jeannot, Mansouri & Mercier 2018.

- ``lhs``: LHS's equations (1) to (11), to be read beside the paper; ``hockney``: GJMM section 6.
- ``parameters``: what is known of a machine (a, b, B of each level), read from TOML.
- ``machine``: parameters, topology and ranks put together: which level joins which ranks.
- ``costs``: one function for each algorithm of smcoll's, LHS's terms and those that they lack.
- ``predict``: times and crossovers made of all that.

Times are nanoseconds, sizes cache lines in the equations and bytes elsewhere.
"""
