//! Driver table: one slot per symbol, resolved on the first call.
//!
//! A slot is empty until its function is called. Then the symbol is looked up by the library's
//! `cuGetProcAddress` in exactly the version of the table, and failing that by the dynamic loader.
//! A call through a filled slot costs one load and one indirect call.
//!
//! Invariant: a filled slot holds the address of a function with the signature that the table gives
//! for its symbol, valid until the process exits.

use core::ffi::{CStr, c_void};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::path::PathBuf;

use crate::entry::PER_THREAD;
use crate::library::{OpenError, SharedLibrary};
use crate::types::*;

const LIBCUDA: &str = "libcuda.so.1";

/// Paths of the driver's library, in addition to the loader's own search path: containers and WSL
/// mount it where the loader may not look.
const LIBCUDA_PATHS: &[&str] = &[
    "libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
];

const LIBCUDA_ADVICE: &str = "install the NVIDIA driver (nvidia-smi must run), \
    or set FERCUDA_DEVICE=soft to use the software device";

/// The implementation that fills the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverOrigin {
    /// A shared library, by the file that the loader opened.
    Library(PathBuf),
    /// An implementation linked into this program, by its name.
    Linked(&'static str),
}

impl fmt::Display for DriverOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(path) => write!(f, "{}", path.display()),
            Self::Linked(name) => f.write_str(name),
        }
    }
}

/// A function that this driver does not have.
///
/// Small, because every call of the table may return it.
pub struct Missing(Box<MissingSymbol>);

struct MissingSymbol {
    symbol: &'static str,
    since: u32,
    driver_version: Option<u32>,
    origin: DriverOrigin,
    tried: &'static str,
}

impl Missing {
    /// The exported symbol that was looked for.
    pub fn symbol(&self) -> &'static str {
        self.0.symbol
    }

    /// The first CUDA version that has it, as 1000 × major + 10 × minor.
    pub fn since(&self) -> u32 {
        self.0.since
    }

    /// The CUDA version of the driver, if it reported one.
    pub fn driver_version(&self) -> Option<u32> {
        self.0.driver_version
    }
}

impl fmt::Debug for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingSymbol {
            symbol,
            since,
            driver_version,
            origin,
            tried,
        } = &*self.0;
        let cuda = |version: u32| format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
        write!(
            f,
            "the driver has no `{symbol}`, which is part of {} and later",
            cuda(*since)
        )?;
        match driver_version {
            Some(version) => write!(
                f,
                "\n  tried {tried} of {origin}, a driver for {}",
                cuda(*version)
            )?,
            None => write!(f, "\n  tried {tried} of {origin}")?,
        }
        match driver_version {
            Some(version) if version < since => {
                write!(f, "\ntry: an NVIDIA driver for {} or later", cuda(*since))
            }
            _ => write!(
                f,
                "\ntry: a newer driver, or code that does not need this function"
            ),
        }
    }
}

impl core::error::Error for Missing {}

type Resolver = Box<dyn Fn(&CStr) -> Option<NonNull<c_void>> + Send + Sync>;

enum SymbolSource {
    Library {
        library: SharedLibrary,
        get_proc_address: Option<signatures::cuGetProcAddress_v2>,
    },
    Resolver(Resolver),
}

/// The driver API, filled by a library or by an implementation linked in.
///
/// Every function of [`for_each_driver_fn!`](crate::for_each_driver_fn) is a
/// method of the same name that returns the driver's status, or [`Missing`] if
/// this driver has no such function.
pub struct Driver {
    slots: Box<[AtomicPtr<c_void>; SYMBOLS.len()]>,
    source: SymbolSource,
    origin: DriverOrigin,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

impl Driver {
    /// Opens the NVIDIA driver's `libcuda.so.1`. Calls nothing in it, so it
    /// succeeds on a machine that has the library and no device.
    ///
    /// # Errors
    /// [`OpenError`], with every path that was tried.
    pub fn open() -> Result<Self, OpenError> {
        // SAFETY: a library of this name is the CUDA driver, the initialisers of which are meant to
        // run in any process.
        let (library, name) = unsafe {
            SharedLibrary::open_first(
                LIBCUDA,
                LIBCUDA_PATHS.iter().map(PathBuf::from),
                LIBCUDA_ADVICE,
            )?
        };
        // SAFETY: the same library.
        Ok(unsafe { Self::from_library(library, name) })
    }

    /// The driver in an open library; `name` is reported as its origin if the loader does not know
    /// the file.
    ///
    /// # Safety
    /// The library's exports under the table's names are the driver's functions, with the
    /// signatures of the table.
    pub unsafe fn from_library(library: SharedLibrary, name: PathBuf) -> Self {
        let file = library
            .find(c"cuInit")
            .and_then(SharedLibrary::file_of)
            .unwrap_or(name);
        let get_proc_address = library.find(c"cuGetProcAddress_v2").map(|address| {
            // SAFETY: the caller vouches that the symbol has the table's type;
            // code and data pointers have one representation on this platform.
            unsafe {
                core::mem::transmute::<NonNull<c_void>, signatures::cuGetProcAddress_v2>(address)
            }
        });
        Self::new(
            SymbolSource::Library {
                library,
                get_proc_address,
            },
            DriverOrigin::Library(file),
        )
    }

    /// The driver of which `resolver` finds the functions by exported symbol. It is called once for
    /// each symbol that it finds.
    ///
    /// # Safety
    /// A non-null result is the address of a function with the signature that the table gives for
    /// that symbol, valid until the process exits.
    pub unsafe fn from_resolver(resolver: Resolver, origin: DriverOrigin) -> Self {
        Self::new(SymbolSource::Resolver(resolver), origin)
    }

    fn new(source: SymbolSource, origin: DriverOrigin) -> Self {
        let slots = Box::new([const { AtomicPtr::new(core::ptr::null_mut()) }; SYMBOLS.len()]);
        Self {
            slots,
            source,
            origin,
        }
    }

    /// The implementation that fills the table.
    pub fn origin(&self) -> &DriverOrigin {
        &self.origin
    }

    /// Whether this driver has `symbol`, which is resolved if necessary.
    pub fn has(&self, symbol: Symbol) -> bool {
        self.address(symbol).is_ok()
    }

    /// The address of `symbol`.
    ///
    /// # Errors
    /// [`Missing`].
    #[inline]
    pub fn address(&self, symbol: Symbol) -> Result<NonNull<c_void>, Missing> {
        // Acquire pairs with the release in `resolve`, so the function called sees what the
        // resolver wrote before it returned.
        let address = self.slots[symbol as usize].load(Ordering::Acquire);
        match NonNull::new(address) {
            Some(address) => Ok(address),
            None => self.resolve(symbol),
        }
    }

    #[cold]
    fn resolve(&self, symbol: Symbol) -> Result<NonNull<c_void>, Missing> {
        match self.look_up(symbol) {
            Some(address) => {
                self.slots[symbol as usize].store(address.as_ptr(), Ordering::Release);
                Ok(address)
            }
            None => Err(self.missing(symbol)),
        }
    }

    fn look_up(&self, symbol: Symbol) -> Option<NonNull<c_void>> {
        let info = &SYMBOLS[symbol as usize];
        let (library, get_proc_address) = match &self.source {
            SymbolSource::Resolver(resolver) => return resolver(info.name),
            SymbolSource::Library {
                library,
                get_proc_address,
            } => (library, get_proc_address),
        };
        if let Some(get) = get_proc_address {
            let mut address = core::ptr::null_mut();
            let mut status = CUdriverProcAddressQueryResult::default();
            // SAFETY: both strings and both results outlive the call, and
            // `from_library` vouches for the function.
            let result = unsafe {
                get(
                    info.base.as_ptr(),
                    &mut address,
                    info.since as c_int,
                    info.flags,
                    &mut status,
                )
            };
            let found = result == CUresult::CUDA_SUCCESS
                && status == CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
            if let Some(address) = NonNull::new(address).filter(|_| found) {
                return Some(address);
            }
        }
        library.find(info.name)
    }

    #[cold]
    fn missing(&self, symbol: Symbol) -> Missing {
        let info = &SYMBOLS[symbol as usize];
        let mut version = 0;
        let asked = symbol != Symbol::cuDriverGetVersion;
        // SAFETY: `version` outlives the call.
        let answer = asked.then(|| unsafe { self.cuDriverGetVersion(&mut version) });
        let known = matches!(answer, Some(Ok(CUresult::CUDA_SUCCESS)));
        Missing(Box::new(MissingSymbol {
            symbol: symbol.name(),
            since: info.since,
            driver_version: u32::try_from(version).ok().filter(|_| known),
            origin: self.origin.clone(),
            tried: match self.source {
                SymbolSource::Library {
                    get_proc_address: Some(_),
                    ..
                } => "cuGetProcAddress and dlsym",
                SymbolSource::Library {
                    get_proc_address: None,
                    ..
                } => "dlsym",
                SymbolSource::Resolver(_) => "the function list",
            },
        }))
    }
}

struct SymbolInfo {
    name: &'static CStr,
    base: &'static CStr,
    since: u32,
    flags: u64,
}

const LEGACY: u64 = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_LEGACY_STREAM.0 as u64;

/// The C string of a literal to which `concat!` has added a zero byte.
const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name ends in exactly one zero byte"),
    }
}

macro_rules! method {
    ($name:ident $since:literal ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[doc = concat!("Calls `", stringify!($name), "`.")]
        ///
        /// # Errors
        /// [`Missing`] if this driver has no such function; nothing was called.
        ///
        /// # Safety
        /// The arguments satisfy the requirements of NVIDIA's reference.
        #[inline]
        pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<CUresult, Missing> {
            let address = self.address(Symbol::$name)?;
            // SAFETY: a filled slot holds a function of this signature (the
            // constructors' contract), and the caller vouches for the arguments.
            unsafe {
                let function = core::mem::transmute::<NonNull<c_void>, signatures::$name>(address);
                Ok(function($($arg),*))
            }
        }
    };
}

macro_rules! signature {
    ($name:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        pub type $name = unsafe extern "C" fn($($ty),*) -> CUresult;
    };
}

macro_rules! driver_table {
    ($($name:ident $base:literal $since:literal [$($twin:ident $twin_since:literal)?] $args:tt;)*) => {
        /// An exported symbol of the table.
        #[expect(non_camel_case_types, reason = "CUDA's own spelling")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Symbol {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                $name,
                $(
                    #[doc = concat!("`", stringify!($twin), "`.")]
                    $twin,
                )?
            )*
        }

        impl Symbol {
            /// Every symbol of the table, each per-thread twin after its function.
            pub const ALL: &'static [Self] = &[$(Self::$name, $(Self::$twin,)?)*];

            /// The exported name.
            pub const fn name(self) -> &'static str {
                const NAMES: &[&str] = &[$(stringify!($name), $(stringify!($twin),)?)*];
                NAMES[self as usize]
            }
        }

        static SYMBOLS: [SymbolInfo; Symbol::ALL.len()] = [$(
            SymbolInfo {
                name: c_str(concat!(stringify!($name), "\0")),
                base: c_str(concat!($base, "\0")),
                since: $since,
                flags: LEGACY,
            },
            $(SymbolInfo {
                name: c_str(concat!(stringify!($twin), "\0")),
                base: c_str(concat!($base, "\0")),
                since: if $twin_since > $since { $twin_since } else { $since },
                flags: PER_THREAD,
            },)?
        )*];

        /// The type of each function, for code that implements or forwards them.
        #[expect(non_camel_case_types, reason = "CUDA's own spelling")]
        pub mod signatures {
            use crate::types::*;
            $(signature! { $name $args } $(signature! { $twin $args })?)*
        }

        /// The driver's functions.
        #[expect(non_snake_case, clippy::too_many_arguments, reason = "the driver's own signatures")]
        impl Driver {
            $(method! { $name $since $args } $(method! { $twin $twin_since $args })?)*
        }
    };
}

crate::for_each_driver_fn!(driver_table);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    unsafe extern "C" fn version(out: *mut c_int) -> CUresult {
        // SAFETY: the test passes a live integer.
        unsafe { *out = 11_080 };
        CUresult::CUDA_SUCCESS
    }

    fn driver_of_one_function(asked: Arc<AtomicUsize>) -> Driver {
        let resolver = move |name: &CStr| {
            asked.fetch_add(1, Ordering::Relaxed);
            (name == c"cuDriverGetVersion")
                .then(|| NonNull::new(version as *mut c_void))
                .flatten()
        };
        // SAFETY: `version` has the table's signature for that symbol.
        unsafe { Driver::from_resolver(Box::new(resolver), DriverOrigin::Linked("a test")) }
    }

    #[test]
    fn a_symbol_is_resolved_once_and_only_when_called() {
        let asked = Arc::new(AtomicUsize::new(0));
        let driver = driver_of_one_function(asked.clone());
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        for _ in 0..3 {
            let mut got = 0;
            // SAFETY: `got` outlives the call.
            let result = unsafe { driver.cuDriverGetVersion(&mut got) };
            assert_eq!((result.ok(), got), (Some(CUresult::CUDA_SUCCESS), 11_080));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_missing_function_is_an_error_with_a_remedy() {
        let driver = driver_of_one_function(Arc::default());
        // SAFETY: never reaches a function.
        let missing = unsafe { driver.cuCtxSynchronize_v2(CUcontext::NULL) };
        let missing = missing.expect_err("the resolver has no such symbol");
        assert_eq!(missing.symbol(), "cuCtxSynchronize_v2");
        assert_eq!(missing.since(), 13_000);
        assert_eq!(missing.driver_version(), Some(11_080));
        assert_eq!(
            missing.to_string(),
            "the driver has no `cuCtxSynchronize_v2`, which is part of CUDA 13.0 and later\n  \
             tried the function list of a test, a driver for CUDA 11.8\n\
             try: an NVIDIA driver for CUDA 13.0 or later"
        );
    }

    #[test]
    fn without_a_version_the_error_is_complete() {
        // SAFETY: the resolver never returns an address.
        let driver =
            unsafe { Driver::from_resolver(Box::new(|_| None), DriverOrigin::Linked("nothing")) };
        let mut got = 0;
        // SAFETY: never reaches a function.
        let missing = unsafe { driver.cuDriverGetVersion(&mut got) }.expect_err("nothing is there");
        assert_eq!(missing.driver_version(), None);
        assert!(
            missing.to_string().contains("cuDriverGetVersion"),
            "{missing}"
        );
    }

    #[test]
    fn a_missing_library_is_named_with_every_path_tried() {
        let paths = ["libcuda-missing.so.1", "/nonexistent/libcuda.so.1"];
        // SAFETY: neither exists, so no initialiser runs.
        let error = unsafe {
            SharedLibrary::open_first(LIBCUDA, paths.iter().map(PathBuf::from), LIBCUDA_ADVICE)
        }
        .expect_err("neither path exists");
        let text = error.to_string();
        assert!(text.starts_with("cannot open libcuda.so.1\n"), "{text}");
        for path in paths {
            assert!(text.contains(path), "{text}");
        }
        assert!(text.contains("FERCUDA_DEVICE=soft"), "{text}");
    }
}
