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
from pathlib import Path

from tests.support.waiting import LONGEST_WAIT, wait_for

PROGRAMS: tuple[str, ...] = (
    "slurmctld",
    "slurmd",
    "munged",
    "sbatch",
    "squeue",
    "scancel",
    "scontrol",
    "sinfo",
)


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


class Cluster:
    """Its files are in ``folder``; ``environ`` is what its commands need. Stops by pid.

    Jobs in the partition ``high`` take the place of those in ``low``, which are put back into the queue.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes = folder, ["n1", "n2"]
        self.conf = folder / "slurm.conf"
        self.environ = {"SLURM_CONF": str(self.conf)}
        folder.chmod(0o755)
        for name in ("state", "log", "gpu", *(f"spool.{node}" for node in self.nodes)):
            (folder / name).mkdir()
        (folder / "munge").mkdir(mode=0o711)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for n in range(2):
            os.mknod(folder / "gpu" / f"nvidia{n}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        self._host = socket.gethostname().split(".")[0]
        controller, unused, *ports = _free_ports(2 + len(self.nodes))
        lines = [*self._lines_of_daemons(controller, unused), *self._lines_of_nodes(ports)]
        self.conf.write_text("\n".join(lines) + "\n")
        self._start()

    def _lines_of_daemons(self, controller: int, unused: int) -> list[str]:
        folder = self.folder
        return [
            "ClusterName=test",
            f"SlurmctldHost={self._host}(127.0.0.1)",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            # what is put back into the queue waits for so long; Slurm takes no less
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
            "SlurmdTimeout=6",
            # commands ask a controller that is away for a second less
            "MessageTimeout=4",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,bf_interval=1",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",
            "GresTypes=gpu",
            "JobAcctGatherType=jobacct_gather/none",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "KillWait=5",
            "MinJobAge=60",
        ]

    def _lines_of_nodes(self, ports: list[int]) -> list[str]:
        devices = f"{self.folder}/gpu/nvidia[0-1]"
        (self.folder / "gres.conf").write_text(
            "".join(f"NodeName={node} Name=gpu File={devices}\n" for node in self.nodes)
        )
        return [
            *(
                f"NodeName={node} NodeHostname={self._host} NodeAddr=127.0.0.1 Port={port} CPUs=8 "
                f"RealMemory=16000 Gres=gpu:2 State=UNKNOWN"
                for node, port in zip(self.nodes, ports, strict=True)
            ),
            "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PreemptMode=OFF",
            "PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=2",
            "PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF",
        ]

    def _start(self) -> None:
        munge = self.folder / "munge"
        places = {"socket": munge / "socket", "key-file": munge / "key", "pid-file": munge / "pid"}
        places |= {"log-file": munge / "log", "seed-file": munge / "seed"}
        self._run(
            "munged", "--force", "--num-threads=2", *(f"--{name}={path}" for name, path in places.items())
        )
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        wait_for(lambda: set(self.states().values()) == {"idle"})

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | self.environ)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def ask(self, *command: str) -> str:
        """Returns the output of a command of Slurm."""
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
        _kill(self.folder / f"slurmd.{node}.pid")

    def start_controller(self) -> None:
        self._run("slurmctld", "-f", str(self.conf))

    def kill_controller(self) -> None:
        """It is gone at once, and what it has not saved is lost."""
        _kill(self.folder / "slurmctld.pid")

    def empty(self, seconds: float = LONGEST_WAIT) -> None:
        """End all jobs. Raises AssertionError: there are some after ``seconds``."""
        if ids := self._run("squeue", "--noheader", "--format=%A").split():
            self._run("scancel", *ids)
            wait_for(lambda: not self.jobs(), seconds)

    def stop(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(AssertionError):  # a node that is gone keeps its jobs
            self.empty(seconds=30)
        # what they would yet save is thrown away
        for file in (*self.folder.glob("*.pid"), self.folder / "munge/pid"):
            _kill(file)


def _kill(file: Path) -> None:
    """The daemon with that pid file, if it runs."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(file.read_text())
        os.kill(pid, signal.SIGKILL)
        stat = Path("/proc", str(pid), "stat")
        # in a container nobody may ask how it ended
        wait_for(lambda: stat.read_text().rpartition(") ")[2].startswith("Z"))
