"""What a new user does in the first hour, as real scripts: what is printed names the user's line, and a cure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.process.job import Job
from tests.harness.process.netns import network
from tests.harness.process.oracle import assert_no_process_left

from .conftest import Launch

RUN_SCRIPT = "tests.harness.process.workers.script"
WRAPPED = """\
import os
import time
import torch
import torch.distributed as dist
from nvrx_core.inprocess import CallWrapper, Wrapper

{definitions}

@Wrapper(no_progress_limit=3)
def train(call_wrapper: CallWrapper):
{body}

train()
"""
SPAWNED = """\
import os
import torch.distributed as dist
import torch.multiprocessing as mp
from nvrx_core.inprocess import Wrapper

@Wrapper()
def train(rank, world_size):
    dist.init_process_group("gloo"{arguments})
    dist.destroy_process_group()

def main(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29500"
    train(rank, world_size)

if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
"""


def wrapped(body: str, definitions: str = "") -> str:
    """Return a script that wraps a function with this body."""
    return WRAPPED.format(definitions=definitions, body="\n".join(f"    {line}" for line in body.splitlines()))


def variables(rank: int | None = None, world_size: int = 1) -> dict[str, str]:
    """Return the environment of an interpreter of its own, without a rank if it is None."""
    ours = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    if rank is not None:
        ours |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    return ours


def run(job: Job, body: str, definitions: str = "", **environment: str | None) -> str:
    """Run a script on each rank; return what all of them have written to stderr."""
    script = job.directory / "script.py"
    script.write_text(wrapped(body, definitions))
    for rank in range(job.world):
        ours = {"NVRX_EVENTS_DIR": None, "NVRX_TEST_PLAN": None, **environment}
        output = job.directory / f"rank-{rank}"
        job.pids[rank] = job.template.fork(RUN_SCRIPT, [str(script)], job.environment(rank, **ours), output)
    job.finish(30)
    assert_no_process_left(job)
    return "".join(job.errors(rank) for rank in range(job.world))


STEP = "def step(model, batch):\n    return model(batch) + None"


def test_a_type_error_is_few_lines_which_end_at_the_users_own(tmp_path: Path) -> None:
    """Three attempts on two ranks that write to one terminal."""
    script, terminal = tmp_path / "script.py", tmp_path / "terminal"
    body = "dist.init_process_group('gloo')\nstep(torch.nn.Linear(2, 2), torch.ones(1, 2))"
    script.write_text(wrapped(body, STEP))
    with network(1) as hosts, terminal.open("w") as written:
        ranks = [
            subprocess.Popen([*hosts.command(0), sys.executable, str(script)], env=variables(rank, 2), stderr=written)
            for rank in range(2)
        ]
        assert [each.wait(60) for each in ranks] == [1, 1]
    told = terminal.read_text()
    assert len(told.splitlines()) <= 40, told
    assert told.count("the function failed on initial rank") == 1, told
    whole = re.findall(r"^Traceback .*\n((?:  .*\n)+)\S*(?:TypeError|RestartAbort): ", told, re.MULTILINE)
    assert len(whole) == told.count("Traceback") == 3, told
    assert [text.count(f'File "{script}", line 8, in step\n    return model(batch) + None\n') for text in whole].count(
        1
    ) == 2
    reason = (
        rf"giving up: TypeError: unsupported operand .* at {re.escape(str(script))}:8 on initial rank \d: 3 in a row"
    )
    assert len(re.findall(reason, told)) == 2, told
    assert "nvrx_core/" not in told


@pytest.mark.parametrize("launcher", ["nvrx_launcher", "torch.distributed.run"])
def test_a_type_error_is_few_lines_under_a_launcher(tmp_path: Path, launcher: str) -> None:
    """What torchrun itself adds when it ends is not counted; it may end a rank before this has shown its traceback."""
    script, terminal = tmp_path / "script.py", tmp_path / "terminal"
    script.write_text(wrapped("dist.init_process_group('gloo')\nstep(torch.nn.Linear(2, 2), torch.ones(1, 2))", STEP))
    told = launched(launcher, script, terminal, restarts=0)
    told = re.split(r"^[EW]\d{4} ", told, maxsplit=1, flags=re.MULTILINE)[0]
    assert len(told.splitlines()) <= 40, told
    assert told.count("the function failed on initial rank") == told.count("restart 1 in") == 1, told
    assert told.count("Traceback") == len(
        re.findall(r"^Traceback .*\n(?:  .*\n)+\S*(?:TypeError|RestartAbort): ", told, re.MULTILINE)
    )
    assert told.count("Traceback") == 3 or (launcher == "torch.distributed.run" and told.count("Traceback") == 2), told
    assert "fails alike" not in told
    if launcher == "nvrx_launcher":
        cause = r" has failed with exit code 1: \S*(?:TypeError: |RestartAbort: giving up: TypeError: )"
        assert len(re.findall(rf"ERROR \[ft_launcher\] rank \d .*{cause}", told)) == 2, told
        assert re.search(rf"the job ends with code 1: .*{cause}", told.splitlines()[-1])


def test_a_job_that_fails_alike_in_each_cycle_shows_its_last_traceback_once(tmp_path: Path) -> None:
    script, terminal = tmp_path / "script.py", tmp_path / "terminal"
    script.write_text(wrapped("step(torch.nn.Linear(2, 2), torch.ones(1, 2))", STEP).replace("limit=3", "limit=1"))
    told = launched("nvrx_launcher", script, terminal, restarts=1)
    assert len(told.splitlines()) <= 40, told
    assert 1 <= len(re.findall(r"^Traceback .*\n(?:  .*\n)+TypeError: ", told, re.MULTILINE)) <= 2, told
    assert f"(at {script}:8, with the same traceback as above)" in told
    assert told.count(": cycle") == told.count("ends on all nodes") == 0, told


def launched(launcher: str, script: Path, terminal: Path, *, restarts: int) -> str:
    """Run two ranks of a script that fails under a launcher; return what all have written to the terminal."""
    environment = {**variables(), "OMP_NUM_THREADS": "1"}
    options = ["--nproc-per-node", "2", "--max-restarts", str(restarts), str(script)]
    with network(1) as hosts, terminal.open("w") as written:
        command = [*hosts.command(0), sys.executable, "-m", launcher, *options]
        done = subprocess.run(command, env=environment, stderr=written, stdout=written, timeout=120, check=False)
    assert done.returncode == 1
    return terminal.read_text()


def test_giving_up_names_the_users_line_and_the_path(prepare: Launch) -> None:
    job = prepare(world=1, store=False)
    told = run(job, "os.makedirs('/dev/null/checkpoints')")
    script = job.directory / "script.py"
    assert f"NotADirectoryError: [Errno 20] Not a directory: '/dev/null/checkpoints' at {script}:11 on" in told
    assert "at <frozen os>" not in told.partition("giving up")[2]
    assert '  File "<frozen os>", line 225, in makedirs\n' in told or sys.version_info[:2] != (3, 11)


def test_all_frames_are_shown_if_they_are_wanted(prepare: Launch) -> None:
    job = prepare(world=1, store=False)
    told = run(job, "os.makedirs('/dev/null/checkpoints')", NVRX_FULL_TRACEBACK="1")
    assert 'File "<frozen os>"' in told


def test_who_swallows_an_interruption_is_told_once_and_by_the_line(prepare: Launch) -> None:
    job = prepare(world=2)
    ready = str(job.directory / "ready")
    told = run(
        job,
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1 and call_wrapper.iteration == 0:\n"
        f"    while not os.path.exists({ready!r}): time.sleep(0.01)\n"
        "    raise ValueError('injected')\n"
        "if call_wrapper.iteration == 0:\n"
        "    try:\n"
        f"        open({ready!r}, 'w').close()\n"
        "        time.sleep(30)\n"
        "    except:\n"
        "        pass\n"
        "    time.sleep(30)\n",
    )
    assert job.codes == {0: 0, 1: 0}
    assert told.count("was swallowed") == 1, told
    assert re.search(rf"was swallowed at {re.escape(str(job.directory))}/script.py:(19|20), where every", told), told


@pytest.mark.parametrize(
    ("given", "first", "second"),
    [
        ("rank=RANK, world_size=3", "rank=2", "rank=2"),
        ("store=dist.FileStore('meeting', 3), rank=int(os.environ['RANK']), world_size=3", "rank=1", "rank=0"),
    ],
    ids=["constant", "a store, and the rank read anew"],
)
def test_the_ranks_of_the_start_are_refused_after_a_loss(prepare: Launch, given: str, first: str, second: str) -> None:
    """Of the survivors, the slower one may find that the other has left for it, in another iteration."""
    job = prepare(world=3)
    written = run(
        job,
        f"os.chdir({str(job.directory)!r})\n"
        f"dist.init_process_group('gloo', {given})\n"
        "dist.barrier()\n"
        "if RANK == 1:\n"
        "    os._exit(3)\n"
        "time.sleep(60)",
        "RANK = int(os.environ['RANK'])",
    )
    assert job.codes == {0: 1, 1: 3, 2: 1}
    told = job.errors(2)
    at_once = f"init_process_group({first}, world_size=3): in iteration 1 this is rank 1 of 2" in told
    assert at_once or f"init_process_group({second}, world_size=3): in iteration 2 this is rank 0 of 1" in told
    assert "write init_process_group() without rank and world_size" in written


def test_under_torchrun_the_first_line_says_what_is_not_survived(prepare: Launch) -> None:
    job = prepare(world=2)
    run(job, "pass", TORCHELASTIC_RUN_ID="job")
    assert job.errors(0).startswith("started by torchrun, which ends all ranks when the process of one ends: ")
    assert "start with ft_launcher" in job.errors(0).splitlines()[0]
    assert job.errors(1) == ""


def by_hand(script: Path, hosts: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter of its own, with nothing set that it does not need."""
    command = [*hosts, sys.executable, str(script)]
    return subprocess.run(command, env=variables(), capture_output=True, text=True, timeout=120, check=False)


GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "plain-pytorch.md"
FAULT = """
    if inprocess.current_call().iteration == 0 and dist.get_rank() == 1:
        raise ValueError("injected")
    dist.barrier()"""


def test_the_target_of_spawn_in_the_guide_survives_an_exception(tmp_path: Path) -> None:
    section = GUIDE.read_text().partition("## Start it by `mp.spawn`")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    code = re.sub(r"( +dist.init_process_group.*)", rf"\1{FAULT}", code)
    (script := tmp_path / "spawned.py").write_text(code.replace("4", "2"))
    with network(1) as hosts:
        done = by_hand(script, hosts.command(0))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert "restart 1 in" in done.stderr


@pytest.mark.parametrize("arguments", [", rank=rank, world_size=world_size", ""], ids=["ranks are given", "none"])
def test_a_target_of_spawn_without_variables_is_told_which(tmp_path: Path, arguments: str) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED.format(arguments=arguments))
    with network(1) as hosts:
        done = by_hand(script, hosts.command(0))
    if arguments:
        assert done.returncode == 1
        missing = "in a wrapped call of one rank: RANK, WORLD_SIZE are not set"
        occupied = "set RANK, WORLD_SIZE in each before the call, as in the target of mp.spawn"
        assert missing in done.stderr or occupied in done.stderr, done.stderr
        assert "started twice" not in done.stderr
    assert "this process, a child of multiprocessing, is a job of one rank" in done.stderr, done.stderr
    assert "for one job of all, set RANK, WORLD_SIZE in the target of mp.spawn before the call" in done.stderr


def test_a_script_without_variables_is_said_to_be_one_rank(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    log = "import logging\nlogging.basicConfig(level=logging.INFO)\n"
    script.write_text(log + wrapped("pass"))
    with network(1) as hosts:
        done = by_hand(script, hosts.command(0))
    assert done.returncode == 0, done.stderr
    assert "this process is a job of one rank; start it with ft_launcher for more" in done.stderr.splitlines()[0]
