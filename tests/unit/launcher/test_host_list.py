"""Slurm's lists of hosts."""

import pytest
from nvrx_launcher.options import MAX_HOSTS, expand_hosts, expected_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ("node1",)),
        ("node[01-03,7],gpu5", ("node01", "node02", "node03", "node7", "gpu5")),
        ("rack[1-2]n[1-2].hpc", ("rack1n1.hpc", "rack1n2.hpc", "rack2n1.hpc", "rack2n2.hpc")),
        ("n[098-100]", ("n098", "n099", "n100")),
    ],
)
def test_it_names_each_host(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "n[1-", "n]1", "n[a]", "n[1-2-3]", "a,,b", f"n[0-{MAX_HOSTS}]", "n[1-99999999999]"]
)
def test_one_that_is_malformed_or_has_too_many_names_none(text):
    assert expand_hosts(text) == ()


def test_the_hosts_of_the_step_are_those_that_join():
    assert expected_hosts({}) == ()
    assert expected_hosts({"SLURM_JOB_NODELIST": "n[1-3]"}) == ("n1", "n2", "n3")
    assert expected_hosts({"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_STEP_NODELIST": "n[1-2]"}) == ("n1", "n2")
