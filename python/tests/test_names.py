"""Every name of the package that documents show, used as they do.

`DOCUMENTED` is the list; a name without a use below fails, and so does a use without a name.
"""

import importlib
import os
import sys

import numpy as np
import pytest
from conftest import SCALE, run_script

from fercuda_runtime import RuntimeConfig, RuntimeSession, errors
from fercuda_runtime.scripting_api.ignition import IgnitionPlan, TensorSpec, ignite

# Names, from the package on, with the modules that are imported by name.
DOCUMENTED = {
    "scripting_api": ["RuntimeSession", "RuntimeConfig"],
    "scripting_api.ignition": ["TensorSpec", "IgnitionPlan", "ignite"],
    "runtime": ["telemetry"],
    "runtime.telemetry": ["telemetry", "interception"],
    "guest_hooks": ["hf_hook", "TritonKernel"],
    "guest_hooks.hf_hook": ["hf_hook"],
    "inference": ["load", "generate", "stream_generate", "GgufAdapter", "SafetensorsAdapter", "Tokenizer"],
    "platform": ["doctor"],
    "execution_contract": [
        "tensor",
        "jit_intent",
        "jit_launch",
        "resident_daemon",
        "framework_allocator",
        "rust_ferrite_torch",
        "ABI_VERSION",
    ],
}
ALL = [f"{module}:{name}" for module, names in DOCUMENTED.items() for name in names]
USES = {}


def use(*names):
    """Registers the use of a documented name."""

    def register(function):
        for name in names:
            assert name not in USES, name
            USES[name] = function
        return function

    return register


@pytest.mark.parametrize("name", ALL)
def test_a_documented_name_works_as_shown(name, runtime):
    module, attribute = name.split(":")
    found = importlib.import_module(f"fercuda_runtime.{module}")
    assert found.__name__ == f"fercuda_runtime.{module}"
    value = getattr(found, attribute, None)
    USES[name](value, runtime)


def test_each_use_is_of_a_documented_name():
    assert set(USES) == set(ALL)


@use("scripting_api:RuntimeSession")
def sessions_need_no_name(kind, runtime):
    with kind() as first, kind(runtime=runtime) as second, kind(limit_bytes="1MiB") as third:
        names = {it.name for it in (first, second, third)}
        assert len(names) == 3
        assert second.telemetry().sessions == (second.name,)
        buffer = third.alloc((256,), "f32")
        buffer.fill_bytes(0)
        assert not buffer.numpy().any()
        with pytest.raises(errors.LimitError):
            third.alloc((1 << 20,), "f32")
    # A name that the program has taken is passed over.
    number = int(third.name.removeprefix("session")) + 1
    with kind(f"session{number}", runtime=runtime) as taken, kind(runtime=runtime) as after:
        assert taken.name != after.name == f"session{number + 1}"


@use("scripting_api:RuntimeConfig")
def devices_are_selected(kind, runtime):
    config = kind(device=0)
    assert config.open().device == 0
    with RuntimeSession(config=config) as session:
        assert session.device == 0


@use("scripting_api.ignition:TensorSpec")
def tensors_are_described(kind, _):
    plain = kind(rank=1, dims=(64,))
    assert (plain.rank, plain.dims, plain.shape, plain.dtype, plain.name) == (1, (64,), (64,), "f32", None)
    assert plain == kind(None, (64,)) == kind(dims=[64]) != kind("x", (64,))
    assert hash(plain) == hash(kind(dims=(64,)))
    assert kind("x", (2, 3), "u8", 1, 4).steps() == (1, 4) and kind("x", (2, 3)).rank == 2
    assert kind(rank=0, dims=()).shape == ()
    assert kind(rank=2, dims=(8, 8), dtype="bf16", name="kv", first_step=1, end_step=3).name == "kv"
    for wrong in (
        {"rank": 2, "dims": (64,)},
        {"rank": 1},
        {"rank": 0, "shape": (1,)},
        {"shape": (1,), "dims": (1,)},
        {},
    ):
        with pytest.raises(errors.PlanError, match="try:"):
            kind(**wrong)


@use("scripting_api.ignition:IgnitionPlan")
def plans_take_a_tuple_and_passes(kind, _):
    plan = kind(tensors=(TensorSpec(rank=1, dims=(64,)),), warmup_passes=1)
    assert plan.warmup_passes == 1 and plan.arena_bytes >= 256
    (tensor, offset), = plan.tensors
    assert (tensor.name, tensor.shape, offset) == ("tensor0", (64,), 0)
    # The saved text has the tensors alone; `from_json` takes the number of passes again.
    again = kind.from_json(plan.to_json(), warmup_passes=2)
    assert again.tensors == plan.tensors and again.warmup_passes == 2
    assert kind.from_json(plan.to_json()).warmup_passes == kind([]).warmup_passes == 0
    mixed = kind([TensorSpec("tensor1", (4,)), TensorSpec(dims=(5,)), TensorSpec(dims=(6,))])
    assert [it.name for it, _ in mixed.tensors] == ["tensor1", "tensor1_", "tensor2"]
    with pytest.raises(errors.PlanError, match="warmup_passes is -1"):
        kind(tensors=(), warmup_passes=-1)


@use("scripting_api.ignition:ignite")
def regions_are_ignited_and_closed(function, runtime):
    with RuntimeSession(runtime=runtime) as session:
        plan = IgnitionPlan(tensors=(TensorSpec(rank=1, dims=(64,)), TensorSpec("y", (3, 5))), warmup_passes=1)
        region = function(session, plan)
        assert list(region) == ["tensor0", "y"] and region[0].shape == (64,) and region[-1].shape == (3, 5)
        assert not region[0].numpy().any() and not region["y"].numpy().any(), "written by the pass"
        values = np.arange(64, dtype=np.float32)
        region["tensor0"].upload(values)
        assert (region[0].numpy() == values).all()
        with pytest.raises(KeyError):
            region["z"]
        with pytest.raises(IndexError):
            region[2]
        assert session.held_bytes >= plan.arena_bytes
        region.close()
        region.close()
        with pytest.raises(errors.StaleHandleError):
            region[0].numpy()
        session.synchronize()
        assert session.held_bytes == 0
        # Without a close it ends with its last reference.
        region = function(session, IgnitionPlan([TensorSpec(dims=(64,))]))
        del region
        session.synchronize()
        assert session.held_bytes == 0
        with function(session, IgnitionPlan([], warmup_passes=3)) as empty:
            assert not empty


@use("runtime:telemetry", "runtime.telemetry:telemetry")
def telemetry_counts_what_tenants_hold(function, runtime):
    with RuntimeSession(runtime=runtime) as session:
        kept = session.alloc((1 << 10,), "f32")
        assert function(runtime).held_bytes(session.name) >= kept.nbytes


@use("runtime.telemetry:interception")
def calls_are_counted(function, runtime):
    with RuntimeSession(runtime=runtime) as session:
        before = function()
        kept = session.alloc((1 << 20,), "u8")
        after = function()
        # With the device's checks on, blocks come from the driver, so that it knows their bounds.
        held = [it.live_bytes + it.governed_bytes for it in (before, after)]
        assert held[1] >= held[0] + kept.nbytes and after.fallbacks == 0
        del kept
    run_script(
        """
        from fercuda_runtime import RuntimeSession
        from fercuda_runtime.runtime import interception
        with RuntimeSession() as session:
            before = interception()
            kept = session.alloc((1 << 20,), "u8")
            after = interception()
            assert after.allocations > before.allocations and after.live_bytes >= 1 << 20 <= after.peak_bytes
            del kept
            session.synchronize()
            assert interception().frees > before.frees and interception().live_bytes == 0
        """,
        env={"FERCUDA_SOFT_CHECK": "0"},
    )
    run_script(
        """
        from fercuda_runtime import RuntimeSession, errors
        from fercuda_runtime.runtime import interception
        session = RuntimeSession()
        try:
            interception()
        except errors.ConfigError as error:
            assert "try:" in str(error)
        else:
            raise SystemExit("no error was raised")
        """,
        env={"FERCUDA_DISABLE": "1"},
    )


@use("guest_hooks:hf_hook", "guest_hooks.hf_hook:hf_hook")
def transformers_is_prepared(function, _):
    assert callable(function)
    run_script(
        """
        import os, sys, types
        for name in list(os.environ):
            if name.startswith("PYTORCH"):
                del os.environ[name]
        from fercuda_runtime import errors
        from fercuda_runtime.guest_hooks import hf_hook
        done = hf_hook()
        assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "backend:cudaMallocAsync"
        assert done.on_import == ("transformers",) and not done.late
        finders = len(sys.meta_path)
        for name in ("torch", "transformers"):
            sys.modules[name] = types.ModuleType(name)
        before = dict(os.environ)
        done = hf_hook()
        assert done.late == ("torch",) and not done.set and dict(os.environ) == before
        assert len(sys.meta_path) == finders, "one finder is enough"
        """
    )


@use("guest_hooks:TritonKernel")
def tritons_kernels_have_a_type(kind, runtime):
    from fercuda_runtime.guest_hooks import open_triton

    with RuntimeSession(runtime=runtime) as session, pytest.raises(errors.TritonError):
        open_triton(session, os.devnull)
    assert callable(kind.launch) and callable(kind.open) and callable(kind.load)


@use("inference:load", "inference:generate", "inference:stream_generate", "inference:Tokenizer")
def models_generate(function, runtime):
    # `test_inference` has what they do; here the package alone is imported.
    run_script(
        """
        import tempfile
        from fercuda_runtime.inference import Tokenizer, generate, load, random_model, stream_generate
        with tempfile.TemporaryDirectory() as folder, load(random_model(folder + "/tiny.gguf")) as model:
            whole = generate(model, "Hello", max_tokens=4)
            assert isinstance(model.tokenizer, Tokenizer) and len(whole.tokens) == 4
            assert "".join(stream_generate(model, "Hello", max_tokens=4)) == whole
        """,
        env={"FERCUDA_SOFT_CHECK": "0"},
    )


@use("inference:GgufAdapter", "inference:SafetensorsAdapter")
def adapters_open_their_own_format_alone(kind, _):
    with pytest.raises(errors.ModelError, match="cannot open"):
        kind(os.devnull + ".gguf")


@use("platform:doctor")
def the_machine_is_described(function, _):
    assert any(driver.devices for driver in function().drivers)


def entry(name, runtime):
    from fercuda_runtime import execution_contract

    found = execution_contract.Entrypoint(name)
    assert execution_contract.require(name, (1,)).name == name
    with pytest.raises(errors.ContractError):
        execution_contract.is_served(name + "s")
    return execution_contract.is_served(found)


@use("execution_contract:tensor")
def tensors_are_served(_, runtime):
    assert entry("tensor", runtime)
    with RuntimeSession(runtime=runtime) as session:
        assert session.alloc((2, 3)).shape == (2, 3)


@use("execution_contract:jit_intent")
def expressions_are_served(_, runtime):
    assert entry("jit_intent", runtime)
    with RuntimeSession(runtime=runtime) as session:
        x = session.alloc((4,), "f32")
        x.upload(np.arange(4, dtype=np.float32))
        assert session.evaluate("x * 2 + 1", x=x)["out"].numpy().tolist() == [1, 3, 5, 7]


@use("execution_contract:jit_launch")
def launches_are_served(_, runtime):
    assert entry("jit_launch", runtime)
    with RuntimeSession(runtime=runtime) as session:
        x = session.alloc((4,), "f32")
        x.upload(np.arange(4, dtype=np.float32))
        session.launch(session.load(SCALE).function("scale"), 1, 32, [x, 3.0, 4, 0])
        assert x.numpy().tolist() == [0, 3, 6, 9]


@use("execution_contract:resident_daemon")
def tasks_are_served(_, runtime):
    assert entry("resident_daemon", runtime)
    with RuntimeSession(runtime=runtime) as session:
        x = session.alloc((64,), "f32")
        with session.dispatcher([x]) as dispatcher:
            dispatcher.fill(x, 1.5).wait(timeout=60)
        assert (x.numpy() == 1.5).all()


@use("execution_contract:framework_allocator")
def frameworks_are_served_under_the_hook(_, runtime):
    from fercuda_runtime import guest_hooks

    assert entry("framework_allocator", runtime) == guest_hooks.is_hooked()


@use("execution_contract:rust_ferrite_torch")
def frontends_have_entry_points(_, __):
    from fercuda_runtime.execution_contract import Entrypoint, Frontend, entrypoint

    assert entrypoint("rust_ferrite_torch") is Entrypoint.FRAMEWORK_ALLOCATOR
    for name in ("c", "cpp", "python", "rust"):
        assert entrypoint(name) is entrypoint(Frontend(name)) is Entrypoint.TENSOR
    with pytest.raises(errors.ContractError, match="rust_ferrite_torch"):
        entrypoint("fortran")


@use("execution_contract:ABI_VERSION")
def the_version_has_two_numbers(value, _):
    assert value == (1, 4)


def test_modules_that_have_a_function_of_their_name_are_both():
    import fercuda_runtime.guest_hooks.hf_hook
    import fercuda_runtime.runtime.telemetry
    from fercuda_runtime.runtime.telemetry import Telemetry

    assert isinstance(fercuda_runtime.runtime.telemetry(RuntimeConfig().open()), Telemetry)
    assert callable(fercuda_runtime.guest_hooks.hf_hook)
    assert "fercuda_runtime.runtime.telemetry" in sys.modules
