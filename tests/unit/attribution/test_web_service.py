"""What the service does when too many logs wait, and with a log that takes too long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from nvrx_core.attribution import web_service
from nvrx_core.attribution.service_settings import ServiceSettings
from nvrx_core.attribution.submissions import WAITING, Submission
from nvrx_core.attribution.web_service import AttributionService


@pytest.fixture
def service(tmp_path: Path) -> AttributionService:
    for number in range(WAITING + 1):
        (tmp_path / f"{number}.log").write_text("ValueError: bad\n")
    return AttributionService(ServiceSettings("127.0.0.1", 0, str(tmp_path.resolve())))


def test_a_log_for_which_there_is_no_room_is_to_be_submitted_later(service: AttributionService, tmp_path: Path) -> None:
    paths = [str(tmp_path.resolve() / f"{number}.log") for number in range(WAITING + 1)]

    async def submitted() -> list[httpx.Response]:
        transport = httpx.ASGITransport(service.application())  # whose worker does not run
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return [await client.post("/logs", json={"log_path": path}) for path in [*paths, paths[0]]]

    *answers, again = asyncio.run(submitted())
    assert [each.status_code for each in answers] == [202] * WAITING + [429]
    assert answers[-1].json() == {"error": "too many logs wait to be analysed; try again later"}
    assert again.status_code == 202, "it waits already"


def test_an_analysis_that_takes_too_long_is_ended(
    service: AttributionService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_service, "ANALYSIS_TIMEOUT", 0.0)
    with pytest.raises(TimeoutError):
        asyncio.run(service._handle(Submission(str(tmp_path / "0.log"), None, None, (1, 1))))


def test_a_result_is_exported_though_the_service_ends_once_it_is_there(
    service: AttributionService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = list[object]()

    async def end_meanwhile() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def export(result: dict[str, object], within: float) -> None:
            begun.set()
            await goes_on.wait()
            exported.append(result["log_path"])

        monkeypatch.setattr(service, "_export", export)
        path = str(tmp_path / "0.log")
        handling = asyncio.create_task(service._handle(Submission(path, None, None, (1, 1))))
        service._submissions.submit(Submission(path, None, None, (1, 1)))
        await begun.wait()
        handling.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await handling
        assert exported == [path]

    asyncio.run(end_meanwhile())
