//! cuBLASLt's C interface, as far as it is called here, and owners of its objects.
//!
//! Invariants: an object is destroyed once, by its owner. Descriptors are changed and used only
//! under the lock of the handle that they are used with. Elsewhere: what the arguments have to be,
//! which the types [`ColumnMajorProduct`] and [`CheckedOperands`] have checked.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fercuda_cuda::QueuedResource;
use fercuda_cuda::sys::types::CUstream;
use fercuda_nvrtc::find::LibrarySearch;
use fercuda_tensor::Dtype;

use super::form::{ColumnMajor, ColumnMajorProduct, ScaleFormat};
use super::operands::CheckedOperands;
use super::spec::{ProductActivation, ProductMath};
use crate::error::{Error, LibraryCallFailure, Result};
use crate::functions::library_functions;
use crate::library::{LibraryKind, OpenedLibrary};
use crate::version::LibraryVersion;

static KIND: LibraryKind = LibraryKind {
    name: "cuBLASLt",
    wanted: "libcublasLt.so.13 or libcublasLt.so.12 (cuBLASLt 12.0 or later)",
    advice: "`python3 -m pip install nvidia-cublas` in an active Python environment, or \
             FERCUDA_CUBLASLT=FILE, or FERCUDA_WHEELS=FOLDER with NVIDIA's wheels",
    search: LibrarySearch {
        variable: "FERCUDA_CUBLASLT",
        stem: "libcublasLt.so",
        loader_names: &["libcublasLt.so.13", "libcublasLt.so.12"],
    },
    oldest: LibraryVersion::new(12, 0, 0),
    version_symbol: "cublasLtGetVersion",
    version: version_at,
};

/// # Safety
/// The address is of `size_t cublasLtGetVersion(void)`.
unsafe fn version_at(address: NonNull<c_void>) -> LibraryVersion {
    // SAFETY: the caller's contract.
    let version =
        unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn() -> usize>(address) };
    // SAFETY: it takes no arguments and has no preconditions.
    let number = unsafe { version() } as u64;
    let part = |divisor: u64| (number / divisor % 100) as u32;
    LibraryVersion::new(part(10_000), part(100), part(1))
}

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LtAlgorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LtHeuristicResult {
    pub(super) algorithm: LtAlgorithm,
    pub(super) workspace_bytes: usize,
    pub(super) state: c_int,
    pub(super) waves: f32,
    reserved: [c_int; 4],
}

const NO_RESULT: LtHeuristicResult = LtHeuristicResult {
    algorithm: LtAlgorithm { data: [0; 8] },
    workspace_bytes: 0,
    state: STATUS_NOT_SUPPORTED,
    waves: 0.0,
    reserved: [0; 4],
};

pub(super) const STATUS_SUCCESS: c_int = 0;
const STATUS_NOT_SUPPORTED: c_int = 15;

fn status_name(code: c_int) -> &'static str {
    match code {
        0 => "CUBLAS_STATUS_SUCCESS",
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        STATUS_NOT_SUPPORTED => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "an unknown status",
    }
}

// cudaDataType_t.
const R_32F: c_int = 0;
const R_64F: c_int = 1;
const R_16F: c_int = 2;
const R_8I: c_int = 3;
const R_32I: c_int = 10;
const R_16BF: c_int = 14;
const R_8F_E4M3: c_int = 28;
const R_8F_E5M2: c_int = 29;

// cublasComputeType_t.
const COMPUTE_32F: c_int = 68;
const COMPUTE_64F: c_int = 70;
const COMPUTE_32I: c_int = 72;
const COMPUTE_32F_FAST_TF32: c_int = 77;

// cublasOperation_t.
const OP_N: c_int = 0;
const OP_T: c_int = 1;

// cublasLtMatrixLayoutAttribute_t.
const LAYOUT_BATCH_COUNT: c_int = 5;
const LAYOUT_STRIDED_BATCH_OFFSET: c_int = 6;

// cublasLtMatmulDescAttributes_t.
const DESC_TRANSA: c_int = 3;
const DESC_TRANSB: c_int = 4;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS_POINTER: c_int = 8;
const DESC_A_SCALE_POINTER: c_int = 17;
const DESC_B_SCALE_POINTER: c_int = 18;
const DESC_D_SCALE_POINTER: c_int = 20;
const DESC_FAST_ACCUM: c_int = 25;
const DESC_BIAS_DATA_TYPE: c_int = 26;
/// Of the left factor, the right one and the output, as in `ColumnMajorProduct::scaled`.
const SCALE_POINTERS: [c_int; 3] = [
    DESC_A_SCALE_POINTER,
    DESC_B_SCALE_POINTER,
    DESC_D_SCALE_POINTER,
];

// cublasLtEpilogue_t.
const EPILOGUE_DEFAULT: u32 = 1;
const EPILOGUE_RELU: u32 = 2;
const EPILOGUE_BIAS: u32 = 4;
const EPILOGUE_GELU: u32 = 32;

// cublasLtMatmulPreferenceAttributes_t.
const PREF_MAX_WORKSPACE_BYTES: c_int = 1;
const PREF_REDUCTION_SCHEME_MASK: c_int = 3;
const PREF_MIN_ALIGNMENT_BYTES: [c_int; 4] = [5, 6, 7, 8];

/// `cublasLtReductionScheme_t`: sums of parts are in the compute type.
pub(super) const REDUCTION_IN_COMPUTE_TYPE: u32 = 2;

fn data_type(dtype: Dtype) -> Result<c_int> {
    Ok(match dtype {
        Dtype::F64 => R_64F,
        Dtype::F32 => R_32F,
        Dtype::F16 => R_16F,
        Dtype::Bf16 => R_16BF,
        Dtype::F8E4m3 => R_8F_E4M3,
        Dtype::F8E5m2 => R_8F_E5M2,
        Dtype::I8 => R_8I,
        Dtype::I32 => R_32I,
        _ => {
            let reason = format!("cuBLASLt multiplies no {dtype}");
            return Err(Error::refused("describe a product", reason));
        }
    })
}

fn scale_type(format: ScaleFormat) -> c_int {
    match format {
        ScaleFormat::F32 => R_32F,
        ScaleFormat::F64 => R_64F,
        ScaleFormat::I32 => R_32I,
    }
}

fn compute_type(math: ProductMath) -> c_int {
    match math {
        ProductMath::F64 => COMPUTE_64F,
        ProductMath::F32 | ProductMath::F16 | ProductMath::Bf16 | ProductMath::F8 => COMPUTE_32F,
        ProductMath::Tf32 => COMPUTE_32F_FAST_TF32,
        ProductMath::I8 => COMPUTE_32I,
    }
}

fn epilogue(form: &ColumnMajorProduct) -> u32 {
    let activation = match form.activation {
        ProductActivation::None => 0,
        ProductActivation::Relu => EPILOGUE_RELU,
        ProductActivation::Gelu => EPILOGUE_GELU,
    };
    let bias = if form.has_bias { EPILOGUE_BIAS } else { 0 };
    match activation | bias {
        0 => EPILOGUE_DEFAULT,
        other => other,
    }
}

type LtPointer = *mut c_void;

library_functions! {
    /// cuBLASLt's functions.
    LtFunctions, LtFunction {
        cublasLtCreate (10, 1) (handle: *mut LtPointer) -> c_int;
        cublasLtDestroy (10, 1) (handle: LtPointer) -> c_int;
        cublasLtMatmulDescCreate (11, 0) (desc: *mut LtPointer, compute: c_int, scale: c_int) -> c_int;
        cublasLtMatmulDescDestroy (10, 1) (desc: LtPointer) -> c_int;
        cublasLtMatmulDescSetAttribute (10, 1) (
            desc: LtPointer, attribute: c_int, value: *const c_void, bytes: usize,
        ) -> c_int;
        cublasLtMatrixLayoutCreate (10, 1) (
            layout: *mut LtPointer, dtype: c_int, rows: u64, cols: u64, leading: i64,
        ) -> c_int;
        cublasLtMatrixLayoutDestroy (10, 1) (layout: LtPointer) -> c_int;
        cublasLtMatrixLayoutSetAttribute (10, 1) (
            layout: LtPointer, attribute: c_int, value: *const c_void, bytes: usize,
        ) -> c_int;
        cublasLtMatmulPreferenceCreate (10, 1) (preference: *mut LtPointer) -> c_int;
        cublasLtMatmulPreferenceDestroy (10, 1) (preference: LtPointer) -> c_int;
        cublasLtMatmulPreferenceSetAttribute (10, 1) (
            preference: LtPointer, attribute: c_int, value: *const c_void, bytes: usize,
        ) -> c_int;
        cublasLtMatmulAlgoGetHeuristic (10, 1) (
            handle: LtPointer, desc: LtPointer, a: LtPointer, b: LtPointer, c: LtPointer, d: LtPointer,
            preference: LtPointer, requested: c_int, results: *mut LtHeuristicResult,
            returned: *mut c_int,
        ) -> c_int;
        cublasLtMatmul (10, 1) (
            handle: LtPointer, desc: LtPointer, alpha: *const c_void, a: *const c_void, a_layout: LtPointer,
            b: *const c_void, b_layout: LtPointer, beta: *const c_void, c: *const c_void,
            c_layout: LtPointer, d: *mut c_void, d_layout: LtPointer, algorithm: *const LtAlgorithm,
            workspace: *mut c_void, workspace_bytes: usize, stream: *mut c_void,
        ) -> c_int;
    }
}

/// Opens the first usable library.
pub(super) fn find() -> Result<LtFunctions> {
    OpenedLibrary::find(&KIND).map(LtFunctions::new)
}

/// Opens the library in the file `path`.
///
/// # Safety
/// As for [`OpenedLibrary::open`].
pub(super) unsafe fn open(path: &Path) -> Result<LtFunctions> {
    // SAFETY: the caller's contract.
    unsafe { OpenedLibrary::open(&KIND, path) }.map(LtFunctions::new)
}

/// Turns a status into a result.
fn check(code: c_int, call: &'static str, doing: impl FnOnce() -> String) -> Result<()> {
    if code == STATUS_SUCCESS {
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

/// Sorts of objects that the library makes.
#[derive(Clone, Copy, Debug)]
enum LtKind {
    Handle,
    Descriptor,
    Layout,
    Preference,
}

/// An object of the library, destroyed when this is dropped.
#[derive(Debug)]
struct LtObject {
    functions: Arc<LtFunctions>,
    raw: LtPointer,
    kind: LtKind,
}

// SAFETY: the library's objects belong to no thread, and all but the handle is plain memory of the
// host; they are changed and used by one thread at a time, under the handle's lock.
unsafe impl Send for LtObject {}
// SAFETY: as above: a shared reference leads to the library only under the handle's lock.
unsafe impl Sync for LtObject {}

impl LtObject {
    /// Takes what `make` has made.
    fn make(
        functions: &Arc<LtFunctions>,
        kind: LtKind,
        call: &'static str,
        make: impl FnOnce(*mut LtPointer) -> Result<c_int>,
    ) -> Result<Self> {
        let mut raw = null_mut();
        check(make(&mut raw)?, call, || {
            format!("make a {kind:?} of cuBLASLt")
        })?;
        Ok(Self {
            functions: functions.clone(),
            raw,
            kind,
        })
    }

    fn layout(functions: &Arc<LtFunctions>, matrix: &ColumnMajor) -> Result<Self> {
        let dtype = data_type(matrix.dtype)?;
        let ColumnMajor {
            rows,
            cols,
            leading,
            ..
        } = *matrix;
        let call = "cublasLtMatrixLayoutCreate";
        let layout = Self::make(functions, LtKind::Layout, call, |raw| {
            // SAFETY: `raw` outlives the call; the rest are numbers.
            unsafe { functions.cublasLtMatrixLayoutCreate(raw, dtype, rows, cols, leading) }
        })?;
        if matrix.batch > 1 {
            layout.set(LAYOUT_BATCH_COUNT, &matrix.batch)?;
            layout.set(LAYOUT_STRIDED_BATCH_OFFSET, &matrix.batch_stride)?;
        }
        Ok(layout)
    }

    /// Sets an attribute, the type of which is `T`.
    fn set<T: Copy>(&self, attribute: c_int, value: &T) -> Result<()> {
        let (functions, raw, bytes) = (&self.functions, self.raw, size_of::<T>());
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the object is alive and of the kind that the function takes; the library copies
        // `bytes` bytes of the value, which outlives the call.
        let (call, code) = unsafe {
            match self.kind {
                LtKind::Handle => {
                    return Err(Error::refused("set an attribute", "a handle has none"));
                }
                LtKind::Descriptor => (
                    "cublasLtMatmulDescSetAttribute",
                    functions.cublasLtMatmulDescSetAttribute(raw, attribute, value, bytes)?,
                ),
                LtKind::Layout => (
                    "cublasLtMatrixLayoutSetAttribute",
                    functions.cublasLtMatrixLayoutSetAttribute(raw, attribute, value, bytes)?,
                ),
                LtKind::Preference => (
                    "cublasLtMatmulPreferenceSetAttribute",
                    functions.cublasLtMatmulPreferenceSetAttribute(raw, attribute, value, bytes)?,
                ),
            }
        };
        check(code, call, || {
            format!("set attribute {attribute} of a {:?} of cuBLASLt", self.kind)
        })
    }
}

impl Drop for LtObject {
    fn drop(&mut self) {
        let functions = &self.functions;
        // SAFETY: made by the library's function for this kind, and destroyed here alone.
        let answer = unsafe {
            match self.kind {
                LtKind::Handle => functions.cublasLtDestroy(self.raw),
                LtKind::Descriptor => functions.cublasLtMatmulDescDestroy(self.raw),
                LtKind::Layout => functions.cublasLtMatrixLayoutDestroy(self.raw),
                LtKind::Preference => functions.cublasLtMatmulPreferenceDestroy(self.raw),
            }
        };
        // There is nothing left to do with an object that the library does not destroy.
        drop(answer);
    }
}

/// The library's handle, in the context that was current when it was made.
#[derive(Debug)]
pub(super) struct LtHandle {
    object: LtObject,
    /// Held while the handle, or a descriptor of a product made with it, is used.
    lock: Mutex<()>,
}

impl LtHandle {
    /// Makes a handle in the calling thread's current context.
    pub(super) fn create(functions: &Arc<LtFunctions>) -> Result<Self> {
        let object = LtObject::make(functions, LtKind::Handle, "cublasLtCreate", |raw| {
            // SAFETY: `raw` outlives the call.
            unsafe { functions.cublasLtCreate(raw) }
        })?;
        Ok(Self {
            object,
            lock: Mutex::new(()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which algorithms are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct LtPreference {
    pub(super) count: usize,
    pub(super) max_workspace_bytes: u64,
    /// Of the left factor, the right one, C and D.
    pub(super) alignments: [u32; 4],
    pub(super) reduction_mask: Option<u32>,
}

/// A product's descriptors.
#[derive(Debug)]
pub(super) struct LtProduct {
    /// Destroyed before the handle.
    descriptor: LtObject,
    /// Of the left factor, the right one, C and D.
    layouts: [LtObject; 4],
    handle: QueuedResource<LtHandle>,
    form: ColumnMajorProduct,
}

/// An address where no memory is, aligned to anything, which stands for a bias or a scale factor
/// while algorithms are searched for: the library then only needs to see that there is one.
const PLACEHOLDER: u64 = 1 << 20;

impl LtProduct {
    pub(super) fn new(
        handle: &QueuedResource<LtHandle>,
        form: &ColumnMajorProduct,
    ) -> Result<Self> {
        let functions = &handle.object().object.functions;
        let (compute, scale) = (compute_type(form.math), scale_type(form.scale));
        let call = "cublasLtMatmulDescCreate";
        let descriptor = LtObject::make(functions, LtKind::Descriptor, call, |raw| {
            // SAFETY: `raw` outlives the call; the rest are numbers.
            unsafe { functions.cublasLtMatmulDescCreate(raw, compute, scale) }
        })?;
        let operation = |transposed: bool| if transposed { OP_T } else { OP_N };
        descriptor.set(DESC_TRANSA, &operation(form.transpose_left))?;
        descriptor.set(DESC_TRANSB, &operation(form.transpose_right))?;
        descriptor.set(DESC_EPILOGUE, &epilogue(form))?;
        if form.has_bias {
            descriptor.set(DESC_BIAS_DATA_TYPE, &data_type(form.bias_dtype)?)?;
        }
        if form.fast_accumulation {
            descriptor.set(DESC_FAST_ACCUM, &1i8)?;
        }
        let layout = |matrix: &ColumnMajor| LtObject::layout(functions, matrix);
        let layouts = [
            layout(&form.left)?,
            layout(&form.right)?,
            layout(&form.c)?,
            layout(&form.d)?,
        ];
        Ok(Self {
            descriptor,
            layouts,
            handle: handle.clone(),
            form: *form,
        })
    }

    /// Sets the addresses that are part of the descriptor.
    fn set_addresses(&self, bias: u64, scales: [u64; 3]) -> Result<()> {
        if self.form.has_bias {
            self.descriptor.set(DESC_BIAS_POINTER, &bias)?;
        }
        for (index, address) in scales.iter().enumerate() {
            if self.form.scaled[index] {
                self.descriptor.set(SCALE_POINTERS[index], address)?;
            }
        }
        Ok(())
    }

    /// Asks for algorithms, the best first; none if the library has none.
    pub(super) fn heuristics(&self, wanted: &LtPreference) -> Result<Vec<LtHeuristicResult>> {
        let functions = &self.descriptor.functions;
        let call = "cublasLtMatmulPreferenceCreate";
        let preference = LtObject::make(functions, LtKind::Preference, call, |raw| {
            // SAFETY: `raw` outlives the call.
            unsafe { functions.cublasLtMatmulPreferenceCreate(raw) }
        })?;
        preference.set(PREF_MAX_WORKSPACE_BYTES, &wanted.max_workspace_bytes)?;
        for (attribute, bytes) in PREF_MIN_ALIGNMENT_BYTES.iter().zip(wanted.alignments) {
            preference.set(*attribute, &bytes)?;
        }
        if let Some(mask) = wanted.reduction_mask {
            preference.set(PREF_REDUCTION_SCHEME_MASK, &mask)?;
        }
        let mut results = vec![NO_RESULT; wanted.count];
        let requested = c_int::try_from(wanted.count).unwrap_or(c_int::MAX);
        let mut returned: c_int = 0;
        let handle = self.handle.object();
        let locked = handle.lock();
        self.set_addresses(PLACEHOLDER, [PLACEHOLDER; 3])?;
        let [left, right, c, d] = &self.layouts;
        // SAFETY: all objects are alive, and no other thread uses them, as the lock is held;
        // `results` has at least as many elements as requested, and `returned` outlives the call.
        let code = unsafe {
            functions.cublasLtMatmulAlgoGetHeuristic(
                handle.object.raw,
                self.descriptor.raw,
                left.raw,
                right.raw,
                c.raw,
                d.raw,
                preference.raw,
                requested,
                results.as_mut_ptr(),
                &mut returned,
            )?
        };
        drop(locked);
        if code == STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        check(code, "cublasLtMatmulAlgoGetHeuristic", || {
            "search for algorithms of a product".to_owned()
        })?;
        results.truncate(usize::try_from(returned).unwrap_or(0));
        results.retain(|result| result.state == STATUS_SUCCESS);
        Ok(results)
    }

    /// Queues the product in `stream`. The caller has noted the memory there.
    pub(super) fn run(
        &self,
        stream: CUstream,
        algorithm: &LtAlgorithm,
        operands: &CheckedOperands,
    ) -> Result<()> {
        let functions = &self.descriptor.functions;
        let handle = self.handle.object();
        let _locked = handle.lock();
        self.set_addresses(operands.bias, operands.scales)?;
        let [left, right, c, d] = &self.layouts;
        let pointer = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        // SAFETY: all objects are alive, and no other thread uses them, as the lock is held. Alpha
        // and beta are eight bytes of the scale type, which the library reads before it returns.
        // `CheckedOperands` holds addresses of device memory as long and as aligned as layouts and
        // algorithm, which is of this product, require; the caller keeps the memory until the work
        // is done.
        let code = unsafe {
            functions.cublasLtMatmul(
                handle.object.raw,
                self.descriptor.raw,
                std::ptr::from_ref(&operands.alpha).cast(),
                pointer(operands.left),
                left.raw,
                pointer(operands.right),
                right.raw,
                std::ptr::from_ref(&operands.beta).cast(),
                pointer(operands.c),
                c.raw,
                pointer(operands.d),
                d.raw,
                algorithm,
                pointer(operands.workspace),
                operands.workspace_bytes,
                stream.0,
            )?
        };
        check(code, "cublasLtMatmul", || "queue a product".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of};

    #[test]
    fn structures_have_the_interfaces_sizes_and_offsets() {
        assert_eq!(size_of::<LtAlgorithm>(), 64);
        assert_eq!(size_of::<LtHeuristicResult>(), 96);
        assert_eq!(align_of::<LtHeuristicResult>(), 8);
        let offsets = [
            offset_of!(LtHeuristicResult, algorithm),
            offset_of!(LtHeuristicResult, workspace_bytes),
            offset_of!(LtHeuristicResult, state),
            offset_of!(LtHeuristicResult, waves),
            offset_of!(LtHeuristicResult, reserved),
        ];
        assert_eq!(offsets, [0, 64, 72, 76, 80]);
    }

    #[test]
    fn values_are_the_interfaces() {
        let types = [
            Dtype::F32,
            Dtype::F64,
            Dtype::F16,
            Dtype::I8,
            Dtype::I32,
            Dtype::Bf16,
            Dtype::F8E4m3,
            Dtype::F8E5m2,
        ];
        let values = types.map(|dtype| data_type(dtype).unwrap());
        assert_eq!(values, [0, 1, 2, 3, 10, 14, 28, 29]);
        assert!(data_type(Dtype::Bool).is_err());
        let maths = [
            ProductMath::F64,
            ProductMath::F32,
            ProductMath::Tf32,
            ProductMath::F16,
            ProductMath::Bf16,
            ProductMath::I8,
            ProductMath::F8,
        ];
        assert_eq!(maths.map(compute_type), [70, 68, 77, 68, 68, 72, 68]);
    }
}
