"""The attribution service under ft_launcher: one that it starts, one that is there, and one that does not answer."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from nvrx_launcher.attribution_client import Advice, AttributionClient

from tests.harness.http_stub import Asked, HttpStub, completion
from tests.harness.process.host import free_ports
from tests.harness.process.launch import Launch, Start, events_of

EXPLAINED = json.dumps({"explanation": "Nobody has made exist.bin.", "class": "missing_file", "lines": [1]})
ADVICE = {"status": "completed", "recommendation": {"action": "STOP", "reason": "it \x1b[1mwill\x07 fail again"}}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "train.log"


@pytest.fixture
def key(tmp_path: Path) -> str:
    (file := tmp_path / "key").write_text("sk-of-the-test")
    file.chmod(0o600)
    return str(file)


def start(launcher: Start, prefix: Path, endpoint: str, *options: str, case: str = "lacks", **more: Any) -> Launch:
    logs = ("--ft-per-cycle-applog-prefix", str(prefix), "--ft-attribution-endpoint", endpoint)
    return launcher(case, *logs, *options, worker="printing.py", **more)


def refused(code: int, log: str, says: str) -> None:
    assert code == 2, log
    assert says in log
    assert "workers" not in log


def test_the_service_that_it_starts_explains_each_cycle(
    launcher: Start, tmp_path: Path, prefix: Path, key: str
) -> None:
    with HttpStub(lambda asked: (200, completion(EXPLAINED))) as model, HttpStub(lambda asked: (200, b"")) as export:
        job = start(
            launcher, prefix, f"localhost:{free_ports()}", "--max-restarts", "1", "--ft-attribution-llm-base-url",
            model.url, "--ft-attribution-llm-model", "small", "--ft-attribution-export-url", export.url,
            LLM_API_KEY_FILE=key, SLURM_JOB_USER="mia", USER="root", SLURM_JOB_ID="8", SLURM_ARRAY_JOB_ID="7",
        )  # fmt: skip
        code, log = job.finish()
        exported = export.asked.get(timeout=10).body
    assert code == 1, log
    said = events_of(tmp_path, "cycle_attribution")
    assert [each["iteration"] for each in said] == [0, 1], log
    assert all(each["advice"] == "STOP" and "rank 1 lacks a file" in each["reason"] for each in said)
    assert log.count("the model adds: Nobody has made exist.bin.") == 2
    own = prefix.with_name("train_attribution.log").read_text()
    assert "train_cycle0.log: missing_file" in own
    assert (exported["user"], exported["job_id"]) == ("mia", "7")
    assert "sk-of-the-test" not in own + log


def test_an_analysis_that_takes_long_holds_up_no_other() -> None:
    """The result of the first cycle is known only after that of the second."""
    advised, second = list[int](), threading.Event()

    def advise(advice: Advice) -> None:
        advised.append(advice.cycle)
        if advice.cycle == 1:
            second.set()

    def answer(asked: Asked) -> tuple[int, bytes]:
        is_slow = asked.path.endswith("cycle0.log") and not second.is_set()
        return 200, json.dumps({"status": "processing"} if is_slow else ADVICE).encode()

    with HttpStub(answer) as service:
        client = AttributionClient(service.url, "", {}, starts_within=30.0, written_within=0.0, advised=advise)
        try:
            for cycle in range(2):
                client.submit(cycle, f"/logs/cycle{cycle}.log", offset=0, is_final=True)
            assert second.wait(30)
            client.finish(30.0)
        finally:
            client.close()
    assert advised == [1, 0]


def service_of(job: Launch) -> int:
    """Return the service's process."""
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()
    (found,) = (pid for pid in children if b"attribution.service" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return int(found)


def test_a_service_that_is_killed_is_started_again_and_gets_the_log_again(
    launcher: Start, tmp_path: Path, prefix: Path, key: str
) -> None:
    """It is killed while a model explains the first cycle: another one explains that cycle, and the next one."""

    def answer(asked: Asked) -> tuple[int, bytes]:
        if not killed.is_set():
            killed.wait(60)
        return 200, completion(EXPLAINED)

    killed = threading.Event()
    with HttpStub(answer) as model, HttpStub(lambda asked: (200, b"")) as export:
        job = start(
            launcher, prefix, f"localhost:{free_ports()}", "--max-restarts", "1", "--ft-attribution-llm-base-url",
            model.url, "--ft-attribution-llm-model", "small", "--ft-attribution-export-url", export.url,
            "--ft-attribution-llm-api-key-file", key, case="lacks_twice",
        )  # fmt: skip
        model.asked.get(timeout=60)
        first = service_of(job)
        os.kill(first, signal.SIGKILL)
        killed.set()
        job.await_log("attribution of cycle 0: STOP")
        second = service_of(job)
        (tmp_path / "gate").touch()
        code, log = job.finish()
        exported = [export.asked.get(timeout=10).body["log_path"] for _ in range(2)]
    assert code == 1, log
    assert f"the attribution service (pid {first}) was ended by SIGKILL, and is started again" in log
    assert second != first
    assert [each["iteration"] for each in events_of(tmp_path, "cycle_attribution")] == [0, 1]
    assert log.count("the model adds: Nobody has made exist.bin.") == 2
    assert exported == [str(prefix.with_name(f"train_cycle{cycle}.log")) for cycle in (0, 1)]


def test_its_advice_ends_the_job_with_93_where_that_is_wanted(launcher: Start, prefix: Path, key: str) -> None:
    job = start(
        launcher, prefix, f"localhost:{free_ports()}", "--max-restarts", "1000", "--ft-restart-backoff", "5",
        "--ft-attribution-stop-action", "no-restart", "--ft-attribution-llm-api-key-file", key,
    )  # fmt: skip
    code, log = job.finish()
    assert code == 93, log
    assert "by the attribution of cycle 0: rank 1 lacks a file" in log


def advise_stop(asked: Asked) -> tuple[int, bytes]:
    """A service that advises to stop, whatever the log says."""
    return 200, json.dumps(ADVICE if asked.method == "GET" and "log_path" in asked.path else {}).encode()


def test_a_healthy_cycle_is_not_ended_by_late_advice(launcher: Start, tmp_path: Path, prefix: Path) -> None:
    """It comes while the next cycle runs, and is followed only when that fails as well."""
    with HttpStub(advise_stop) as service:
        options = ("--max-restarts", "9", "--ft-attribution-stop-action", "no-restart")
        job = start(launcher, prefix, service.url, *options, case="lacks_twice")
        job.await_log("attribution of cycle 0: STOP")
        job.await_log("verdict of cycle 0: ")  # without which it is not followed
        (tmp_path / "gate").touch()
        code, log = job.finish()
    assert code == 93, log
    assert "cycle 1 ends here" in log
    assert "cycle 2" not in log


def test_advice_that_this_launcher_does_not_share_ends_no_job(launcher: Start, tmp_path: Path, prefix: Path) -> None:
    with HttpStub(advise_stop) as service:
        options = ("--max-restarts", "1", "--ft-attribution-stop-action", "no-restart")
        job = start(launcher, prefix, service.url, *options, case="raises_once")
        job.await_log("attribution of cycle 0: STOP")
        (tmp_path / "gate").touch()
        code, log = job.finish()
    assert code == 0, log


def test_what_a_rank_prints_when_it_is_ended_for_another_ends_no_job(
    launcher: Start, tmp_path: Path, prefix: Path
) -> None:
    with HttpStub(advise_stop) as service:
        options = ("--max-restarts", "1", "--ft-restart-backoff", "3", "--ft-attribution-stop-action", "no-restart")
        code, log = start(launcher, prefix, service.url, *options, case="crashes_beside_a_handler").finish()
    assert code == 1, log
    assert "attribution of cycle 0: STOP" in log
    assert "Received SIGTERM, saving" in prefix.with_name("train_cycle0.log").read_text()
    verdicts = [each["verdict"] for each in events_of(tmp_path, "cycle_verdict")]
    assert [(each["class"], each["rank"]) for each in verdicts] == [("segmentation_fault", 1)] * 2


def test_a_prefix_that_is_used_again_brings_no_cause_of_an_earlier_run(
    launcher: Start, tmp_path: Path, prefix: Path, key: str
) -> None:
    endpoint = f"localhost:{free_ports()}"
    for case in ("lacks", "raises_once"):
        options = ("--ft-attribution-llm-api-key-file", key)
        code, log = start(launcher, prefix, endpoint, *options, case=case).finish()
        assert code == 1, log
    said = [each["reason"] for each in events_of(tmp_path, "cycle_attribution")]
    assert len(said) == 2
    assert "lacks a file" in said[0]
    assert "lacks a file" not in said[1]


def test_a_port_that_is_taken_ends_it_before_any_worker_starts(launcher: Start, prefix: Path, key: str) -> None:
    with HttpStub(lambda asked: (200, b"{}")) as other:
        endpoint = other.url.replace("http://127.0.0.1", "localhost")
        code, log = start(launcher, prefix, endpoint, "--ft-attribution-llm-api-key-file", key).finish()
        assert other.asked.empty(), "nobody else gets the token"
    refused(code, log, "cannot be used: Address already in use; name another one")


def test_a_model_that_is_slow_costs_its_explanation_only(
    launcher: Start, tmp_path: Path, prefix: Path, key: str
) -> None:
    def answer(asked: Asked) -> tuple[int, bytes]:
        model.closing.wait(60)
        return 200, b""

    with HttpStub(answer) as model, HttpStub(lambda asked: (200, b"")) as export:
        job = start(
            launcher, prefix, f"localhost:{free_ports()}", "--ft-attribution-llm-api-key-file", key,
            "--ft-attribution-llm-base-url", model.url, "--ft-attribution-llm-model", "slow",
            "--ft-attribution-export-url", export.url,
        )  # fmt: skip
        code, log = job.finish()
        exported = export.asked.get(timeout=10).body
    assert code == 1, log
    (said,) = events_of(tmp_path, "cycle_attribution")
    assert (said["advice"], said["explanation"]) == ("STOP", "")
    assert exported["verdict"]["class"] == "missing_file"


def test_a_service_that_is_there_gets_the_log_and_what_is_known_of_the_job(launcher: Start, prefix: Path) -> None:
    with HttpStub(advise_stop) as service:
        (file := prefix.parent.with_name("token")).write_text("the token of the service\n")
        job = start(launcher, prefix, service.url, "--ft-attribution-token-file", str(file), USER="mia")
        code, log = job.finish()
        asked = [service.asked.get_nowait() for _ in range(service.asked.qsize())]
    assert code == 1, log
    assert "attribution of cycle 0: STOP: it will? fail again" in log
    assert "job ends with code 1" in log
    submitted = [each.body for each in asked if each.method == "POST"]
    path = str(prefix.with_name("train_cycle0.log"))
    intents = ["progressive", "terminal"]
    assert submitted == [{"log_path": path, "analysis_intent": each, "user": "mia"} for each in intents]
    assert {each.authorization for each in asked} == {"Bearer the token of the service"}


@pytest.mark.parametrize("fault", ["down", "silent", "garbage"])
def test_a_service_that_does_not_answer_holds_up_nothing_but_the_end(launcher: Start, prefix: Path, fault: str) -> None:
    def answer(asked: Asked) -> tuple[int, bytes]:
        if fault == "silent":
            service.closing.wait(60)
        return 200, b"\xff<html>"

    with HttpStub(answer) as service:
        endpoint = f"http://127.0.0.1:{free_ports()}" if fault == "down" else service.url
        job = start(launcher, prefix, endpoint, "--max-restarts", "1", case="lacks_once")
        code, log = job.finish()
    assert code == 0, log
    assert "cycle 1: 1 node" in log


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ft-attribution-endpoint", "localhost"), "give --ft-per-cycle-applog-prefix as well"),
        (("--ft-attribution-llm-model", "small"), "localhost starts a service"),
        (("--ft-attribution-endpoint", "http://x", "--ft-attribution-export-url", "http://y"), "is not started here"),
        (("--ft-attribution-endpoint", "localhost", "--ft-attribution-export-url", "https://y/?a=1"), "a query"),
        (("--ft-attribution-endpoint", "localhost", "--ft-attribution-export-url", "http://y/a"), "without encryption"),
        (("--ft-attribution-endpoint", "http://[::1"), "no plain URL"),
        (("--ft-attribution-endpoint", "http://me:secret@x/"), "'x/' is no plain URL"),
        (("--ft-attribution-endpoint", "localhost", "--nnodes", "2", "--rdzv-backend", "etcd-v2"), "in no launcher"),
        (("--ft-attribution-endpoint", "localhost", "--ft-attribution-llm-model", "m"), "give both, or none"),
        (("--ft-attribution-endpoint", "localhost:0"), "is no port"),
        (("--ft-attribution-endpoint", "localhost"), "LLM_API_KEY_FILE"),
        (("--ft-attribution-endpoint", "localhost", "--ft-attribution-llm-api-key-file", "/no/key"), "cannot be read"),
    ],
)
def test_options_that_do_not_fit_end_it_before_anything_starts(
    launcher: Start, prefix: Path, options: tuple[str, ...], says: str
) -> None:
    logs = () if "prefix" in says else ("--ft-per-cycle-applog-prefix", str(prefix))
    code, log = launcher("lacks", *logs, *options, worker="printing.py").finish()
    refused(code, log, says)
    assert not prefix.with_name("train_attribution.log").exists()


def test_an_endpoint_of_another_scheme_is_kept_and_said(launcher: Start, prefix: Path) -> None:
    code, log = start(launcher, prefix, "unix:///run/attribution.sock").finish()
    assert code == 1, log
    assert "no log is submitted to unix:///run/attribution.sock" in log
