"""Build the compiled modules: every smcoll/**/*.pyx, portable baseline, no mpi.h."""

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# -ffp-contract=off: a fused multiply-add would give ranks on other code paths other bits.
# -g0, -s: what debuggers need makes modules five times as large, and takes a third of the time.
# -Wno-all: Python's own flags ask for warnings, a tenth of the time; .ci/builds reads them.
COMPILE_ARGS = ["-g0", "-std=gnu11", "-fno-strict-aliasing", "-ffp-contract=off", "-Wno-all",
                "-pipe"]
COMPILE_ARGS += os.environ.get("SMCOLL_BUILD_CFLAGS", "").split()
# What has loops over data or flags, and what every short call goes through: with -O1 an 8 B call
# takes 4 to 14 % longer (AMD families 25 and 26, near cores). All else is as fast with -O1, which
# compiles in half of the time.
HOT = ("smcoll/algos.pyx", "smcoll/barrier.pyx", "smcoll/coll/", "smcoll/base/kernels.pyx",
       "smcoll/datatype/convertor.pyx", "smcoll/sync/waiting.pyx", "smcoll/engine/call.pyx",
       "smcoll/engine/engine.pyx", "smcoll/engine/node.pyx", "smcoll/comm/c_api.pyx",
       "smcoll/interpose/", "smcoll/comm/movement.pyx", "smcoll/comm/reductions.pyx",
       "smcoll/buffers/", "smcoll/engine/exchanges.pyx")
LINK_ARGS = os.environ.get("SMCOLL_BUILD_LDFLAGS", "-Wl,-s").split()
DIRECTIVES = {"language_level": 3, "cdivision": True, "binding": True, "embedsignature": True}
CPUS = len(os.sched_getaffinity(0))


def optimisation(source: Path) -> str:
    """The compiler's option for a module."""
    return "-O3" if source.as_posix().startswith(HOT) else "-O1"


class Build(build_ext):
    """On all cores (as an option of ``setup`` that is lost in editable installations).

    Cython runs where something is built: pip runs this file three times in an installation, and
    asking what has to be translated takes 3 s.
    """

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or CPUS

    def run(self):
        translated = {made.name: made.sources
                      for made in cythonize(self.extensions, nthreads=CPUS,
                                            compiler_directives=DIRECTIVES)}
        for extension in self.extensions:
            extension.sources = translated[extension.name]
        super().run()


extensions = [
    Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        depends=[str(header) for header in sorted(Path("smcoll/base").glob("*.h"))],
        include_dirs=["smcoll/base", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
                       # Allocators of one's own (NEP 49).
                       ("NPY_TARGET_VERSION", "NPY_1_22_API_VERSION")],
        extra_compile_args=[optimisation(source), *COMPILE_ARGS],
        extra_link_args=LINK_ARGS,
    )
    # Those that take long first: no core ends alone with one of them.
    for source in sorted(Path("smcoll").rglob("*.pyx"),
                         key=lambda file: (optimisation(file) == "-O1", -file.stat().st_size))
]

setup(
    # Editable installations put this folder on the path: type checkers do not follow import hooks.
    options={"editable_wheel": {"mode": "compat"}},
    ext_modules=extensions,
    cmdclass={"build_ext": Build},
)
