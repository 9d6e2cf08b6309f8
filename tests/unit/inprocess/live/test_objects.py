"""What a function registers, what it may do to it elsewhere, and how new objects take over old ones."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from functools import partial
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch._dynamo  # noqa: F401 - the first optimizer does; it sets an environment variable
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from nvrx_core.inprocess import live_state
from nvrx_core.inprocess.live import objects as tensors, row
from nvrx_core.inprocess.live.objects import Left, Objects


def objects_of(model, *optimizers, shared=None, advance=lambda: None):
    return Objects.of(model, optimizers, advance, shared=shared or {}, local={}, averages=())


def trained(model, **settings):
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return optimizer


class Replaced(torch.nn.Linear):
    """Replaces its buffer instead of changing it."""

    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, batch):
        self.mean = 0.9 * self.mean + batch.mean(0)
        return super().forward(batch)


def test_a_buffer_that_the_model_has_replaced_is_captured():
    model = Replaced()
    objects = objects_of(model)
    model(torch.ones(2, 3))
    objects.collect_buffers()
    assert torch.equal(objects.buffers[0], torch.ones(3))


def test_buffers_of_wrapped_modules_are_kept():
    model = torch.nn.Sequential(checkpoint_wrapper(torch.nn.BatchNorm1d(3)))
    assert len(objects_of(model).buffers) == 3


def test_parameters_of_an_optimizer_that_the_model_has_not_are_refused():
    generator, critic = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"optimizer 1 \(SGD\) has parameters that the model has not"):
        objects_of(
            generator,
            torch.optim.SGD(generator.parameters(), lr=0.1),
            torch.optim.SGD(critic.parameters(), lr=0.1),
        )


@pytest.mark.parametrize("kind", ["FullyShardedDataParallel", "used"])
def test_sharded_modules_that_do_not_use_what_they_are_given_are_refused(kind):
    model = torch.nn.Linear(3, 3)
    if kind == "used":
        model._get_fsdp_state = lambda: SimpleNamespace(_is_root=False)
    else:
        model.__class__ = type(kind, (torch.nn.Linear,), {})
    with pytest.raises((TypeError, RuntimeError), match="fully_shard"):
        objects_of(model)


def test_another_group_of_an_optimizer_is_another_layout():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    objects = objects_of(model, optimizer)
    assert objects.shard == objects_of(model, optimizer).shard
    before = objects.shard
    optimizer.add_param_group({"params": model[0].parameters()})
    assert objects.shard != before


class Hiding(torch.optim.SGD):
    """Has state outside of `state`."""

    def __init__(self, model, **hidden):
        super().__init__(model.parameters(), lr=0.1)
        vars(self).update(hidden)


@pytest.mark.parametrize("kind", ["a tensor", "a table", "an optimizer", "a type"])
def test_an_optimizer_that_hides_state_is_refused_by_name(kind):
    model = torch.nn.Linear(3, 3)
    hidden = {
        "a tensor": {"slow": torch.zeros(3)},
        "a table": {"slow": {"weight": [torch.zeros(3)]}},
        "an optimizer": {"slow": torch.optim.SGD(model.parameters(), lr=0.1)},
    }
    optimizer = Hiding(model, **hidden.get(kind, {}))
    if kind == "a type":
        optimizer.state[model.weight]["slow"] = torch.zeros(3).as_subclass(type("Eight", (torch.Tensor,), {}))
    with pytest.raises(TypeError, match=r"Hiding has (state in its 'slow', outside|a state 'slow' of type Eight)"):
        objects_of(model, optimizer)


def test_an_optimizer_that_has_its_parameters_and_a_flag_hides_nothing():
    model = torch.nn.Linear(3, 3)
    objects_of(model, Hiding(model, flag=torch.zeros(1), own=list(model.parameters())))
    objects_of(model, torch.optim.LBFGS(model.parameters()))
    objects_of(model, torch.optim.AdamW(model.parameters(), lr=torch.tensor([0.1])))


def test_parameters_without_a_shape_are_refused_by_name():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"'1\.weight' has no shape yet"):
        objects_of(model)


def test_a_persistent_buffer_that_is_expanded_is_refused_by_name():
    model = torch.nn.Linear(3, 3)
    model.register_buffer("mask", torch.ones(1, 3).expand(2, 3), persistent=False)
    objects_of(model)
    model.register_buffer("mask", torch.ones(1, 3).expand(2, 3))
    with pytest.raises(ValueError, match="'mask' is expanded"):
        objects_of(model)


def change_gradients(model, optimizer):
    optimizer.zero_grad()


def change_settings(model, optimizer):
    optimizer.param_groups[0]["betas"] = (0.1, 0.2)


def change_parameters(model, optimizer):
    with torch.no_grad():
        model.weight.add_(1)


@pytest.mark.parametrize("change", [change_gradients, change_settings, change_parameters])
def test_what_the_function_changes_is_noticed(change):
    model = torch.nn.Linear(3, 3)
    optimizer = trained(model)
    left = Left.of(objects_of(model, optimizer))
    gc.collect()
    assert not left.is_changed()
    change(model, optimizer)
    assert left.is_changed()


def test_a_scheduler_that_is_made_anew_does_not_change_the_learning_rate_of_an_optimizer_that_outlives_it():
    model = torch.nn.Linear(3, 3)
    optimizer = trained(model, lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.5**number)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    left = Left.of(objects_of(model, optimizer))
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.5**number)
    assert optimizer.param_groups[0]["lr"] == 1.0
    left.restore_settings()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_scaler_that_outlives_an_interrupted_step_can_unscale_the_next_one():
    model, scaler = torch.nn.Linear(3, 3), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def scaled():
        scaler.scale(model(torch.ones(2, 3)).sum()).backward()
        scaler.unscale_(optimizer)

    scaled()
    tensors.drop_interrupted(objects_of(model, optimizer, shared={"scaler": scaler}))
    assert model.weight.grad is None
    scaled()


def test_a_scaler_that_is_not_enabled_has_nothing_to_drop():
    """As `GradScaler(enabled=use_amp)` of a training without it."""
    model, scaler = torch.nn.Linear(3, 3), torch.amp.GradScaler("cpu", enabled=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    objects = objects_of(model, optimizer, shared={"scaler": scaler})
    tensors.drop_interrupted(objects)
    assert model.weight.grad is None
    assert live_state._Settled.of(Left.of(objects)).counted == {"scaler": None}


def test_a_shared_object_whose_state_cannot_be_saved_is_refused():
    shared = {"rate": SimpleNamespace(state_dict=lambda: {"rule": lambda: 1})}
    with pytest.raises(TypeError, match="shared object 'rate' cannot be saved"):
        tensors.check_shared(objects_of(torch.nn.Linear(3, 3), shared=shared))


def test_local_state_with_an_array_comes_back():
    loaded = []
    local = {"sampler": SimpleNamespace(state_dict=lambda: {"order": numpy.arange(3)}, load_state_dict=loaded.append)}
    cpu = torch.device("cpu")
    row.restore(row.capture(1, (), local, cpu), (), local, cpu)
    assert loaded[0]["order"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("size", [0, 1, 10000])
def test_parameters_have_the_same_digest_where_all_their_bits_are_the_same(dtype, size):
    parameter = torch.nn.Parameter(torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(1)))
    model = torch.nn.ParameterList([parameter, torch.nn.Parameter(torch.zeros(()))])
    objects = objects_of(model)
    before = tensors.digests(objects)
    assert tensors.digests(objects) == before
    for at in range(0, size, 997):
        with torch.no_grad():
            kept = parameter[at].clone()
            parameter[at] = parameter[at - 1]
        assert (tensors.digests(objects) != before) is (size > 1)
        with torch.no_grad():
            parameter[at] = kept
    assert tensors.digests(objects) == before


def test_the_parts_of_a_tensor_are_hashed_where_they_begin_anywhere():
    flat = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    whole = torch.nn.ParameterList([flat[1:2999].clone()])
    part = SimpleNamespace(names=("0",), parameters=(flat[1:2999],))
    assert tensors.digests(part) == tensors.digests(objects_of(whole))


def test_rows_that_have_changed_places_are_told_apart():
    """As of experts that two ranks have in another order."""
    table = torch.nn.Parameter(torch.randn(16, 8192, generator=torch.Generator().manual_seed(1)))
    objects = objects_of(torch.nn.ParameterList([table]))
    before = tensors.digests(objects)
    with torch.no_grad():
        table.copy_(table.flip(0))
    assert tensors.digests(objects) != before


@pytest.mark.parametrize("make", [
    torch.optim.AdamW, partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.SGD, lr=0.1),
    torch.optim.Rprop, torch.optim.NAdam,
], ids=["AdamW", "momentum", "keeps None", "Rprop", "NAdam"])  # fmt: skip
def test_each_change_of_an_optimizer_state_is_another_version(make):
    model = torch.nn.Linear(3, 3)
    optimizer = make(model.parameters())
    objects = objects_of(model, optimizer)
    before = tensors.versions(objects)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    stepped = tensors.versions(objects)
    assert stepped != before
    assert tensors.versions(objects) == stepped
    for state in optimizer.state.values():
        state["note"] = 7.0  # as optimizers of other libraries have
    assert tensors.versions(objects) == stepped
    found = [each for state in optimizer.state.values() for each in state.values() if isinstance(each, torch.Tensor)]
    for each in found:
        each.add_(0)
        assert tensors.versions(objects) != stepped
        stepped = tensors.versions(objects)


@pytest.mark.parametrize("draws", [
    (numpy.random.randn,), (numpy.random.rand,), (numpy.random.randn, numpy.random.rand, numpy.random.randn), (),
    (lambda: numpy.random.seed(3), lambda: numpy.random.rand(2), lambda: numpy.random.seed(3), numpy.random.normal),
])  # fmt: skip
def test_numbers_of_numpy_are_captured_as_they_are(draws):
    """Two numbers of a normal distribution are drawn together: the second one is given without a draw."""
    numpy.random.seed(3)
    cpu, drawn = torch.device("cpu"), []
    for draw in (lambda: None, *draws, *draws, lambda: None):
        draw()
        rows = [row.capture(0, (), {}, cpu) for _ in range(2)]
        assert torch.equal(*rows)
        drawn.append((rows[0], numpy.random.get_state()))
    for kept, state in (*drawn, *reversed(drawn)):
        row.restore(kept, (), {}, cpu)
        row.restore(row.capture(0, (), {}, cpu), (), {}, cpu)
        found = numpy.random.get_state()
        assert found[2:] == state[2:]
        assert (found[1] == state[1]).all()


@pytest.mark.parametrize("kind", ["PCG64", "Philox", "SFC64"])
def test_numbers_of_another_generator_of_numpy_are_captured(kind):
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(getattr(numpy.random, kind)(3))
    try:
        numpy.random.standard_normal()
        kept = row.capture(0, (), {}, torch.device("cpu"))
        drawn = numpy.random.rand(5).tolist()
        row.restore(kept, (), {}, torch.device("cpu"))
        assert numpy.random.rand(5).tolist() == drawn
    finally:
        numpy.random.set_bit_generator(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_digest_of_a_parameter_tells_the_sign_of_each_element(dtype):
    model = torch.nn.Linear(130, 130, bias=False, dtype=dtype)
    objects = objects_of(model)
    (before,) = tensors.digests(objects)
    values = model.weight.data.view(-1)
    for index in range(0, len(values), 61):
        values[index].neg_()
        assert tensors.digests(objects) != (before,), f"{index} of {len(values)}"
        values[index].neg_()
    assert tensors.digests(objects) == (before,)


def test_a_parameter_of_another_shape_is_noticed_by_its_name():
    model = torch.nn.LayerNorm(4)
    left = Left.of(objects_of(model))
    assert left.changed_parameter() == ""
    model.weight.data = model.weight.data[:2]  # the same memory, and the same values
    assert left.changed_parameter() == "weight"


def frozen(required):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[0].requires_grad_(required)
    return model, objects_of(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_parameters_that_a_training_has_unfrozen_stay_so():
    (_, was), (new, now) = frozen(True), frozen(False)
    line = tensors.adopt(was, now)
    assert [each.requires_grad for each in new.parameters()] == [True] * 4
    assert line.startswith("requires_grad of 0.weight and 1 more is as at the last commit")
    assert tensors.adopt(was, now) == ""


def test_parameters_that_were_frozen_for_a_part_of_a_pass_are_as_at_the_commit():
    model, objects = frozen(True)
    left = Left.of(objects)
    model.requires_grad_(False)
    tensors.require_gradients(objects, left.required)
    assert [each.requires_grad for each in model.parameters()] == [True] * 4


def test_no_parameter_is_frozen_that_the_function_trains():
    """As a part of a pass freezes the discriminator of a GAN, in whose commit a fault comes."""
    (_, was), (new, now) = frozen(False), frozen(True)
    assert tensors.adopt(was, now) == ""
    assert [each.requires_grad for each in new.parameters()] == [True] * 4


def test_averages_are_not_compared():
    """Their buffers may be each rank's own."""
    model, average = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objects = Objects.of(model, (optimizer,), lambda: None, shared={}, local={}, averages=[average])
    numbers = dict(zip(objects.names, tensors.digests(objects), strict=True))
    assert {name for name, number in numbers.items() if not number} == {
        name for name in objects.names if name.startswith("averages[")
    }


class Counting(torch.nn.Linear):
    """An average that counts its updates by assignment."""

    def __init__(self, model):
        super().__init__(3, 3)
        self.register_buffer("count", torch.zeros(1))
        self.load_state_dict(model.state_dict(), strict=False)

    def update(self, model):
        self.count = self.count + 1
        self.weight.data.lerp_(model.weight.data, 0.5)


def averaged(model, average):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Objects.of(model, (optimizer,), optimizer.step, shared={}, local={}, averages=[average])


def test_an_average_that_replaces_a_buffer_is_kept():
    model = torch.nn.Linear(3, 3)
    average = Counting(model)
    old = averaged(model, average)
    for _ in range(3):
        average.update(model)
        old.follow_averages()
    new_average = Counting(model)
    tensors.adopt(old, averaged(torch.nn.Linear(3, 3), new_average))
    assert new_average.count.item() == 3
    assert torch.equal(new_average.weight, average.weight)


def test_an_average_that_is_only_partly_on_the_meta_device_may_be_filled_as_a_whole():
    """The number of updates of torch's average is not: without it, the average would begin anew after a fault."""

    def made():
        with torch.device("meta"):
            model = torch.nn.BatchNorm1d(3)
        return model, torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda one, other, _: (one + other) / 2)

    model, average = made()
    old = averaged(model, average)
    for each in (model, average):
        each.to_empty(device="cpu")
    model.reset_parameters()
    average.n_averaged.zero_()
    old.take_filled()
    old.follow_averages()
    for _ in range(2):
        average.update_parameters(model)
    model, average = made()
    tensors.adopt(old, averaged(model, average))
    assert average.n_averaged.item() == 2
    assert torch.equal(average.module.weight, torch.ones(3))


class Scaled(torch.nn.Linear):
    """Has a state that is no tensor of it."""

    def __init__(self):
        super().__init__(3, 3)
        self.scale = {"factor": 1.0}

    def get_extra_state(self):
        return self.scale

    def set_extra_state(self, state):
        self.scale = state


def test_the_extra_state_of_a_module_is_kept_as_at_the_vote():
    model, new, cpu = torch.nn.Sequential(Scaled()), torch.nn.Sequential(Scaled()), torch.device("cpu")
    model[0].scale["factor"] = 0.5
    captured = row.capture(1, (), objects_of(model).local, cpu)
    model[0].scale["factor"] = 0.1
    row.restore(captured, (), objects_of(new).local, cpu)
    assert new[0].scale == {"factor": 0.5}


@pytest.mark.parametrize("kind", ["cannot be set", "cannot be saved"])
def test_an_extra_state_that_cannot_be_copied_is_refused(kind):
    model = torch.nn.Sequential(Scaled())
    if kind == "cannot be set":
        model[0].__class__ = type("Fixed", (torch.nn.Linear,), {"get_extra_state": Scaled.get_extra_state})
    else:
        model[0].scale["rule"] = lambda: 1
    with pytest.raises(TypeError, match=r"module '0' \(Fixed\)|one of the extra states of the model cannot be saved"):
        tensors.check_shared(objects_of(model))


def test_a_module_whose_extra_state_is_none_needs_no_way_to_set_it():
    model = torch.nn.Linear(3, 3)
    model.__class__ = type("Empty", (torch.nn.Linear,), {"get_extra_state": lambda self: None})
    assert objects_of(model).local == {}


def test_a_model_on_the_meta_device_takes_over_tensors():
    old = torch.nn.BatchNorm1d(3)
    was = objects_of(old, trained(old))
    with torch.device("meta"):
        new = torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.AdamW(new.parameters())
    now = objects_of(new, optimizer)
    tensors.adopt(was, now)
    assert now.device.type == "cpu"
    assert new.weight.data_ptr() == old.weight.data_ptr()
    assert torch.equal(new.running_mean, old.running_mean)
    assert new.weight is optimizer.param_groups[0]["params"][0] is now.parameters[0]
    new(torch.ones(2, 3)).sum().backward()
    optimizer.step()


class Rotary(torch.nn.Module):
    """Has a tied weight, and buffers of both kinds."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.first.weight.decays = False
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("angles", torch.arange(3.0), persistent=False)


def fill_by_to_empty(model, trained):
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            each.copy_(dict((*trained.named_parameters(), *trained.named_buffers()))[name.replace("second", "first")])


def fill_by_to_empty_and_swap(model, trained):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        fill_by_to_empty(model, trained)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def fill_by_assigning(model, trained):
    model.load_state_dict(trained.state_dict(), assign=True)
    model.angles = trained.angles.clone()


def on_meta():
    with torch.device("meta"):
        model = Rotary()
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer, objects_of(model, optimizer)


@pytest.mark.parametrize("fill", [fill_by_to_empty, fill_by_to_empty_and_swap, fill_by_assigning])
def test_a_model_on_the_meta_device_is_filled_in_place_of_what_was_registered(fill):
    trained = Rotary()
    trained.first.weight.grad = torch.ones(3, 3)
    before = torch.optim.AdamW(trained.parameters())
    before.step()
    model, optimizer, objects = on_meta()
    with pytest.raises(RuntimeError, match=r"start\(\) with mean on the meta device: fill the model"):
        objects.check_filled()
    objects.fill_before_loading()
    fill(model, trained)
    optimizer.load_state_dict(before.state_dict())
    objects.take_filled()
    objects.check_filled()
    weight = model.first.weight
    assert weight is model.second.weight is optimizer.param_groups[0]["params"][0] is objects.parameters[0]
    assert fill is fill_by_to_empty_and_swap or weight.decays is False  # torch itself drops it there
    assert torch.equal(weight, trained.first.weight)
    assert optimizer.state[weight]["exp_avg"].device.type == "cpu"
    assert (objects.buffers[0] is model.mean, objects.rebuilt["angles"] is model.angles) == (True, True)
    new, new_optimizer, taking = on_meta()
    tensors.adopt(objects, taking)
    assert new.first.weight is new.second.weight is new_optimizer.param_groups[0]["params"][0]
    assert torch.equal(new.first.weight, weight)
    assert torch.equal(new.angles, torch.arange(3.0))
    assert not any(each.is_meta for each in (*new.parameters(), *new.buffers()))


def test_an_optimizer_that_has_loaded_its_state_before_its_model_was_filled_has_none():
    trained = Rotary()
    trained.first.weight.grad = torch.ones(3, 3)
    before = torch.optim.AdamW(trained.parameters())
    before.step()
    model, optimizer, objects = on_meta()
    optimizer.load_state_dict(before.state_dict())
    fill_by_to_empty(model, trained)
    objects.take_filled()
    with pytest.raises(RuntimeError, match="loaded its state before the model was filled"):
        objects.check_filled()


def test_only_states_on_the_device_of_the_parameter_are_sent_as_tensors():
    step = torch.zeros(())
    assert tensors._Described.of(step, torch.zeros(3, device="meta")) is step
    assert tensors._Described.of(step, torch.zeros(3)) == tensors._Described((), torch.float32, "cpu")


@pytest.fixture
def mesh():
    torch.distributed.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    torch.distributed.destroy_process_group()


def test_an_average_that_is_whole_for_a_forward_pass_leaves_its_shard_as_it_is(mesh):
    """As FSDP2 puts the whole of a parameter in its place, until it is sharded again."""
    shard = torch.nn.Parameter(DTensor.from_local(torch.ones(1, 3), mesh, (Replicate(), Shard(0)), run_check=False))
    average = torch.nn.Module()
    average.register_parameter("weight", shard)
    objects = dataclasses.replace(objects_of(average), averaged=((weakref.ref(average), "weight", shard),))
    average.register_parameter("weight", torch.nn.Parameter(torch.zeros(2, 3)))
    objects.follow_averages()
    assert torch.equal(shard._local_tensor, torch.ones(1, 3))
    average.register_parameter("weight", torch.nn.Parameter(DTensor.from_local(
        torch.zeros(1, 3), mesh, (Replicate(), Shard(0)), run_check=False
    )))  # fmt: skip
    objects.follow_averages()
    assert torch.equal(shard._local_tensor, torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("placements", "coordinates"),
    [
        ([(Replicate(), Replicate())], ()),
        ([(Replicate(), Replicate()), (Replicate(), Shard(0))], (1, 2)),
        ([(Shard(0), Replicate()), (_StridedShard(0, split_factor=2), Shard(0))], (0, 2, 1, 2)),
    ],
    ids=["replicas", "the first is replicated", "a strided shard"],
)
def test_each_dimension_that_shards_a_parameter_tells_ranks_apart(mesh, placements, coordinates):
    made = [DTensor.from_local(torch.zeros(2), mesh, each, run_check=False) for each in placements]
    assert tensors._coordinates_of(made) == coordinates


def test_states_of_an_optimizer_keep_their_own_sharding_on_the_new_mesh(mesh):
    """As the factors of Adafactor, which have another shape than the parameter."""

    def made():
        local = torch.zeros(2, 3)
        parameter = torch.nn.Parameter(DTensor.from_local(local, mesh, (Replicate(), Shard(0)), run_check=False))
        model = torch.nn.Module()
        model.register_parameter("weight", parameter)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        return parameter, optimizer, objects_of(model, optimizer)

    (old, was_of, was), (new, now_of, now) = made(), made()
    factor = DTensor.from_local(torch.ones(2), mesh, (Replicate(), Shard(0)), run_check=False)
    was_of.state[old] = {"row": factor, "plain": torch.ones(2, 3), "step": 1}
    tensors.adopt(was, now)
    state = now_of.state[new]
    assert isinstance(state["row"], DTensor)
    assert (state["row"].shape, state["row"].placements) == (factor.shape, factor.placements)
    assert not isinstance(state["plain"], DTensor)
    assert state["step"] == 1
    described = tensors._Described.of(factor, old)
    again = tensors._on_mesh(new, torch.ones(2), described.sharding)
    assert (again.shape, again.placements) == (factor.shape, factor.placements)
