"""The program of a guardian, which imports only the standard library, agrees with the package that it copies."""

from __future__ import annotations

from nvrx_launcher import guardian_program

from nvrx_core.process import signals


def test_a_guardian_ignores_what_every_process_of_a_job_may_be_sent() -> None:
    assert guardian_program.SENT_TO_ALL == signals.SENT_TO_ALL
