//! NVRTC, NVIDIA's run-time compiler, as a table resolved like the driver's.
//!
//! Invariant: the library's companion, which contains the compiler's built-in headers, is loaded
//! before the library searches for it. Elsewhere: finding the library, caching and messages
//! (`fercuda-nvrtc`).

use core::ffi::{CStr, c_void};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::library::SharedLibrary;
use crate::types::{c_char, c_int};

/// A status of NVRTC.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NvrtcResult(pub c_int);

macro_rules! statuses {
    ($($name:ident = $value:literal,)*) => {
        impl NvrtcResult {
            $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: Self = Self($value);)*

            /// The spelling of this status, if it is a known one.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
    NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION = 8,
    NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION = 9,
    NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID = 10,
    NVRTC_ERROR_INTERNAL_ERROR = 11,
    NVRTC_ERROR_TIME_FILE_WRITE_FAILED = 12,
    NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED = 13,
    NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED = 14,
    NVRTC_ERROR_PCH_CREATE = 15,
    NVRTC_ERROR_CANCELLED = 16,
    NVRTC_ERROR_TIME_TRACE_FILE_WRITE_FAILED = 17,
}

/// A program being compiled.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvrtcProgram(pub *mut c_void);

/// A function that this NVRTC does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingNvrtc {
    /// The symbol that was looked for.
    pub symbol: &'static str,
    /// The library it was looked for in.
    pub library: PathBuf,
}

impl fmt::Display for MissingNvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { symbol, library } = self;
        write!(
            f,
            "{} has no `{symbol}`\ntry: NVRTC of CUDA 12 or later",
            library.display()
        )
    }
}

impl core::error::Error for MissingNvrtc {}

/// The functions of one NVRTC library.
#[derive(Debug)]
pub struct Nvrtc {
    library: SharedLibrary,
    file: PathBuf,
    slots: [AtomicPtr<c_void>; FUNCTIONS],
}

impl Nvrtc {
    /// Opens the library at `path`, or the one that the loader finds under a bare name. For a file,
    /// the companion `libnvrtc-builtins.so*` beside it is loaded first, since NVRTC requests it
    /// from the loader by name.
    ///
    /// # Errors
    /// The loader's message.
    ///
    /// # Safety
    /// The file is NVIDIA's NVRTC.
    pub unsafe fn open(path: &Path) -> Result<Self, String> {
        for companion in companions(path) {
            // SAFETY: a library of NVIDIA that the caller vouches for.
            let loaded = unsafe { SharedLibrary::open(&companion) };
            // A companion that does not load is no reason to fail: NVRTC reports the one it misses,
            // which may be another.
            drop(loaded);
        }
        // SAFETY: the caller vouches for the file.
        let library = unsafe { SharedLibrary::open(path)? };
        let file = library
            .find(c"nvrtcVersion")
            .and_then(SharedLibrary::file_of)
            .unwrap_or_else(|| path.to_owned());
        let slots = [const { AtomicPtr::new(core::ptr::null_mut()) }; FUNCTIONS];
        Ok(Self {
            library,
            file,
            slots,
        })
    }

    /// The file that the loader opened.
    pub fn file(&self) -> &Path {
        &self.file
    }

    fn address(
        &self,
        slot: usize,
        name: &'static str,
        c_name: &CStr,
    ) -> Result<NonNull<c_void>, MissingNvrtc> {
        if let Some(address) = NonNull::new(self.slots[slot].load(Ordering::Relaxed)) {
            return Ok(address);
        }
        let address = self.library.find(c_name).ok_or_else(|| MissingNvrtc {
            symbol: name,
            library: self.file.clone(),
        })?;
        self.slots[slot].store(address.as_ptr(), Ordering::Relaxed);
        Ok(address)
    }
}

/// The files named `libnvrtc-builtins.so*` beside `path`.
fn companions(path: &Path) -> Vec<PathBuf> {
    let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    else {
        return Vec::new();
    };
    let (Ok(entries), Ok(library)) = (folder.read_dir(), path.metadata()) else {
        return Vec::new();
    };
    // SAFETY: it has no preconditions.
    let owners = [0, unsafe { libc::geteuid() }, library.uid()];
    // In a folder like /tmp another user can put a file beside the library.
    let is_trusted = |path: &Path| {
        [path.symlink_metadata(), path.metadata()]
            .into_iter()
            .all(|it| it.is_ok_and(|it| owners.contains(&it.uid())))
    };
    entries
        .filter_map(Result::ok)
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("libnvrtc-builtins.so")
        })
        .map(|entry| entry.path())
        .filter(|path| is_trusted(path))
        .collect()
}

macro_rules! nvrtc_table {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        #[expect(non_camel_case_types, reason = "NVRTC's own spelling")]
        enum NvrtcFunction { $($name,)* }

        const FUNCTIONS: usize = [$(NvrtcFunction::$name as usize),*].len();

        /// NVRTC's functions.
        #[expect(non_snake_case, reason = "NVRTC's own spelling")]
        impl Nvrtc {
            $(
                #[doc = concat!("Calls `", stringify!($name), "`.")]
                ///
                /// # Errors
                /// [`MissingNvrtc`] if this library has no such function.
                ///
                /// # Safety
                /// The arguments satisfy the requirements of NVIDIA's reference.
                pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<$ret, MissingNvrtc> {
                    const C_NAME: &str = concat!(stringify!($name), "\0");
                    const NAME: &CStr = match CStr::from_bytes_with_nul(C_NAME.as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name ends in exactly one zero byte"),
                    };
                    let address = self.address(NvrtcFunction::$name as usize, stringify!($name), NAME)?;
                    // SAFETY: the caller of `open` vouches that the library is NVRTC, where the
                    // function of this name has this signature; this caller vouches for the
                    // arguments.
                    unsafe {
                        let function = core::mem::transmute::<
                            NonNull<c_void>,
                            unsafe extern "C" fn($($ty),*) -> $ret,
                        >(address);
                        Ok(function($($arg),*))
                    }
                }
            )*
        }
    };
}

nvrtc_table! {
    nvrtcGetErrorString(result: NvrtcResult) -> *const c_char;
    nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> NvrtcResult;
    nvrtcGetNumSupportedArchs(count: *mut c_int) -> NvrtcResult;
    nvrtcGetSupportedArchs(archs: *mut c_int) -> NvrtcResult;
    nvrtcCreateProgram(
        program: *mut NvrtcProgram, source: *const c_char, name: *const c_char, headers: c_int,
        header_sources: *const *const c_char, header_names: *const *const c_char
    ) -> NvrtcResult;
    nvrtcDestroyProgram(program: *mut NvrtcProgram) -> NvrtcResult;
    nvrtcCompileProgram(
        program: NvrtcProgram, count: c_int, options: *const *const c_char
    ) -> NvrtcResult;
    nvrtcGetPTXSize(program: NvrtcProgram, size: *mut usize) -> NvrtcResult;
    nvrtcGetPTX(program: NvrtcProgram, ptx: *mut c_char) -> NvrtcResult;
    nvrtcGetCUBINSize(program: NvrtcProgram, size: *mut usize) -> NvrtcResult;
    nvrtcGetCUBIN(program: NvrtcProgram, cubin: *mut c_char) -> NvrtcResult;
    nvrtcGetLTOIRSize(program: NvrtcProgram, size: *mut usize) -> NvrtcResult;
    nvrtcGetLTOIR(program: NvrtcProgram, ltoir: *mut c_char) -> NvrtcResult;
    nvrtcGetProgramLogSize(program: NvrtcProgram, size: *mut usize) -> NvrtcResult;
    nvrtcGetProgramLog(program: NvrtcProgram, log: *mut c_char) -> NvrtcResult;
    nvrtcAddNameExpression(program: NvrtcProgram, expression: *const c_char) -> NvrtcResult;
    nvrtcGetLoweredName(
        program: NvrtcProgram, expression: *const c_char, lowered: *mut *const c_char
    ) -> NvrtcResult;
}
