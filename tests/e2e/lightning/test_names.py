"""The private names of Lightning that nvrx relies on are where they were, in both of its packages."""

from __future__ import annotations


def test_no_private_name_of_lightning_has_moved(prepare):
    job = prepare(1, store=False)
    environment = job.environment(0)
    job.pids[0] = job.template.fork("tests.harness.lightning.workers.names", [], environment, job.directory / "rank-0")
    job.finish(120)
    found = job.lines("names")
    assert job.codes == {0: 0}, job.errors(0)
    assert {line["family"]: line["missing"] for line in found} == {"lightning.pytorch": [], "pytorch_lightning": []}
    assert all(all(line["kinds"].values()) for line in found)
    assert [line["step"] for line in found] == [7, 7]
    for line in found:
        assert (line["class"], line["default"], line["instance"], line["its own"], line["is one"]) == (
            2,
            3,
            4,
            True,
            True,
        )
        assert {"process_group_backend", "max_restarts", "soft_timeout", "kwargs"} <= set(line["parameters"])
        assert "ParallelStrategy" in line["single"]
        assert "no class of Lightning" in line["stranger"]
        assert "write max_restarts=" in line["misspelt"]
        assert "write find_unused_parameters=" in line["misspelt for DDP"]
        assert "has no option qqqq; it has resume, min_ranks, " in line["unknown"]
        assert line["misspelt in a call"] == "in_process has no option soft_timeot; write soft_timeout="
        assert line["a class of the user's"] == ""
        assert "write max_restarts=" in line["misspelt in a class of the user's"]
        assert line["misspelt in the callback"] == "FaultToleranceCallback has no option autoresum; write autoresume="
        assert "(seconds=30) is no time; write seconds above 0" in line["a time for the callback"]
        assert 'start_method="popen"' in line["spawn"]
