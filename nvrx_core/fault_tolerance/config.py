"""The settings of rank monitors and of the launcher, each declared once; those of health checks are in `health`."""

from __future__ import annotations

import logging
import signal
from dataclasses import dataclass
from typing import Final

from nvrx_core.health.settings import HealthSettings
from nvrx_core.process import log_lines
from nvrx_core.progress.fields import MAX_SECTIONS, NAME_BYTES, RECENT_RUNS
from nvrx_core.settings.forms import (
    BOOLEAN,
    INTEGER,
    MEGABYTES,
    NUMBER,
    PATH,
    SECONDS,
    SECTION_TIMEOUTS,
    SWITCH,
    TEXT,
)
from nvrx_core.settings.parameter import NOT_NEGATIVE, POSITIVE, ValueRule, above, at_least, one_of, setting
from nvrx_core.settings.process_forms import ENDS_A_PROCESS, LOG_LEVEL, SIGNAL

__all__ = ["FaultToleranceConfig"]

_ON_THE_PAGE: Final = ValueRule(
    f"{MAX_SECTIONS} sections or fewer, with names of at most {NAME_BYTES} bytes, none of them zero",
    lambda timeouts: len(timeouts) <= MAX_SECTIONS and all(map(_is_on_the_page, timeouts)),
)
NOT_USED: Final = {
    "restart_check_interval": "a restart is noticed when it happens",
    "skip_section_response": "a section is a write to shared memory, without a response",
    "attribution_analysis_backend": "there is one backend",
}
"""The settings of nvidia-resiliency-ext that are accepted and have no use here, and why."""
_MAX_COMPARED: Final = 8
_COMPARED: Final = ValueRule(
    f"{_MAX_COMPARED} sections or fewer, with printable names of at most {NAME_BYTES} bytes",
    lambda text: (
        len(names := [name for each in text.split(",") if (name := each.strip())]) <= _MAX_COMPARED
        and all(name.isprintable() and _is_on_the_page(name) for name in names)
    ),
)


def _unused(name: str) -> str:
    return f"Accepted and not used: {NOT_USED[name]}."


def _is_on_the_page(name: str) -> bool:
    return "\0" not in name and len(name.encode(errors="surrogatepass")) <= NAME_BYTES


@dataclass
class FaultToleranceConfig(HealthSettings):
    """Settings of rank monitors and of the launcher. Times are float seconds; None means without a limit.

    A value may be assigned; it is read and checked then. Timeouts may be written as "none", signals and log levels by
    name or number, section timeouts as a mapping or as "setup:600,step:60".

    Raises:
        ConfigurationError: when a value is wrong, or a name does not exist.
    """

    workload_check_interval: float = setting(
        5.0, SECONDS, "Upper bound of a monitor's reaction; it is woken by deadlines and events.", rule=above(0, 86400)
    )
    initial_rank_heartbeat_timeout: float | None = setting(
        3600.0,
        SECONDS,
        "Longest time from the start of monitoring to the first heartbeat.",
        rule=POSITIVE,
        optional=True,
    )
    rank_heartbeat_timeout: float | None = setting(
        2700.0, SECONDS, "Longest time between two heartbeats.", rule=POSITIVE, optional=True
    )
    rank_section_timeouts: dict[str, float | None] = setting(
        {},
        SECTION_TIMEOUTS,
        "Longest time that a section may be open, by its name. Other sections have no limit until one is learned.",
        rule=_ON_THE_PAGE,
    )
    rank_out_of_section_timeout: float | None = setting(
        None, SECONDS, "Longest time without an open section.", rule=POSITIVE, optional=True
    )
    safety_factor: float = setting(
        5.0, NUMBER, "A learned timeout is the longest time observed, multiplied by this.", rule=above(1, 1000)
    )
    min_learned_timeout: float = setting(
        60.0, SECONDS, "Learned timeouts are at least this long: a pause of the machine must end no rank.",
        rule=POSITIVE,
    )  # fmt: skip
    num_warmup_iterations: int = setting(
        5, INTEGER, "So many `step` sections at the start may take the timeout of the section `warmup`.",
        rule=at_least(0),
    )  # fmt: skip
    straggler_factor: float | None = setting(
        2.0, NUMBER, "A rank that takes so many times as long as its peers in a section, and a tenth of a step longer, "
        "is named as a straggler; none: no rank is.", rule=above(1, 1000), optional=True,
    )  # fmt: skip
    straggler_steps: int = setting(
        20, INTEGER, "It is named when it is so slow in four samples in a row, each of so many runs of the section and "
        "5 s at least.", rule=above(2, RECENT_RUNS - 1),
    )  # fmt: skip
    straggler_sections: str = setting(
        "data", TEXT, "The sections that are compared, with commas between them: those in which a rank waits for no "
        "other one.", rule=_COMPARED,
    )  # fmt: skip
    hang_verdict: bool = setting(
        True, BOOLEAN, "Before a hung rank is ended, `ft_launcher` writes which rank of the job is to blame, and where "
        "it stands; the end waits for that line, for 1 s at most. Give it on all nodes alike.",
    )  # fmt: skip
    rank_termination_signal: signal.Signals = setting(
        signal.SIGKILL, SIGNAL, "Ends a hung rank; by name or number.", rule=ENDS_A_PROCESS
    )
    log_level: int = setting(logging.INFO, LOG_LEVEL, "The level of the monitors' and the launcher's log.")
    log_format: str = setting(
        "text",
        TEXT,
        "The form of these logs: text, or JSON, an object a line.",
        rule=one_of(log_lines.TEXT, log_lines.JSON),
    )
    inprocess_grace: float = setting(
        30.0, SECONDS, "Time that a job with in-process restart has to go on without a rank that has ended.",
        rule=NOT_NEGATIVE,
    )  # fmt: skip
    restart_window: float = setting(
        600.0, SECONDS, "Time in which the restarts of a job are counted for `max_restarts_in_window`.", rule=POSITIVE,
        is_jobs=True,
    )  # fmt: skip
    max_restarts_in_window: int | None = setting(
        None, INTEGER, "How many restarts there may be in `restart_window`, beside --max-restarts in all.",
        rule=at_least(0), is_jobs=True,
    )  # fmt: skip
    restart_backoff: float | None = setting(
        0.0, SECONDS, "Time before each restart, at least. Cycles that end before their first step, in a row, are "
        "followed after 0, 1, 2, 4 ... 60 s; none: no pause at all.", rule=NOT_NEGATIVE, optional=True,
        is_jobs=True,
    )  # fmt: skip
    retry_usage_errors: bool = setting(
        False, BOOLEAN, "Restart the workers also when all of them have failed before the first step of the first "
        "cycle because the script refuses its arguments (code 2), does not compile or imports what is not there.",
    )  # fmt: skip
    warm_workers: str = setting(
        "auto", SWITCH, "Standby workers, which have imported torch: a restart need not wait for that. auto: for "
        "Python scripts, if restarts are allowed and 4 GiB a worker are free.",
    )  # fmt: skip
    warm_imports: str = setting("torch", TEXT, "Modules that standby workers import, with commas between them.")
    compat_names: bool = setting(
        True, BOOLEAN, "Let workers import nvrx as `nvidia_resiliency_ext`, where that package is not installed."
    )
    restart_check_interval: float = setting(60.0, SECONDS, _unused("restart_check_interval"), rule=POSITIVE)
    skip_section_response: bool = setting(True, BOOLEAN, _unused("skip_section_response"))

    segment: int | None = setting(
        None, INTEGER, "Nodes of one NVLink domain, by ClusterUUID and CliqueId, that take part together, with "
        "consecutive ranks; the minimum of --nnodes is a multiple of it. None: domains do not matter.",
        rule=at_least(1), is_jobs=True,
    )  # fmt: skip
    numa_bind_strict: bool = setting(
        True, BOOLEAN, "Bind a worker's memory to its NUMA node, instead of preferring it."
    )
    gpu_memory_reclaim_timeout: float = setting(
        50.0, SECONDS, "How long a node waits before a restart until the memory of its GPUs is free; 0 is not at all.",
        rule=NOT_NEGATIVE,
    )  # fmt: skip
    gpu_memory_tolerance_mb: float = setting(
        512.0, MEGABYTES, "Memory of each GPU that may be in use then; where other programs use a GPU as well, beside "
        "theirs.", rule=NOT_NEGATIVE,
    )  # fmt: skip
    gpu_memory_poll_interval: float = setting(
        2.0, SECONDS, "Longest time between two readings of the memory; the first ones follow each other sooner.",
        rule=POSITIVE,
    )  # fmt: skip
    check_remaining_processes: bool = setting(
        False, BOOLEAN, "Log the processes, with pid and command, that workers have left when they have ended, before "
        "these are killed, and those that SIGKILL does not end.",
    )  # fmt: skip
    install_exception_hook: bool = setting(
        False, BOOLEAN, "End a worker at once after an uncaught exception in its main thread, which is printed as "
        "before, whatever threads, finalizers and destructors it has.",
    )  # fmt: skip
    max_no_progress_cycles: int = setting(
        3, INTEGER, "End the job with code 93 after so many cycles in a row without progress, by "
        "`checkpoint_iteration_file`; 0 is never.", is_jobs=True,
    )  # fmt: skip
    min_progress_iterations: int = setting(
        1, INTEGER, "Iterations that count as progress.", rule=at_least(1), is_jobs=True
    )
    checkpoint_iteration_file: str | None = setting(
        None, PATH, "Text file with the iteration of the last checkpoint, the same for all nodes, such as "
        "latest_checkpointed_iteration.txt of Megatron-LM.",
    )  # fmt: skip
    attribution_endpoint: str | None = setting(
        None, TEXT, "The attribution service, as in http://host:8000, which analyses per-cycle logs; localhost, or "
        "localhost:PORT, starts one.",
    )  # fmt: skip
    attribution_startup_timeout: float = setting(
        20.0, SECONDS, "Time in which it must answer; later it is warned of.", rule=POSITIVE
    )
    attribution_token_file: str | None = setting(
        None, PATH, "File with the token that a service which runs already wants to be shown."
    )
    attribution_llm_api_key_file: str | None = setting(
        None, PATH, "File with the key of its language model, of mode 600; LLM_API_KEY_FILE by default.",
    )  # fmt: skip
    attribution_llm_base_url: str | None = setting(
        None, TEXT, "OpenAI-compatible endpoint of the model. None: no line of a log leaves the machine."
    )
    attribution_llm_model: str | None = setting(None, TEXT, "Name of the model there.")
    attribution_analysis_backend: str | None = setting(None, TEXT, _unused("attribution_analysis_backend"))
    attribution_stop_action: str = setting(
        "log", TEXT, "What its advice against a restart does: no-restart ends the job with code 93.",
        rule=one_of("log", "no-restart"),
    )  # fmt: skip
    attribution_log_level: str = setting(
        "INFO", TEXT, "The level of its own log, PREFIX_attribution.log.", rule=one_of("DEBUG", "INFO", "WARNING")
    )
    attribution_export_url: str | None = setting(None, TEXT, "Where its results are sent, as JSON.")
    cycle_info_dir: str | None = setting(
        None, PATH, "Directory of the files that describe each cycle, cycle_info.<job>.<attempt>.<cycle>; "
        "NVRX_CURRENT_CYCLE_INFO names the present one to the workers.",
    )  # fmt: skip

    @property
    def is_progress_tracking_enabled(self) -> bool:
        """Whether the job gives up after restarts without progress."""
        return self.max_no_progress_cycles > 0
