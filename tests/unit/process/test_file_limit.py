"""The limit of open files: raised as far as needed, and not for the processes that are started."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest
from nvrx_launcher.guardian import start_guarded

from nvrx_core.process import file_limit
from nvrx_core.process.file_limit import MORE, allow_more_files, first_file_limit, set_file_limit

PRINT = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The limit as in a process that has not raised it, with a small soft one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(file_limit._FileLimit, "first", None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    yield 1000, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_is_raised_once_and_no_child_inherits_that(limit: tuple[int, int]) -> None:
    soft, hard = limit
    assert first_file_limit() is None
    for _ in range(2):
        allow_more_files()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised == (soft + MORE if hard == resource.RLIM_INFINITY else min(hard, soft + MORE), hard)
    assert first_file_limit() == soft
    with start_guarded([sys.executable, "-S", "-c", PRINT], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert int(child.stdout.read()) == soft  # and not `communicate` with a timeout, which sleeps
    set_file_limit(first_file_limit())
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limit


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 4096, 4096), (1024, 1 << 30, 1024 + MORE), (1024, resource.RLIM_INFINITY, 1024 + MORE),
        (4096, 4096, None), (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_allowed", [True, False])
def test_it_is_raised_as_far_as_the_hard_one_allows(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int | None, is_allowed: bool
) -> None:
    """The hard one may exceed what the kernel allows in all (`fs.nr_open`)."""
    asked = list[tuple[int, int]]()

    def setrlimit(_: int, limits: tuple[int, int]) -> None:
        asked.append(limits)
        if not is_allowed:
            raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(file_limit._FileLimit, "first", None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    allow_more_files()
    assert asked == ([] if wanted is None else [(wanted, hard)])
    assert first_file_limit() == (soft if asked and is_allowed else None)
