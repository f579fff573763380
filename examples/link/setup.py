"""Builds residual.pyx against the installed smcoll: its .pxd files and its C headers."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import smcoll

setup(
    name="residual",
    ext_modules=cythonize(
        [Extension("residual", ["residual.pyx"], include_dirs=[smcoll.get_include()],
                   extra_compile_args=["-std=gnu11"])],
        # For the .pxd files: Cython itself does not find a package that is installed with -e.
        include_path=[str(Path(smcoll.__file__).parents[1])],
    ),
)
