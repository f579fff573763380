"""Several hosts on one machine: namespaces with network, name and /dev/shm of their own.

``with Hosts(2) as hosts: hosts.run_ranks([2, 1], SOURCE)`` starts a program on 2 ranks of the first
host and one of the second; MPI's messages between them go over TCP through a bridge. Needs root.
Everything ends with the block, or with this process: each host is a shell that reads from a pipe of
ours.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from smcoll.launch import launch

NETWORK = "10.31.9"
ENTER = ["nsenter", "--net", "--uts", "--mount", "--ipc"]
AGENT = """#!/bin/sh
# Stands in for ssh: options, host, command.
while :; do case $1 in -*) shift ;; *) break ;; esac; done
pid=$(cat {folder}/$1.pid); shift
cd / && exec nsenter --net --uts --mount --ipc -t "$pid" env -i HOME=/root PATH="$PATH" sh -c "$*"
"""
START = """
hostname {name} && ip link set lo up && mount -t tmpfs -o size=256m shm /dev/shm &&
mount --bind {folder}/hosts /etc/hosts && echo $$ > {folder}/{name}.new &&
mv {folder}/{name}.new {folder}/{name}.pid && cat > /dev/null
"""


def problem() -> str | None:
    """Why there can't be hosts here; None where there can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    probe = ["unshare", "--net", "--uts", "--ipc", "--mount", "ip", "link", "add", "br0", "type",
             "bridge"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        return "needs network namespaces and bridges"
    return None


class Hosts:
    """``n1`` ... ``nN``, and ``n0``, from which jobs are started."""

    def __init__(self, count: int):
        self.count = count
        self.names = [f"n{i}" for i in range(count + 1)]
        self.shells: list[subprocess.Popen] = []

    def __enter__(self) -> Hosts:
        self.folder = Path(tempfile.mkdtemp(prefix="smcoll-hosts-"))
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception) -> None:
        for shell in self.shells:
            shell.kill()
            shell.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """The hosts, and a switch that has a port for each."""
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"{NETWORK}.{i + 1} {name}\n" for i, name in enumerate(self.names)))
        agent = self.folder / "agent"
        agent.write_text(AGENT.format(folder=self.folder))
        agent.chmod(0o755)
        for name in (*self.names, "switch"):
            self.shells.append(subprocess.Popen(
                ["unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private", "sh",
                 "-c", START.format(name=name, folder=self.folder)], stdin=subprocess.PIPE))
        self.inside("switch", "ip link add br0 type bridge && ip link set br0 up")
        for i, name in enumerate(self.names):
            self.inside("switch", f"ip link add v{i} type veth peer name eth0 netns "
                                  f"{self.pid(name)} && ip link set v{i} master br0 up")
            self.inside(name, f"ip addr add {NETWORK}.{i + 1}/24 dev eth0 && ip link set eth0 up")

    def pid(self, name: str) -> int:
        """The process that holds the namespaces of a host."""
        file = self.folder / f"{name}.pid"
        end = time.monotonic() + 10
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return int(file.read_text())

    def inside(self, name: str, command: str) -> None:
        """Run a line of shell on a host."""
        subprocess.run([*ENTER, "-t", str(self.pid(name)), "sh", "-c", command], check=True)

    def command(self, ranks: list[int], source: str, *arguments,
                outlives_its_dead: bool = False) -> tuple[list[str], dict[str, str]]:
        """(command, environment) of a Python program, given as source text, on so many ranks of
        each host.

        ``outlives_its_dead``: the launcher leaves the other ranks alone when one dies.
        """
        info = launch.mpi_info()
        program = self.folder / "program.py"
        program.write_text(textwrap.dedent(source))
        names = self.names[1:len(ranks) + 1]
        slots = ",".join(f"{name}:{count}" for name, count in zip(names, ranks, strict=True))
        options = ["-hosts", slots]
        runner = [sys.executable, *([] if outlives_its_dead else ["-m", "mpi4py"])]
        if info.family == launch.OPEN_MPI:
            options = ["--host", slots, "-x", "PYTHONPATH", "-x", "OPENBLAS_NUM_THREADS",
                       # Without ulfm, Open MPI's TCP aborts whoever was connected to the dead.
                       *(["--enable-recovery", "--with-ft", "ulfm"] if outlives_its_dead else [])]
        elif outlives_its_dead:
            # A shell around each rank lives on: the proxy sees nothing.
            runner = ["sh", "-c", '"$0" "$@" || exec sleep 100', *runner]
        return self.on_first([info.mpiexec, *options, "-n", str(sum(ranks)), *runner, str(program),
                              *map(str, arguments)])

    def on_first(self, argv: list[str]) -> tuple[list[str], dict[str, str]]:
        """(command, environment) that run a program on ``n0``, which may start jobs on the hosts.

        Open MPI's ranks are unbound, since all hosts would bind their first one to the same CPU.
        """
        agent = str(self.folder / "agent")
        path = os.pathsep.join(entry for entry in sys.path if entry)
        variables = launch.outer_environment() | {
            "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1",
            "HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": agent,
            "I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent,
            "PRTE_MCA_plm_ssh_agent": agent, "PRTE_MCA_prte_tmpdir_base": str(self.folder),
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp", "OMPI_MCA_osc": "^ucx",
            "OMPI_MCA_mpi_yield_when_idle": "1"}
        variables.pop("PRTE_MCA_rmaps_default_mapping_policy", None)
        return [*ENTER, "-t", str(self.pid("n0")), f"--wd={self.folder}", *argv], variables

    def run_ranks(self, ranks: list[int], source: str, *arguments,
                  timeout: float = 60) -> subprocess.CompletedProcess:
        """Run such a program to its end."""
        return self.finish(*self.command(ranks, source, *arguments), timeout)

    def run(self, argv: list[str], timeout: float = 60) -> subprocess.CompletedProcess:
        """Run a program on ``n0`` to its end."""
        return self.finish(*self.on_first(argv), timeout)

    def finish(self, command: list[str], variables: dict[str, str],
               timeout: float) -> subprocess.CompletedProcess:
        """Wait for the end of what ``command`` and ``on_first`` describe."""
        return subprocess.run(command, env=variables, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout, check=False)

    def processes(self, name: str) -> list[int]:
        """Process ids of a host: all that live in its network namespace but its shell."""
        ours = os.stat(f"/proc/{self.pid(name)}/ns/net").st_ino
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.stat(entry / "ns/net").st_ino == ours:
                    found.append(int(entry.name))
        shells = {shell.pid for shell in self.shells}
        return [pid for pid in found if pid != self.pid(name) and pid not in shells]

    def end_processes(self) -> None:
        """End what jobs have left on the hosts."""
        for name in self.names:
            for pid in self.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
