"""Debian's petsc4py on the Open MPI that mpi4py has here, in a folder of its own.

    python tests/libraries/petsc_environment.py FOLDER

makes FOLDER and prints the variables (JSON) with which this Python imports petsc4py there. Nothing
is installed: apt-get downloads the packages, dpkg-deb unpacks them, and what they bring of Open MPI
4.1 is left out, since libmpi.so.40 is the name of 5.0's library, too. Its Fortran and C++ bindings
are Debian's; what they miss in 5.0, and nobody calls here, is filled by a library of stubs. Needs
Open MPI (petsc4py is built against no other there), the Python version of Debian's package, and
numpy < 2, against which it is built: pip brings that into FOLDER.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGE = "python3-petsc4py-real"
# Of Open MPI and what it stands on: the wheel has its own.
LEFT_OUT = ("libmpi.so", "libmpi_java", "libopen-", "libompi", "libevent", "libhwloc", "libfabric",
            "libuc", "libpmix", "librdma", "libibverbs", "libpsm", "libnl-", "libmunge", "libmca")


class Unavailable(RuntimeError):
    """It can't be had here; the text says why."""


def run(*command, **options) -> str:
    """Output of a command that works."""
    for key, value in {"capture_output": True, "text": True, "timeout": 600}.items():
        options.setdefault(key, value)
    result = subprocess.run([*map(str, command)], check=False, **options)
    if result.returncode != 0:
        raise Unavailable(f"{command[0]}: {result.stderr.strip()[-500:]}")
    return result.stdout


def download(folder: Path) -> Path:
    """The unpacked packages."""
    for program in ("apt-get", "dpkg-deb", "ldd", os.environ.get("CC", "cc")):
        if shutil.which(program) is None:
            raise Unavailable(f"there is no {program}")
    archives, root = folder / "cache" / "archives", folder / "root"
    (archives / "partial").mkdir(parents=True)
    run("apt-get", f"-oDir::Cache={folder}/cache", "-oDebug::NoLocking=1", "-y",
        "--no-install-recommends", "--download-only", "install", PACKAGE)
    for archive in archives.glob("*.deb"):
        run("dpkg-deb", "-x", archive, root)
    return root


def link_libraries(root: Path, folder: Path) -> Path:
    """A folder with the libraries that petsc4py needs, without Open MPI's own."""
    libraries = folder / "lib"
    libraries.mkdir()
    base = root / "usr" / "lib" / (sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu")
    for place in (base, base / "blas", base / "lapack", base / "scotch-int32"):
        for path in place.glob("*.so*"):
            target = libraries / path.name
            if not path.name.startswith(LEFT_OUT) and not target.exists():
                target.symlink_to(path)
    return libraries


def fill(libraries: Path, extension: Path, mpi: Path) -> None:
    """libopen-pal.so.40, which Debian's bindings ask for: 5.0's, and stubs of what that lacks."""
    source, target = libraries / "stubs.c", libraries / "libopen-pal.so.40"
    pal = next(mpi.parent.glob("libopen-pal.so.*"))
    # Of C++'s error handlers there is an object.
    text = "extern void abort(void);\nvoid *ompi_mpi_errors_throw_exceptions[256];\n"
    for missing in ("", None):
        if missing is None:
            search = os.pathsep.join(map(str, (mpi.parent, libraries)))
            listed = subprocess.run(["ldd", "-r", str(extension)], capture_output=True, text=True,
                                    env=os.environ | {"LD_LIBRARY_PATH": search}, check=False)
            names = re.findall(r"undefined symbol: (\w+)", listed.stdout + listed.stderr)
            for name in sorted({name for name in names if re.match(r"(P?MPIX?_|ompi_|opal_)",
                                                                    name)}):
                text += f"void {name}(void) {{ abort(); }}\n"
        source.write_text(text)
        run(os.environ.get("CC", "cc"), "-shared", "-fPIC", source, "-o", target,
            f"-Wl,-soname,{target.name}", "-Wl,--no-as-needed", pal)


def make(folder: Path) -> dict[str, str]:
    """Variables for ranks that import petsc4py."""
    from smcoll.launch import launch

    info = launch.mpi_info()
    if info.family != launch.OPEN_MPI or not info.version.startswith("5."):
        raise Unavailable(f"Debian's petsc4py is built for Open MPI, this is {info.title}")
    root = download(folder)
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-"
    extensions = [path for path in root.rglob("petsc4py/lib/PETSc*.so") if tag in path.name]
    if not extensions:
        raise Unavailable(f"{PACKAGE} is not for Python {sysconfig.get_python_version()}")
    libraries = link_libraries(root, folder)
    fill(libraries, extensions[0], Path(info.library))
    run(sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "site", "numpy<2")
    path = [folder / "site", *(entry for entry in sys.path if entry), extensions[0].parents[2]]
    search = [Path(info.library).parent, libraries]
    return {"PYTHONPATH": os.pathsep.join(map(str, path)),
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, search))}


def main() -> int:
    """Exit code 3: it can't be had."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        print(json.dumps(make(folder)))
    except Unavailable as error:
        print(f"petsc_environment.py: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
