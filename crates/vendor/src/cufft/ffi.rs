//! cuFFT's C interface, as far as it is called here, and the owner of a plan.
//!
//! Invariants: a plan is destroyed once, by its owner, and is changed and executed only under its
//! lock. Elsewhere: what memory has to be, which [`CheckedSignals`] vouches for.

use std::ffi::{c_int, c_longlong, c_void};
use std::path::Path;
use std::ptr::{NonNull, without_provenance_mut};
use std::sync::{Arc, Mutex, PoisonError};

use fercuda_cuda::sys::types::CUstream;
use fercuda_nvrtc::find::LibrarySearch;

use super::spec::{CheckedTransform, TransformDirection, TransformKind, TransformPrecision};
use crate::error::{Error, LibraryCallFailure, Result};
use crate::functions::library_functions;
use crate::library::{LibraryKind, OpenedLibrary};
use crate::version::LibraryVersion;

static KIND: LibraryKind = LibraryKind {
    name: "cuFFT",
    wanted: "libcufft.so.12 or libcufft.so.11 (cuFFT 11.0 or later, of CUDA 12 or 13)",
    advice: "`python3 -m pip install nvidia-cufft` in an active Python environment, or \
             FERCUDA_CUFFT=FILE, or FERCUDA_WHEELS=FOLDER with NVIDIA's wheels",
    search: LibrarySearch {
        variable: "FERCUDA_CUFFT",
        stem: "libcufft.so",
        loader_names: &["libcufft.so.12", "libcufft.so.11"],
    },
    oldest: LibraryVersion::new(11, 0, 0),
    version_symbol: "cufftGetVersion",
    version: version_at,
};

/// # Safety
/// The address is of `cufftResult cufftGetVersion(int *)`.
unsafe fn version_at(address: NonNull<c_void>) -> LibraryVersion {
    // SAFETY: the caller's contract.
    let version = unsafe {
        std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*mut c_int) -> c_int>(address)
    };
    let mut number: c_int = 0;
    // SAFETY: `number` outlives the call. Where it fails, the number stays 0, which is too old.
    let _status: c_int = unsafe { version(&mut number) };
    let number = number.unsigned_abs();
    LibraryVersion::new(number / 1000, number / 100 % 10, number % 100)
}

fn status_name(code: c_int) -> &'static str {
    match code {
        0x0 => "CUFFT_SUCCESS",
        0x1 => "CUFFT_INVALID_PLAN",
        0x2 => "CUFFT_ALLOC_FAILED",
        0x3 => "CUFFT_INVALID_TYPE",
        0x4 => "CUFFT_INVALID_VALUE",
        0x5 => "CUFFT_INTERNAL_ERROR",
        0x6 => "CUFFT_EXEC_FAILED",
        0x7 => "CUFFT_SETUP_FAILED",
        0x8 => "CUFFT_INVALID_SIZE",
        0x9 => "CUFFT_UNALIGNED_DATA",
        0xb => "CUFFT_INVALID_DEVICE",
        0xd => "CUFFT_NO_WORKSPACE",
        0xe => "CUFFT_NOT_IMPLEMENTED",
        0x10 => "CUFFT_NOT_SUPPORTED",
        _ => "an unknown status",
    }
}

const FORWARD: c_int = -1;
const INVERSE: c_int = 1;

/// `cufftType`.
fn transform_type(kind: TransformKind, precision: TransformPrecision) -> c_int {
    match (kind, precision) {
        (TransformKind::ComplexToComplex, TransformPrecision::F32) => 0x29,
        (TransformKind::RealToComplex, TransformPrecision::F32) => 0x2a,
        (TransformKind::ComplexToReal, TransformPrecision::F32) => 0x2c,
        (TransformKind::ComplexToComplex, TransformPrecision::F64) => 0x69,
        (TransformKind::RealToComplex, TransformPrecision::F64) => 0x6a,
        (TransformKind::ComplexToReal, TransformPrecision::F64) => 0x6c,
    }
}

type PlanHandle = c_int;

library_functions! {
    /// cuFFT's functions.
    FftFunctions, FftFunction {
        cufftCreate (5, 0) (plan: *mut PlanHandle) -> c_int;
        cufftDestroy (1, 0) (plan: PlanHandle) -> c_int;
        cufftSetAutoAllocation (5, 0) (plan: PlanHandle, allocate: c_int) -> c_int;
        cufftMakePlanMany64 (7, 5) (
            plan: PlanHandle, rank: c_int, lengths: *mut c_longlong,
            input_extents: *mut c_longlong, input_stride: c_longlong, input_distance: c_longlong,
            output_extents: *mut c_longlong, output_stride: c_longlong,
            output_distance: c_longlong, kind: c_int, batch: c_longlong, work_bytes: *mut usize,
        ) -> c_int;
        cufftSetWorkArea (5, 0) (plan: PlanHandle, work: *mut c_void) -> c_int;
        cufftSetStream (1, 0) (plan: PlanHandle, stream: *mut c_void) -> c_int;
        cufftExecC2C (1, 0) (
            plan: PlanHandle, input: *mut c_void, output: *mut c_void, direction: c_int,
        ) -> c_int;
        cufftExecR2C (1, 0) (plan: PlanHandle, input: *mut c_void, output: *mut c_void) -> c_int;
        cufftExecC2R (1, 0) (plan: PlanHandle, input: *mut c_void, output: *mut c_void) -> c_int;
        cufftExecZ2Z (3, 0) (
            plan: PlanHandle, input: *mut c_void, output: *mut c_void, direction: c_int,
        ) -> c_int;
        cufftExecD2Z (3, 0) (plan: PlanHandle, input: *mut c_void, output: *mut c_void) -> c_int;
        cufftExecZ2D (3, 0) (plan: PlanHandle, input: *mut c_void, output: *mut c_void) -> c_int;
    }
}

/// Opens the first usable library.
pub(super) fn find() -> Result<FftFunctions> {
    OpenedLibrary::find(&KIND).map(FftFunctions::new)
}

/// Opens the library in the file `path`.
///
/// # Safety
/// As for [`OpenedLibrary::open`].
pub(super) unsafe fn open(path: &Path) -> Result<FftFunctions> {
    // SAFETY: the caller's contract.
    unsafe { OpenedLibrary::open(&KIND, path) }.map(FftFunctions::new)
}

/// Turns a status into a result.
fn check(code: c_int, call: &'static str, doing: impl FnOnce() -> String) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(Error::Call(Box::new(LibraryCallFailure {
        library: KIND.name,
        call,
        code,
        status: status_name(code),
        doing: doing(),
    })))
}

/// Memory of one execution: at least as long as the plan's sides reach, aligned to complex values,
/// apart from each other or the same, and a work area as large as the plan's.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedSignals {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) work: u64,
}

/// A plan, destroyed when this is dropped.
#[derive(Debug)]
pub(super) struct FftPlan {
    functions: Arc<FftFunctions>,
    raw: PlanHandle,
    kind: TransformKind,
    precision: TransformPrecision,
    work_bytes: usize,
    /// Held while the plan is changed and executed.
    lock: Mutex<()>,
}

impl FftPlan {
    /// Makes a plan in the calling thread's current context, which allocates its tables there.
    pub(super) fn make(
        functions: &Arc<FftFunctions>,
        (kind, precision): (TransformKind, TransformPrecision),
        transform: &CheckedTransform,
        doing: impl Fn() -> String,
    ) -> Result<Self> {
        let mut raw: PlanHandle = 0;
        // SAFETY: `raw` outlives the call.
        let code = unsafe { functions.cufftCreate(&mut raw)? };
        check(code, "cufftCreate", &doing)?;
        let mut plan = Self {
            functions: functions.clone(),
            raw,
            kind,
            precision,
            work_bytes: 0,
            lock: Mutex::new(()),
        };
        // SAFETY: the plan was created, and nothing was made of it yet.
        let code = unsafe { functions.cufftSetAutoAllocation(raw, 0)? };
        check(code, "cufftSetAutoAllocation", &doing)?;
        let mut lengths = transform.lengths.clone();
        let (input, output) = (&transform.input, &transform.output);
        let (mut input_extents, mut output_extents) =
            (input.extents.clone(), output.extents.clone());
        // SAFETY: the plan was created; the three arrays have `rank` elements each, and outlive the
        // call as `work_bytes` does.
        let code = unsafe {
            functions.cufftMakePlanMany64(
                raw,
                lengths.len() as c_int,
                lengths.as_mut_ptr(),
                input_extents.as_mut_ptr(),
                input.stride,
                input.distance,
                output_extents.as_mut_ptr(),
                output.stride,
                output.distance,
                transform_type(kind, precision),
                transform.batch,
                &mut plan.work_bytes,
            )?
        };
        check(code, "cufftMakePlanMany64", &doing)?;
        Ok(plan)
    }

    /// Bytes of work area that an execution needs.
    pub(super) fn work_bytes(&self) -> u64 {
        self.work_bytes as u64
    }

    /// Queues an execution in `stream`. The caller has noted the memory there.
    pub(super) fn execute(
        &self,
        stream: CUstream,
        direction: TransformDirection,
        signals: CheckedSignals,
    ) -> Result<()> {
        let functions = &self.functions;
        let pointer = |address: u64| without_provenance_mut::<c_void>(address as usize);
        let (input, output) = (pointer(signals.input), pointer(signals.output));
        let direction = match direction {
            TransformDirection::Forward => FORWARD,
            TransformDirection::Inverse => INVERSE,
        };
        let doing = || "queue a transform".to_owned();
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the plan is alive, and no other thread uses it, as the lock is held.
        let code = unsafe { functions.cufftSetStream(self.raw, stream.0)? };
        check(code, "cufftSetStream", doing)?;
        if self.work_bytes > 0 {
            // SAFETY: as above; the work area is as large as the plan asked for.
            let code = unsafe { functions.cufftSetWorkArea(self.raw, pointer(signals.work))? };
            check(code, "cufftSetWorkArea", doing)?;
        }
        let raw = self.raw;
        // SAFETY: as above; the function is the one for the plan's type, and `CheckedSignals` holds
        // addresses of device memory as long and aligned as the plan requires, which the caller
        // keeps until the work is done.
        let (call, code) = unsafe {
            match (self.kind, self.precision) {
                (TransformKind::ComplexToComplex, TransformPrecision::F32) => (
                    "cufftExecC2C",
                    functions.cufftExecC2C(raw, input, output, direction)?,
                ),
                (TransformKind::ComplexToComplex, TransformPrecision::F64) => (
                    "cufftExecZ2Z",
                    functions.cufftExecZ2Z(raw, input, output, direction)?,
                ),
                (TransformKind::RealToComplex, TransformPrecision::F32) => {
                    ("cufftExecR2C", functions.cufftExecR2C(raw, input, output)?)
                }
                (TransformKind::RealToComplex, TransformPrecision::F64) => {
                    ("cufftExecD2Z", functions.cufftExecD2Z(raw, input, output)?)
                }
                (TransformKind::ComplexToReal, TransformPrecision::F32) => {
                    ("cufftExecC2R", functions.cufftExecC2R(raw, input, output)?)
                }
                (TransformKind::ComplexToReal, TransformPrecision::F64) => {
                    ("cufftExecZ2D", functions.cufftExecZ2D(raw, input, output)?)
                }
            }
        };
        check(code, call, doing)
    }
}

impl Drop for FftPlan {
    fn drop(&mut self) {
        // SAFETY: from cufftCreate, and destroyed here alone.
        let answer = unsafe { self.functions.cufftDestroy(self.raw) };
        // There is nothing left to do with a plan that the library does not destroy.
        drop(answer);
    }
}
