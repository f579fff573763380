"""This machine's files booted once more in QEMU, with as many NUMA nodes as a test wants.

For tests marked ``slow``; needs root, x86-64, Debian's qemu-system-x86, busybox-static, cpio and
apt-get (the guest's kernel is a Debian cloud kernel, downloaded and unpacked, not installed). The
guest sees this machine's root, read-only, below memory that takes its changes. No KVM is needed, so
times inside mean nothing.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import time
from pathlib import Path

VIRTIOFSD = "/usr/lib/qemu/virtiofsd"
MODULES = ("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
           "fuse", "virtiofs", "overlay")
INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for m in {modules}; do $b insmod /modules/$m.ko; done
$b mount -t virtiofs -o ro outside /below && $b mount -t tmpfs memory /above
$b mkdir /above/files /above/work
$b mount -t overlay -o lowerdir=/below,upperdir=/above/files,workdir=/above/work over /new
for i in proc sys dev; do $b mkdir -p /new/$i; $b mount -o move /$i /new/$i; done
$b mkdir -p /new/dev/shm; $b mount -t tmpfs -o mode=1777 shm /new/dev/shm
$b mount -t tmpfs run /new/run; $b cp /job /new/run/job
exec $b switch_root /new /bin/bash /run/job
"""


def missing() -> str:
    """What this machine lacks for it; nothing: it can be started."""
    if os.getuid() != 0 or platform.machine() != "x86_64":
        return "not root on x86-64"
    tools = ("qemu-system-x86_64", "busybox", "cpio", "dpkg", "apt-get", VIRTIOFSD)
    return ", ".join(tool for tool in tools if shutil.which(tool) is None)


class VirtualMachine:
    """``folder``: for the kernel and the files of the guest's start."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.initial = folder / "initial"
        asked = subprocess.run(["apt-cache", "depends", "linux-image-cloud-amd64"], check=True,
                               capture_output=True, text=True).stdout
        package = next(line.split()[-1] for line in asked.splitlines() if "Depends:" in line)
        subprocess.run(["apt-get", "download", "-q", package], cwd=folder, check=True)
        (archive,) = folder.glob("*.deb")
        subprocess.run(["dpkg", "-x", archive.name, "kernel"], cwd=folder, check=True)
        (self.kernel,) = folder.glob("kernel/boot/vmlinuz-*")
        for name in ("bin", "modules", "proc", "sys", "dev", "below", "above", "new"):
            (self.initial / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox"), self.initial / "bin" / "busybox")
        for name in MODULES:
            (module,) = folder.glob(f"kernel/lib/modules/**/{name}.ko")
            shutil.copy(module, self.initial / "modules")
        (self.initial / "init").write_text(INIT.format(modules=" ".join(MODULES)))
        (self.initial / "init").chmod(0o755)

    def run(self, argv: list[str], nodes: int, cpus: int, environment: dict[str, str],
            timeout: float) -> tuple[int, str]:
        """(exit code, output) of a program there. RuntimeError where it did not end."""
        words = [f"export {name}={shlex.quote(text)}" for name, text in environment.items()]
        output, disk = self.folder / "output", self.folder / "disk"
        (self.initial / "job").write_text("\n".join([
            "hostname guest; ip link set lo up 2>/dev/null", *words,
            shlex.join(argv) + " </dev/null >/dev/ttyS0 2>&1",
            'echo "@@ended $?" >/dev/ttyS0; sync; /bin/busybox poweroff -f', ""]))
        archive = subprocess.run("find . | cpio -o -H newc --quiet", shell=True, check=True,
                                 cwd=self.initial, stdout=subprocess.PIPE).stdout
        (self.folder / "initrd").write_bytes(archive)
        disk.unlink(missing_ok=True)
        server = subprocess.Popen(
            [VIRTIOFSD, f"--socket-path={disk}", "-o", "source=/", "-o", "sandbox=chroot", "-o",
             "cache=always", "-o", "no_posix_lock"], stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 10
            while not disk.exists() and time.monotonic() < until:
                time.sleep(0.05)
            subprocess.run(self.command(nodes, cpus, disk, output), timeout=timeout,
                           stdin=subprocess.DEVNULL, check=True)
        finally:
            server.terminate()
            server.wait()
        text, mark, code = output.read_text(errors="replace").replace("\r", "").rpartition(
            "@@ended ")
        if not mark:
            raise RuntimeError(f"the guest did not come to the end of its job\n{text or code}")
        return int(code), text

    def command(self, nodes: int, cpus: int, disk: Path, output: Path) -> list[str]:
        memory = 512
        each = cpus // nodes
        words = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-M", "q35",
                 "-m", f"{memory * nodes}M", "-smp", f"{cpus},sockets={nodes},cores={each}"]
        for node in range(nodes):
            words += ["-object", f"memory-backend-memfd,id=m{node},size={memory}M,share=on",
                      "-numa", f"node,nodeid={node},memdev=m{node},"
                      f"cpus={node * each}-{(node + 1) * each - 1}"]
        return [*words, "-chardev", f"socket,id=disk,path={disk}",
                "-device", "vhost-user-fs-pci,chardev=disk,tag=outside,queue-size=512",
                "-display", "none", "-no-reboot", "-nodefaults", "-serial", f"file:{output}",
                "-kernel", str(self.kernel), "-initrd", str(self.folder / "initrd"),
                "-append", "console=none quiet panic=-1 mitigations=off"]
