"""nvrx's `ft_launcher`; also `python -m nvidia_resiliency_ext.fault_tolerance.launcher`."""

from nvrx_launcher.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    from nvrx_launcher.cli import run

    run()
