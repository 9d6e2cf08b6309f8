"""What a rank offers with its arrival: an endpoint, if the decision can tell whether this rank is the leader."""

from types import SimpleNamespace

import pytest

from nvrx_core.fault.blame import RankProgress
from nvrx_core.flow import run
from nvrx_core.inprocess.call.parameters import Parameters
from nvrx_core.inprocess.call.rank_status import ArrivalReport
from nvrx_core.inprocess.compose import Compose
from nvrx_core.inprocess.protocol.decision import ArrivalStatus
from nvrx_core.inprocess.state import State
from nvrx_core.progress.page import Page
from nvrx_core.rank_assignment.base import RankAssignment
from nvrx_core.rank_assignment.filters import MaxActiveWorldSize
from nvrx_core.rank_assignment.moves import FillGaps, ShiftRanks


class Renumbers(RankAssignment):
    """An assignment of a user's, which may give any rank to anybody."""

    def __call__(self, ctx):
        return ctx


@pytest.fixture
def page():
    page = Page(2)
    yield page
    page.close()


def arrival(page, status=ArrivalStatus.ALIVE, **given):
    report = ArrivalReport(
        State(rank=1, world_size=2), page, SimpleNamespace(keys=()),
        sample=SimpleNamespace(progress=RankProgress(), stalled=False),
        connections=SimpleNamespace(offer_rendezvous=lambda: "host:1"), parameters=Parameters(**given),
    )  # fmt: skip

    async def describe():
        return await report.describe_arrival(status, None)

    return run(describe())


@pytest.mark.parametrize(("assignment", "fills"), [
    (ShiftRanks(), False), (FillGaps(), True), (Compose(MaxActiveWorldSize(1), FillGaps()), True),
])  # fmt: skip
def test_a_rank_offers_where_it_would_host(page, assignment, fills):
    found = arrival(page, rank_assignment=assignment)
    assert (found.endpoint, found.fills_gaps) == ("host:1", fills)


@pytest.mark.parametrize("given", [
    {"rank_assignment": Compose(Renumbers(), ShiftRanks())}, {"rank_filter": MaxActiveWorldSize(1)},
])  # fmt: skip
def test_where_nobody_can_tell_the_leader_a_rank_offers_nothing(page, given):
    assert arrival(page, **given).endpoint == ""


def test_a_rank_that_leaves_offers_nothing(page):
    assert arrival(page, ArrivalStatus.LEAVING).endpoint == ""
