"""How far ranks have come beside each other, and what a monitor finds out about its own."""

import math
import os
import signal
import threading

import pytest

from nvrx_core.fault.stack_text import Frame
from nvrx_core.fault_tolerance.inquiry import Findings, Inquiry
from nvrx_core.fault_tolerance.peers import HungRank, Progress, Survey, slowest, slowest_of_each_kind
from nvrx_core.fault_tolerance.watched import WatchedRank, start_time
from nvrx_core.fault_tolerance.wire import Listener
from nvrx_core.liveness.hang_detector import Excuse
from nvrx_core.process.lifeline import catches
from nvrx_core.process.signalled_stacks import (
    StackRequest,
    answer_requests,
    answer_requests_no_more,
    stack_pipe,
)
from nvrx_core.process.waiting import readable

IN_COLLECTIVE = (Frame("/opt/torch/distributed/distributed_c10d.py", 1, "all_reduce"),)


@pytest.mark.parametrize(
    ("own", "peer", "text"),
    [
        (Progress(0, 5, 0), Progress(3, 4, 9), "1 step ahead of rank 3, its slowest peer"),
        (Progress(0, 5, 0), Progress(3, 7, 0), "2 steps behind rank 3, its slowest peer"),
        (Progress(0, 0, 4), Progress(3, 7, 4), "as far as rank 3, its slowest peer"),
        (Progress(0, 0, 4), Progress(3, 7, 0), ""),
    ],
)
def test_a_rank_is_compared_by_what_both_use(own, peer, text):
    assert own.beside(peer) == text


def test_the_slowest_is_found_by_the_sign_of_life_that_most_use():
    ranks = [Progress(0, 5, 1), Progress(1, 4, 7), Progress(2, 0, 3), Progress(3, 0, 0)]
    assert slowest(ranks) == ranks[1]
    assert slowest([ranks[0], *ranks[2:], Progress(4, 0, 2)]) == ranks[0]
    assert slowest(ranks[3:]) is None
    assert slowest_of_each_kind(ranks) == [ranks[1], ranks[0]]
    assert slowest_of_each_kind(ranks[1:2]) == ranks[1:2]
    assert slowest_of_each_kind(ranks[3:]) == []


def test_a_report_travels_as_json():
    report = HungRank(3, 77, "section open", "File x")
    assert HungRank.from_json(report.to_json()) == report
    with pytest.raises(ValueError, match="three"):
        HungRank.from_json({**report.to_json(), "rank": "three"})


def test_a_rank_is_excused_that_only_waits_for_others():
    assert Findings().excuse is None
    assert Findings(behind=(3,), stack=IN_COLLECTIVE).excuse is Excuse.PEER_BEHIND
    assert Findings(lost=True).excuse is Excuse.PEER_BEHIND
    assert Findings(stack=IN_COLLECTIVE).excuse is Excuse.IN_COLLECTIVE


@pytest.fixture
def launcher(tmp_path):
    listener = Listener(tmp_path / "launcher.ipc")
    yield listener
    listener.close()


def answered(survey, listener, answer):
    connection = listener.accept()
    connection.receive()
    connection.send(answer)
    (fd,) = survey.pending
    survey.receive(fd)
    connection.close()


def test_a_launcher_answers_for_many_ranks(tmp_path, launcher):
    survey = Survey(tmp_path / "own.socket", now=0.0, launcher=str(launcher.path))
    ranks = [Progress(5, 3, 0), Progress(6, 9, 0)]
    answered(survey, launcher, {"ranks": [each.to_json() for each in ranks]})
    assert survey.answers == ranks
    assert not survey.lost


@pytest.mark.parametrize("answer", [{"ranks": 5}, {"ranks": [5]}, {"ranks": [{"rank": -1}]}])
def test_a_malformed_answer_says_nothing(tmp_path, launcher, answer):
    survey = Survey(tmp_path / "own.socket", now=0.0, launcher=str(launcher.path))
    answered(survey, launcher, answer)
    assert (survey.answers, survey.lost, survey.is_complete(now=0.0)) == ([], False, True)


@pytest.fixture
def pipe():
    reader, writer = stack_pipe()
    signum = answer_requests(writer)
    yield reader, signum
    answer_requests_no_more(signum)
    os.close(reader)
    os.close(writer)


@pytest.fixture
def rank():
    """This process, as a monitor sees it."""
    pid = os.getpid()
    watched = WatchedRank(pid, os.pidfd_open(pid), start_time(pid))
    yield watched
    watched.close()


def test_an_inquiry_asks_the_others_and_then_the_rank(tmp_path, pipe, rank):
    reader, signum = pipe
    inquiry = Inquiry(Progress(0, 1, 0), Survey(tmp_path / "own.socket", now=1.0), rank, signum, reader=reader)
    assert inquiry.deadline == -math.inf
    assert inquiry.findings(now=1.0) is None
    (fd,) = inquiry.fds()
    assert readable([fd], 5.0)
    inquiry.receive(fd, now=1.1)
    found = inquiry.findings(now=inquiry.deadline)
    assert "test_an_inquiry_asks_the_others_and_then_the_rank" in found.text
    assert found.stack
    inquiry.close()


def test_a_rank_that_has_no_handler_is_not_asked(tmp_path, rank):
    for signum in (0, signal.SIGKILL, signal.SIGRTMIN + 1):
        inquiry = Inquiry(Progress(0, 1, 0), Survey(tmp_path / "own.socket", now=1.0), rank, signum, reader=-1)
        assert inquiry.findings(now=1.0) == Findings()


def test_a_late_answer_is_not_that_to_the_next_request(pipe, rank):
    reader, signum = pipe
    StackRequest(reader, rank.pidfd, signum, now=0.0)
    assert readable([reader], 5.0)
    request = StackRequest(reader, rank.pidfd, signum, now=1.0)
    assert request.text == ""
    assert not request.is_complete(now=1.0)


def test_ranks_behind_are_named(tmp_path, launcher, rank, pipe):
    survey = Survey(tmp_path / "own.socket", now=0.0, launcher=str(launcher.path))
    inquiry = Inquiry(Progress(0, 5, 0), survey, rank, pipe[1], reader=pipe[0])
    assert inquiry.findings(now=0.0) is None
    assert inquiry.fds() == list(survey.pending)
    connection = launcher.accept()
    connection.receive()
    connection.send({"ranks": [Progress(7, 4, 0).to_json(), Progress(8, 5, 0).to_json()]})
    inquiry.receive(inquiry.fds()[0], now=0.1)
    connection.close()
    assert inquiry.findings(now=0.1) == Findings(behind=(7,), slowest=Progress(7, 4, 0))


def test_another_thread_than_the_main_one_cannot_take_the_signal_back(pipe):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(answer_requests_no_more(pipe[1])))
    thread.start()
    thread.join()
    assert answers == [False]
    assert catches(os.getpid(), pipe[1])
    assert answer_requests_no_more(pipe[1])
    assert not catches(os.getpid(), pipe[1])
    assert answer_requests_no_more(0)
