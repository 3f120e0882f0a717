//! Ops over arrays of one other library, in its current stream and with its memory, by DLPack's
//! table of C functions (`__dlpack_c_exchange_api__`, DLPack 1.3): nothing is exported or ordered
//! between streams, which costs more than a small op.
//!
//! Invariants: what this path cannot do, it leaves to the path by capsules before anything is
//! queued or written: arrays of several libraries, without such a table, on the host, of several
//! devices, empty, or with gradients. Operands outlive the call, and their library keeps the
//! memory of what it drops for the work that is in its stream by then. Elsewhere: capsules
//! (`dlpack`), buffers and foreign arrays of all kinds (`op_operands`).

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};

use fercuda_cuda::sys::types::CUstream;
use fercuda_cuda::{Context, DeviceBuffer, Stream};
use fercuda_jit::BoundArg;
use fercuda_ops::{OpPlan, OpRow};
use fercuda_runtime::{Dtype, Layout};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use pyo3::{ffi, intern};

use crate::alive::lock;
use crate::dlpack::{self, DlManagedTensorVersioned, DlTensor, TensorDevice};
use crate::op_devices::{self, OpContext, PlanKey};
use crate::op_failure::{OpFailure, detached};
use crate::op_parameters::OpArguments;
use crate::{errors, stream};

/// Name of the capsule with the table.
const CAPSULE: &CStr = c"dlpack_exchange_api";
/// Major version of the tables that are known.
const MAJOR: u32 = 1;
/// Most types that are remembered.
const MOST_KNOWN: usize = 64;
/// Alignment of a plan's workspace.
const ALIGN: u64 = 16;

#[repr(C)]
struct ExchangeHeader {
    major: u32,
    minor: u32,
    previous: Option<&'static ExchangeHeader>,
}

type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

/// A library's functions. They return 0, or another number with an exception or an error set.
#[repr(C)]
struct ExchangeTable {
    header: ExchangeHeader,
    allocate: Option<
        unsafe extern "C" fn(
            *mut DlTensor,
            *mut *mut DlManagedTensorVersioned,
            *mut c_void,
            SetError,
        ) -> c_int,
    >,
    export: Option<unsafe extern "C" fn(*mut c_void, *mut *mut DlManagedTensorVersioned) -> c_int>,
    import: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned, *mut *mut c_void) -> c_int>,
    view: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

/// A type with its table. It is kept, so that no other type gets its address.
struct KnownType {
    table: Option<&'static ExchangeTable>,
    _class: Py<PyType>,
}

/// By the address of the type.
static TYPES: Mutex<Option<HashMap<usize, KnownType>>> = Mutex::new(None);

/// The table of an object's type.
fn table_of(object: &Bound<'_, PyAny>) -> Option<&'static ExchangeTable> {
    let class = object.get_type();
    let key = class.as_ptr() as usize;
    if let Some(known) = lock(&TYPES).get_or_insert_default().get(&key) {
        return known.table;
    }
    let table = table_of_type(&class);
    let known = KnownType {
        table,
        _class: class.unbind(),
    };
    // What is forgotten is dropped without the lock, as a class may run Python when it goes.
    // Classes are few; a program that makes many has them looked at again.
    let forgotten = {
        let mut types = lock(&TYPES);
        let types = types.get_or_insert_default();
        let all = match types.len() >= MOST_KNOWN {
            true => std::mem::take(types),
            false => HashMap::new(),
        };
        (all, types.insert(key, known))
    };
    drop(forgotten);
    table
}

fn table_of_type(class: &Bound<'_, PyType>) -> Option<&'static ExchangeTable> {
    let py = class.py();
    let capsule = class
        .getattr(intern!(py, "__dlpack_c_exchange_api__"))
        .ok()?;
    // SAFETY: a live object and a static name.
    let raw = unsafe {
        match ffi::PyCapsule_IsValid(capsule.as_ptr(), CAPSULE.as_ptr()) {
            1 => ffi::PyCapsule_GetPointer(capsule.as_ptr(), CAPSULE.as_ptr()),
            _ => return None,
        }
    };
    // SAFETY: DLPack has a header at the beginning of every table, and tables are never freed.
    let mut header: &'static ExchangeHeader = unsafe { raw.cast::<ExchangeHeader>().as_ref() }?;
    // A table of a newer major version may name the one before.
    for _ in 0..8 {
        if header.major == MAJOR {
            // SAFETY: as above; the major version determines the functions.
            return Some(unsafe { &*ptr::from_ref(header).cast::<ExchangeTable>() });
        }
        header = header.previous?;
    }
    None
}

/// An array of the library.
struct ViewedArray {
    address: u64,
    layout: Layout,
    device: i32,
}

impl ViewedArray {
    fn of(py: Python<'_>, tensor: &DlTensor) -> Option<Self> {
        let (layout, place) = dlpack::read(py, tensor).ok()?;
        let is_usable = place == TensorDevice::Cuda && !layout.is_empty();
        is_usable.then(|| Self {
            address: tensor.address(),
            layout,
            device: tensor.device_id(),
        })
    }

    /// An operand; nothing if the library refuses or it has gradients.
    fn read(table: &ExchangeTable, object: &Bound<'_, PyAny>) -> Option<Self> {
        let py = object.py();
        let view = table.view?;
        if has_gradient(object) {
            return None;
        }
        let mut tensor = DlTensor::empty();
        // SAFETY: the object's type has this table, and `tensor` outlives the call.
        if unsafe { view(object.as_ptr().cast(), &raw mut tensor) } != 0 {
            drop(PyErr::take(py));
            return None;
        }
        Self::of(py, &tensor)
    }

    /// An output, unless it is read-only or lent as a copy.
    fn written(table: &ExchangeTable, object: &Bound<'_, PyAny>) -> Option<Self> {
        let py = object.py();
        if has_gradient(object) {
            return None;
        }
        let export = table.export?;
        let mut raw = ptr::null_mut();
        // SAFETY: as in `read`.
        if unsafe { export(object.as_ptr().cast(), &raw mut raw) } != 0 {
            drop(PyErr::take(py));
            return None;
        }
        let exported = OwnedTensor::of(raw)?;
        let managed = exported.managed();
        let is_known = managed.is_of_version(MAJOR) && managed.is_written_through();
        // The caller's reference keeps the memory.
        is_known.then(|| Self::of(py, managed.tensor())).flatten()
    }

    /// Its memory as a buffer, and the offset of its first element.
    fn memory(&self, context: &Context) -> Result<(DeviceBuffer<u8>, u64), OpFailure> {
        // SAFETY: the library's array covers its layout. The caller's reference keeps it during the
        // call, and what the library drops later it keeps for the work in its stream.
        let memory = unsafe { dlpack::memory_of(context, self.address, &self.layout) };
        Ok(memory?)
    }
}

/// Whether a library would record what is done with it, of which an op knows nothing.
fn has_gradient(object: &Bound<'_, PyAny>) -> bool {
    let asked = object.getattr(intern!(object.py(), "requires_grad"));
    asked.is_ok_and(|it| it.is_truthy().unwrap_or(true))
}

/// A tensor that the library made for us.
struct OwnedTensor(ptr::NonNull<DlManagedTensorVersioned>);

impl OwnedTensor {
    fn of(raw: *mut DlManagedTensorVersioned) -> Option<Self> {
        ptr::NonNull::new(raw).map(Self)
    }

    fn managed(&self) -> &DlManagedTensorVersioned {
        // SAFETY: the library made it, and it is deleted when this is dropped.
        unsafe { self.0.as_ref() }
    }

    /// Memory of the library for that type and shape, in order.
    fn allocate(
        py: Python<'_>,
        table: &ExchangeTable,
        layout: &Layout,
        device: i32,
    ) -> Option<Self> {
        let allocate = table.allocate?;
        unsafe extern "C" fn ignore(_: *mut c_void, _: *const c_char, _: *const c_char) {}
        let mut shape: Vec<i64> = layout.shape().iter().map(|len| *len as i64).collect();
        let mut prototype = DlTensor::prototype(layout.dtype(), &mut shape, device);
        let mut raw = ptr::null_mut();
        // SAFETY: prototype and shape outlive the call, which reads them.
        let answer = unsafe { allocate(&raw mut prototype, &raw mut raw, ptr::null_mut(), ignore) };
        if answer != 0 {
            drop(PyErr::take(py));
            return None;
        }
        Self::of(raw)
    }

    /// The library's own array of it.
    fn into_array(self, py: Python<'_>, table: &ExchangeTable) -> PyResult<Py<PyAny>> {
        let Some(import) = table.import else {
            return Err(errors::layout(
                py,
                "the library imports no tensors\ntry: out=",
            ));
        };
        let mut array = ptr::null_mut();
        // The call takes it, whether it succeeds or not.
        let raw = std::mem::ManuallyDrop::new(self).0.as_ptr();
        // SAFETY: the library's own tensor, which is not used after this.
        if unsafe { import(raw, &raw mut array) } != 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a new reference.
        Ok(unsafe { Bound::from_owned_ptr_or_err(py, array.cast())? }.unbind())
    }
}

impl Drop for OwnedTensor {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and is not used after this.
        unsafe { dlpack::delete(self.0.as_ptr().cast(), true) };
    }
}

/// The library's current stream.
fn current_stream(
    py: Python<'_>,
    table: &ExchangeTable,
    context: &Context,
    device: i32,
) -> Option<Stream> {
    let current = table.current_stream?;
    let mut raw = ptr::null_mut();
    // SAFETY: `raw` outlives the call.
    let answer = unsafe { current(TensorDevice::Cuda.code(), device, &raw mut raw) };
    if answer != 0 {
        drop(PyErr::take(py));
        return None;
    }
    match raw as usize {
        0 | 1 => Some(context.legacy_stream()),
        // That of this thread, while the plan may be run in another one.
        2 => None,
        // SAFETY: it is the library's current stream, so it exists during the call.
        _ => Some(unsafe { Stream::foreign(context, CUstream(raw)) }),
    }
}

/// Memory of a call: operands, outputs, workspace.
struct ExchangedCall {
    operands: Vec<ViewedArray>,
    outputs: Vec<ViewedArray>,
    workspace: Option<ViewedArray>,
}

impl ExchangedCall {
    fn run(&self, plan: &Arc<OpPlan>, stream: &Stream) -> Result<(), OpFailure> {
        let of = |arrays: &[ViewedArray]| {
            let all = arrays.iter().map(|it| it.memory(stream.context()));
            all.collect::<Result<Vec<_>, _>>()
        };
        let (operands, outputs) = (of(&self.operands)?, of(&self.outputs)?);
        let workspace = of(self.workspace.as_slice())?;
        let is_captured = stream.is_captured_by_any();
        if is_captured.map_err(fercuda_runtime::Error::from)? {
            // The graph has the addresses of the plan's code, and nothing says when it ends.
            std::mem::forget(Arc::clone(plan));
        }
        let workspace = bound(&workspace).first().copied();
        plan.run(stream, &bound(&operands), &bound(&outputs), workspace)?;
        Ok(())
    }
}

/// A plan's workspace of the library's memory.
fn scratch_of(
    py: Python<'_>,
    table: &ExchangeTable,
    bytes: u64,
    device: i32,
) -> Option<(OwnedTensor, ViewedArray)> {
    let layout = Layout::contiguous(Dtype::U8, &[bytes]).ok()?;
    let tensor = OwnedTensor::allocate(py, table, &layout, device)?;
    let array = ViewedArray::of(py, tensor.managed().tensor())?;
    let is_aligned = array.address.is_multiple_of(ALIGN);
    is_aligned.then_some((tensor, array))
}

fn bound(all: &[(DeviceBuffer<u8>, u64)]) -> Vec<BoundArg<'_>> {
    let bound = all.iter();
    bound
        .map(|(memory, first)| BoundArg::of(memory).first_at(*first))
        .collect()
}

/// Runs an op over arrays of one library, if all are, in its current stream. `None`: nothing was
/// queued, and the path by capsules may do it.
///
/// # Errors
/// `OpError` and the others of an op that is refused.
pub(crate) fn run<'py>(
    py: Python<'py>,
    row: &'static OpRow,
    arguments: &OpArguments<'py>,
    out: &[Bound<'py, PyAny>],
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let mut arrays = arguments.operands.iter().chain(out);
    let Some(table) = arrays.next().and_then(table_of) else {
        return Ok(None);
    };
    // Without one of them nothing may be queued.
    if table.import.is_none() {
        return Ok(None);
    }
    if !arrays.all(|it| table_of(it).is_some_and(|other| ptr::eq(other, table))) {
        return Ok(None);
    }
    let operands = arguments.operands.iter();
    let operands: Option<Vec<_>> = operands.map(|it| ViewedArray::read(table, it)).collect();
    let given = out.iter().map(|it| ViewedArray::written(table, it));
    let (Some(operands), Some(given)) = (operands, given.collect::<Option<Vec<_>>>()) else {
        return Ok(None);
    };
    let Some(device) = operands.iter().chain(&given).map(|it| it.device).next() else {
        return Ok(None);
    };
    let all_there = |all: &[ViewedArray]| all.iter().all(|it| it.device == device);
    let Ok(ordinal) = u32::try_from(device) else {
        return Ok(None);
    };
    if !all_there(&operands) || !all_there(&given) {
        return Ok(None);
    }
    let session = errors::run(py, || op_devices::default_session(ordinal))?;
    let context = session.stream().context();
    // Memory of another driver, such as a GPU's beside the software device.
    let is_known = |it: &ViewedArray| stream::check_address(context, it.address).is_ok();
    if context.device().is_software().unwrap_or(true)
        && !operands.iter().chain(&given).all(is_known)
    {
        return Ok(None);
    }
    let Some(stream) = current_stream(py, table, context, device) else {
        return Ok(None);
    };
    let layouts = |all: &[ViewedArray]| all.iter().map(|it| it.layout).collect::<Vec<_>>();
    let operand_layouts = layouts(&operands);
    let op = arguments.describe(row, &operand_layouts, false);
    let key = PlanKey {
        op: op.map_err(|error| errors::op(py, row.name, &error))?,
        operands: operand_layouts,
        outputs: layouts(&given),
        sku: None,
    };
    let plan = detached(py, row, || Ok(OpContext::of(context)?.plan(key)?))?;
    let mut made = Vec::new();
    let mut outputs = given;
    if out.is_empty() {
        for layout in plan.outputs() {
            let Some(tensor) = OwnedTensor::allocate(py, table, layout, device) else {
                return Ok(None);
            };
            match ViewedArray::of(py, tensor.managed().tensor()) {
                Some(array) if array.layout == *layout => outputs.push(array),
                _ => return Ok(None),
            }
            made.push(tensor);
        }
    }
    // The tensor is dropped behind the run: the library keeps its memory for the work in its
    // stream.
    let (_scratch, workspace) = match plan.workspace_bytes() {
        0 => (None, None),
        bytes => match scratch_of(py, table, bytes, device) {
            Some((tensor, array)) => (Some(tensor), Some(array)),
            None => return Ok(None),
        },
    };
    let call = ExchangedCall {
        operands,
        outputs,
        workspace,
    };
    detached(py, row, || call.run(&plan, &stream))?;
    if !out.is_empty() {
        return PyTuple::new(py, out).map(Some);
    }
    let arrays = made.into_iter().map(|it| it.into_array(py, table));
    PyTuple::new(py, arrays.collect::<PyResult<Vec<_>>>()?).map(Some)
}
