"""Generator of the table of phases in docs/explanation/restart-protocol.md, from the transition table of `Round`.

Regenerate: python -m tests.harness.transitions_page
"""

from pathlib import Path
from typing import Final

from nvrx_core.inprocess.protocol.transitions import TRANSITIONS, Input, Phase

__all__ = ["PAGE", "with_table"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "restart-protocol.md"
BEGIN: Final = "<!-- made by python -m tests.harness.transitions_page -->\n"
END: Final = "<!-- end of what is made -->\n"


def with_table(text: str) -> str:
    """Return the page's text with an up-to-date table.

    Raises:
        ValueError: when the page has no place for it.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no place for the table: {BEGIN}{END}")
    return f"{before}{begin}\n{_phases()}\n{_inputs()}\n{end}{after}"


def _phases() -> str:
    rows = [f"| {phase.name} | {phase.value} |" for phase in Phase]
    return "\n".join(("| phase | a member is |", "|---|---|", *rows, ""))


def _inputs() -> str:
    head = f"| input | {' | '.join(phase.name for phase in Phase)} |"
    rows = [f"| {kind.value} | {' | '.join(_cell(kind, phase) for phase in Phase)} |" for kind in Input]
    return "\n".join((head, "|---" * (1 + len(Phase)) + "|", *rows, ""))


def _cell(kind: Input, phase: Phase) -> str:
    following = TRANSITIONS[kind].get(phase)
    if following is None:
        return ""
    return " or ".join("stays" if each is phase else each.name for each in following) or "too late"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
