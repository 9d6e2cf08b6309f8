"""What the readings of a GPU say about it."""

import pytest

from nvrx_core.health.gpu import GpuReadings, LinkReadings, bus_of, judge_gpu, judge_links, memory_result, xids_in
from nvrx_core.health.policy import Baseline
from nvrx_core.health.result import HealthReport, Status


@pytest.mark.parametrize(
    ("readings", "status", "reason"),
    [
        ({"action": 0}, Status.HEALTHY, "no recovery is asked for"),
        ({}, Status.HEALTHY, "it answers, without a recovery action"),
        ({"action": 1}, Status.UNHEALTHY, "the driver asks for a recovery: reset the GPU"),
        ({"action": 99}, Status.UNHEALTHY, "the driver asks for a recovery: action 99"),
        ({"lost": "GPU is lost", "action": 2}, Status.UNHEALTHY, "GPU is lost; the driver asks for a recovery: reboot"),
        ({"remap_failed": True}, Status.UNHEALTHY, "a memory row could not be remapped"),
        ({"action": 0, "sram_exceeded": True}, Status.UNHEALTHY, "uncorrectable errors of the SRAM"),
        ({"action": 0, "remap_pending": True}, Status.HEALTHY, "no recovery is asked for; a memory row is remapped"),
        ({"failed": "NVML: Unknown Error"}, Status.UNKNOWN, "NVML: Unknown Error"),
    ],
)
def test_the_recovery_action_and_definite_errors_decide(readings, status, reason):
    result = judge_gpu(GpuReadings("GPU 0", **readings))
    assert (result.status, result.reason.startswith(reason)) == (status, True), result


def test_a_serious_xid_is_a_failure_if_it_is_new():
    baseline = Baseline()

    def judged(*xids):
        return baseline.judge(HealthReport((judge_gpu(GpuReadings("GPU 0", action=0, xids=xids)),))).results[0]

    assert judged((79, 2)).status is Status.HEALTHY, "from before the job"
    assert judged((79, 3)).reason == "count of Xid 79 has risen from 2 to 3"
    assert judged((79, 2), (95, 1)).reason == "count of Xid 95 has risen from 0 to 1"


def test_xids_are_counted_by_bus_and_those_of_applications_are_left_out():
    log = [
        "6,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
        "6,1,3,-;NVRM: Xid (PCI:0000:3B:00): 79, pid=1",
        "6,1,3,-;NVRM: Xid (PCI:0000:5e:00): 119, Timeout",
        "6,1,4,-;NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception",
        "6,1,5,-;eth0: link up",
    ]
    assert xids_in(log) == {"0000:3b:00": ((79, 2),), "0000:5e:00": ((119, 1),)}


def test_a_bus_id_is_written_as_in_sysfs():
    assert bus_of("00000000:3B:00.0") == "0000:3b:00.0"
    assert bus_of("0:3b:00.0") == "0000:3b:00.0"


def links(*counts, total=4):
    return [LinkReadings(f"GPU {n}", tuple((k, k < active) for k in range(total))) for n, active in enumerate(counts)]


@pytest.mark.parametrize(
    ("counts", "unhealthy"),
    [
        ((4, 4, 4, 4), []),
        ((4, 4, 3, 4), [2]),
        ((2, 2, 2), []),  # the others lead nowhere
        ((4, 4, 0, 0), []),  # two cards have a bridge
        ((4, 3), []),  # who knows which
        ((0,), []),
        ((), []),
    ],
)
def test_a_gpu_with_fewer_active_links_than_most_is_unhealthy(counts, unhealthy):
    results = judge_links(links(*counts))
    assert [n for n, each in enumerate(results) if each.status is Status.UNHEALTHY] == unhealthy
    assert {each.status for each in results} <= {Status.HEALTHY, Status.UNHEALTHY}


def test_the_links_that_are_down_are_named():
    reason = judge_links(links(4, 4, 2))[2].reason
    assert reason == "2 of 4 links are active, and 4 on the other GPUs; not active: 2, 3"


def test_links_that_cannot_be_read_or_are_not_there_are_unknown():
    failed, absent = judge_links([LinkReadings("GPU 0", failed="NVML: Unknown"), LinkReadings("GPU 1")])
    assert (failed.status, failed.is_absent, absent.status, absent.is_absent) == (
        Status.UNKNOWN, False, Status.UNKNOWN, True,
    )  # fmt: skip


def test_the_memory_of_a_gpu_is_a_reading_and_no_failure():
    result = memory_result("GPU 0", 3 << 30, 80 << 30)
    assert (result.status, result.reason) == (Status.HEALTHY, "3072 of 81920 MB are in use")
    assert dict(result.counters) == {"used": 3 << 30, "total": 80 << 30}
