"""What smcoll asks of MPI besides communicators: agreement at set-up, progress, the end.

Nothing here knows of segments.
"""
