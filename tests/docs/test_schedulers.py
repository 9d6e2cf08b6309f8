"""The scripts of the guide for Slurm and mpirun, run literally with a stand-in for `srun` and `mpirun`.

The stand-in starts the tasks, with the variables that the real command sets, and ends none of them.
"""

import pathlib
import re

import pytest

from tests.docs.test_readme import LIMIT, example, shell
from tests.harness.process.host import free_ports

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "plain-pytorch.md").read_text()
TASKS = 3
STAND_IN = """\
#!/bin/bash
until [[ $1 == bash ]]; do shift; done
for task in {tasks}; do env {variables} "$@" & done; wait
"""
VARIABLES = {
    "Slurm": "SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS={size}",
    "mpirun": "OMPI_COMM_WORLD_RANK=$task OMPI_COMM_WORLD_LOCAL_RANK=$task OMPI_COMM_WORLD_SIZE={size}",
}
COMMAND = {"Slurm": "srun", "mpirun": "mpirun"}


def section(name: str) -> tuple[str, str, str]:
    """What starts the job, `task.sh`, and the parameter of the wrapper, if any."""
    text = re.split(r"\n##+ ", GUIDE.partition(f"\n### {name}\n")[2])[0]
    start, task = re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return start, task, next(iter(re.findall(r"`Wrapper\((monitor_process_pidfile=.*)\)`", text)), "")


def write_job(folder: pathlib.Path, name: str) -> str:
    """Write the script, `task.sh` and the stand-in; returns the command that starts the job."""
    start, task, parameter = section(name)
    (folder / "train.py").write_text(
        example(steps=300).replace("inprocess.Wrapper()", f"inprocess.Wrapper({parameter})")
    )
    (folder / "task.sh").write_text(task)
    stand_in = folder / COMMAND[name]
    tasks = " ".join(map(str, range(TASKS)))
    stand_in.write_text(STAND_IN.format(tasks=tasks, variables=VARIABLES[name].format(size=TASKS)))
    stand_in.chmod(0o755)
    return start.replace("29500", str(free_ports())).replace("29400", str(free_ports()))


@pytest.mark.parametrize("name", ["Slurm", pytest.param("mpirun", marks=pytest.mark.nightly)])
def test_a_job_of_a_scheduler_survives_the_loss_of_a_rank(name: str, tmp_path: pathlib.Path) -> None:
    start = write_job(tmp_path, name)
    more = {"SLURM_JOB_ID": tmp_path.name, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports())}
    with shell(start, tmp_path, **more) as job:
        output = job.communicate(timeout=LIMIT)[0]
    for pidfile in pathlib.Path("/tmp").glob(f"nvrx-{tmp_path.name}-*.pid"):
        pidfile.unlink()
    assert output.count("to 299, largest error") == TASKS - 1, output
    assert "restart 1 in" in output
