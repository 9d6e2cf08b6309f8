"""What is read of the kernel's log."""

from __future__ import annotations

from pathlib import Path

from nvrx_core.process.kernel_log import NewRecords, kernel_lines

OLD = "6,1,999999,-;before\n"
NEW = """\
4,2,1000000,-;NVRM: Xid (PCI:0000:02:00): 79; GPU has fallen off the bus.
 SUBSYSTEM=pci;
3,3,2500000,c,caller=T7;Out of memory: Killed process 7 (python)
no record
"""


def test_new_records_are_read_without_what_is_before_their_texts(tmp_path: Path) -> None:
    (log := tmp_path / "kmsg").write_text(OLD)
    new = NewRecords(log)
    assert list(new.texts()) == []
    with log.open("a") as file:
        file.write(NEW)
    assert list(new.texts()) == [
        "NVRM: Xid (PCI:0000:02:00): 79; GPU has fallen off the bus.",
        "Out of memory: Killed process 7 (python)",
    ]
    assert list(new.texts()) == [], "each once"
    new.close()
    assert list(new.texts()) == []
    new.close()
    assert list(kernel_lines(log)) == [*OLD.splitlines(), *NEW.splitlines()]


def test_what_is_skipped_is_not_read(tmp_path: Path) -> None:
    (log := tmp_path / "kmsg").write_text(OLD)
    new = NewRecords(log)
    with log.open("a") as file:
        file.write(NEW)
    new.skip()
    with log.open("a") as file:
        file.write("4,5,1,-;later\n")
    assert list(new.texts()) == ["later"]
    new.close()
    new.skip()


def test_a_log_that_cannot_be_read_has_no_records(tmp_path: Path) -> None:
    assert list(NewRecords(tmp_path / "none").texts()) == []
    assert list(kernel_lines(tmp_path)) == []
