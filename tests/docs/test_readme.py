"""The README, read by somebody new: its example, started by its commands, survives the loss of a rank."""

import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.harness.process.host import free_ports

README = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
LIMIT = 120
FAULTY_STEP = 150
STEP_DONE = "optimizer.step()"
FAULT = f"""\
if (call_wrapper.state.initial_rank, call_wrapper.iteration, step) == (2, 0, {FAULTY_STEP}):
            os.kill(os.getpid(), 9)"""
HOLD = """\
if (dist.get_rank(), call_wrapper.iteration, step) == (0, 1, 299):
            open("go", "rb", buffering=0).read(1)"""


def blocks(section: str, language: str = "") -> list[str]:
    text = README.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def example(steps: int) -> str:
    """The script, with fewer steps, and a rank that is killed between two checkpoints."""
    (text,) = blocks("Example", "python")
    text = text.replace("3000", str(steps)).replace("2999", str(steps - 1))
    return text.replace(STEP_DONE, f"{STEP_DONE}\n        {FAULT}", 1)


def commands() -> list[str]:
    """The commands, as they stand there."""
    return blocks("Start it")


def with_free_ports(text: str) -> str:
    """Commands with free ports instead of those of the README, the same port for the same one."""
    return text.replace("29500", str(free_ports())).replace("29400", str(free_ports()))


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


def command(*words: str) -> str:
    """The one command of the README that has these words."""
    (found,) = [each for each in commands() if all(word in each for word in words)]
    return found


def test_the_example_survives_the_loss_of_a_rank(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(example(steps=300))
    text = "\0".join([command("nvrx_core.store"), command("NVRX_STORE_ENDPOINT")])
    store_command, ranks_command = with_free_ports(text).split("\0")
    with shell(store_command, tmp_path) as store, shell(ranks_command, tmp_path) as job:
        assert store.stdout is not None
        assert store.stdout.readline().startswith("127.0.0.1:")
        output = job.communicate(timeout=LIMIT)[0]
    assert_survived(output)


def test_the_example_survives_the_loss_of_a_rank_under_the_launcher(tmp_path: pathlib.Path) -> None:
    """The ranks do not end before the launcher knows that they have gone on."""
    (tmp_path / "train.py").write_text(example(steps=300).replace(FAULT, f"{FAULT}\n        {HOLD}"))
    os.mkfifo(tmp_path / "go")
    go = os.open(tmp_path / "go", os.O_RDWR)
    variables = {"NVRX_RUNTIME_DIR": str(tmp_path / "run"), "NVRX_FT_WARM_WORKERS": "off"}
    with shell(command("ft_launcher", "--nproc-per-node 4"), tmp_path, **variables) as job:
        assert job.stdout is not None
        output = ""
        while "restart continues without rank 2" not in output and (line := job.stdout.readline()):
            output += line
        os.write(go, b"x")
        output += job.stdout.read()
        assert job.wait(LIMIT) == 0, output
    os.close(go)
    assert "restart continues without rank 2" in output
    assert_survived(output)


def assert_survived(output: str) -> None:
    assert output.count("of 3: steps 100 to") == 3, output
    assert "restart 1 in" in output
