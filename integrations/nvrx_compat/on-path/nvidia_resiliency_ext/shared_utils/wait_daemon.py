"""nvrx's `nvrx-wait`; also `python -m nvidia_resiliency_ext.shared_utils.wait_daemon PIDFILE`."""

from nvrx_core.inprocess.wait_daemon import main, wait

__all__ = ["main", "wait"]

if __name__ == "__main__":
    import sys

    sys.exit(main())
