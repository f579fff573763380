"""The benchmark protocol, what is measured of each collective, and the ranks' part of a job.

The command line (``cli``) starts the jobs and shows what they found.
"""
