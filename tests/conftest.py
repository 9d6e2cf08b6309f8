"""The rules that every test lives under.

A test leaves nothing behind: no thread, no child process, no open file descriptor, no changed environment variable.
What is still there two seconds after its end fails it, by name. Pytest is the reaper of orphans
(`PR_SET_CHILD_SUBREAPER`), so a process whose parent died counts, too; once dead it stays a zombie until the test ends.
Tests of pure code do not sleep. With `--only-listed-skips` a skipped test fails the run, unless `allowed_skips.txt`
lists it. With `--part`, as in `make test`, lines tell how far the run is.
"""

import contextlib
import ctypes
import faulthandler
import functools
import gc
import os
import pathlib
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest

GRACE = 2.0
NIGHTLY_WITHIN = 1500.0  # seconds; pytest ends any other test, with its stacks, after `faulthandler_timeout`
VIRTUAL_TIME = ("unit", "sim")
TELLS_EVERY = 20.0  # seconds between two lines of progress
PR_SET_CHILD_SUBREAPER = 36

# What a library makes on its first use and keeps until the process ends: (how it shows, why).
KEPT = (("/dev/nvidia", "the CUDA driver keeps its devices open"),)

# torch resolves the name of a store's address at the first connection of a process. With a name server that is silent,
# that takes longer than some tests wait for a connection. The resolver reads it when it is used first.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

_skipped: dict[str, str] = {}
_terminal = pytest.StashKey[int]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Become the parent of orphans, and start now what multiprocessing starts once in a process."""
    with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        session.config.stash[_terminal] = os.dup(sys.__stderr__.fileno())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under `nohup`
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource_tracker.ensure_running()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a nightly test run for longer than any other before its stacks are written and the process ends."""
    if item.get_closest_marker("nightly"):
        faulthandler.dump_traceback_later(NIGHTLY_WITHIN, exit=True, file=item.config.stash[_terminal])


def pytest_addoption(parser: pytest.Parser) -> None:
    """What continuous integration and `make test` ask for."""
    text = "fail when a test is skipped that tests/allowed_skips.txt does not list"
    parser.addoption("--only-listed-skips", action="store_true", help=text)
    parser.addoption("--part", metavar="NAME", default="", help="tell how far this part of a run is, instead of dots")


def pytest_configure(config: pytest.Config) -> None:
    """Tell the progress of a part; where files run side by side, once for all of them."""
    if (part := config.getoption("--part")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(part))


class Progress:
    """Tells now and then how many tests of a part are done, and about how long the others take, instead of dots."""

    def __init__(self, part: str) -> None:
        self.part, self.done = part, 0
        self.begun = self.told = time.monotonic()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print nothing for a test that passes."""
        return ("passed", "", "") if report.passed and report.when == "call" else None

    def pytest_runtest_logfinish(self) -> None:
        """Count a test."""
        self.done += 1
        now, count = time.monotonic(), self.session.testscollected
        if now - self.told >= TELLS_EVERY or self.done == count:
            self.told = now
            minutes, is_known = (now - self.begun) / 60, 20 * self.done > count
            left = f", about {minutes / self.done * (count - self.done):.0f} min left" if is_known else ""
            line = f"{self.part}: {self.done} of {count} tests after {minutes:.1f} min{left}"
            self.session.config.pluginmanager.getplugin("terminalreporter").write_line(line)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a skipped test, and why."""
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped[report.nodeid] = str(report.longrepr)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a module that is skipped as a whole."""
    if report.skipped:
        _skipped[report.nodeid] = str(report.longrepr)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run for what was skipped without leave."""
    if unlisted := _unlisted_skips() if session.config.getoption("--only-listed-skips") else []:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        sys.stderr.write("\n".join(["", "skipped, and not in tests/allowed_skips.txt:", *unlisted, ""]))


def _unlisted_skips() -> list[str]:
    lines = pathlib.Path(__file__).with_name("allowed_skips.txt").read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    skips = [f"{test}: {why}" for test, why in _skipped.items()]
    return [skip for skip in skips if not any(re.match(pattern, skip) for pattern in listed)]


@pytest.fixture(autouse=True)
def leak_check() -> Iterator[None]:
    """Fail a test that leaves something behind, and say what."""
    if "torch" in sys.modules:
        _first_store()
    before = _found()
    environment = dict(os.environ)
    yield
    left = _left_at_last(before)
    if leaks := sorted(left) + _environment_changes(environment):
        _end_children(left)
        os.environ.clear()
        os.environ.update(environment)
        pytest.fail("left behind by this test:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture(autouse=True)
def no_sleep(request: pytest.FixtureRequest, leak_check: None) -> Iterator[None]:
    """Make `time.sleep` raise in the tests whose time is an argument."""
    folder = request.path.relative_to(pathlib.Path(__file__).parent).parts[0]
    with pytest.MonkeyPatch.context() as patch:
        if folder in VIRTUAL_TIME:
            patch.setattr(time, "sleep", _refuse_to_sleep)
        yield


def _refuse_to_sleep(seconds: float) -> None:
    raise AssertionError(f"time.sleep({seconds}): tests/unit and tests/sim pass the time as an argument")


@functools.cache
def _first_store() -> None:
    """Open and close one store: the first makes libuv's signal pipe, which the process keeps."""
    from torch.distributed import TCPStore

    TCPStore("127.0.0.1", 0, is_master=True)


def _found() -> set[str]:
    found = set[str]()
    for look in (_threads, _children, _descriptors):
        found |= look()
    return {what for what in found if not any(sign in what for sign, _ in KEPT)}


def _threads() -> set[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {f"thread {ident} ({names.get(ident, 'not from threading')})" for ident in sys._current_frames()}


def _children() -> set[str]:
    found = set[str]()
    for children in pathlib.Path("/proc/self/task").glob("*/children"):
        for pid in _read(children).split():
            command = _read(pathlib.Path("/proc", pid, "cmdline")).replace("\0", " ").strip()
            found.add(f"process {pid} ({command or 'zombie'})")
    return found


def _descriptors() -> set[str]:
    found = set[str]()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            target = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
            found.add(f"file descriptor {descriptor} ({target})")
    return found


def _read(path: pathlib.Path) -> str:
    with contextlib.suppress(OSError):  # a thread or process that ended meanwhile
        return path.read_text(errors="replace")
    return ""


def _environment_changes(before: dict[str, str]) -> list[str]:
    now = dict(os.environ)
    ours = {"PYTEST_CURRENT_TEST"}  # pytest's own: it tells the phase
    names = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)} - ours
    return [f"environment variable {name} (was {before.get(name)!r}, is {now.get(name)!r})" for name in sorted(names)]


def _left_at_last(before: set[str]) -> set[str]:
    """What is not gone in time. Garbage is collected for threads and files only: with torch, that takes 0.1 s."""
    deadline = time.monotonic() + GRACE
    while (left := _left(before)) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
        left = _left(before)
        if len(left) > len(_pids(left)):
            gc.collect()
    return left


def _left(before: set[str]) -> set[str]:
    """What was not there before, without processes that have ended: these are reaped."""
    left = _found() - before
    if pids := _pids(left):
        _reap(pids)
        left = _found() - before
    return left


def _reap(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _end_children(left: set[str]) -> None:
    for pid in _pids(left):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _pids(left: set[str]) -> list[int]:
    return [int(what.split()[1]) for what in left if what.startswith("process ")]
