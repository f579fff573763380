"""smcoll.launch.launch: which mpiexec, which options, whose environment."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time

import pytest

from smcoll.launch import launch, mpi_settings
from smcoll.launch.hosts import Host
from smcoll.topology import node

PRINT_ENVIRONMENT = """\
import json, os
from mpi4py import MPI
world = MPI.COMM_WORLD
rows = world.gather([sorted(os.sched_getaffinity(0)), os.environ.get("SMCOLL_TEST_MARK")])
if world.rank == 0:
    print(json.dumps(rows))
"""


def info_of(family: str, mpiexec: str | None = "/mpi/bin/mpiexec") -> launch.MPIInfo:
    return launch.MPIInfo(family, "1.2.3", "some MPI 1.2.3", "/mpi/lib/libmpi.so", mpiexec,
                          "" if mpiexec else "there is none")


@pytest.fixture
def two_cores(monkeypatch):
    """As on a machine of two cores, whatever this one has."""
    monkeypatch.setattr(node, "allowed_cpus", lambda: [0, 1])
    monkeypatch.setattr(node, "cpu_quota", lambda: float("inf"))
    monkeypatch.setattr(launch, "_topology", lambda cpu, name, unknown=0: cpu
                        if name == "core_id" else 0)


def fake_mpiexec(folder, text):
    path = folder / "bin" / "mpiexec"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


# ---------------------------------------------------------------------- which MPI


def test_mpi_info_names_the_loaded_mpi():
    info = launch.mpi_info()
    assert info.family in launch.TITLES
    assert info.version[0].isdigit() and info.version.split(".")[0] in info.full_version
    assert "libmpi" in os.path.basename(info.library) and os.path.exists(info.library)
    assert info.mpiexec is not None and os.access(info.mpiexec, os.X_OK)
    assert info.problem == ""


def test_nothing_here_loads_mpi(tmp_path):
    program = ("import sys, smcoll.launch.launch, smcoll.cli.app; smcoll.launch.launch.mpi_info(); "
               "smcoll.cli.app.app_of(); sys.exit('mpi4py.MPI' in sys.modules)")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": path}).returncode == 0


def test_run_does_not_wait_for_imports_of_other_commands(tmp_path):
    program = (
        "import atexit, sys\n"
        "from smcoll.cli import main\n"
        "atexit.register(lambda: print(*sorted(\n"
        "    name for name in sys.modules if name in ('numpy', 'rich', 'smcoll.cli.jobs'))))\n"
        "sys.argv = ['smcoll', *sys.argv[1:]]\n"
        "main()\n")
    path = os.pathsep.join(entry for entry in sys.path if entry)

    def imported(*words: str) -> list[str]:
        job = subprocess.run(
            [sys.executable, "-c", program, *words], check=True, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
        return job.stdout.split()[-3:]

    assert imported("run", "-n", "1", "--yes", "-c", "pass") == []
    assert "smcoll.cli.jobs" in imported("-h")


def test_mpiexec_is_found_without_an_activated_environment(monkeypatch):
    info = launch.mpi_info()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert launch.find_mpiexec(info.family, info.library) == (info.mpiexec, "")


@pytest.mark.parametrize("text, family", [
    ("mpiexec (Open MPI) 5.0.11", launch.OPEN_MPI),
    ("prterun (PRRTE) 3.0.1", launch.OPEN_MPI),
    ("HYDRA build details:", launch.MPICH),
    ("Intel(R) MPI Library for Linux* OS, HYDRA", launch.INTEL_MPI),
])
def test_vendor_of_an_mpiexec(tmp_path, text, family):
    path = fake_mpiexec(tmp_path, text)
    assert launch.find_mpiexec(family, str(tmp_path / "lib" / "libmpi.so")) == (path, "")


def test_mpiexec_beside_the_library_wins_over_path(tmp_path, monkeypatch):
    beside = fake_mpiexec(tmp_path / "mine", "HYDRA build details:")
    other = fake_mpiexec(tmp_path / "other", "HYDRA build details:")
    monkeypatch.setenv("PATH", os.path.dirname(other))
    library = tmp_path / "mine" / "lib" / "x86_64-linux-gnu" / "libmpi.so"
    assert launch.find_mpiexec(launch.MPICH, str(library)) == (beside, "")


def test_mpiexec_of_another_vendor_is_refused(tmp_path, monkeypatch):
    path = fake_mpiexec(tmp_path, "HYDRA build details:")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    found, problem = launch.find_mpiexec(launch.OPEN_MPI, "")
    assert found is None
    assert f"{path} belongs to MPICH" in problem and "mpi4py loads Open MPI" in problem


def test_no_mpiexec_at_all_is_an_error_that_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    found, problem = launch.find_mpiexec(launch.MPICH, str(tmp_path / "lib" / "libmpi.so"))
    assert found is None and f"{tmp_path}/bin" in problem
    with pytest.raises(launch.LaunchError, match="there is none"):
        launch.command(2, ["x"], info=info_of(launch.MPICH, None))


# ---------------------------------------------------------------------- the command line


def test_open_mpi_command(two_cores):
    arguments, environment = launch.command(2, ["prog", "-n"], info=info_of(launch.OPEN_MPI))
    assert arguments == ["/mpi/bin/mpiexec", "-n", "2", "prog", "-n"]
    assert environment["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    arguments, _ = launch.command(3, ["prog"], info=info_of(launch.OPEN_MPI))
    assert arguments[1:] == ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", "3", "prog"]
    arguments, _ = launch.command(2, ["prog"], layout="1,0", info=info_of(launch.OPEN_MPI))
    assert arguments[1:3] == ["--map-by", "pe-list=1,0:ordered"]


@pytest.fixture
def an_open_mpi(tmp_path, monkeypatch):
    """(What this Open MPI is, its settings' file, the user's): neither of them exists."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("OMPI_MCA_btl", "SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "PBS_NODEFILE",
                 "LSB_JOBID", "PE_HOSTFILE", "FLUX_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    mpiexec = fake_mpiexec(tmp_path, "Open MPI")
    files = tmp_path / "etc" / "openmpi-mca-params.conf", tmp_path / "home/.openmpi/mca-params.conf"
    for file in files:
        file.parent.mkdir(parents=True)
    return info_of(launch.OPEN_MPI, mpiexec), *files


def btl_of_a_job(info, **settings):
    return launch.command(2, ["prog"], info=info, **settings)[1].get("OMPI_MCA_btl")


def test_open_mpi_starts_without_its_network_component_on_one_machine(an_open_mpi):
    info, installation, user = an_open_mpi
    assert btl_of_a_job(info) == "^ofi"
    assert btl_of_a_job(info, hosts=[Host("a", 2)]) is None
    assert btl_of_a_job(info, extra_options=["--host", "a,b"]) is None
    for name in ("SLURM_JOB_ID", "PBS_NODEFILE", "PRTE_MCA_prte_default_hostfile"):
        assert btl_of_a_job(info, environment={name: "1"}) is None
    for file in (installation, user):
        file.write_text("# btl = self\nbtl_tcp_if_include = lo\n")
    assert btl_of_a_job(info) == "^ofi"


def test_what_says_which_components_carry_messages_holds(an_open_mpi, monkeypatch):
    info, *files = an_open_mpi
    assert btl_of_a_job(info, extra_options=["--mca", "btl", "self,sm"]) is None
    assert btl_of_a_job(info, environment={"OMPI_MCA_btl": "self,sm"}) == "self,sm"
    for file in files:
        file.write_text("btl_tcp_if_include = lo\n btl = self,sm\n")
        assert btl_of_a_job(info) is None
        file.unlink()
    monkeypatch.setenv("OMPI_MCA_btl", "^tcp")
    assert btl_of_a_job(info) == "^tcp"


def test_mpich_command(two_cores):
    for ranks in (2, 3):
        arguments, _ = launch.command(ranks, ["prog"], info=info_of(launch.MPICH))
        assert arguments == ["/mpi/bin/mpiexec", "-n", str(ranks), "prog"]
    arguments, _ = launch.command(2, ["prog"], layout="compact", extra_options=["-l"],
                                  info=info_of(launch.MPICH))
    assert arguments[1:] == ["-bind-to", "user:0,1", "-l", "-n", "2", "prog"]


def test_intel_mpi_command(two_cores, monkeypatch):
    monkeypatch.delenv("I_MPI_PIN", raising=False)
    info = info_of(launch.INTEL_MPI)
    assert "I_MPI_PIN" not in launch.command(2, ["prog"], info=info)[1]
    assert launch.command(3, ["prog"], info=info)[1]["I_MPI_PIN"] == "off"
    environment = launch.command(2, ["prog"], layout="1,0", info=info)[1]
    assert environment["I_MPI_PIN_PROCESSOR_LIST"] == "1,0"
    monkeypatch.setenv("I_MPI_PIN", "on")
    assert launch.command(3, ["prog"], info=info)[1]["I_MPI_PIN"] == "on"


def test_a_quota_below_the_affinity_counts_as_cores(two_cores, monkeypatch):
    monkeypatch.setattr(node, "cpu_quota", lambda: 1.5)
    assert launch.crowded(2) and not launch.crowded(1)


def test_hardware_threads_are_not_cores(monkeypatch):
    monkeypatch.setattr(launch, "_topology", lambda cpu, name, unknown=0: {
        "core_id": cpu % 4, "physical_package_id": (cpu % 4) // 2}[name])
    cpus = list(range(8))
    assert launch.cores(cpus) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert launch.place("compact", 5, cpus) == [0, 1, 2, 3, 4]
    assert launch.place("spread", 5, cpus) == [0, 2, 1, 3, 4]
    assert launch.place("7,0-2", 4, cpus) == [7, 0, 1, 2]
    for layout, ranks in (("compact", 9), ("0,1", 3), ("0-x", 1), ("8", 1)):
        with pytest.raises(launch.LaunchError):
            launch.place(layout, ranks, cpus)


def test_zero_ranks_is_an_error():
    with pytest.raises(launch.LaunchError):
        launch.command(0, ["prog"], info=info_of(launch.MPICH))


# ---------------------------------------------------------------------- an enclosing job

OF_A_RANK = {
    "OMPI_COMM_WORLD_RANK": "0", "OMPI_UNIVERSE_SIZE": "2", "OMPI_MCA_num_procs": "2",
    "OMPI_MCA_initial_wdir": "/", "PMIX_RANK": "0", "PMIX_NAMESPACE": "x", "PMIX_SERVER_URI41": "u",
    "PRTE_LAUNCHED": "1", "PMI_RANK": "0", "PMI_FD": "9", "HYDI_CONTROL_FD": "7",
    "HYDRA_BSTRAP_LAUNCHER": "ssh", "MPI_LOCALNRANKS": "2", "I_MPI_INFO_CORE": "0,1",
    "I_MPI_PIN_INFO": "0",
}
OF_THE_USER = {
    "OMPI_MCA_coll": "^han", "OMPI_ALLOW_RUN_AS_ROOT": "1", "PMIX_MCA_gds": "hash",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "MPIR_CVAR_DEVICE_COLLECTIVES": "all",
    "I_MPI_FABRICS": "shm", "HYDRA_IFACE": "lo", "PATH": "/bin", "SMCOLL_SEGMENTS": "3",
}


def test_what_a_launcher_set_is_stripped_and_what_the_user_set_stays():
    assert launch.outer_environment({**OF_A_RANK, **OF_THE_USER}) == OF_THE_USER


def test_under_mpiexec():
    assert not launch.under_mpiexec(OF_THE_USER)
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"):
        assert launch.under_mpiexec({**OF_THE_USER, name: "0"})


def test_mpi_settings_name_every_family():
    for family in launch.TITLES:
        forced = mpi_settings.point_to_point_settings(family)
        assert forced and not launch.outer_environment(forced).keys() ^ forced.keys()
        assert next(iter(mpi_settings.settings(family))) == "default"


# ---------------------------------------------------------------------- jobs


def run_python(ranks, program, **options):
    result = launch.run(ranks, [sys.executable, "-c", program], 60, capture_output=True, text=True,
                        stdin=subprocess.DEVNULL, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_more_ranks_than_cores_start_unbound():
    cpus = node.allowed_cpus()
    ranks = len(cpus) + 1
    rows = json.loads(run_python(ranks, PRINT_ENVIRONMENT, environment={"SMCOLL_TEST_MARK": "x"}))
    assert rows == [[cpus, "x"]] * ranks


def test_layout_binds_ranks():
    cpus = node.allowed_cpus()[-1:]
    rows = json.loads(run_python(1, PRINT_ENVIRONMENT, layout=str(cpus[0])))
    assert rows[0][0] == cpus


LEAVE_A_KILLED_JOBS_FILES = (
    'mkdir -p "$TMPDIR/ompi.$$" && touch "$TMPDIR/ompi.$$/pmix.$(hostname).tool" '
    '"$TMPDIR/ompi.$$/pmix.$(uname -n).tool" && exec "$@"')


@pytest.mark.skipif(launch.mpi_info().family != launch.OPEN_MPI,
                    reason="Open MPI names files after process ids")
@pytest.mark.parametrize("own_directory, code", [(True, 0), (False, 213)])
def test_what_a_killed_job_left_does_not_stop_a_job_with_its_process_id(
    monkeypatch, tmp_path, own_directory, code
):
    command = launch.command

    def command_with_reused_process_id(*arguments, session_directory, **options):
        arguments, environment = command(
            *arguments, session_directory=session_directory if own_directory else None, **options)
        return ["sh", "-c", LEAVE_A_KILLED_JOBS_FILES, "sh", *arguments], environment

    monkeypatch.setattr(launch, "command", command_with_reused_process_id)
    result = launch.run(1, ["true"], 60, capture_output=True, text=True,
                        environment={"TMPDIR": str(tmp_path)}, stdin=subprocess.DEVNULL)
    assert result.returncode == code, result.stderr


def test_a_job_inside_a_job(tmp_path):
    inner = f"""\
import sys
from mpi4py import MPI
from smcoll.launch import launch
assert launch.under_mpiexec()
if MPI.COMM_WORLD.rank == 0:
    job = launch.run(2, [sys.executable, "-c", {PRINT_ENVIRONMENT!r}], 60, capture_output=True,
                     text=True)
    print(job.stdout)
MPI.COMM_WORLD.Barrier()
"""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    # Elsewhere than here, where a folder named smcoll may lie that is not built.
    rows = json.loads(run_python(1, inner, environment={"PYTHONPATH": path}, cwd=tmp_path))
    assert len(rows) == 2


def test_a_job_past_its_time_is_ended():
    program = "import time; from mpi4py import MPI; time.sleep(100)  # mark-of-test-launch"
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        launch.run(2, [sys.executable, "-c", program], 2, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    assert time.monotonic() - began < 15
    deadline = time.monotonic() + 10
    while _running("mark-of-test-launch"):
        assert time.monotonic() < deadline, "ranks left behind"
        time.sleep(0.1)


def test_a_job_ends_with_the_process_that_started_it(tmp_path):
    program = ("import time; from mpi4py import MPI; "
               f"open({str(tmp_path)!r} + f'/{{MPI.COMM_WORLD.rank}}', 'w'); "
               "time.sleep(100)  # mark-of-an-orphan")
    starter = f"""
import sys
from smcoll.launch import launch
launch.run(2, [sys.executable, "-c", {program!r}])
"""
    process = subprocess.Popen([sys.executable, "-c", starter], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env=launch.outer_environment())
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while _running("mark-of-an-orphan"):
        assert time.monotonic() < deadline, "ranks left behind"
        time.sleep(0.1)


def _running(mark: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                if mark.encode() in line.read():
                    return True
        except OSError:
            continue
    return False
