"""Slurm's lists of hosts."""

import pytest
from hypothesis import given, strategies as st
from nvrx_launcher.host_list import MAX_HOSTS, compress_hosts, compress_numbers, expand_hosts, expected_hosts


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


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ((), ""),
        (("node7",), "node7"),
        (("node02", "node01", "node03", "node03", "gpu5"), "gpu5,node[01-03]"),
        (("n8", "n9", "n10", "n012"), "n[8-10,012]"),
        (("n099", "n100", "n98"), "n[98,099-100]"),
        (("rack1-n7.hpc", "rack1-n8.hpc", "rack2-n8.hpc", "login"), "login,rack1-n[7-8].hpc,rack2-n8.hpc"),
        (("n1a", "n2a", "a,b", "a[b"), "a,b,a[b,n[1-2]a"),
    ],
)
def test_hosts_are_written_in_ranges(hosts, text):
    assert compress_hosts(hosts) == text


@given(st.lists(st.from_regex(r"[a-z]{0,2}[0-9]{1,3}[a-z-]{0,2}(\.hpc[0-9])?", fullmatch=True), max_size=60))
def test_a_list_in_ranges_names_the_same_hosts(hosts):
    assert sorted(expand_hosts(compress_hosts(hosts))) == sorted(set(hosts))


def test_numbers_are_written_in_ranges():
    assert compress_numbers(map(str, [0, 1, 2, 3, 6])) == "0-3,6"
