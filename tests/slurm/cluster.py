"""A real Slurm on this machine, as root: munged, slurmctld, and a slurmd for each of several nodes with fake GPUs.

A fake GPU is a numbered copy of /dev/null: Slurm hands it out and sets CUDA_VISIBLE_DEVICES, nothing can compute on it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol", "sinfo")


def lacking() -> str:
    """Why there can be no cluster here; empty where there can."""
    if os.geteuid():
        return "only root can start a Slurm"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    return f"no {', '.join(missing)} (slurm-wlm, munge)" if missing else ""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.1)


class Cluster:
    """Its files are in ``folder``; ``environ`` is what its commands need. Stops by pid."""

    def __init__(self, folder: Path, nodes: int = 2, gpus: int = 2, cpus: int = 8) -> None:
        self.folder, self.nodes = folder, [f"n{n + 1}" for n in range(nodes)]
        self.conf = folder / "slurm.conf"
        self.environ = {"SLURM_CONF": str(self.conf)}
        folder.chmod(0o755)
        for name in ("state", "log", "gpu", *(f"spool.{node}" for node in self.nodes)):
            (folder / name).mkdir()
        (folder / "munge").mkdir(mode=0o711)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for n in range(gpus):
            os.mknod(folder / "gpu" / f"nvidia{n}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        self._write(gpus, cpus)
        self._start()

    def _write(self, gpus: int, cpus: int) -> None:
        host, folder = socket.gethostname().split(".")[0], self.folder
        controller, unused, *ports = _free_ports(2 + len(self.nodes))
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            # what is put back into the queue waits for so long
            f"AuthInfo=socket={folder}/munge/socket,cred_expire=5",
            "CredType=cred/munge",
            f"SlurmctldPort={controller}",
            f"SlurmdPort={unused}",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool.%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd.%n.pid",
            f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdLogFile={folder}/log/slurmd.%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "MailProg=/bin/true",
            "ReturnToService=2",
            "SlurmdTimeout=10",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,bf_interval=1",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",
            "GresTypes=gpu",
            "AccountingStorageType=accounting_storage/none",
            "JobAcctGatherType=jobacct_gather/none",
            "KillWait=5",
            "MinJobAge=60",
        ]
        for node, port in zip(self.nodes, ports, strict=True):
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=16000 "
                f"Gres=gpu:{gpus} State=UNKNOWN"
            )
        lines.append("PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        self.conf.write_text("\n".join(lines) + "\n")
        devices = f"{folder}/gpu/nvidia[0-{gpus - 1}]"
        (folder / "gres.conf").write_text(
            "".join(f"NodeName={node} Name=gpu File={devices}\n" for node in self.nodes)
        )

    def _start(self) -> None:
        munge = self.folder / "munge"
        places = {"socket": munge / "socket", "key-file": munge / "key", "pid-file": munge / "pid"}
        places |= {"log-file": munge / "log", "seed-file": munge / "seed"}
        self._run(
            "munged", "--force", "--num-threads=2", *(f"--{name}={path}" for name, path in places.items())
        )
        self._run("slurmctld", "-f", str(self.conf))
        for node in self.nodes:
            self.start_node(node)
        wait_for(lambda: set(self.states().values()) == {"idle"})

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | self.environ)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def ask(self, *command: str) -> str:
        """What a command of Slurm's prints."""
        return self._run(*command)

    def states(self) -> dict[str, str]:
        """The state of each node."""
        told = self._run("sinfo", "--noheader", "--Node", "--format=%N %t").split()
        return dict(zip(told[::2], (state.rstrip("*") for state in told[1::2]), strict=True))

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Id and state of each job that is in the queue, by name."""
        lines = self._run("squeue", "--noheader", "--format=%j|%i|%T").splitlines()
        return {name: (number, state) for name, number, state in (line.split("|") for line in lines)}

    def start_node(self, node: str) -> None:
        self._run("slurmd", "-f", str(self.conf), "-N", node)

    def kill_node(self, node: str) -> None:
        """Its slurmd is gone at once, as with a node that loses its power; processes of jobs go on."""
        os.kill(int((self.folder / f"slurmd.{node}.pid").read_text()), signal.SIGKILL)

    def empty(self) -> None:
        """End all jobs."""
        if ids := self._run("squeue", "--noheader", "--format=%A").split():
            self._run("scancel", *ids)
            wait_for(lambda: not self.jobs())

    def stop(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(AssertionError, TimeoutError):  # a node that is gone keeps its jobs
            self.empty()
        daemons = (
            *self.folder.glob("slurmd.*.pid"),
            self.folder / "slurmctld.pid",
            self.folder / "munge/pid",
        )
        for path in daemons:
            _end(path)


def _end(file: Path) -> None:
    """The daemon with that pid file."""
    try:
        pid = int(file.read_text())
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return
    try:
        wait_for(lambda: not Path("/proc", str(pid)).exists(), 10)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
