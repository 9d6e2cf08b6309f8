"""The settings of health checks."""

import argparse

import pytest

from nvrx_core.errors import ConfigurationError
from nvrx_core.health.settings import HealthSettings, check_endpoint, socket_path


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("/var/run/nvhcd.sock", "/var/run/nvhcd.sock"),
        ("unix:///var/run/nvhcd.sock", "/var/run/nvhcd.sock"),
        ("unix:/var/run/nvhcd.sock", "/var/run/nvhcd.sock"),
        ("unix://nvhcd.sock", None),
        ("localhost:50051", None),
        ("http://node/health", None),
        ("/" + 107 * "x", None),
        ("/a\0b", None),
    ],
)
def test_an_endpoint_is_the_path_of_a_unix_socket(endpoint, path):
    assert socket_path(endpoint) == path
    if path is None:
        with pytest.raises(ConfigurationError, match=r"node_health_check_endpoint: .* is not allowed"):
            HealthSettings(node_health_check_endpoint=endpoint)
    else:
        assert HealthSettings(node_health_check_endpoint=endpoint).node_health_check_endpoint == endpoint


def test_a_file_that_is_no_socket_is_refused_before_anything_starts(tmp_path):
    check_endpoint(None)
    check_endpoint(f"unix://{tmp_path}/absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"--ft-node-health-check-endpoint: .* is no Unix socket"):
        check_endpoint(f"{tmp_path}/file")


def test_storage_paths_are_split():
    assert HealthSettings().storage_paths == ()
    assert HealthSettings(storage_healthcheck_path="/data, /home").storage_paths == ("/data", "/home")


def test_settings_of_others_are_left_alone_where_that_is_asked_for(tmp_path):
    file = tmp_path / "ft.yaml"
    file.write_text("fault_tolerance:\n  rank_heartbeat_timeout: 60\n  health_strict: true\n")
    environ = {"NVRX_FT_LOG_LEVEL": "DEBUG", "NVRX_FT_HEALTH_CHECK_FAILURES": "5", "NVRX_FT_CFG_PATH": str(file)}
    none = argparse.Namespace()
    settings = HealthSettings.from_args(none, environ=environ, ignore_not_recognized=True)
    assert (settings.health_strict, settings.health_check_failures) == (True, 5)
    with pytest.raises(ConfigurationError, match="NVRX_FT_LOG_LEVEL"):
        HealthSettings.from_args(none, environ=environ)
