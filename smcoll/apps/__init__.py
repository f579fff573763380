"""Applications of the papers, each run with plain mpi4py and with smcoll in the same job.

``python -m smcoll.apps.NAME -n 4`` starts its own ranks; ``--help`` lists the options.
docs/applications.md says what each one computes, and where it comes from.
"""
