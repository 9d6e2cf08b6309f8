"""The rank's end of its monitor process: what it is told, and when it is ended, waited for, or left alone."""

import os
import socket
import time

import pytest

from nvrx_core.inprocess.call.monitor_link import LEAVES_WITHIN, MonitorLink
from nvrx_core.inprocess.state import State
from nvrx_core.progress.page import Page, ProgressField
from nvrx_core.progress.stage import Stage


class ForkServer:
    """Notes how it is ended."""

    def __init__(self):
        self.channel, self.other = socket.socketpair()
        self.ended = []

    def hasten(self):
        self.ended.append("hastened")

    def end(self, within):
        self.ended.append(within)

    def detach(self):
        self.ended.append("detached")


@pytest.fixture
def page():
    page = Page(2)
    yield page
    page.close()


@pytest.fixture
def wake():
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.fixture
def link(page, wake):
    server = ForkServer()
    yield MonitorLink(page, wake, wake, server)
    server.channel.close()
    server.other.close()


def test_the_monitor_process_looks_when_the_main_thread_goes_on(link, page, wake):
    link.enter(Stage.WAITING)
    assert (page[ProgressField.STAGE], os.eventfd_read(wake)) == (Stage.WAITING, 1)


def test_an_iteration_begins_with_the_rank_s_place(link, page):
    link.begin(State(rank=1, world_size=2, iteration=3))
    assert [page[word] for word in (ProgressField.ITERATION, ProgressField.RANK, ProgressField.STAGE)] == [
        3, 1, Stage.STARTING,
    ]  # fmt: skip


def test_the_time_of_the_store_s_loss_is_that_of_its_first_report(link, page):
    link.store_lost()
    first = page[ProgressField.STORE_LOST]
    link.store_lost()
    assert first == page[ProgressField.STORE_LOST] > 0


def test_a_rank_that_has_left_waits_until_its_monitor_process_has_ended(link, page):
    link.entered, page[ProgressField.MONITOR_BEAT] = True, time.monotonic_ns()
    link.end()
    assert (link.fork_server.ended, page[ProgressField.STAGE]) == ([LEAVES_WITHIN], Stage.LEFT)


@pytest.mark.parametrize("pid", [0, 7], ids=["not started", "on its way to the store"])
def test_a_rank_that_has_left_does_not_wait_for_a_monitor_process_that_has_not_reached_the_store(link, page, pid):
    link.entered, page[ProgressField.MONITOR_PID] = True, pid
    link.end()
    assert (link.fork_server.ended, page[ProgressField.STAGE]) == ([0.0], Stage.LEFT)


def test_who_asks_for_the_pid_before_the_monitor_process_has_started_waits_for_it(link, page, wake):
    def starts():
        link.fork_server.ended.append("hastened")
        page[ProgressField.MONITOR_PID] = 7
        os.eventfd_write(wake, 1)

    link.fork_server.hasten = starts
    assert [link.pid(), link.pid()] == [7, 7]
    assert link.fork_server.ended == ["hastened"]


@pytest.mark.parametrize("stage", [Stage.RUNNING, Stage.EXITED_ABNORMALLY])
@pytest.mark.parametrize("entered", [True, False])
def test_a_monitor_process_without_a_store_reports_nothing(link, page, entered, stage):
    link.entered = entered
    page.enter(stage)
    link.store_lost()
    link.end()
    assert link.fork_server.ended == [0.0]


@pytest.mark.parametrize(("entered", "ended"), [(True, ["detached"]), (False, ["hastened", LEAVES_WITHIN])])
def test_a_monitor_process_that_reports_for_its_rank_is_not_ended_once_the_rank_has_joined(link, page, entered, ended):
    link.entered = entered
    page.enter(Stage.EXITED_ABNORMALLY)
    link.end()
    assert (link.fork_server.ended, page[ProgressField.STAGE]) == (ended, Stage.EXITED_ABNORMALLY)
