"""The layout of a progress page. Pure.

A page is a row of 64-bit words: the fields of `ProgressField`, then `MAX_SECTIONS` slots of `SECTION_WORDS` words each.
Behind the words lies one bit a member of the job: those lost so far. Each word is written by one process, so that no
lock is needed: an aligned word is never torn. Times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host
share; a time of 0 says that it has not happened. "Iteration + 1" tells iteration 0 from "never", which is 0.
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = [
    "FIELDS", "MAX_SECTIONS", "NAME_BYTES", "RECENT_RUNS", "SECTION_WORDS", "WORDS", "ProgressField", "SectionField",
    "slot_of",
]  # fmt: skip

FIELDS: Final = 64
"""Words for fields; those without a name are reserved."""
MAX_SECTIONS: Final = 64
RECENT_RUNS: Final = 32
"""Completed runs of a section whose durations the page has; a power of two."""
SECTION_WORDS: Final = 16 + RECENT_RUNS
WORDS: Final = FIELDS + MAX_SECTIONS * SECTION_WORDS


# fmt: off
@enum.unique
class ProgressField(enum.IntEnum):
    """The fields by the number of their word; the rank writes them, its monitor process those marked (M)."""

    # The page
    VERSION = 0                # the layout; written last
    INITIAL_WORLD_SIZE = 1     # members of the job, for the bits of the lost ones
    SECTION_COUNT = 2          # sections declared so far, in the first slots

    # Where the rank is
    CLAIMED = 4                # generation + 1 that the rank has claimed last, or is about to
    GENERATION = 5             # generation + 1 in which the ranks have met; (M) for a rank that has died before
    ITERATION = 6              # the round; -1 before the first
    RANK = 7                   # in this iteration
    WORLD_SIZE = 8             # in this iteration
    STAGE = 9                  # what the main thread is about: `Stage`
    EXITED = 10                # iteration + 1 that the rank has completed by SystemExit with code 0
    HOSTS_STORE = 11           # 1: this process hosts the control store
    EXIT_CODE = 12             # the exit code with which the rank leaves without notifying its peers; 0: none is known

    # Signs of life
    AUTO_HEARTBEAT = 16        # time when the main thread last entered a stage
    MAIN_THREAD_HEARTBEAT = 17 # time before which the main thread had not given its last answer to the watchdog thread
    WATCHDOG_HEARTBEAT = 18    # time when the watchdog thread last ran
    PING = 19                  # time of the last manual heartbeat of this iteration
    STEP = 20                  # the step counter + 1; 0: not used in this iteration
    STEP_AT = 21               # time when the step counter last grew in this iteration
    SECTION_AT = 22            # time when a section was last opened or closed
    UNPROTECTED = 23           # depth of disable_hang_protection
    ATOMIC = 24                # atomic sections that were open when the watchdog thread last ran
    PING_SUSPENDED = 25        # depth of suspend_ping in this iteration

    # Where ranks wait for each other
    RENDEZVOUS_COUNT = 28      # process groups and stores that the rank has begun to create in this iteration
    RENDEZVOUS_DEPTH = 29      # how many of them it is creating at this moment
    RENDEZVOUS_AT = 30         # time when the last one began
    COLLECTIVES = 31           # collectives of the default group begun in this iteration

    # The end of a round
    STALLED = 36               # (M) iteration + 1 in which a soft timeout was reported
    NOTICED = 37               # iteration + 1 whose event the monitor thread has seen
    INTERRUPTING = 38          # iteration + 1 whose function is being interrupted
    ROUND_OVER = 39            # (M) iteration + 1 that is over, for a rank whose threads do not run
    IMPORTED_AT = 40           # time when an import for which an interruption waits last added a module
    UNHEARD_AT = 41            # (M) time when a round was found to be over that the rank does not hear of
    HANG_REPORTED = 42         # (M) iteration + 1 in whose hang the monitor process reports where the rank is

    # The monitor process
    MEMORY_KILLS = 43          # (M) OOM kills in the rank's cgroup that are noted; the rank writes those before
    MONITOR_PID = 44           # (M) its pid
    MONITOR_BEAT = 45          # (M) time of the store's last answer to it
    STORE_LOST = 46            # (M) time when the store was lost; the rank writes it when it is first to know

    # The rank monitor and its rank
    EVIDENCE_THREAD = 47       # the kernel's id of the thread that tells the monitor where the rank is; 0: none
    DETACHED_PID = 48          # pid of the last process that has ended its monitoring, or has ended in order
    RANK_MONITOR_PID = 49      # (M) pid of the rank monitor
    ATTACHED_PID = 50          # pid of the process that is monitored; 0: none is
    ATTACHED_START = 51        # start time of that process, field 22 of /proc/<pid>/stat
    ATTACHED_AT = 52           # time when its monitoring began, or began anew; 0: it is not monitored; written last
    HEARTBEAT_AT = 53          # time of its last heartbeat; 0: it has sent none
    HEARTBEATS = 54            # how many it has sent
    FIRST_HEARTBEAT = 55       # nanoseconds from ATTACHED_AT to the first heartbeat
    LONGEST_HEARTBEAT = 56     # nanoseconds between two heartbeats, at most
    LONGEST_OUT = 57           # nanoseconds with no section open, at most
    INITIAL_TIMEOUT = 58       # nanoseconds until the first heartbeat; 0: none
    HEARTBEAT_TIMEOUT = 59     # nanoseconds between two heartbeats; 0: none
    OUT_TIMEOUT = 60           # nanoseconds with no section open; 0: none
    WARMUP_STEPS = 61          # how many runs of section "step" are the warm-up
    SAMPLED_AT = 62            # time before which the main thread had last executed bytecode; 0: nothing samples it
    STACK_SIGNAL = 63          # the signal on which the rank writes the stacks of its threads; 0: none


@enum.unique
class SectionField(enum.IntEnum):
    """The words of a section's slot, counted from its first; the rank's process writes them."""

    OPENED_AT = 0              # time when the section was opened; 0: it is closed
    LONGEST = 1                # nanoseconds of its longest completed run
    TIMEOUT = 2                # nanoseconds after which an open one is overdue; 0: none
    COUNT = 3                  # how often it was opened
    NAME = 4                   # the name in UTF-8, to the next field, padded with zero bytes
    RECENT = 16                # nanoseconds of run number n, by the last bits of n; 0: it did not run to its end
# fmt: on

NAME_BYTES: Final = (SectionField.RECENT - SectionField.NAME) * 8


def slot_of(section: int) -> int:
    """Return the first word of a section's slot, by the section's number."""
    return FIELDS + section * SECTION_WORDS
