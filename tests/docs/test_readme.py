"""The README, read by somebody new: its example, started by its commands, survives the loss of a rank."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.harness.process.host import free_ports

README = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
LIMIT = 60
STEPS = 300
DONE = f"to {STEPS - 1}, loss"


def blocks(section: str, language: str = "") -> list[str]:
    text = README.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def example() -> str:
    """The script, with fewer steps."""
    (text,) = blocks("Example", "python")
    return text.replace("3000", str(STEPS)).replace("2999", str(STEPS - 1))


def commands() -> list[str]:
    """The commands, with free ports instead of those of the README."""
    text = "\0".join(blocks("Start it"))
    return text.replace("29500", str(free_ports())).replace("29400", str(free_ports())).split("\0")


@contextmanager
def shell(command: str, folder: pathlib.Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Bash with this command, in a session of its own; what is left of it in the end is killed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NVRX_", "TORCHELASTIC_"))}
    path = os.pathsep.join([str(folder), str(pathlib.Path(sys.executable).parent), clean["PATH"]])
    done = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env={**clean, "PATH": path, "OMP_NUM_THREADS": "1", **more},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield done
    finally:
        with suppress(ProcessLookupError):
            os.killpg(done.pid, signal.SIGKILL)
        done.communicate()


def test_the_example_survives_the_loss_of_a_rank(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(example())
    _, store_command, ranks_command, *_ = commands()
    with shell(store_command, tmp_path) as store, shell(ranks_command, tmp_path) as job:
        assert store.stdout is not None
        assert store.stdout.readline().startswith("127.0.0.1:")
        kill_a_rank(job, tmp_path / "checkpoint.pt")
        output = job.communicate(timeout=LIMIT)[0]
    assert output.count(DONE) == 3, output
    assert "rank 2 of 3: steps" in output
    assert "restart 1 in" in output


def kill_a_rank(job: subprocess.Popen[str], checkpoint: pathlib.Path, rank: int = 2) -> None:
    """Kill a rank when the first checkpoint is there."""
    deadline = time.monotonic() + LIMIT
    while not checkpoint.exists():
        assert time.monotonic() < deadline
        with suppress(subprocess.TimeoutExpired):
            job.wait(timeout=0.05)
    (victim,) = [pid for pid in python_processes(job) if f"RANK={rank}" in words(pid, "environ")]
    os.kill(victim, signal.SIGKILL)


def python_processes(job: subprocess.Popen[str]) -> list[int]:
    """The processes of the shell's group that run the script."""
    pids = [int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if group_of(pid) == job.pid and words(pid, "cmdline")[-2:] == ["train.py", ""]]


def group_of(pid: int) -> int:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return -1


def words(pid: int, file: str) -> list[str]:
    with suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/{file}").read_text().split("\0")
    return []
