"""What ends a wait in NCCL without a communicator: its service threads are woken, the listeners of a creation shut."""

import contextlib
import select
import socket
import threading

import pytest

from nvrx_core.inprocess.groups import nccl, torch_groups
from nvrx_core.inprocess.groups.nccl import NcclBootstrap, services_awake, wake
from nvrx_core.inprocess.groups.torch_groups import close_batch
from nvrx_core.process.sockets import socket_inodes, wake_poll
from nvrx_core.process.system_calls import awaited, native_thread_ids, thread_ids


class Service:
    """A thread that waits as one of NCCL's does, until a call of poll ends early."""

    def __init__(self, waited_for, milliseconds):
        self._polling, self._milliseconds = select.poll(), milliseconds
        self._polling.register(waited_for, select.POLLIN)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self._polling.poll(self._milliseconds):
            pass


@pytest.fixture
def native(monkeypatch):
    """The threads of Python count as those of a library."""
    monkeypatch.setattr(threading, "enumerate", list)


@pytest.fixture(params=["connections", "datagrams"])
def waited_for(request):
    if request.param == "connections":
        found = socket.create_server(("127.0.0.1", 0))
    else:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        found.bind("")  # an address of the kernel's choice
    with found:
        yield found


def test_a_service_is_woken_while_the_context_is_open(native, waited_for):
    service = Service(waited_for, nccl.WAITS)
    with services_awake(10.0):
        service.thread.join(5.0)
    assert not service.thread.is_alive()


def test_other_threads_are_not_woken(waited_for, native):
    service = Service(waited_for, nccl.WAITS + 1)
    assert not any(wake(tid) for tid in thread_ids())
    assert service.thread.is_alive()
    wake_poll(waited_for.fileno())
    service.thread.join()


def test_threads_of_python_are_not_woken(waited_for):
    service = Service(waited_for, nccl.WAITS)
    assert service.thread.native_id not in native_thread_ids()
    while service.thread.is_alive():
        wake(service.thread.native_id)
    service.thread.join()


class Waiting:
    """Threads that wait at a listener each: one as NCCL's creation of a communicator does, the other as a server."""

    def __init__(self):
        self.older = socket_inodes()
        self.listener, self.server = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
        self.listener.setblocking(False)
        self.ready = threading.Event()
        self.creating, self.serving = (threading.Thread(target=each) for each in (self._create, self._serve))
        for thread in self.creating, self.serving:
            thread.start()
        self.ready.wait()
        while self.server.fileno() not in awaited():
            pass

    def _create(self):
        self.bootstrap = NcclBootstrap()
        self.ready.set()
        with contextlib.suppress(OSError):
            while True:
                with contextlib.suppress(BlockingIOError):
                    self.listener.accept()

    def _serve(self):
        self.server.accept()[0].close()

    def fail(self):
        cut = 0
        while self.creating.is_alive():
            cut += self.bootstrap.cut(self.older)
        return cut

    def close(self):
        socket.create_connection(self.server.getsockname()).close()
        for thread in self.creating, self.serving:
            thread.join()
        self.listener.close()
        self.server.close()


@pytest.fixture
def waiting(monkeypatch):
    monkeypatch.setattr(nccl, "cuda_device", lambda: 0)
    waiting = Waiting()
    yield waiting
    waiting.fail()
    waiting.close()


def test_a_creation_fails_and_what_others_wait_for_goes_on(waiting):
    assert waiting.fail() == 1
    assert waiting.serving.is_alive()


def test_a_listener_of_before_the_function_stays(waiting):
    assert [waiting.bootstrap.cut(socket_inodes()) for _ in range(10)] == [0] * 10
    assert waiting.creating.is_alive()


def test_a_listener_stays_that_is_waited_for_by_another_descriptor(waiting):
    with waiting.server.dup():
        assert waiting.fail() == 1
    assert waiting.serving.is_alive()


def test_nothing_is_cut_where_the_kernel_does_not_tell(waiting, monkeypatch):
    monkeypatch.setattr(nccl, "awaited", lambda: None)
    assert [waiting.bootstrap.cut(waiting.older) for _ in range(10)] == [0] * 10
    monkeypatch.setattr(nccl, "awaited", awaited)


def test_nothing_is_cut_in_a_process_that_has_not_used_cuda(waiting, monkeypatch):
    monkeypatch.setattr(nccl, "cuda_device", lambda: None)
    assert [waiting.bootstrap.cut(waiting.older) for _ in range(10)] == [0] * 10
    assert waiting.creating.is_alive()
    monkeypatch.setattr(nccl, "cuda_device", lambda: 0)


def test_a_torch_without_nccl_has_no_batch_to_close():
    close_batch()


@pytest.mark.parametrize("failing", ["body", "end", "nothing"])
def test_a_batch_whose_end_fails_is_forgotten(monkeypatch, failing):
    closed = []
    monkeypatch.setattr(torch_groups, "close_batch", lambda: closed.append(True))

    @contextlib.contextmanager
    def coalesce(group):
        yield group
        if failing == "end":
            raise RuntimeError(failing)

    with contextlib.suppress(RuntimeError), torch_groups._closing(coalesce)("group") as given:
        assert given == "group"
        if failing == "body":
            raise RuntimeError(failing)
    assert closed == [True] * (failing == "end")
