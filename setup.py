"""Build the compiled modules: every smcoll/**/*.pyx, portable baseline, no mpi.h.

Modules that an earlier build left beside their sources are taken as they are, unless something that
they are made of is newer, or they were compiled in another way: so a second environment, a wheel,
or an editable installation after a change compile only what they must.
"""

import os
import shutil
import sysconfig
from pathlib import Path

import Cython
import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# -ffp-contract=off: a fused multiply-add would give ranks on other code paths other bits.
COMPILE_ARGS = ["-O3", "-std=gnu11", "-fno-strict-aliasing", "-ffp-contract=off"]
COMPILE_ARGS += os.environ.get("SMCOLL_BUILD_CFLAGS", "").split()
LINK_ARGS = os.environ.get("SMCOLL_BUILD_LDFLAGS", "").split()
CPUS = len(os.sched_getaffinity(0))
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
RECIPE = repr([COMPILE_ARGS, LINK_ARGS, Cython.__version__,
               [os.environ.get(name) for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS")]])


def forget_other_builds() -> bool:
    """Delete modules that were compiled in another way; whether there may be some."""
    noted = Path("build", "recipe" + SUFFIX + ".txt")
    if noted.exists() and noted.read_text() == RECIPE:
        return False
    for module in Path("smcoll").rglob("*" + SUFFIX):
        module.unlink()
    noted.parent.mkdir(exist_ok=True)
    noted.write_text(RECIPE)
    return True


class BuildChanged(build_ext):
    """setuptools compiles everything anew for every wheel and every editable installation."""

    def build_extension(self, ext):
        left = Path(*ext.name.split(".")).with_suffix(SUFFIX)
        made_of = [*ext.sources, *ext.depends, "setup.py"]
        target = Path(self.get_ext_fullpath(ext.name))
        if self.force or not left.exists() or left.stat().st_mtime < max(
                Path(source).stat().st_mtime for source in made_of):
            super().build_extension(ext)
        elif target.absolute() != left.absolute():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(left, target)


extensions = [
    Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        depends=[str(header) for header in sorted(Path("smcoll").rglob("*.h"))],
        include_dirs=["smcoll", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
                       # Allocators of one's own (NEP 49).
                       ("NPY_TARGET_VERSION", "NPY_1_22_API_VERSION")],
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=LINK_ARGS,
    )
    for source in sorted(Path("smcoll").rglob("*.pyx"))
]

setup(
    ext_modules=cythonize(
        extensions,
        nthreads=CPUS,
        force=forget_other_builds(),
        compiler_directives={
            "language_level": 3,
            "cdivision": True,
            "binding": True,
            "embedsignature": True,
        },
    ),
    cmdclass={"build_ext": BuildChanged},
    options={"build_ext": {"parallel": CPUS}},
)
