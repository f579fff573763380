"""Builds residual.pyx against the installed smcoll: its .pxd files and its C headers."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import smcoll

setup(
    name="residual",
    ext_modules=cythonize([
        Extension("residual", ["residual.pyx"], include_dirs=[smcoll.get_include()],
                  extra_compile_args=["-std=gnu11"])
    ]),
)
