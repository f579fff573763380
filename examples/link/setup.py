"""Builds residual.pyx against the installed smcoll: its .pxd files and its C headers."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import smcoll

headers = smcoll.get_include()

setup(
    name="residual",
    ext_modules=cythonize(
        [Extension("residual", ["residual.pyx"], include_dirs=[headers],
                   extra_compile_args=["-std=gnu11"])],
        # For the .pxd files: Cython itself does not find a package that is installed with -e.
        include_path=[str(Path(headers).parent)],
    ),
)
