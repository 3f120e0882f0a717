"""Plans, settings of other libraries, the doctor, the contract, and completeness of the stubs."""

import ast
import pathlib

import numpy as np
import pytest
from conftest import array_of, random_array, run_script, same

import fercuda_runtime
from fercuda_runtime import _fercuda, errors, execution_contract, guest_hooks, platform
from fercuda_runtime.runtime import telemetry
from fercuda_runtime.scripting_api import IgnitionPlan, TensorSpec, ignite


def random_specs(rng, count):
    specs = []
    for n in range(count):
        first = int(rng.integers(0, 10))
        shape = tuple(int(n) for n in rng.integers(1, 20, int(rng.integers(0, 4))))
        specs.append(TensorSpec(f"t{n}", shape, ["f32", "u8", "bf16"][n % 3], first, first + int(rng.integers(1, 5))))
    return specs


def test_tensors_needed_at_one_step_keep_their_values(session, rng):
    plan = IgnitionPlan(random_specs(rng, 20))
    saved = IgnitionPlan.from_json(plan.to_json())
    assert saved.tensors == plan.tensors and saved.arena_bytes == plan.arena_bytes
    before = session.held_bytes
    with ignite(session, plan) as region:
        assert session.held_bytes - before == -(-plan.arena_bytes // 512) * 512
        assert len(region) == 20 and list(region) == [f"t{n}" for n in range(20)]
        for step in range(15):
            alive = [spec for spec, _ in plan.tensors if spec.steps()[0] <= step < spec.steps()[1]]
            values = {spec.name: random_array(rng, "uint8", region[spec.name].nbytes) for spec in alive}
            for name, value in values.items():
                region[name].upload(value.tobytes())
            for name, value in values.items():
                assert region[name].download() == value.tobytes(), (step, name)
    assert session.held_bytes == before


def test_plans_that_cannot_be_are_refused(session):
    for specs in (
        [TensorSpec("a", (2,)), TensorSpec("a", (2,))],
        [TensorSpec("a", (2,), first_step=3, end_step=3)],
        [TensorSpec("a", (2**62, 2**62))],
    ):
        with pytest.raises(errors.PlanError):
            IgnitionPlan(specs)
    with pytest.raises(errors.DtypeError):
        IgnitionPlan([TensorSpec("a", (2,), "f33")])
    text = IgnitionPlan([TensorSpec("a", (2,)), TensorSpec("b", (2,))]).to_json()
    for wrong in ("", "{}", text.replace('"version": 1', '"version": 2'), text.replace("256", "0")):
        with pytest.raises(errors.PlanError):
            IgnitionPlan.from_json(wrong)


def test_telemetry_says_who_holds_what(session, other):
    kept = session.alloc((1000,), "f32"), other.alloc((2000,), "u8"), other.alloc((512,), "u8", regime="managed")
    figures = telemetry(session.runtime)
    assert figures.held_bytes("first") >= 4096 and figures.held_bytes("second") >= 2048 + 512
    assert set(figures.sessions) == {"first", "second"} and figures.is_governed
    assert 0 < figures.free_bytes <= figures.total_bytes
    assert len(kept) == 3


def test_the_doctor_finds_the_device_and_this_pythons_libraries():
    report = platform.doctor()
    assert report.version == fercuda_runtime.__version__
    drivers = {driver.name: driver for driver in report.drivers}
    assert set(drivers) == {"gpu", "soft"} and drivers["soft"].devices
    for driver in drivers.values():
        assert driver.devices or driver.why
    numpy = next(it for it in report.libraries if it.name == "numpy")
    assert numpy.version == np.__version__ and numpy.is_imported
    assert "fercuda_runtime" in str(report) and "soft" in str(report)


FAKES = """
import os, sys, pathlib, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
for name in ("torch", "jax"):
    (folder / f"{name}.py").write_text("")
(folder / "cupy.py").write_text('''
class cuda:
    allocator = None
    @staticmethod
    def set_allocator(it): cuda.allocator = it
    class MemoryAsyncPool:
        def malloc(self, size): return "async", size
''')
sys.path.insert(0, str(folder))
from fercuda_runtime import errors, guest_hooks
for name in list(os.environ):
    if name.startswith(("PYTORCH", "XLA")):
        del os.environ[name]
"""


def test_frameworks_are_configured_before_they_are_imported():
    run_script(
        FAKES
        + """
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
done = guest_hooks.activate(torch=True, jax=True, cupy=True)
assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == os.environ["PYTORCH_ALLOC_CONF"] == "backend:cudaMallocAsync"
assert os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] == "cuda_async"
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true", "the user's own"
assert done.kept == {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"} and len(done.set) == 3 and done.on_import == ("cupy",)
finders = len(sys.meta_path)
import cupy, jax, torch
assert cupy.cuda.allocator(5) == ("async", 5)
assert len(sys.meta_path) == finders - 1
assert not guest_hooks.is_hooked()
"""
    )


def test_under_the_hook_pytorch_keeps_its_allocator():
    run_script(
        FAKES
        + """
guest_hooks.activation.is_hooked = lambda: True
done = guest_hooks.activate(torch=True, jax=True)
assert not any("TORCH" in name for name in [*os.environ, *done.set]) and len(done.set) == 2
"""
    )


@pytest.mark.parametrize("name", ["torch", "jax", "cupy"])
def test_an_imported_framework_cannot_be_configured_any_more(name):
    run_script(
        FAKES
        + f"""
import {name}
before = dict(os.environ), list(sys.meta_path)
try:
    guest_hooks.activate(torch=True, jax=True, cupy=True)
except errors.ImportedError as error:
    assert error.framework == "{name}" and "try:" in str(error)
else:
    raise SystemExit("no error was raised")
assert (dict(os.environ), list(sys.meta_path)) == before
"""
    )


def test_jax_is_configured_after_its_import_until_it_uses_a_device():
    run_script(
        FAKES
        + """
import types
import jax
bridge = types.ModuleType("jax._src.xla_bridge")
bridge._backends = {}
sys.modules["jax._src.xla_bridge"] = bridge
done = guest_hooks.jax_hook()
assert os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] == "cuda_async" and len(done.set) == 2
bridge._backends["cuda"] = object()
before = dict(os.environ)
try:
    guest_hooks.jax_hook()
except errors.ImportedError as error:
    assert error.framework == "jax" and "try:" in str(error)
else:
    raise SystemExit("no error was raised")
assert dict(os.environ) == before
"""
    )


def test_nothing_is_activated_without_a_name():
    with pytest.raises(errors.ConfigError):
        guest_hooks.activate()


def test_the_contract_names_what_there_is():
    known = execution_contract.supported()
    assert {it.value for it in execution_contract.Entrypoint} <= set(known)
    assert execution_contract.require("dlpack", (1, 0)) == known["dlpack"]
    for name, version in (("dlpack", (2, 0)), ("cuda_array_interface", (2,)), ("nothing", (1,)), ("tensor", (1, 1))):
        with pytest.raises(errors.ContractError):
            execution_contract.require(name, version)


def test_the_stubs_have_what_the_module_has():
    stub = ast.parse(pathlib.Path(_fercuda.__file__).with_name("_fercuda.pyi").read_text())
    said = {node.name: node for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    public = {name for name in vars(_fercuda) if not name.startswith("_")} - {"DLPACK_VERSION"}
    assert public == {name for name in said if not name.startswith("_")}
    for name in public:
        if isinstance(said[name], ast.ClassDef):
            methods = {it.name for it in said[name].body if isinstance(it, ast.FunctionDef)}
            has = set(vars(getattr(_fercuda, name)))
            assert methods - {"__new__"} <= has, name
            hidden = {"__module__", "__doc__", "__new__", "__repr__", "__weakref__", "__dict__", "__length_hint__"}
            if "__eq__" in methods:
                # A C function has no separate signature per overload.
                hidden |= {"__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
            assert has - hidden - {"__delitem__", "__setitem__"} <= methods, name
            for it in said[name].body:
                if isinstance(it, ast.FunctionDef) and not it.name.startswith("__"):
                    assert ast.get_docstring(it), f"{name}.{it.name} has no docstring"


def test_importing_opens_no_device():
    run_script("import fercuda_runtime", env={"FERCUDA_DEVICE": "nonsense"})
    run_script(
        """
        from fercuda_runtime import RuntimeSession, errors
        try:
            RuntimeSession("x")
        except errors.ConfigError as error:
            assert "FERCUDA_DEVICE" in str(error)
        else:
            raise SystemExit("no error was raised")
        """,
        env={"FERCUDA_DEVICE": "nonsense"},
    )
    assert np.zeros(1) is not None
