"""Checks of storage on real files, and on tables of mounts."""

import os

import pytest

from nvrx_core.health.result import Status
from nvrx_core.health.storage import check_lustre, check_mount, check_path, mounts_in

TABLE = r"""
22 1 0:20 / /proc rw,nosuid - proc proc rw
31 1 0:30 / /lustre rw,relatime shared:1 - lustre 10.0.0.1@o2ib:/scratch rw,flock
32 1 0:31 / /home\040of\134all rw - nfs4 server:/home rw,vers=4.2
33 1 0:32 / /old rw - nfs server:/old rw
34 1 0:33 / /hidden rw - nfs server:/hidden rw
35 34 0:34 / /hidden rw - tmpfs tmpfs rw
a line that is no mount
"""


def test_lustre_and_nfs_are_found_in_the_table_of_mounts():
    assert mounts_in(TABLE) == ["/lustre", "/home of\\all", "/old"]


@pytest.mark.parametrize(
    ("text", "status"),
    [("healthy\n", Status.HEALTHY), ("NOT HEALTHY\n", Status.UNHEALTHY), ("", Status.UNHEALTHY)],
)
def test_lustre_says_how_it_is(tmp_path, text, status):
    file = tmp_path / "health_check"
    file.write_text(text)
    assert check_lustre(file).status is status


def test_a_node_without_lustre_has_nothing_to_check(tmp_path):
    result = check_lustre(tmp_path / "health_check")
    assert (result.status, result.is_absent) == (Status.UNKNOWN, True)
    assert check_lustre(tmp_path).status is Status.UNKNOWN


def test_a_mount_answers_or_says_why_not(tmp_path):
    assert check_mount(str(tmp_path)).status is Status.HEALTHY
    gone = check_mount(str(tmp_path / "gone"))
    assert (gone.status, gone.reason) == (Status.UNHEALTHY, "No such file or directory")


def test_paths_are_read_listed_or_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 5000)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert check_path(str(tmp_path / "file")).reason == "4096 bytes of the file are read"
    assert check_path(str(tmp_path)).reason == "the directory is listed, 3 entries"
    assert check_path(str(tmp_path / "fifo")).reason == "it is there"
    for name in ("dangling", "missing", "file/below"):
        assert check_path(str(tmp_path / name)).status is Status.UNHEALTHY
