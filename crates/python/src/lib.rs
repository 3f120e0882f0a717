//! Python bindings of the runtime: the extension module `fercuda_runtime._fercuda`.
//!
//! Here are classes that own device resources and call the runtime; what needs no device is
//! Python, in `python/src`. The library's file name identifies it as ours: by that, other
//! libraries of ours find the interface of the process.
//!
//! Invariants: nothing waits while holding the GIL (`errors::run`); no device resource is used
//! after its process may no longer use it (`alive`); errors are exceptions with numeric
//! attributes (`errors`). Elsewhere: docstrings and types (`python/src`, the stubs).

mod alive;
mod allocator;
mod arguments;
mod buffer;
mod dispatcher;
mod dlpack;
mod engine_thread;
mod errors;
mod exceptions;
mod exchange;
mod expression;
mod extents;
mod graphs;
mod host;
mod html;
mod inference_errors;
mod interrupt;
mod job;
mod kernels;
mod language_model;
mod model_source;
mod numpy;
mod op_devices;
mod op_failure;
mod op_operands;
mod op_parameters;
mod ops;
mod plan;
mod probe;
mod raised;
mod requests;
mod session;
mod signature;
mod stream;
mod text_embedder;
mod text_tokens;
mod triton;
mod vram;

use pyo3::prelude::*;

/// For `atexit`.
#[pyfunction]
fn end(py: Python<'_>) {
    alive::end(py);
}

#[pymodule]
fn _fercuda(module: &Bound<'_, PyModule>) -> PyResult<()> {
    alive::begin();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DLPACK_VERSION", dlpack::VERSION)?;
    module.add_class::<session::PyRuntime>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<requests::PyRequests>()?;
    module.add_class::<buffer::PyBuffer>()?;
    module.add_class::<job::PyJob>()?;
    module.add_class::<graphs::PyGraphs>()?;
    module.add_class::<graphs::PyGraphKey>()?;
    module.add_class::<graphs::PyGraphRecord>()?;
    module.add_class::<graphs::PyGraphStatistics>()?;
    module.add_class::<graphs::PyGraphTimes>()?;
    module.add_class::<graphs::PyCapture>()?;
    module.add_class::<arguments::PyArgumentBlock>()?;
    module.add_class::<dispatcher::PyDispatcher>()?;
    module.add_class::<dispatcher::PyDispatchStatistics>()?;
    module.add_class::<dispatcher::PyTicket>()?;
    module.add_class::<kernels::PyModule>()?;
    module.add_class::<kernels::PyFunction>()?;
    module.add_class::<kernels::PyScalar>()?;
    module.add_class::<triton::PyTritonKernel>()?;
    module.add_class::<plan::PyPlan>()?;
    module.add_class::<vram::PyVramFile>()?;
    module.add_class::<model_source::PyModelFiles>()?;
    module.add_class::<language_model::PyLanguageModel>()?;
    module.add_class::<language_model::PyTokenStream>()?;
    module.add_class::<text_embedder::PyTextEmbedder>()?;
    module.add_class::<text_tokens::PyTokenizer>()?;
    module.add_class::<ops::PyOpPlan>()?;
    module.add_function(wrap_pyfunction!(ops::run_op, module)?)?;
    module.add_function(wrap_pyfunction!(ops::plan_op, module)?)?;
    module.add_function(wrap_pyfunction!(ops::op_plan_counters, module)?)?;
    module.add_function(wrap_pyfunction!(ops::clear_op_plans, module)?)?;
    module.add_function(wrap_pyfunction!(ops::default_op_session, module)?)?;
    module.add_function(wrap_pyfunction!(op_parameters::op_names, module)?)?;
    module.add_function(wrap_pyfunction!(op_parameters::op_row, module)?)?;
    module.add_function(wrap_pyfunction!(probe::drivers, module)?)?;
    module.add_function(wrap_pyfunction!(probe::nvrtc, module)?)?;
    module.add_function(wrap_pyfunction!(probe::is_hooked, module)?)?;
    module.add_function(wrap_pyfunction!(probe::intercepted, module)?)?;
    module.add_function(wrap_pyfunction!(probe::interface_version, module)?)?;
    module.add_function(wrap_pyfunction!(model_source::write_random_model, module)?)?;
    module.add_function(wrap_pyfunction!(end, module)?)
}
