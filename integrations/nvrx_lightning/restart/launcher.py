"""The launcher of an in-process strategy: it starts ranks as the base strategy's launcher does, and restarts fits.

`Trainer.fit` calls its strategy's launcher with the implementation of the fit, before it handles any exception. So the
retry loop is here, and nothing is patched. With `snapshot.py`, this is the only file that uses private names of
Lightning.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from nvrx_core.process.waiting import readable
from nvrx_lightning import environment
from nvrx_lightning.families import lookup
from nvrx_lightning.restart.fit import RestartableFit

__all__ = ["RestartLauncher", "wrap_launcher"]

log = logging.getLogger("nvrx_lightning")


def wrap_launcher(strategy: Any, family: str) -> None:
    """Wrap the launcher that a strategy has configured.

    Raises:
        ValueError: for a launcher that runs the fit in children of this process.
    """
    inner = strategy._launcher
    script = lookup(family, "strategies.launchers._SubprocessScriptLauncher")
    if inner is not None and not isinstance(inner, script):
        raise ValueError(
            f"in-process restart cannot run under {type(inner).__name__}: its ranks are children of one script; use "
            'start_method="popen", or start the ranks with torchrun, ft_launcher or SLURM'
        )
    strategy._launcher = RestartLauncher(strategy, inner, family)


class RestartLauncher:
    """The launcher of an in-process strategy.

    Args:
        strategy: the strategy.
        inner: the launcher of its base class; None where processes exist already.
        family: the name of the Lightning package.

    Attributes:
        fit: the fit that runs, None outside of one.
    """

    is_interactive_compatible = False

    def __init__(self, strategy: Any, inner: Any, family: str) -> None:
        self._strategy, self._inner, self._family = strategy, inner, family
        self._children: ChildWatch | None = None
        self.fit: RestartableFit | None = None

    @property
    def procs(self) -> list[subprocess.Popen[bytes]]:
        """The ranks that this process has started."""
        return getattr(self._inner, "procs", [])

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        """Start the other ranks if this process must, and run the function; a fit is restarted after faults.

        Returns:
            What the function returns.
        """
        self._start_children()
        if trainer is None or trainer.state.fn != "fit":
            return self._run(function, args, kwargs, trainer)
        return self._run(lambda *a, **k: self._restartable(trainer, function, (a, k)), args, kwargs, trainer)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], trainer: Any) -> Any:
        if self._inner is None:
            return function(*args, **kwargs)
        return self._inner.launch(function, *args, trainer=trainer, **kwargs)

    def _restartable(
        self, trainer: Any, function: Callable[..., Any], call: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> Any:
        options = self._strategy.in_process_options
        self.fit = RestartableFit(trainer, function, call, options=options, family=self._family)
        watch = self._children
        try:
            if watch is None:
                return self.fit.run()
            with watch.held():
                return self.fit.run()
        finally:
            self.fit = None

    def kill(self, signum: int) -> None:
        """Send a signal to the ranks that this process has started."""
        if self._inner is not None:
            self._inner.kill(signum)

    def _start_children(self) -> None:
        """Start the other ranks as Lightning does, but without its observer, which kills the survivors."""
        inner = self._inner
        if inner is None or inner.cluster_environment.creates_processes_externally:
            return
        inner.cluster_environment.validate_settings(num_devices=inner.num_processes, num_nodes=inner.num_nodes)
        environment.reserve_ports()
        inner._call_children_scripts()
        self._children = ChildWatch(inner.procs)
        self._children.start()


class ChildWatch(threading.Thread):
    """Ends all ranks when a child of this process fails outside of a fit; in a fit the wrapper decides.

    Args:
        children: the ranks.
    """

    def __init__(self, children: Iterable[subprocess.Popen[bytes]]) -> None:
        super().__init__(name="nvrx-child-watch", daemon=True)
        self._children = list(children)
        self._fit = threading.Lock()
        self._lost: set[int] = set()
        self._given_up = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Return a context in which a failed child does not end the job; nor does it after the context raised."""
        with self._fit:
            try:
                yield
            except BaseException:  # boundary: each rank ends with an exception of its own
                self._given_up = True
                raise
            finally:
                self._lost |= {each.pid for each in self._children if each.poll() is not None}

    def run(self) -> None:
        """Wait for the children."""
        files = {os.pidfd_open(each.pid): each for each in self._children}
        while files:
            for file in readable(files):
                child = files.pop(file)
                os.close(file)
                if child.wait() != 0 and not self._is_left_to_the_fit(child):
                    self._end_all(child)

    def _is_left_to_the_fit(self, child: subprocess.Popen[bytes]) -> bool:
        """Whether the fit is running or has handled the exit of this child: it records exits before it ends."""
        return self._fit.locked() or self._given_up or child.pid in self._lost

    def _end_all(self, failed: subprocess.Popen[bytes]) -> None:
        log.error("rank process %d ended with code %s: the job ends", failed.pid, failed.returncode)
        for each in self._children:
            each.kill()
        os.kill(os.getpid(), signal.SIGKILL)
