"""Parts for tests of health checks: a fake NVML, a mount whose server is silent, and servers of odd answers."""
