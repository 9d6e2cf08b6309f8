"""The faults of a verification: one at each hook, where a restart has most to bring back."""

from __future__ import annotations

from nvrx_lightning.verification.hooks import HookCall, HookFault, choose

MODULE, CALLBACK = "[LightningModule]Net.on_train_batch_end", "[Callback]EMA{'decay': 0.9}.on_train_batch_end"


def calls() -> list[HookCall]:
    """Two epochs of four steps; a checkpoint after the second step of each."""
    made = [HookCall("[LightningModule]Net.setup", 0, 0, 0)]
    for step in range(8):
        made.append(HookCall(CALLBACK, step, step, step // 4))
        made.append(HookCall(MODULE, step, step, step // 4))
        if step % 4 == 1:
            made.append(HookCall("save_checkpoint", step // 4, step, step // 4))
    return made


def test_each_hook_fails_once_at_its_last_owner_and_the_ranks_take_turns():
    faults = choose([calls(), calls()], every=False)
    assert [(each.rank, each.call.action) for each in faults] == [
        (1, "[LightningModule]Net.setup"),
        (0, MODULE),
        (1, "save_checkpoint"),
    ]


def test_a_restart_goes_on_in_the_middle_of_an_epoch():
    (fault,) = (each for each in choose([calls(), calls()], every=False) if each.call.action == MODULE)
    assert fault.call.step in (2, 3, 6, 7)


def test_a_hook_that_one_rank_has_fails_there():
    prepare = HookCall("[LightningModule]Net.prepare_data", 0, 0, 0)
    assert choose([[prepare], []], every=False) == [HookFault(0, prepare)]


def test_every_hook_of_each_object_fails_in_the_middle_and_at_its_first_call():
    faults = choose([calls(), calls()], every=True)
    chosen = {(each.call.action, each.call.number) for each in faults}
    assert {(CALLBACK, 0), (MODULE, 0), ("save_checkpoint", 0)} < chosen
    assert len({number for action, number in chosen if action == CALLBACK}) == 2


def test_steps_after_a_checkpoint_of_an_earlier_epoch_come_before_those_at_it():
    saved = HookCall("save_checkpoint", 0, 2, 0)
    at, after = HookCall("a.hook", 0, 2, 0), HookCall("a.hook", 1, 4, 1)
    (fault,) = (each for each in choose([[saved, at, after]], every=False) if each.call.hook == "hook")
    assert fault.call == after


def test_a_fault_is_named_by_the_object_and_its_hook():
    assert str(HookFault(0, HookCall(CALLBACK, 3, 3, 0))) == "EMA.on_train_batch_end"
    assert str(HookFault(0, HookCall("save_checkpoint", 0, 3, 0))) == "save_checkpoint"


def test_a_fault_is_read_back_from_its_file():
    fault = HookFault(1, HookCall(MODULE, 3, 3, 0))
    assert HookFault.read(fault.written()) == fault
