//! DLPack exchange of tensors with other libraries, in both directions, by its C interface.
//!
//! Invariants: lent memory lives until the borrower's deleter call, whatever happens to the
//! buffer and its session, and until all work that the device had by then is done, however long
//! the driver refuses to report that. A lender's deleter is called once: when no queued work
//! uses its memory any more, or at once if the tensor is rejected. The memory of an unconsumed
//! capsule is freed with the capsule.
//!
//! Elsewhere: which kinds of memory go where (`buffer`, `session`).

use std::collections::TryReserveError;
use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, DeferredFrees, DeviceAddr, DeviceBuffer};
use fercuda_runtime::{Dtype, Layout, MAX_RANK};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyErr, ffi};

use crate::alive::{self, DetachedDrop};
use crate::errors;

/// The supported version; tensors of another major version are rejected.
pub(crate) const VERSION: (u32, u32) = (1, 0);

const PLAIN: &CStr = c"dltensor";
const PLAIN_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// The kind of memory of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorDevice {
    Cpu,
    Cuda,
    CudaHost,
    CudaManaged,
}

impl TensorDevice {
    const ALL: [Self; 4] = [Self::Cpu, Self::Cuda, Self::CudaHost, Self::CudaManaged];

    /// DLPack's device type.
    pub(crate) fn code(self) -> c_int {
        match self {
            Self::Cpu => 1,
            Self::Cuda => 2,
            Self::CudaHost => 3,
            Self::CudaManaged => 13,
        }
    }

    pub(crate) fn of_code(code: c_int) -> Option<Self> {
        Self::ALL.into_iter().find(|place| place.code() == code)
    }

    /// Whether the host can read it directly.
    pub(crate) fn is_of_host(self) -> bool {
        self != Self::Cuda
    }

    /// Whether it belongs to a numbered device.
    pub(crate) fn is_of_device(self) -> bool {
        matches!(self, Self::Cuda | Self::CudaManaged)
    }
}

#[repr(C)]
pub(crate) struct DlTensor {
    data: *mut c_void,
    device_type: c_int,
    device_id: c_int,
    rank: c_int,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlManagedTensor {
    tensor: DlTensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

#[repr(C)]
pub(crate) struct DlManagedTensorVersioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

impl DlTensor {
    /// One to be filled in by a library.
    pub(crate) fn empty() -> Self {
        Self {
            data: ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            rank: 0,
            code: 0,
            bits: 0,
            lanes: 1,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        }
    }

    /// What a library is to allocate on a device, in row-major order.
    pub(crate) fn prototype(dtype: Dtype, shape: &mut [i64], device: c_int) -> Self {
        let (code, bits) = type_code(dtype);
        Self {
            device_type: TensorDevice::Cuda.code(),
            device_id: device,
            rank: shape.len() as c_int,
            code,
            bits,
            shape: shape.as_mut_ptr(),
            ..Self::empty()
        }
    }

    /// Address of its first element.
    pub(crate) fn address(&self) -> u64 {
        self.data.expose_provenance() as u64 + self.byte_offset
    }

    pub(crate) fn device_id(&self) -> c_int {
        self.device_id
    }
}

impl DlManagedTensorVersioned {
    pub(crate) fn tensor(&self) -> &DlTensor {
        &self.tensor
    }

    pub(crate) fn is_of_version(&self, major: u32) -> bool {
        self.major == major
    }

    /// Whether what is written to it reaches the array that it is of.
    pub(crate) fn is_written_through(&self) -> bool {
        self.flags & (READ_ONLY | IS_COPIED) == 0
    }
}

/// (DLPack's type code, bits) of each type.
fn type_code(dtype: Dtype) -> (u8, u8) {
    let code = match dtype {
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => 0,
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => 1,
        Dtype::F64 | Dtype::F32 | Dtype::F16 => 2,
        Dtype::Bf16 => 4,
        Dtype::Bool => 6,
        Dtype::F8E4m3 => 10,
        Dtype::F8E5m2 => 12,
    };
    (code, (dtype.bytes() * 8) as u8)
}

fn of_type_code(code: u8, bits: u8) -> Option<Dtype> {
    let mut all = Dtype::ALL.into_iter();
    all.find(|dtype| type_code(*dtype) == (code, bits))
}

/// Memory lent to a borrower.
pub(crate) enum LentMemory {
    Device(DeviceBuffer<u8>),
    Host { _bytes: Vec<u8> },
}

/// A borrower's share of the memory until its deleter call.
struct LentMemoryOwner(LentMemory);

impl Drop for LentMemoryOwner {
    fn drop(&mut self) {
        let nothing = LentMemory::Host { _bytes: Vec::new() };
        if let LentMemory::Device(memory) = std::mem::replace(&mut self.0, nothing) {
            ReturnBatch::add(memory);
        }
    }
}

/// Device memory of one context that borrowers have returned. It is unknown in which of their
/// streams they have used it, and those streams may be gone. So it is freed once all work that
/// the device had before is done. One of our threads waits for that, not the thread that happens
/// to collect a tensor, which may be the one that must stop a kernel.
struct ReturnBatch {
    context: Context,
    all: Vec<ReturnedMemory>,
    /// Its thread is in a driver call for the context.
    is_calling: bool,
}

struct ReturnedMemory {
    /// First, as dropping the memory may count it again.
    _parked: Option<DeferredFrees>,
    /// Memory of ours, or tensors of other libraries.
    _memory: Box<dyn Send>,
}

/// Returns tensors that work of a context uses, once all that it has queued by now is done. No
/// order of a stream would do: a library may use the memory again in another stream than the one
/// that it names, and the host may write what it can reach.
pub(crate) fn return_behind(context: &Context, tensors: Vec<BorrowedTensor>) {
    if !tensors.is_empty() {
        let returned = ReturnedMemory {
            _parked: None,
            _memory: Box::new(tensors),
        };
        ReturnBatch::add_to(context.clone(), returned);
    }
}

/// The batches that have a thread.
#[derive(Default)]
struct ReturnBatches {
    all: Vec<ReturnBatch>,
    /// Number of guards that prevent threads from starting a driver call.
    held: usize,
}

/// Interval between attempts to synchronise a context in which a capture runs.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// How long an idle thread waits for more memory.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for a running driver call, in a context that has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

static BATCHES: Mutex<ReturnBatches> = Mutex::new(ReturnBatches {
    all: Vec::new(),
    held: 0,
});
/// Notified when memory, a driver call or a guard is added or removed.
static CHANGED: Condvar = Condvar::new();

impl ReturnBatch {
    fn add(memory: DeviceBuffer<u8>) {
        let context = memory.context().clone();
        // Otherwise other owners remain, and nothing is freed.
        let is_free = memory.is_last();
        let returned = ReturnedMemory {
            _parked: is_free.then(|| context.count_deferred_free(memory.len() as u64)),
            _memory: Box::new(memory),
        };
        Self::add_to(context, returned);
    }

    fn add_to(context: Context, returned: ReturnedMemory) {
        let mut batches = alive::lock(&BATCHES);
        if let Some(batch) = batches.all.iter_mut().find(|it| it.context == context) {
            batch.all.push(returned);
            CHANGED.notify_all();
            return;
        }
        batches.all.push(Self {
            context: context.clone(),
            all: vec![returned],
            is_calling: false,
        });
        drop(batches);
        let thread = std::thread::Builder::new().name("fercuda-lent".into());
        let of = context.clone();
        if thread
            .spawn(move || Self::drain(&of, IDLE_TIMEOUT))
            .is_err()
        {
            Self::drain(&context, Duration::ZERO);
        }
    }

    /// Frees returned memory until none has arrived for `linger`.
    fn drain(context: &Context, linger: Duration) {
        while let Some(mut all) = Self::next(context, linger) {
            // If the context has failed, nothing runs there.
            let is_refused = context
                .try_synchronize()
                .is_err_and(|error| error.is_refusal());
            if !is_refused {
                for it in all.drain(..) {
                    let end = || alive::end_without_python(it);
                    // Dropping the panic payload could panic again.
                    std::mem::forget(catch_unwind(AssertUnwindSafe(end)));
                }
            }
            let mut batches = alive::lock(&BATCHES);
            if let Some(batch) = batches.all.iter_mut().find(|it| it.context == *context) {
                batch.is_calling = false;
                batch.all.append(&mut all);
            }
            drop(batches);
            CHANGED.notify_all();
            if is_refused {
                std::thread::sleep(RETRY_INTERVAL);
            }
        }
    }

    /// Memory to be freed; the calling thread may call the driver for it.
    fn next(context: &Context, linger: Duration) -> Option<Vec<ReturnedMemory>> {
        let began = Instant::now();
        let mut batches = alive::lock(&BATCHES);
        loop {
            let is_held = batches.held > 0;
            let at = batches.all.iter().position(|it| it.context == *context)?;
            let batch = &mut batches.all[at];
            if !is_held && !batch.all.is_empty() {
                batch.is_calling = true;
                return Some(std::mem::take(&mut batch.all));
            }
            let left = linger.saturating_sub(began.elapsed());
            if left.is_zero() && batch.all.is_empty() {
                batches.all.swap_remove(at);
                return None;
            }
            let changed = CHANGED.wait_timeout(batches, left.max(RETRY_INTERVAL));
            batches = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// While this guard lives, returned memory is kept, and none of our threads calls the driver for
/// it.
pub(crate) struct PausedReturns(());

/// Waits until no thread calls the driver for a context, up to a time limit.
pub(crate) fn pause_returns(context: &Context) -> PausedReturns {
    let mut batches = alive::lock(&BATCHES);
    batches.held += 1;
    let calls = |batches: &mut ReturnBatches| {
        let mut all = batches.all.iter();
        all.any(|it| it.is_calling && it.context == *context)
    };
    drop(CHANGED.wait_timeout_while(batches, CALL_TIMEOUT, calls));
    PausedReturns(())
}

impl Drop for PausedReturns {
    fn drop(&mut self) {
        alive::lock(&BATCHES).held -= 1;
        CHANGED.notify_all();
    }
}

/// A tensor to be lent.
pub(crate) struct TensorLoan {
    pub(crate) memory: LentMemory,
    /// Address of its first element.
    pub(crate) address: u64,
    pub(crate) layout: Layout,
    pub(crate) place: TensorDevice,
    pub(crate) device: u32,
    pub(crate) is_copy: bool,
}

/// The contents of a capsule.
struct CapsuleOwner<M> {
    managed: M,
    extents: [[i64; MAX_RANK]; 2],
    _memory: DetachedDrop<LentMemoryOwner>,
}

impl TensorLoan {
    fn tensor(&self) -> DlTensor {
        let (code, bits) = type_code(self.layout.dtype());
        DlTensor {
            data: ptr::with_exposed_provenance_mut(self.address as usize),
            device_type: self.place.code(),
            device_id: self.device as c_int,
            rank: self.layout.shape().len() as c_int,
            code,
            bits,
            lanes: 1,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        }
    }

    fn extents(&self) -> [[i64; MAX_RANK]; 2] {
        let mut extents = [[0; MAX_RANK]; 2];
        for (at, len) in self.layout.shape().iter().enumerate() {
            // A layout's extents fit into 63 bits.
            extents[0][at] = *len as i64;
            extents[1][at] = self.layout.strides()[at];
        }
        extents
    }

    /// A capsule with the tensor; the consumer renames it.
    ///
    /// # Errors
    /// Python's, of making a capsule.
    pub(crate) fn capsule(self, py: Python<'_>, is_versioned: bool) -> PyResult<Py<PyAny>> {
        let (tensor, extents) = (self.tensor(), self.extents());
        let flags = if self.is_copy { IS_COPIED } else { 0 };
        let memory = DetachedDrop::new(LentMemoryOwner(self.memory));
        let (raw, name): (*mut c_void, _) = if is_versioned {
            let owner = Box::leak(Box::new(CapsuleOwner {
                managed: DlManagedTensorVersioned {
                    major: VERSION.0,
                    minor: VERSION.1,
                    manager: ptr::null_mut(),
                    deleter: Some(end_versioned),
                    flags,
                    tensor,
                },
                extents,
                _memory: memory,
            }));
            owner.managed.tensor.shape = owner.extents[0].as_mut_ptr();
            owner.managed.tensor.strides = owner.extents[1].as_mut_ptr();
            let owner: *mut CapsuleOwner<DlManagedTensorVersioned> = owner;
            // SAFETY: the box was just made.
            unsafe { (*owner).managed.manager = owner.cast() };
            // SAFETY: as above.
            (unsafe { &raw mut (*owner).managed }.cast(), VERSIONED)
        } else {
            let owner = Box::leak(Box::new(CapsuleOwner {
                managed: DlManagedTensor {
                    tensor,
                    manager: ptr::null_mut(),
                    deleter: Some(end_plain),
                },
                extents,
                _memory: memory,
            }));
            owner.managed.tensor.shape = owner.extents[0].as_mut_ptr();
            owner.managed.tensor.strides = owner.extents[1].as_mut_ptr();
            let owner: *mut CapsuleOwner<DlManagedTensor> = owner;
            // SAFETY: the box was just made.
            unsafe { (*owner).managed.manager = owner.cast() };
            // SAFETY: as above.
            (unsafe { &raw mut (*owner).managed }.cast(), PLAIN)
        };
        // SAFETY: not null, and the name is static; the destructor handles both names.
        let capsule = unsafe { ffi::PyCapsule_New(raw, name.as_ptr(), Some(end_capsule)) };
        if capsule.is_null() {
            // SAFETY: nothing else has the pointer yet.
            unsafe { delete(raw, is_versioned) };
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a new reference, which we own.
        Ok(unsafe { Bound::from_owned_ptr(py, capsule) }.unbind())
    }
}

unsafe extern "C" fn end_plain(managed: *mut DlManagedTensor) {
    let end = || {
        type Owner = CapsuleOwner<DlManagedTensor>;
        // SAFETY: `capsule` made it and the box around it, and a deleter is called once.
        drop(unsafe { Box::from_raw((*managed).manager.cast::<Owner>()) });
    };
    drop(catch_unwind(AssertUnwindSafe(end)));
}

unsafe extern "C" fn end_versioned(managed: *mut DlManagedTensorVersioned) {
    let end = || {
        // SAFETY: `capsule` made it and the box around it, and a deleter is called once.
        drop(unsafe {
            Box::from_raw(
                (*managed)
                    .manager
                    .cast::<CapsuleOwner<DlManagedTensorVersioned>>(),
            )
        });
    };
    drop(catch_unwind(AssertUnwindSafe(end)));
}

/// Calls a tensor's deleter, if it has one.
///
/// # Safety
/// `raw` is such a tensor, and not used after this.
pub(crate) unsafe fn delete(raw: *mut c_void, is_versioned: bool) {
    if is_versioned {
        let managed = raw.cast::<DlManagedTensorVersioned>();
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
        }
    } else {
        let managed = raw.cast::<DlManagedTensor>();
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
        }
    }
}

/// Destructor of our capsules.
unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    for (name, is_versioned) in [(PLAIN, false), (VERSIONED, true)] {
        // SAFETY: Python passes the capsule; under this name the tensor was not consumed.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
                let raw = ffi::PyCapsule_GetPointer(capsule, name.as_ptr());
                delete(raw, is_versioned);
            }
        }
    }
}

/// A library's memory of a layout as a buffer, and the offset of its first element there.
///
/// # Errors
/// An address of 0.
///
/// # Safety
/// The memory covers the layout, and stays until the work that is queued with the buffer is done.
pub(crate) unsafe fn memory_of(
    context: &Context,
    address: u64,
    layout: &Layout,
) -> fercuda_runtime::Result<(DeviceBuffer<u8>, u64)> {
    let reach = layout.reach_bytes();
    let first = reach.start.unsigned_abs();
    let bytes = usize::try_from(reach.end - reach.start).unwrap_or(usize::MAX);
    let begin = DeviceAddr(address.saturating_sub(first));
    // SAFETY: the caller's promise.
    let memory = unsafe { DeviceBuffer::borrowed(context, begin, bytes) }?;
    Ok((memory, first))
}

/// A borrowed tensor, returned when this is dropped, in any thread.
pub(crate) struct BorrowedTensor {
    raw: *mut c_void,
    is_versioned: bool,
    pub(crate) address: u64,
    pub(crate) layout: Layout,
    pub(crate) place: TensorDevice,
    pub(crate) device: u32,
    pub(crate) is_read_only: bool,
    /// Whether the library made a copy for the loan.
    pub(crate) is_copy: bool,
}

// SAFETY: DLPack allows a deleter to be called in any thread; the rest is not tied to a
// thread.
unsafe impl Send for BorrowedTensor {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for BorrowedTensor {}

impl Drop for BorrowedTensor {
    fn drop(&mut self) {
        let (raw, is_versioned) = (DlPointer(self.raw), self.is_versioned);
        // The deleter may be a Python object.
        alive::with_python(move |_| {
            let raw = raw;
            // SAFETY: it was consumed from its capsule, and this is its only deleter call.
            unsafe { delete(raw.0, is_versioned) };
        });
    }
}

struct DlPointer(*mut c_void);

impl BorrowedTensor {
    /// The bytes of a host-readable tensor's elements, in order.
    ///
    /// # Errors
    /// So many bytes cannot be had: by strides of 0 a tensor may have more elements than memory.
    pub(crate) fn gather(&self) -> Result<Vec<u8>, TryReserveError> {
        let size = self.layout.dtype().bytes() as usize;
        let count = self.layout.len();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(self.layout.bytes()).unwrap_or(usize::MAX))?;
        let mut at = vec![0u64; self.layout.shape().len()];
        let base: *const u8 = ptr::with_exposed_provenance(self.address as usize);
        if self.layout.is_contiguous() {
            if count > 0 {
                // SAFETY: the lender guarantees that so many elements are there.
                let all = unsafe { std::slice::from_raw_parts(base, size * count as usize) };
                bytes.extend_from_slice(all);
            }
            return Ok(bytes);
        }
        for _ in 0..count {
            let offset = at.iter().zip(self.layout.strides());
            let offset: i64 = offset.map(|(at, stride)| *at as i64 * stride).sum();
            // SAFETY: the lender guarantees that an element is there.
            let element = unsafe {
                std::slice::from_raw_parts(base.offset(offset as isize * size as isize), size)
            };
            bytes.extend_from_slice(element);
            for (at, len) in at.iter_mut().zip(self.layout.shape()).rev() {
                *at += 1;
                if *at < *len {
                    break;
                }
                *at = 0;
            }
        }
        Ok(bytes)
    }
}

/// Kind of memory and device of an object's tensor, without importing it.
///
/// # Errors
/// `DtypeError` if it has none; `LayoutError` for another kind of memory; exceptions of the object.
pub(crate) fn place_of(object: &Bound<'_, PyAny>) -> PyResult<(TensorDevice, i64)> {
    let py = object.py();
    let asked = object.getattr("__dlpack_device__");
    let asked = asked.map_err(|_| {
        let class = object.get_type();
        errors::dtype(
            py,
            format!("{class} has no __dlpack_device__\ntry: an array that supports DLPack, or upload() of its bytes"),
        )
    })?;
    // An integer, or an enumerator with an integer value.
    let (code, device): (Bound<'_, PyAny>, i64) = asked.call0()?.extract()?;
    let code: c_int = code
        .call_method0("__int__")
        .or_else(|_| code.getattr("value"))?
        .extract()?;
    match TensorDevice::of_code(code) {
        Some(place) => Ok((place, device)),
        None => Err(errors::layout(
            py,
            format!(
                "DLPack device type {code} is not host (1), CUDA (2, 13) or pinned (3) memory\n\
                 try: a copy in one of these"
            ),
        )),
    }
}

/// Imports an object's tensor. `stream` is the stream in which device memory must be ready; -1 if
/// the caller orders the work.
///
/// # Errors
/// Those of [`place_of`]; `DtypeError` for an unknown type; `LayoutError` for an invalid layout.
pub(crate) fn borrow(object: &Bound<'_, PyAny>, stream: i64) -> PyResult<BorrowedTensor> {
    let py = object.py();
    let (place, device) = place_of(object)?;
    let keywords = PyDict::new(py);
    if place.is_of_device() {
        keywords.set_item("stream", stream)?;
    }
    let ask = object.getattr("__dlpack__")?;
    keywords.set_item("max_version", VERSION)?;
    let capsule = match ask.call((), Some(&keywords)) {
        // Objects with an older DLPack do not know `max_version`.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
            keywords.del_item("max_version")?;
            ask.call((), Some(&keywords))?
        }
        answer => answer?,
    };
    take(&capsule, device)
}

/// Consumes the tensor in a capsule.
fn take(capsule: &Bound<'_, PyAny>, device: i64) -> PyResult<BorrowedTensor> {
    let py = capsule.py();
    let names = [
        (PLAIN, PLAIN_USED, false),
        (VERSIONED, VERSIONED_USED, true),
    ];
    for (name, used, is_versioned) in names {
        // SAFETY: a live object, and a static name.
        if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } == 0 {
            continue;
        }
        // SAFETY: as above; it is not null, since the capsule is valid.
        let raw = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) };
        let flags = if is_versioned {
            // SAFETY: the name identifies the type.
            let managed = unsafe { &*raw.cast::<DlManagedTensorVersioned>() };
            if managed.major != VERSION.0 {
                // Not consumed: the capsule's destructor returns it.
                return Err(errors::layout(
                    py,
                    format!(
                        "the tensor has DLPack version {}.{}, but {}.{} is supported\ntry: a version of its library with the same major DLPack version",
                        managed.major, managed.minor, VERSION.0, VERSION.1
                    ),
                ));
            }
            managed.flags
        } else {
            0
        };
        // SAFETY: as above, and it was not consumed before.
        let tensor = unsafe {
            match is_versioned {
                true => &(*raw.cast::<DlManagedTensorVersioned>()).tensor,
                false => &(*raw.cast::<DlManagedTensor>()).tensor,
            }
        };
        let (layout, place) = read(py, tensor)?;
        let address = tensor.address();
        // SAFETY: as above; renaming the capsule transfers the tensor.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
            return Err(PyErr::fetch(py));
        }
        return Ok(BorrowedTensor {
            raw,
            is_versioned,
            address,
            layout,
            place,
            device: u32::try_from(device).unwrap_or(0),
            is_read_only: flags & READ_ONLY != 0,
            is_copy: flags & IS_COPIED != 0,
        });
    }
    Err(errors::layout(
        py,
        "__dlpack__ returned no capsule, or a consumed one\ntry: call __dlpack__ again; each capsule can be consumed once",
    ))
}

/// Layout and kind of memory of a tensor.
///
/// # Errors
/// `DtypeError` for an unknown type; `LayoutError` for an invalid layout.
pub(crate) fn read(py: Python<'_>, tensor: &DlTensor) -> PyResult<(Layout, TensorDevice)> {
    let (code, bits, lanes) = (tensor.code, tensor.bits, tensor.lanes);
    let dtype = of_type_code(code, bits).filter(|_| lanes == 1);
    let dtype = dtype.ok_or_else(|| {
        errors::dtype(
            py,
            format!("unsupported DLPack type: code {code}, {bits} bits, {lanes} lanes\ntry: a cast to a supported dtype"),
        )
    })?;
    let rank = usize::try_from(tensor.rank).unwrap_or(usize::MAX);
    if rank > MAX_RANK {
        return Err(errors::layout(
            py,
            format!("{rank} dimensions; the maximum is {MAX_RANK}\ntry: reshape it"),
        ));
    }
    if rank > 0 && tensor.shape.is_null() {
        let text = format!("{rank} dimensions without their lengths\ntry: another array");
        return Err(errors::layout(py, text));
    }
    let extents = |from: *const i64| match rank {
        0 => &[][..],
        // SAFETY: DLPack guarantees as many entries as there are dimensions.
        rank => unsafe { std::slice::from_raw_parts(from, rank) },
    };
    let shape: Result<Vec<u64>, _> = extents(tensor.shape)
        .iter()
        .map(|len| u64::try_from(*len))
        .collect();
    let shape = shape.map_err(|_| errors::layout(py, "a dimension has a negative length"))?;
    let layout = match tensor.strides.is_null() {
        true => Layout::contiguous(dtype, &shape),
        false => Layout::strided(dtype, &shape, extents(tensor.strides)),
    };
    let layout = layout.map_err(|error| errors::layout(py, error))?;
    if tensor.data.is_null() && !layout.is_empty() {
        let text = format!(
            "{} elements at no address\ntry: another array",
            layout.len()
        );
        return Err(errors::layout(py, text));
    }
    let place = TensorDevice::of_code(tensor.device_type);
    Ok((
        layout,
        place.ok_or_else(|| errors::layout(py, "unknown kind of memory"))?,
    ))
}
