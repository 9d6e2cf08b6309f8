"""What the environment says: who this rank is, where the store is, what is put back."""

import pytest

from nvrx_core.settings import environment

NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "NVRX_JOB_ID", "NVRX_STORE_ENDPOINT", "NVRX_EVENTS_DIR",
)  # fmt: skip


@pytest.fixture
def variables(leak_check, monkeypatch):
    """Sets variables; none of ours is set at first, and all is put back at the end."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def set_them(**given):
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    return set_them


def test_the_rank_is_read(variables):
    assert environment.rank_and_world_size() == (0, 1)
    variables(RANK="2", WORLD_SIZE="4")
    assert environment.rank_and_world_size() == (2, 4)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"RANK": "1"}, "RANK='1' is set alone"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE='2' is set alone"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x' is not a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not in the range 0 <= RANK < WORLD_SIZE=2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 is not in the range"),
    ],
)
def test_a_wrong_rank_is_refused_by_name(variables, given, told):
    variables(**given)
    with pytest.raises(ValueError, match=told):
        environment.rank_and_world_size()


def test_the_job_name_comes_from_the_first_variable_that_is_set(variables):
    assert environment.job_name() == "job"
    variables(TORCHELASTIC_RUN_ID="run")
    assert environment.job_name() == "run"
    variables(NVRX_JOB_ID="mine")
    assert environment.job_name() == "mine"


def test_torch_elastic_restarts_all_ranks(variables):
    assert not environment.restarts_all_ranks()
    variables(TORCHELASTIC_RESTART_COUNT="0")
    assert environment.restarts_all_ranks()


def test_a_factory_runs_in_the_captured_environment(variables):
    variables(MASTER_PORT="1234")
    made = environment.with_environment_as_now(lambda: environment.master()[1])
    variables(MASTER_PORT="5678")
    assert (made(), environment.master()[1]) == (1234, 5678)


def test_master_has_the_defaults_of_torch(variables):
    assert environment.master() == ("127.0.0.1", 29500)
    variables(MASTER_ADDR="node7", MASTER_PORT="1234")
    assert environment.master() == ("node7", 1234)


def test_the_endpoint_is_host_and_port(variables):
    assert environment.store_endpoint() is None
    variables(NVRX_STORE_ENDPOINT="node7:1234")
    assert environment.store_endpoint() == ("node7", 1234)
    variables(NVRX_STORE_ENDPOINT="[fe80::1]:1234")
    assert environment.store_endpoint() == ("fe80::1", 1234)


@pytest.mark.parametrize("text", ["node7", ":1234", "node7:", "node7:x", "node7:0", "node7:65536", "http://node7:1234"])
def test_a_wrong_endpoint_is_refused(variables, text):
    variables(NVRX_STORE_ENDPOINT=text)
    with pytest.raises(ValueError, match="NVRX_STORE_ENDPOINT="):
        environment.store_endpoint()


def test_a_store_has_seven_seconds_to_answer_unless_the_variable_says_more(monkeypatch):
    assert environment.store_answers_within() == 7
    monkeypatch.setenv("NVRX_STORE_ANSWERS_WITHIN", "60")
    assert environment.store_answers_within() == 60
    for bad in ("soon", "0", "-1", "inf", "nan", ""):
        monkeypatch.setenv("NVRX_STORE_ANSWERS_WITHIN", bad)
        with pytest.raises(ValueError, match="is no number of seconds above 0; write 7, the default"):
            environment.check_variables()


def test_a_store_may_listen_at_any_time_unless_the_variable_says_less(monkeypatch):
    assert environment.store_listens_within() == float("inf")
    monkeypatch.setenv("NVRX_STORE_LISTENS_WITHIN", "30")
    assert environment.store_listens_within() == 30
    for bad in ("soon", "0", "-1", "nan", ""):
        monkeypatch.setenv("NVRX_STORE_LISTENS_WITHIN", bad)
        with pytest.raises(ValueError, match="is no number of seconds above 0; write 30, or inf, the default"):
            environment.check_variables()


def test_events_are_written_only_where_the_environment_says(variables):
    assert environment.events_directory() is None
    variables(NVRX_EVENTS_DIR="/e")
    assert environment.events_directory() == "/e"


def test_a_reserve_has_neither_rank_nor_world_size(variables):
    environment.set_ranks(1, 2)
    assert environment.rank_and_world_size() == (1, 2)
    environment.set_ranks(None, None)
    assert environment.rank_and_world_size() == (0, 1)


def test_the_addresses_are_restored(variables):
    variables(MASTER_ADDR="as found")
    with environment.restored():
        environment.set_master("node7", 1234)
        assert environment.master() == ("node7", 1234)
    assert environment.master() == ("as found", 29500)


def test_only_nccl_variables_are_returned(variables):
    variables(NCCL_DEBUG="INFO", TORCH_NCCL_X="1", RANK="0")
    found = environment.nccl_variables()
    assert found["NCCL_DEBUG"] == "INFO"
    assert all(name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_CPP_LOG_LEVEL")) for name in found)
