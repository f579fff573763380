"""How code that knows nothing of smcoll comes to use it: Python programs by replaced names, C
libraries by functions with MPI's names that the dynamic linker finds first."""
