"""nvrx's `inprocess.wrap`."""

from nvrx_core.inprocess.wrap import CallWrapper, HealthCheckPassed, Wrapper

__all__ = ["CallWrapper", "HealthCheckPassed", "Wrapper"]
