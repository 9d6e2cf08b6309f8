"""A rank of three that learns its timeouts over gloo, from intervals of a clock of its own.

The intervals lie in the future of the real clock, so that no monitor finds one of them overdue.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from nvrx_core.fault_tolerance import FaultToleranceConfig, RankMonitorClientError, recorder, start_local_monitor
from nvrx_core.progress.page import ProgressField

SECOND = 1_000_000_000
NO_TIMEOUTS: dict[str, Any] = {"initial_rank_heartbeat_timeout": None, "rank_heartbeat_timeout": None}
CONFIG = FaultToleranceConfig(**NO_TIMEOUTS, rank_section_timeouts={"step": 600.0}, safety_factor=2.0)


class Rank:
    """One rank, which does things at given seconds."""

    def __init__(self) -> None:
        self.me, self.client, self.now = int(os.environ["RANK"]), start_local_monitor(CONFIG), 0
        self.start = self.client.page[ProgressField.ATTACHED_AT]
        recorder._now = lambda: self.now  # type: ignore[misc]
        self.at(0.0)
        self.client.start_section("start")  # from here on, the recorder has only times of this clock
        self.client.end_section("start")

    def at(self, seconds: float) -> None:
        self.now = self.start + int(seconds * SECOND)

    def heartbeats(self, *seconds: float) -> None:
        for moment in seconds:
            self.at(moment)
            self.client.send_heartbeat()

    def section(self, name: str, opened: float, closed: float) -> None:
        self.at(opened)
        self.client.start_section(name)
        self.at(closed)
        self.client.end_section(name)

    def say(self, what: str, **more: object) -> None:
        client = self.client
        sections = asdict(client.section_timeouts)
        sections["calculated_sections"] = sorted(sections["calculated_sections"])
        print(json.dumps({"what": what, "hb": asdict(client.hb_timeouts), "sections": sections, **more}), flush=True)

    def run(self) -> None:
        client = self.client
        skipped = [
            client.calculate_and_set_hb_timeouts(skip_if_not_ready=True),
            client.calculate_and_set_section_timeouts(["step"], skip_if_not_ready=True),
        ]
        self.say("not ready", skipped=skipped, refused=refusal(client.calculate_and_set_hb_timeouts))
        self.heartbeats(*((1, 2), (3, 7, 9), (2,))[self.me])
        self.say("heartbeats", learned=client.calculate_and_set_hb_timeouts())
        self.section("step", 10, 10 + (4, 6, 5)[self.me])
        if self.me == 2:
            self.section("save", 20, 29)
        self.say("sections", learned=client.calculate_and_set_section_timeouts(calc_out_of_section=False))
        if self.me == 0:
            self.section("step", 40, 50)
        self.heartbeats(60 + self.me)
        client.calculate_and_set_hb_timeouts()
        client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=True)
        self.say("again", state=client.state_dict())


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except RankMonitorClientError as error:
        return str(error)
    return ""


def main() -> None:
    where = os.environ["NVRX_TEST_RENDEZVOUS"]
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=int(os.environ["RANK"]), world_size=3)
    Rank().run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
