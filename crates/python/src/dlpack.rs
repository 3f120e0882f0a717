//! Tensors that other libraries lend us and we lend them, by the DLPack interface of C.
//!
//! Invariants: what is lent lives until the borrower's last word, whatever becomes of
//! the buffer and its session, and until all is done that the device had been given by
//! then, however long it refuses to say so. A lender's deleter is called once: when nothing
//! queued with its memory runs any more, or at once if the tensor is refused. Of a capsule
//! that nobody took the memory is given back with the capsule.
//!
//! Elsewhere: which kinds of memory go where (`buffer`, `session`).

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, DeferredFrees, DeviceBuffer};
use fercuda_runtime::{Dtype, Layout, MAX_RANK};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyErr, ffi};

use crate::alive::{self, Kept};
use crate::errors;

/// What this speaks; of the first of the two another is refused.
pub(crate) const VERSION: (u32, u32) = (1, 0);

const PLAIN: &CStr = c"dltensor";
const PLAIN_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// Where a tensor's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Cpu,
    Cuda,
    CudaHost,
    CudaManaged,
}

impl Place {
    const ALL: [Self; 4] = [Self::Cpu, Self::Cuda, Self::CudaHost, Self::CudaManaged];

    /// DLPack's number of it.
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

    /// Whether the host reads it as it is.
    pub(crate) fn is_of_host(self) -> bool {
        self != Self::Cuda
    }

    /// Whether the device has a number.
    pub(crate) fn is_of_device(self) -> bool {
        matches!(self, Self::Cuda | Self::CudaManaged)
    }
}

#[repr(C)]
struct Tensor {
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
struct Managed {
    tensor: Tensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// (DLPack's code, bits) of each type.
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

/// Memory that is lent.
pub(crate) enum Lent {
    Device(DeviceBuffer<u8>),
    Host { _bytes: Vec<u8> },
}

/// What a borrower has until it says that it is done.
struct Owned(Lent);

impl Drop for Owned {
    fn drop(&mut self) {
        let nothing = Lent::Host { _bytes: Vec::new() };
        if let Lent::Device(memory) = std::mem::replace(&mut self.0, nothing) {
            Batch::add(memory);
        }
    }
}

/// Device memory of one context that borrowers are done with, though in which of their
/// streams they have used it nobody says, and those may be gone. So it goes when all is done
/// that the device was given before; a thread of ours waits for that, not the one in which a
/// tensor happens to be collected: that one may be who is to stop a kernel.
struct Batch {
    context: Context,
    all: Vec<Returned>,
    /// Its thread is in a call for the context.
    is_calling: bool,
}

struct Returned {
    /// First, as dropping the memory may count it in its turn.
    _parked: Option<DeferredFrees>,
    _memory: DeviceBuffer<u8>,
}

/// Those that have a thread.
#[derive(Default)]
struct Batches {
    all: Vec<Batch>,
    /// So many want no thread to begin a call.
    held: usize,
}

/// Between two attempts to wait for a context in which somebody captures.
const PAUSE: Duration = Duration::from_millis(10);
/// A thread stays so long for what comes next.
const LINGER: Duration = Duration::from_secs(1);
/// So long is waited for the calls of one, in a context that has failed.
const PATIENCE: Duration = Duration::from_secs(5);

static BATCHES: Mutex<Batches> = Mutex::new(Batches {
    all: Vec::new(),
    held: 0,
});
/// What there is, who calls, or how many hold them has changed.
static CHANGED: Condvar = Condvar::new();

impl Batch {
    fn add(memory: DeviceBuffer<u8>) {
        let context = memory.context().clone();
        // Else the program has let go of nothing.
        let is_free = memory.is_last();
        let returned = Returned {
            _parked: is_free.then(|| context.count_deferred_free(memory.len() as u64)),
            _memory: memory,
        };
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
        if thread.spawn(move || Self::look_after(&of, LINGER)).is_err() {
            Self::look_after(&context, Duration::ZERO);
        }
    }

    /// Until nothing has come for so long.
    fn look_after(context: &Context, linger: Duration) {
        while let Some(mut all) = Self::next(context, linger) {
            // If the context has failed nothing runs there.
            let is_refused = context
                .try_synchronize()
                .is_err_and(|error| error.is_refusal());
            if !is_refused {
                for it in all.drain(..) {
                    let end = || alive::end_without_python(it);
                    // What was thrown may throw again when it is dropped.
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
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// What there is to be given back, for which the calling thread may call the driver.
    fn next(context: &Context, linger: Duration) -> Option<Vec<Returned>> {
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
            let changed = CHANGED.wait_timeout(batches, left.max(PAUSE));
            batches = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// As long as this is there, what borrowers return stays, and no thread of ours calls the
/// driver for it.
pub(crate) struct Quiet(());

/// Waits until none calls for a context, but not for ever.
pub(crate) fn keep_quiet(context: &Context) -> Quiet {
    let mut batches = alive::lock(&BATCHES);
    batches.held += 1;
    let calls = |batches: &mut Batches| {
        let mut all = batches.all.iter();
        all.any(|it| it.is_calling && it.context == *context)
    };
    drop(CHANGED.wait_timeout_while(batches, PATIENCE, calls));
    Quiet(())
}

impl Drop for Quiet {
    fn drop(&mut self) {
        alive::lock(&BATCHES).held -= 1;
        CHANGED.notify_all();
    }
}

/// A tensor that is to be lent.
pub(crate) struct Loan {
    pub(crate) memory: Lent,
    /// Of its first element.
    pub(crate) address: u64,
    pub(crate) layout: Layout,
    pub(crate) place: Place,
    pub(crate) device: u32,
    pub(crate) is_copy: bool,
}

/// What a capsule's tensor is made of.
struct Owner<M> {
    managed: M,
    extents: [[i64; MAX_RANK]; 2],
    _memory: Kept<Owned>,
}

impl Loan {
    fn tensor(&self) -> Tensor {
        let (code, bits) = type_code(self.layout.dtype());
        Tensor {
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

    /// A capsule with it, which whoever takes it renames.
    ///
    /// # Errors
    /// Python's, of making a capsule.
    pub(crate) fn capsule(self, py: Python<'_>, is_versioned: bool) -> PyResult<Py<PyAny>> {
        let (tensor, extents) = (self.tensor(), self.extents());
        let flags = if self.is_copy { IS_COPIED } else { 0 };
        let memory = Kept::new(Owned(self.memory));
        let (raw, name): (*mut c_void, _) = if is_versioned {
            let owner = Box::leak(Box::new(Owner {
                managed: ManagedVersioned {
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
            let owner: *mut Owner<ManagedVersioned> = owner;
            // SAFETY: the box that was just made.
            unsafe { (*owner).managed.manager = owner.cast() };
            // SAFETY: as above.
            (unsafe { &raw mut (*owner).managed }.cast(), VERSIONED)
        } else {
            let owner = Box::leak(Box::new(Owner {
                managed: Managed {
                    tensor,
                    manager: ptr::null_mut(),
                    deleter: Some(end_plain),
                },
                extents,
                _memory: memory,
            }));
            owner.managed.tensor.shape = owner.extents[0].as_mut_ptr();
            owner.managed.tensor.strides = owner.extents[1].as_mut_ptr();
            let owner: *mut Owner<Managed> = owner;
            // SAFETY: the box that was just made.
            unsafe { (*owner).managed.manager = owner.cast() };
            // SAFETY: as above.
            (unsafe { &raw mut (*owner).managed }.cast(), PLAIN)
        };
        // SAFETY: not null, and the name is static; the destructor knows both.
        let capsule = unsafe { ffi::PyCapsule_New(raw, name.as_ptr(), Some(end_capsule)) };
        if capsule.is_null() {
            // SAFETY: nobody else has heard of it.
            unsafe { delete(raw, is_versioned) };
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a new reference, which is ours.
        Ok(unsafe { Bound::from_owned_ptr(py, capsule) }.unbind())
    }
}

unsafe extern "C" fn end_plain(managed: *mut Managed) {
    // SAFETY: `capsule` made it and the box around it, and a deleter is called once.
    let end = || drop(unsafe { Box::from_raw((*managed).manager.cast::<Owner<Managed>>()) });
    drop(catch_unwind(AssertUnwindSafe(end)));
}

unsafe extern "C" fn end_versioned(managed: *mut ManagedVersioned) {
    let end = || {
        // SAFETY: `capsule` made it and the box around it, and a deleter is called once.
        drop(unsafe { Box::from_raw((*managed).manager.cast::<Owner<ManagedVersioned>>()) });
    };
    drop(catch_unwind(AssertUnwindSafe(end)));
}

/// Calls the deleter of a tensor, which need not have one.
///
/// # Safety
/// `raw` is such a tensor, and not used after this.
unsafe fn delete(raw: *mut c_void, is_versioned: bool) {
    if is_versioned {
        let managed = raw.cast::<ManagedVersioned>();
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
        }
    } else {
        let managed = raw.cast::<Managed>();
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
        }
    }
}

/// The destructor of our capsules.
unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    for (name, is_versioned) in [(PLAIN, false), (VERSIONED, true)] {
        // SAFETY: Python gives the capsule; under this name nobody took the tensor.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
                let raw = ffi::PyCapsule_GetPointer(capsule, name.as_ptr());
                delete(raw, is_versioned);
            }
        }
    }
}

/// A tensor that somebody lends us, until this is dropped, in whatever thread.
pub(crate) struct Borrowed {
    raw: *mut c_void,
    is_versioned: bool,
    pub(crate) address: u64,
    pub(crate) layout: Layout,
    pub(crate) place: Place,
    pub(crate) device: u32,
    pub(crate) is_read_only: bool,
}

// SAFETY: DLPack lets a deleter be called in any thread; of the rest nothing is a
// thread's.
unsafe impl Send for Borrowed {}
// SAFETY: shared, it is only read.
unsafe impl Sync for Borrowed {}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let (raw, is_versioned) = (Raw(self.raw), self.is_versioned);
        // A lender's deleter may be one of Python's objects.
        alive::with_python(move |_| {
            let raw = raw;
            // SAFETY: it was taken from its capsule, and this is its one end.
            unsafe { delete(raw.0, is_versioned) };
        });
    }
}

struct Raw(*mut c_void);

impl Borrowed {
    /// Its elements' bytes, side by side, of a tensor that the host can read.
    pub(crate) fn gather(&self) -> Vec<u8> {
        let size = self.layout.dtype().bytes() as usize;
        let count = self.layout.len();
        let mut bytes = Vec::with_capacity(self.layout.bytes() as usize);
        let mut at = vec![0u64; self.layout.shape().len()];
        let base: *const u8 = ptr::with_exposed_provenance(self.address as usize);
        if self.layout.is_contiguous() {
            if count == 0 {
                return bytes;
            }
            // SAFETY: the lender's promise: so many elements lie there.
            return unsafe { std::slice::from_raw_parts(base, size * count as usize) }.to_vec();
        }
        for _ in 0..count {
            let offset = at.iter().zip(self.layout.strides());
            let offset: i64 = offset.map(|(at, stride)| *at as i64 * stride).sum();
            // SAFETY: the lender's promise: an element lies there.
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
        bytes
    }
}

/// Asks an object for its tensor. `stream` is what its memory is to be ready in, if it
/// is a device's.
///
/// # Errors
/// `DtypeError` if it has none, or one of a type that we have not; `LayoutError` for
/// a layout that there cannot be; what the object raises.
pub(crate) fn borrow(object: &Bound<'_, PyAny>, stream: usize) -> PyResult<Borrowed> {
    let py = object.py();
    let asked = object.getattr("__dlpack_device__");
    let asked = asked.map_err(|_| {
        let class = object.get_type();
        errors::dtype(
            py,
            format!("{class} has no __dlpack_device__\ntry: an array that speaks DLPack, or upload of its bytes"),
        )
    })?;
    // A number or an enumerator of one.
    let (code, device): (Bound<'_, PyAny>, i64) = asked.call0()?.extract()?;
    let code: c_int = code
        .call_method0("__int__")
        .or_else(|_| code.getattr("value"))?
        .extract()?;
    let Some(place) = Place::of_code(code) else {
        return Err(errors::layout(
            py,
            format!(
                "memory of DLPack's device type {code} is not the host's (1), CUDA's (2, 13) or pinned (3)\n\
                 try: a copy of it on one of these"
            ),
        ));
    };
    let keywords = PyDict::new(py);
    if place.is_of_device() {
        keywords.set_item("stream", stream)?;
    }
    let ask = object.getattr("__dlpack__")?;
    keywords.set_item("max_version", VERSION)?;
    let capsule = match ask.call((), Some(&keywords)) {
        // Who speaks an older version knows no versions.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
            keywords.del_item("max_version")?;
            ask.call((), Some(&keywords))?
        }
        answer => answer?,
    };
    take(&capsule, device)
}

/// Takes the tensor out of a capsule.
fn take(capsule: &Bound<'_, PyAny>, device: i64) -> PyResult<Borrowed> {
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
        // SAFETY: as above; it is not null, since it is valid.
        let raw = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) };
        let flags = if is_versioned {
            // SAFETY: what the name says.
            let managed = unsafe { &*raw.cast::<ManagedVersioned>() };
            if managed.major != VERSION.0 {
                // Not taken: the capsule's destructor gives it back.
                return Err(errors::layout(
                    py,
                    format!(
                        "a tensor of DLPack {}.{}, and {}.{} is spoken here\ntry: a version of its library of the same first number",
                        managed.major, managed.minor, VERSION.0, VERSION.1
                    ),
                ));
            }
            managed.flags
        } else {
            0
        };
        // SAFETY: as above, and it was not taken before.
        let tensor = unsafe {
            match is_versioned {
                true => &(*raw.cast::<ManagedVersioned>()).tensor,
                false => &(*raw.cast::<Managed>()).tensor,
            }
        };
        let (layout, place) = read(py, tensor)?;
        let address = tensor.data.expose_provenance() as u64 + tensor.byte_offset;
        // SAFETY: as above; who renames it owns the tensor.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
            return Err(PyErr::fetch(py));
        }
        return Ok(Borrowed {
            raw,
            is_versioned,
            address,
            layout,
            place,
            device: u32::try_from(device).unwrap_or(0),
            is_read_only: flags & READ_ONLY != 0,
        });
    }
    Err(errors::layout(
        py,
        "__dlpack__ gave no capsule with a tensor, or one that was taken\ntry: to ask again; each is good once",
    ))
}

fn read(py: Python<'_>, tensor: &Tensor) -> PyResult<(Layout, Place)> {
    let (code, bits, lanes) = (tensor.code, tensor.bits, tensor.lanes);
    let dtype = of_type_code(code, bits).filter(|_| lanes == 1);
    let dtype = dtype.ok_or_else(|| {
        errors::dtype(
            py,
            format!("no dtype here is DLPack's {bits} bits of code {code} in {lanes} lanes\ntry: a cast to one that is"),
        )
    })?;
    let rank = usize::try_from(tensor.rank).unwrap_or(usize::MAX);
    if rank > MAX_RANK {
        return Err(errors::layout(
            py,
            format!("{rank} dimensions are more than the {MAX_RANK} there can be\ntry: reshape it"),
        ));
    }
    let extents = |from: *const i64| match rank {
        0 => &[][..],
        // SAFETY: DLPack's promise: as many as there are dimensions.
        rank => unsafe { std::slice::from_raw_parts(from, rank) },
    };
    let shape: Result<Vec<u64>, _> = extents(tensor.shape)
        .iter()
        .map(|len| u64::try_from(*len))
        .collect();
    let shape = shape.map_err(|_| errors::layout(py, "a dimension of a negative length"))?;
    let layout = match tensor.strides.is_null() {
        true => Layout::contiguous(dtype, &shape),
        false => Layout::strided(dtype, &shape, extents(tensor.strides)),
    };
    let layout = layout.map_err(|error| errors::layout(py, error))?;
    let place = Place::of_code(tensor.device_type);
    Ok((
        layout,
        place.ok_or_else(|| errors::layout(py, "memory of an unknown kind"))?,
    ))
}
