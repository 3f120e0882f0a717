//! The compiler: one NVRTC library, and the cache of what it compiled.
//!
//! Invariant: a program from the cache is byte for byte the output of NVRTC for the same source,
//! headers, options, architecture and version. A program that may read the user's headers from the
//! disk, the text of which is unknown here, is compiled each time.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fercuda_cache::{CacheKey, CacheLookup, CacheWarning, ProgramCache};
use fercuda_cuda_sys::nvrtc as sys;
use fercuda_cuda_sys::nvrtc::{NvrtcProgram, NvrtcResult};
use fercuda_cuda_sys::{Attempt, OpenError};

use crate::error::{NvrtcError, Result};
use crate::find;
use crate::source::{CodeFormat, CudaSource};

/// A compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledProgram {
    output: CodeFormat,
    code: Vec<u8>,
    log: String,
    names: Vec<(String, String)>,
    cached: bool,
    warnings: Vec<CacheWarning>,
}

impl CompiledProgram {
    /// The PTX, if that is the output format.
    pub fn ptx(&self) -> Option<&str> {
        match self.output {
            CodeFormat::Ptx => std::str::from_utf8(&self.code).ok(),
            CodeFormat::Cubin => None,
        }
    }

    /// PTX or machine code.
    pub fn code(&self) -> &[u8] {
        &self.code
    }

    /// The compiler's warnings.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// The name in the compiled program of an [`CudaSource::expression`].
    pub fn lowered(&self, expression: &str) -> Option<&str> {
        self.names
            .iter()
            .find(|(name, _)| name == expression)
            .map(|(_, lowered)| lowered.as_str())
    }

    /// Whether it came from the cache.
    pub fn is_cached(&self) -> bool {
        self.cached
    }

    /// Why the cache was not used, if it was not.
    pub fn cache_warnings(&self) -> &[CacheWarning] {
        &self.warnings
    }
}

/// The compiler, with its cache. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    table: Arc<sys::Nvrtc>,
    version: (u32, u32),
    includes: Vec<PathBuf>,
    cache: Option<ProgramCache>,
}

impl Nvrtc {
    /// The first of [`find::libraries`] that can be opened, with the cache in the user's cache
    /// directory.
    ///
    /// # Errors
    /// [`NvrtcError::NotFound`], with every path that was tried.
    pub fn find() -> Result<Self> {
        let mut attempts = Vec::new();
        let libraries = find::libraries(&find::NVRTC);
        attempts.extend(libraries.refused.into_iter().map(|refused| Attempt {
            reason: format!("not opened, as {refused}"),
            name: refused.path,
        }));
        for candidate in libraries.files {
            // SAFETY: libraries of this name, in places that the user named or that only the
            // user and root can write to, where NVIDIA's is installed.
            match unsafe { Self::open(&candidate) } {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(NvrtcError::NotFound(error)) => attempts.extend(error.attempts),
                Err(error) => return Err(error),
            }
        }
        Err(NvrtcError::NotFound(OpenError {
            library: LIBRARY,
            attempts,
            advice: ADVICE,
        }))
    }

    /// The NVRTC in the file `path`.
    ///
    /// # Errors
    /// [`NvrtcError::NotFound`].
    ///
    /// # Safety
    /// The file is NVIDIA's NVRTC, or does not exist.
    pub unsafe fn open(path: &Path) -> Result<Self> {
        // SAFETY: the caller's contract.
        let table = unsafe { sys::Nvrtc::open(path) }.map_err(|reason| {
            NvrtcError::NotFound(OpenError {
                library: LIBRARY,
                attempts: vec![Attempt {
                    name: path.to_owned(),
                    reason,
                }],
                advice: ADVICE,
            })
        })?;
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: both outlive the call.
        let answer = unsafe { table.nvrtcVersion(&mut major, &mut minor)? };
        status(answer, "nvrtcVersion", "", String::new)?;
        let includes = find::includes(table.file());
        Ok(Self {
            table: Arc::new(table),
            version: (major.unsigned_abs(), minor.unsigned_abs()),
            includes,
            cache: ProgramCache::of_user(),
        })
    }

    /// Caches compiled programs in `cache`, or not at all.
    pub fn with_cache(self, cache: Option<ProgramCache>) -> Self {
        Self { cache, ..self }
    }

    /// Its version, as (major, minor).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The file it was loaded from.
    pub fn file(&self) -> &Path {
        self.table.file()
    }

    /// The directories of CUDA's own headers, as far as they were found.
    pub fn include_directories(&self) -> &[PathBuf] {
        &self.includes
    }

    /// The architectures it can compile for, for instance 90.
    ///
    /// # Errors
    /// [`NvrtcError::Missing`] before CUDA 11.2.
    pub fn architectures(&self) -> Result<Vec<u32>> {
        let mut count: c_int = 0;
        // SAFETY: `count` outlives the call.
        let answer = unsafe { self.table.nvrtcGetNumSupportedArchs(&mut count)? };
        status(answer, "nvrtcGetNumSupportedArchs", "", String::new)?;
        let mut archs = vec![0 as c_int; count.unsigned_abs() as usize];
        // SAFETY: `archs` has the length that the library reported.
        let answer = unsafe { self.table.nvrtcGetSupportedArchs(archs.as_mut_ptr())? };
        status(answer, "nvrtcGetSupportedArchs", "", String::new)?;
        Ok(archs.into_iter().map(i32::unsigned_abs).collect())
    }

    /// Compiles `program`, or finds it in the cache. Headers found through directories are not part
    /// of the key: after a change of one, use another option or an empty cache.
    ///
    /// # Errors
    /// [`NvrtcError::Refused`], with the first error first.
    pub fn compile(&self, program: &CudaSource) -> Result<CompiledProgram> {
        let options = self.options_of(program);
        let Some(cache) = self.cache.as_ref().filter(|_| !program.reads_user_files()) else {
            return self.compile_now(program, &options);
        };
        let key = self.key(program, &options);
        let mut warnings = Vec::new();
        match cache.look_up(&key) {
            CacheLookup::Found(entry) => {
                return Ok(CompiledProgram {
                    output: program.output,
                    code: entry.code,
                    log: entry.log,
                    names: entry.names,
                    cached: true,
                    warnings,
                });
            }
            CacheLookup::Absent => {}
            CacheLookup::Unusable(warning) => warnings.push(warning),
        }
        let mut compiled = self.compile_now(program, &options)?;
        let stored = cache.store(&key, &compiled.code, &compiled.log, &compiled.names);
        warnings.extend(stored.err());
        compiled.warnings = warnings;
        Ok(compiled)
    }

    fn options_of(&self, program: &CudaSource) -> Vec<String> {
        let mut options = vec![format!("--gpu-architecture={}", program.target())];
        options.extend(program.options.iter().cloned());
        let directories = program.includes.iter().chain(&self.includes);
        options.extend(directories.map(|path| format!("--include-path={}", path.display())));
        options
    }

    fn key(&self, program: &CudaSource, options: &[String]) -> CacheKey {
        let mut key = CacheKey::new();
        let (major, minor) = self.version;
        key.add("nvrtc", format!("{major}.{minor}"));
        key.add("target", program.target());
        key.add("name", &program.name);
        key.add("source", &program.source);
        for option in options {
            key.add("option", option);
        }
        for (name, text) in &program.headers {
            key.add("header name", name);
            key.add("header text", text);
        }
        for expression in &program.expressions {
            key.add("expression", expression);
        }
        key
    }

    fn compile_now(&self, program: &CudaSource, options: &[String]) -> Result<CompiledProgram> {
        let name = &program.name;
        let c_text = |what: &str, text: &[u8]| {
            CString::new(text).map_err(|_| NvrtcError::ZeroByte {
                name: name.clone(),
                what: what.to_owned(),
            })
        };
        let c_name = c_text("the name", name.as_bytes())?;
        let c_source = c_text("the source", &program.source)?;
        let c_list =
            |what: &str, texts: &mut dyn Iterator<Item = &String>| -> Result<Vec<CString>> {
                texts.map(|text| c_text(what, text.as_bytes())).collect()
            };
        let header_names = c_list(
            "a header's name",
            &mut program.headers.iter().map(|(name, _)| name),
        )?;
        let header_texts = c_list(
            "a header",
            &mut program.headers.iter().map(|(_, text)| text),
        )?;
        let c_options = c_list("an option", &mut options.iter())?;
        let expressions = c_list("an expression", &mut program.expressions.iter())?;
        let pointers = |texts: &[CString]| -> Vec<*const c_char> {
            texts.iter().map(|text| text.as_ptr()).collect()
        };

        let mut raw = NvrtcProgram(std::ptr::null_mut());
        // SAFETY: every text is a C string that outlives the call, and both
        // arrays have the length given.
        let answer = unsafe {
            self.table.nvrtcCreateProgram(
                &mut raw,
                c_source.as_ptr(),
                c_name.as_ptr(),
                header_names.len() as c_int,
                pointers(&header_texts).as_ptr(),
                pointers(&header_names).as_ptr(),
            )?
        };
        status(answer, "nvrtcCreateProgram", name, String::new)?;
        let running = NvrtcProgramGuard {
            table: &self.table,
            raw,
        };
        for expression in &expressions {
            // SAFETY: the program is alive, the text a C string.
            let answer = unsafe {
                self.table
                    .nvrtcAddNameExpression(raw, expression.as_ptr())?
            };
            status(answer, "nvrtcAddNameExpression", name, String::new)?;
        }
        // SAFETY: the program is alive; the array has the length given and its
        // texts outlive the call.
        let answer = unsafe {
            self.table.nvrtcCompileProgram(
                raw,
                c_options.len() as c_int,
                pointers(&c_options).as_ptr(),
            )?
        };
        if answer == NvrtcResult::NVRTC_ERROR_COMPILATION {
            let (name, target, log) = (name.clone(), program.target(), running.log());
            return Err(NvrtcError::Refused { name, target, log });
        }
        status(answer, "nvrtcCompileProgram", name, || running.log())?;
        let mut names = Vec::new();
        for (expression, c_expression) in program.expressions.iter().zip(&expressions) {
            let mut lowered = std::ptr::null();
            // SAFETY: the program is alive, the text a C string, and `lowered`
            // outlives the call.
            let answer = unsafe {
                self.table
                    .nvrtcGetLoweredName(raw, c_expression.as_ptr(), &mut lowered)?
            };
            status(answer, "nvrtcGetLoweredName", name, String::new)?;
            // SAFETY: on success a C string that lives as long as the program.
            let lowered = unsafe { CStr::from_ptr(lowered) }
                .to_string_lossy()
                .into_owned();
            names.push((expression.clone(), lowered));
        }
        let mut code = running.code(program.output, name)?;
        if program.output == CodeFormat::Ptx {
            while code.last() == Some(&0) {
                code.pop();
            }
        }
        let log = running.log();
        let output = program.output;
        Ok(CompiledProgram {
            output,
            code,
            log,
            names,
            cached: false,
            warnings: Vec::new(),
        })
    }
}

const LIBRARY: &str = "libnvrtc.so";

const ADVICE: &str = "fercuda setup nvrtc, python3 -m pip install nvidia-cuda-nvrtc, the CUDA toolkit, \
    or set FERCUDA_NVRTC to the file";

fn status(
    answer: NvrtcResult,
    call: &'static str,
    name: &str,
    log: impl FnOnce() -> String,
) -> Result<()> {
    if answer == NvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    let status = match answer.name() {
        Some(known) => format!("{known} ({})", answer.0),
        None => format!("error {}", answer.0),
    };
    Err(NvrtcError::Call {
        name: name.to_owned(),
        call,
        status,
        log: log(),
    })
}

/// Guard of an NVRTC program, destroyed on drop.
struct NvrtcProgramGuard<'a> {
    table: &'a sys::Nvrtc,
    raw: NvrtcProgram,
}

impl NvrtcProgramGuard<'_> {
    /// The compiler's log; empty if it cannot be read.
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is alive and `size` outlives the call.
        let answer = unsafe { self.table.nvrtcGetProgramLogSize(self.raw, &mut size) };
        if !matches!(answer, Ok(NvrtcResult::NVRTC_SUCCESS)) || size == 0 {
            return String::new();
        }
        let mut log = vec![0u8; size];
        // SAFETY: `log` has the size that the library reported.
        let answer = unsafe {
            self.table
                .nvrtcGetProgramLog(self.raw, log.as_mut_ptr().cast())
        };
        if !matches!(answer, Ok(NvrtcResult::NVRTC_SUCCESS)) {
            return String::new();
        }
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        String::from_utf8_lossy(&log[..end]).into_owned()
    }

    fn code(&self, output: CodeFormat, name: &str) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is alive and `size` outlives the calls.
        let (answer, call) = unsafe {
            match output {
                CodeFormat::Ptx => (
                    self.table.nvrtcGetPTXSize(self.raw, &mut size)?,
                    "nvrtcGetPTXSize",
                ),
                CodeFormat::Cubin => (
                    self.table.nvrtcGetCUBINSize(self.raw, &mut size)?,
                    "nvrtcGetCUBINSize",
                ),
            }
        };
        status(answer, call, name, String::new)?;
        let mut code = vec![0u8; size];
        let to = code.as_mut_ptr().cast();
        // SAFETY: `code` has the size that the library reported.
        let (answer, call) = unsafe {
            match output {
                CodeFormat::Ptx => (self.table.nvrtcGetPTX(self.raw, to)?, "nvrtcGetPTX"),
                CodeFormat::Cubin => (self.table.nvrtcGetCUBIN(self.raw, to)?, "nvrtcGetCUBIN"),
            }
        };
        status(answer, call, name, String::new)?;
        Ok(code)
    }
}

impl Drop for NvrtcProgramGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is alive, and destroyed once. The call fails only for an invalid
        // program.
        drop(unsafe { self.table.nvrtcDestroyProgram(&mut self.raw) });
    }
}
