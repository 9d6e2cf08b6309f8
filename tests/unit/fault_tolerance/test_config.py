"""FaultToleranceConfig: its documented fields and spellings, and what it writes it reads again."""

import argparse
import dataclasses
import itertools
import logging
import re
import signal
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from nvrx_core.errors import ConfigurationError
from nvrx_core.fault_tolerance import FaultToleranceConfig
from nvrx_core.fault_tolerance.config import NOT_USED
from nvrx_core.progress.fields import MAX_SECTIONS, NAME_BYTES
from nvrx_core.settings.parameter import declarations
from nvrx_core.settings.process_forms import ENDS_A_PROCESS

ROOT = Path(__file__).parents[3]
DEFAULTS = {
    "workload_check_interval": 5.0, "initial_rank_heartbeat_timeout": 3600.0, "rank_heartbeat_timeout": 2700.0,
    "rank_section_timeouts": {}, "rank_out_of_section_timeout": None, "safety_factor": 5.0, "min_learned_timeout": 60.0,
    "num_warmup_iterations": 5, "rank_termination_signal": signal.SIGKILL, "log_level": logging.INFO,
    "log_format": "text", "straggler_factor": 2.0, "straggler_steps": 20, "straggler_sections": "data",
    "hang_verdict": True,
    "inprocess_grace": 30.0, "restart_window": 600.0, "max_restarts_in_window": None,
    "restart_backoff": 0.0, "retry_usage_errors": False, "warm_workers": "auto", "warm_imports": "torch",
    "compat_names": True,
    "restart_check_interval": 60.0, "skip_section_response": True, "node_health_check_interval": 5.0,
    "enable_nic_monitor": False, "enable_nic_healthcheck": True, "pci_topo_file": None,
    "link_down_path_template": None, "link_state_path_template": None, "enable_dist_storage_healthcheck": False,
    "enable_gpu_healthcheck": True, "node_health_check_endpoint": None, "health_check_failures": 3,
    "health_check_timeout": 60.0, "health_strict": False, "on_exclude": None,
    "storage_healthcheck_path": None, "segment": None, "numa_bind_strict": True, "gpu_memory_reclaim_timeout": 50.0,
    "gpu_memory_tolerance_mb": 512.0, "gpu_memory_poll_interval": 2.0, "check_remaining_processes": False,
    "install_exception_hook": False, "max_no_progress_cycles": 3, "min_progress_iterations": 1,
    "checkpoint_iteration_file": None, "attribution_endpoint": None,
    "attribution_startup_timeout": 20.0, "attribution_token_file": None, "attribution_llm_api_key_file": None,
    "attribution_llm_base_url": None, "attribution_llm_model": None, "attribution_analysis_backend": None,
    "attribution_log_level": "INFO", "attribution_stop_action": "log",
    "attribution_export_url": None, "cycle_info_dir": None,
}  # fmt: skip
DOCUMENTED = """
fault_tolerance:
  workload_check_interval: 10
  initial_rank_heartbeat_timeout: null
  rank_heartbeat_timeout: "none"
  rank_section_timeouts: {setup: 600, step: 180.5, checkpointing: null}
  rank_out_of_section_timeout: ""
  node_health_check_interval: 30
  safety_factor: 3
  min_learned_timeout: 20
  straggler_factor: none
  straggler_steps: 30
  straggler_sections: load
  hang_verdict: false
  rank_termination_signal: SIGTERM
  log_level: DBG
  log_format: json
  inprocess_grace: 20
  restart_window: 60
  max_restarts_in_window: 2
  restart_backoff: none
  retry_usage_errors: true
  warm_workers: off
  warm_imports: torch,lightning
  compat_names: false
  restart_check_interval: 60.0
  enable_nic_monitor: true
  enable_nic_healthcheck: false
  pci_topo_file: /etc/topology.xml
  link_down_path_template: /sys/class/infiniband/{nic}/ports/1/counters/link_downed
  link_state_path_template: /sys/class/infiniband/{nic}/ports/1/state
  enable_dist_storage_healthcheck: true
  storage_healthcheck_path: "/data/checkpoints,/mnt/dataset"
  enable_gpu_healthcheck: false
  node_health_check_endpoint: unix:///var/run/nvhcd.sock
  health_check_failures: 2
  health_check_timeout: 120
  health_strict: true
  on_exclude: /usr/local/sbin/drain.sh
  skip_section_response: false
  segment: 4
  numa_bind_strict: false
  gpu_memory_reclaim_timeout: 0
  gpu_memory_tolerance_mb: 1024
  gpu_memory_poll_interval: 1
  check_remaining_processes: true
  install_exception_hook: true
  max_no_progress_cycles: -1
  min_progress_iterations: 10
  checkpoint_iteration_file: /data/latest_checkpointed_iteration.txt
  num_warmup_iterations: 0
  attribution_endpoint: localhost
  attribution_stop_action: no-restart
  attribution_export_url: https://example.test/posting
  attribution_startup_timeout: 30
  attribution_token_file: /secure/token
  attribution_llm_api_key_file: /secure/llm_api_key
  attribution_llm_base_url: https://models.example.test/v1
  attribution_llm_model: small
  attribution_analysis_backend: lib
  attribution_log_level: DEBUG
  cycle_info_dir: /data/cycles
"""
EXAMPLES = {
    "min_learned_timeout": "20.0", "hang_verdict": "no",
    "compat_names": "false", "enable_gpu_healthcheck": "no", "health_check_timeout": "20",
    "skip_section_response": "false", "enable_nic_healthcheck": "no", "numa_bind_strict": "0", "log_level": "ERROR",
    "log_format": "json", "straggler_factor": "3", "straggler_steps": "10", "attribution_log_level": "DEBUG",
    "rank_termination_signal": "SIGTERM", "attribution_stop_action": "no-restart", "gpu_memory_tolerance_mb": "1",
    "restart_check_interval": "5", "min_progress_iterations": "2",
}  # fmt: skip
"""What to write for a setting whose form's example is its default, or breaks its rule."""
SECONDS = st.floats(min_value=0, max_value=1e9, exclude_min=True)
TEXT = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=NAME_BYTES // 4)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "workload_check_interval": SECONDS.map(lambda seconds: min(seconds, 86400)),
        "initial_rank_heartbeat_timeout": st.none() | SECONDS,
        "rank_heartbeat_timeout": st.none() | SECONDS,
        "rank_section_timeouts": st.dictionaries(TEXT.filter(str.strip), st.none() | SECONDS, max_size=MAX_SECTIONS),
        "rank_out_of_section_timeout": st.none() | SECONDS,
        "safety_factor": st.floats(min_value=1, max_value=1000, exclude_min=True),
        "num_warmup_iterations": st.integers(0, 10**9),
        "rank_termination_signal": st.sampled_from([each for each in signal.Signals if ENDS_A_PROCESS.holds(each)]),
        "log_level": st.integers(0, 10**9),
        "skip_section_response": st.booleans(),
        "pci_topo_file": TEXT.map("/".__add__),
    },
)


def test_the_defaults_are_the_decided_ones():
    made = FaultToleranceConfig()
    assert {field.name: getattr(made, field.name) for field in dataclasses.fields(made)} == DEFAULTS


def test_every_field_is_declared_with_a_form_and_a_sentence():
    declared = declarations(FaultToleranceConfig)
    assert declared.keys() == DEFAULTS.keys()
    assert all(each.form and each.help.endswith(".") for _, each in declared.values())


def test_a_file_with_every_documented_key_loads(tmp_path, caplog):
    path = tmp_path / "ft.yaml"
    path.write_text(DOCUMENTED)
    made = FaultToleranceConfig.from_yaml_file(path, environ={})
    assert "default" not in made.explain().values()
    assert made.rank_section_timeouts == {"setup": 600.0, "step": 180.5, "checkpointing": None}
    assert (made.rank_heartbeat_timeout, made.rank_out_of_section_timeout) == (None, None)
    assert (made.rank_termination_signal, made.log_level) == (signal.SIGTERM, logging.DEBUG)
    assert not caplog.messages


@pytest.mark.parametrize("text", ["a,b,c,d,e,f,g,h,i", "x" * 97, "data,a\tb", "data,\ud800"])
def test_sections_that_could_not_be_compared_are_refused(text):
    with pytest.raises(ConfigurationError, match="8 sections or fewer, with printable names of at most 96 bytes"):
        FaultToleranceConfig(straggler_sections=text)


@pytest.mark.parametrize("text", ["a,b,c,d,e,f,g,h,", " load , step", "x" * 96])
def test_up_to_eight_sections_are_compared(text):
    assert FaultToleranceConfig(straggler_sections=text).straggler_sections.strip() == text.strip()


def test_progress_is_tracked_unless_the_limit_is_not_positive():
    assert FaultToleranceConfig().is_progress_tracking_enabled
    assert not FaultToleranceConfig(max_no_progress_cycles=0).is_progress_tracking_enabled


@given(SETTINGS)
def test_what_is_written_to_a_file_is_read_from_it(given_settings):
    made = FaultToleranceConfig.from_kwargs(**given_settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ft.yaml"
        made.to_yaml_file(path)
        read = FaultToleranceConfig.from_yaml_file(path, environ={})
    assert read == made


def test_signals_and_levels_are_written_by_name(tmp_path):
    path = tmp_path / "ft.yaml"
    FaultToleranceConfig(rank_termination_signal=15, log_level=10).to_yaml_file(path)
    assert "  rank_termination_signal: SIGTERM\n  log_level: DEBUG\n" in path.read_text()


def test_sections_fit_on_the_page():
    most = {f"{number:0{NAME_BYTES}}": 1.0 for number in range(MAX_SECTIONS)}
    assert FaultToleranceConfig(rank_section_timeouts=most).rank_section_timeouts == most
    for too_much in (most | {"one more": 1}, {"ä" * 49: 1}, {"zero\0": 1}):
        with pytest.raises(ConfigurationError, match="64 sections or fewer, with names of at most 96 bytes"):
            FaultToleranceConfig(rank_section_timeouts=too_much)


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_setting_has_a_flag_in_all_spellings_a_variable_and_a_key(name, tmp_path):
    text = EXAMPLES.get(name) or declarations(FaultToleranceConfig)[name][1].form.example
    made = FaultToleranceConfig.from_kwargs(**{name: text})
    parser = argparse.ArgumentParser(exit_on_error=False)
    FaultToleranceConfig.add_arguments(parser)
    for begin, written in itertools.product(("--ft-", "--ft-param-"), (name, name.replace("_", "-"))):
        for flags in ([begin + written, text], [f"{begin}{written}={text}"]):
            assert FaultToleranceConfig.from_args(parser.parse_args(flags), environ={}) == made
    for flag in (f"--ft_{name}", f"--ft_param_{name}"):
        assert FaultToleranceConfig.from_args(parser.parse_args([flag, text]), environ={}) == made
    assert FaultToleranceConfig.from_environment({f"NVRX_FT_{name.upper()}": text}) == made
    path = tmp_path / "ft.yaml"
    path.write_text(f"fault_tolerance: {{{name}: '{text}'}}")
    assert FaultToleranceConfig.from_yaml_file(path, environ={}) == made
    assert getattr(made, name) != DEFAULTS[name]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(DEFAULTS)), ANYTHING)
def test_any_value_in_a_file_is_read_or_refused_in_one_line(name, value):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ft.yaml"
        path.write_text(yaml.safe_dump({"fault_tolerance": {name: value}}))
        try:
            said = ""
            FaultToleranceConfig.from_yaml_file(path, environ={})
        except ConfigurationError as error:
            said = str(error)
    assert len(said.splitlines()) <= 1


def test_a_setting_that_nobody_reads_is_named_as_not_used():
    product = [path for folder in ("nvrx_core", "launcher", "integrations") for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text() for path in product if path.name != "config.py")
    read = set(re.findall(r"(?:\.|\")(\w+)\b", text))
    declared = declarations(FaultToleranceConfig)
    assert declared.keys() - read == NOT_USED.keys()
    assert all(declared[name][1].help == f"Accepted and not used: {why}." for name, why in NOT_USED.items())
