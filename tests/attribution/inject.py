"""Writes the injected part of the corpus: gloo jobs of four ranks, one of which really fails, and their logs.

    python tests/attribution/inject.py FOLDER [CASE ...]

It writes `development.txt` and `held_out.txt` into the folder, whose cases begin the files of that name in `corpus/`.

A template has imported torch; each job is a fork of it, which starts the ranks. What they write is kept as one of these
forms: `elastic` (torch's elastic agent, prefixes by tee), `attempt` (the same with files for each rank), `files` (a
file for each rank, no launcher), `label` (one file, with the prefixes of `srun --label`) and `ft` (`ft_launcher`).
`elastic` and `files` belong to the development part, the others to the part held out; how the job writes differs, too.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.utils.data import DataLoader, Dataset

from nvrx_core.testing.faults import inject

WORLD = 4
COLLECTIVE_TIMEOUT = datetime.timedelta(seconds=6)
FAIL_AT = 4
STEPS = 9


class Samples(Dataset):
    """Samples, one of which breaks the worker that reads it."""

    def __init__(self, broken: str) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.broken == "raise":
            raise ValueError(f"sample {index} has no label")
        if self.broken == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(8)


def _read(broken: str) -> None:
    for batch in DataLoader(Samples(broken), batch_size=8, num_workers=1):
        batch.sum()


def _without_permission() -> None:
    os.seteuid(65534)
    open("/root/checkpoint.pt", "wb").close()


def _disk_full() -> None:
    with open("/dev/full", "wb") as checkpoint:
        torch.save(torch.zeros(100_000), checkpoint)
        checkpoint.flush()


def _port() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    dist.TCPStore("127.0.0.1", taken.getsockname()[1], 1, is_master=True)


def _nan() -> None:
    loss = torch.log(torch.tensor(-1.0))
    raise FloatingPointError(f"loss is {loss.item()} at step {FAIL_AT}, training cannot go on")


def _assertion() -> None:
    mask = torch.ones(3)
    assert mask.sum() == 2, f"mask of {mask.shape} has the wrong sum"


FAULTS: dict[str, tuple[str, Callable[[], object]]] = {
    "kill": ("operator_kill", lambda: inject("kill")),
    "term": ("operator_kill", lambda: inject("term")),
    "int": ("operator_kill", lambda: inject("int")),
    "segv": ("segmentation_fault", lambda: inject("segv")),
    "exception": ("user_exception", lambda: {"lr": 1.0}["learning_rate"]),
    "injected": ("user_exception", lambda: inject("exception")),
    "memory_error": ("host_out_of_memory", lambda: inject("memory_error")),
    "allocator": ("host_out_of_memory", lambda: torch.empty(1 << 50)),
    "assertion": ("assertion", _assertion),
    "missing_module": ("missing_module", lambda: __import__("flash_attn_of_nobody")),
    "missing_file": ("missing_file", lambda: torch.load("/data/shards/tokens-00017.pt")),
    "shape": ("shape_or_dtype", lambda: torch.nn.Linear(8, 4)(torch.randn(2, 9))),
    "dtype": ("shape_or_dtype", lambda: torch.nn.Linear(8, 4)(torch.randn(2, 8).half())),
    "port": ("port_in_use", _port),
    "disk_full": ("disk_full", _disk_full),
    "permission": ("permission_denied", _without_permission),
    "version": ("version_mismatch", lambda: exec("from torch.nn import AttentionOfTheFuture")),
    "nan": ("nan_loss", _nan),
    "loader_raise": ("data_loader", lambda: _read("raise")),
    "loader_kill": ("data_loader", lambda: _read("kill")),
    "hang": ("hang", lambda: threading.Event().wait(25)),
    "exit": ("unknown", lambda: os._exit(3)),
    "clean": ("clean", lambda: None),
}
"""What breaks a rank, and the class of it."""


def train(fault: str, culprit: int, style: str) -> None:
    """Run one rank's job."""
    rank = int(os.environ["RANK"])
    if style == "logging":
        stamp = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(level=logging.INFO, format=stamp, stream=sys.stderr, force=True)
        say: Callable[[str], object] = logging.getLogger("trainer").info
    elif style == "json":

        def say(text: str) -> None:
            record = {"ts": round(time.time(), 3), "level": "info", "rank": rank, "msg": text}
            print(json.dumps(record), flush=True)
    else:
        say = lambda text: print(text, flush=True)  # noqa: E731
    dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    say(f"initialised rank {rank} of {dist.get_world_size()} on gloo")
    model = torch.nn.Linear(8, 4)
    for step in range(STEPS):
        loss = model(torch.randn(2, 8)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        say(f"step {step} loss {loss.item():.4f} error_rate {0.5 / (step + 1):.3f}")
        if step == FAIL_AT and rank == culprit:
            FAULTS[fault][1]()
    say("training finished, 0 errors")
    dist.destroy_process_group()


def _rank(rank: int, port: int, job: tuple[str, int, str], fds: tuple[int, int]) -> int:
    """Fork a rank whose output goes to the descriptors, and return its pid."""
    if pid := os.fork():
        return pid
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    _leave(lambda: train(*job))
    return 0


def _leave(run: Callable[[], object]) -> None:
    """Run, and end this process as the interpreter does after an exception."""
    code = 0
    try:
        run()
    except SystemExit as error:
        code = int(error.code or 0) if not isinstance(error.code, str) else 1
    except BaseException:  # boundary: a process ends
        sys.excepthook(*sys.exc_info())  # torch's prints the rank
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _with_files(folder: Path, job: tuple[str, int, str]) -> None:
    port, pids = _free_port(), []
    for rank in range(WORLD):
        fd = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        pids.append(_rank(rank, port, job, (fd, fd)))
    for pid in pids:
        os.waitpid(pid, 0)


def _with_labels(folder: Path, job: tuple[str, int, str]) -> None:
    """As `srun --label` merges the output of tasks, and tells what srun tells of their ends."""
    port, selector, running, host = _free_port(), selectors.DefaultSelector(), WORLD, "gpu-a07"
    pids: dict[int, int] = {}
    with (folder / "slurm-48211.out").open("w") as merged:
        for rank in range(WORLD):
            ours, theirs = os.pipe()
            pids[rank] = _rank(rank, port, job, (theirs, theirs))
            os.close(theirs)
            selector.register(os.fdopen(ours, errors="replace"), selectors.EVENT_READ, rank)
        while running:
            for key, _ in selector.select():
                if line := key.fileobj.readline():
                    merged.write(f"{key.data}: {line}")
                    merged.flush()
                    continue
                selector.unregister(key.fileobj)
                running -= 1
                _, status = os.waitpid(pids[key.data], 0)
                code = os.waitstatus_to_exitcode(status)
                names = {-9: "Killed", -11: "Segmentation fault", -15: "Terminated", -6: "Aborted"}
                how = names.get(code, f"Exited with exit code {code}")
                if code:
                    merged.write(f"srun: error: {host}: task {key.data}: {how}\n")


def _with_agent(folder: Path, job: tuple[str, int, str], files: bool) -> None:
    """Run the ranks as scripts of torch's elastic agent, as torchrun does."""
    logs = folder / "logs"
    logs.mkdir()
    redirects, tee = (Std.ALL, Std.NONE) if files else (Std.NONE, Std.ALL)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=WORLD, run_id="none", rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0",
        monitor_interval=0.2, logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=redirects, tee=tee),
        max_restarts=0, role="default",
    )  # fmt: skip
    fd = os.open(folder / ("launcher.log" if files else "train.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    try:
        elastic_launch(config, sys.executable)("-u", __file__, "--job", *map(str, job))
    except BaseException:  # boundary: a process ends
        traceback.print_exc()
    if not files:
        subprocess.run(["rm", "-rf", str(logs)], check=True)


def _with_ft_launcher(folder: Path, job: tuple[str, int, str]) -> None:
    command = [sys.executable, "-m", "nvrx_launcher", "--nproc-per-node", str(WORLD), "--max-restarts", "0", "-t", "3"]
    command += ["--log-dir", str(folder / "logs"), __file__, "--job", *map(str, job)]
    with (folder / "ft_launcher.log").open("w") as output:
        subprocess.run(command, stdout=output, stderr=output, check=False)
    subprocess.run(["rm", "-rf", str(folder / "logs")], check=True)


FORMS: dict[str, tuple[str, str, Callable[[Path, tuple[str, int, str]], None]]] = {
    "elastic": ("development", "print", lambda folder, job: _with_agent(folder, job, files=False)),
    "attempt": ("held_out", "logging", lambda folder, job: _with_agent(folder, job, files=True)),
    "files": ("development", "logging", _with_files),
    "label": ("held_out", "json", _with_labels),
    "ft": ("held_out", "print", _with_ft_launcher),
}
"""The form of the logs, with its part and how the job writes."""


def _clean_up(folder: Path) -> None:
    """Replace what is of this machine, and flatten the agent's random folder."""
    here, host = str(Path(__file__).resolve().parents[2]), socket.gethostname()
    for path in list(folder.rglob("*")):
        if path.is_file():
            text = path.read_text(errors="replace").replace(here, "/job").replace(host, "gpu-a07")
            text = text.replace(str(Path(sys.prefix).parent), "/opt").replace(str(folder), "/job/out")
            path.write_text(text) if text.strip() else path.unlink()
    for attempt in list(folder.rglob("attempt_*")):
        attempt.rename(folder / attempt.name)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _case(label: Mapping[str, object], logs: Mapping[str, str]) -> str:
    """Return a case as `cases.py` reads it."""
    files = (f"--- {name}\n{text}{'' if text.endswith(chr(10)) else chr(10)}" for name, text in logs.items())
    return f"=== {json.dumps(label)}\n{''.join(files)}"


_SAYS: Final = {
    "exception": "KeyError", "assertion": "AssertionError", "missing_file": "FileNotFoundError",
    "disk_full": "No space", "kill": "kill", "segv": "seg",
}  # fmt: skip
"""What a truncated log must still have, for its label to be that of the whole one."""


def _variants(label: dict[str, object], form: str, fault: str, logs: dict[str, str]) -> Iterator[str]:
    """Yield a case, and what becomes of it where logs are truncated, a rank's log is lost, or files are merged."""
    name, rank = label["case"], label["rank"]
    if form == "files" and fault in {"kill", "term", "segv", "exit"}:
        label["class"] = "peer_lost"  # nothing in these logs tells how the rank ended
    if form == "label" and fault not in {"clean", "hang"}:
        label["host"] = "gpu-a07"
    yield _case(label, logs)
    first, text = next(iter(logs.items()))
    end = text[len(text) * 35 // 100 :]
    if form in {"elastic", "label"} and fault in _SAYS and _SAYS[fault].lower() in end.lower():
        yield _case({**label, "case": f"{name}-headless", "source": f"{label['source']}-truncated"}, {first: end})
    if form == "files" and fault in {"kill", "segv"}:
        own = f"rank{rank}.log"
        beginning = "".join(logs[own].splitlines(keepends=True)[:3])
        yield _case({**label, "case": f"{name}-lost"}, {**logs, own: beginning})
    if form == "label" and fault in {"kill", "segv", "exception"}:
        lines = [each for each in text.splitlines(keepends=True) if not each.startswith(("srun:", f"{rank}: "))]
        beginning = f'{rank}: {{"ts": 1.0, "level": "info", "msg": "initialised"}}\n'
        lost = {"case": f"{name}-lost", "source": f"{label['source']}-lost", "class": "peer_lost", "rank": rank}
        yield _case(lost, {first: beginning + "".join(lines)})
    if form in {"files", "attempt"} and fault in {"shape", "allocator", "permission", "loader_kill"}:
        prefix = "{}: " if form == "files" else "[default{}]:"
        waiting = [
            [prefix.format(each) + line for line in text.splitlines(keepends=True)]
            for each in sorted(range(WORLD), key=lambda each: each != rank)
            for file, text in logs.items()
            if f"rank{each}." in file or f"/{each}/" in file
        ]
        chosen, merged = random.Random(str(name)), list[str]()
        while any(waiting):
            for lines in waiting:
                count = chosen.randint(1, 3)
                merged += lines[:count]
                del lines[:count]
        source = f"{label['source']}-interleaved"
        yield _case({**label, "case": f"{name}-interleaved", "source": source}, {"merged.log": "".join(merged)})


def main() -> None:
    """Write the cases that are named, or all."""
    if sys.argv[1] == "--job":
        train(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return
    target, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:]
    for number, (form, (part, style, run)) in enumerate(FORMS.items()):
        for fault_number, (fault, (failure, _)) in enumerate(FAULTS.items()):
            name, culprit = f"injected-{form}-{fault}", (number + fault_number) % WORLD
            if wanted and name not in wanted:
                continue
            folder = target / name
            folder.mkdir(parents=True)
            if not (pid := os.fork()):
                _leave(lambda: run(folder, (fault, culprit, style)))  # noqa: B023
            os.waitpid(pid, 0)
            _clean_up(folder)
            files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "error.json")
            logs = {str(path.relative_to(folder)): path.read_text() for path in files}
            rank = None if fault == "clean" else culprit
            label: dict[str, object] = {"case": name, "source": f"injected/{form}", "class": failure, "rank": rank}
            with (target / f"{part}.txt").open("a") as cases:
                cases.writelines(_variants(label, form, fault, logs))


if __name__ == "__main__":
    main()
