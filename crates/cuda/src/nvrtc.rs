//! NVRTC, NVIDIA's run-time compiler: CUDA C++ to PTX or machine code.
//!
//! The library is NVIDIA's and is searched for where a toolkit, a Python environment or the user
//! has installed it ([`find`]). Compiled programs are cached on disk ([`cache`]); an unusable cache
//! is a warning, never a failure.
//!
//! Invariant: a program from the cache is byte for byte the output of NVRTC for the same source,
//! headers, options, architecture and version. A program that may read the user's headers from the
//! disk, the text of which is unknown here, is compiled each time.

pub mod cache;
pub mod find;
mod trust;

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fercuda_cuda_sys::nvrtc as sys;
use fercuda_cuda_sys::nvrtc::{MissingNvrtc, NvrtcProgram, NvrtcResult};
use fercuda_cuda_sys::{Attempt, OpenError};

use crate::image::Image;
use cache::{Cache, Key, Lookup, Warning};

type Result<T> = std::result::Result<T, CompileError>;

/// Why there is no compiled program.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// NVRTC was not found.
    #[error(transparent)]
    NotFound(#[from] OpenError),
    /// The library lacks a function.
    #[error(transparent)]
    Missing(#[from] MissingNvrtc),
    /// The program has errors.
    #[error("{}", refused(name, target, log))]
    Refused {
        /// The program's name.
        name: String,
        /// The target of the compilation, for instance `compute_90`.
        target: String,
        /// The compiler's log.
        log: String,
    },
    /// NVRTC returned another error.
    #[error("cannot compile `{name}`: {call} returned {status}{}", under(log))]
    Call {
        /// The program's name.
        name: String,
        /// The function called.
        call: &'static str,
        /// The status it returned.
        status: String,
        /// The compiler's log, if it wrote one.
        log: String,
    },
    /// Source, name or option contains a zero byte.
    #[error("cannot compile `{name}`: {what} contains a zero byte")]
    ZeroByte {
        /// The program's name.
        name: String,
        /// The part that contains it.
        what: String,
    },
    /// An architecture in an unknown format.
    #[error("{text:?} is no architecture\ntry: sm_90, compute_90, 90 or 90a")]
    Architecture {
        /// The input.
        text: String,
    },
}

fn refused(name: &str, target: &str, log: &str) -> String {
    let first = first_error(log).unwrap_or("the compiler wrote no log");
    format!(
        "cannot compile `{name}` for {target}: {first}{}",
        under(log)
    )
}

/// The first line of a log that is an error.
fn first_error(log: &str) -> Option<&str> {
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    lines()
        .find(|line| line.contains(": error") || line.contains("error:") || line.contains("fatal"))
        .or_else(|| lines().next())
}

/// A log formatted for display under a message; empty if it has one line only.
fn under(log: &str) -> String {
    let log = log.trim_end();
    if log.lines().count() < 2 {
        return String::new();
    }
    log.lines().map(|line| format!("\n  | {line}")).collect()
}

/// An architecture, for instance 9.0 or 9.0a.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arch {
    number: u32,
    suffix: Option<char>,
}

impl Arch {
    /// Compute capability `major`.`minor`.
    pub fn new(major: u32, minor: u32) -> Self {
        Self {
            number: major * 10 + minor,
            suffix: None,
        }
    }

    /// Reads `sm_90`, `compute_90`, `90` or, with features of this
    /// architecture alone, `90a`.
    ///
    /// # Errors
    /// [`CompileError::Architecture`].
    pub fn parse(text: &str) -> Result<Self> {
        let bare = text
            .strip_prefix("sm_")
            .or(text.strip_prefix("compute_"))
            .unwrap_or(text);
        let suffix = bare.chars().last().filter(|last| matches!(last, 'a' | 'f'));
        let digits = &bare[..bare.len() - suffix.map_or(0, char::len_utf8)];
        let plausible =
            (2..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        match digits.parse() {
            Ok(number) if plausible => Ok(Self { number, suffix }),
            _ => Err(CompileError::Architecture {
                text: text.to_owned(),
            }),
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        self.suffix.map_or(Ok(()), |suffix| write!(f, "{suffix}"))
    }
}

/// The output format of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// PTX text, which a driver compiles for its device.
    Ptx,
    /// Machine code for the one architecture.
    Cubin,
}

/// A program to compile.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    source: String,
    arch: Arch,
    output: Output,
    options: Vec<String>,
    headers: Vec<(String, String)>,
    includes: Vec<PathBuf>,
    expressions: Vec<String>,
}

impl Program {
    /// CUDA C++ `source`, called `name` in messages, to PTX for `arch`.
    pub fn new(name: impl Into<String>, source: impl Into<String>, arch: Arch) -> Self {
        Self {
            name: name.into(),
            source: source.into(),
            arch,
            output: Output::Ptx,
            options: Vec::new(),
            headers: Vec::new(),
            includes: Vec::new(),
            expressions: Vec::new(),
        }
    }

    /// Compiles to `output` instead.
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Adds an option of NVRTC's, for instance `--use_fast_math`.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Adds a header that the source includes by `name`.
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.headers.push((name.into(), text.into()));
        self
    }

    /// Adds a directory to search for headers, before CUDA's own. Its files may change, so such a
    /// program is not cached.
    pub fn include(mut self, directory: impl Into<PathBuf>) -> Self {
        self.includes.push(directory.into());
        self
    }

    /// Requests an instance of a template, with a name in the compiled program that
    /// [`Compiled::lowered`] returns.
    pub fn expression(mut self, expression: impl Into<String>) -> Self {
        self.expressions.push(expression.into());
        self
    }

    /// The source and the headers that come with it.
    fn texts(&self) -> impl Iterator<Item = &str> {
        let headers = self.headers.iter().map(|(_, text)| text.as_str());
        std::iter::once(self.source.as_str()).chain(headers)
    }

    /// Whether it may include files with text that is not part of it, apart from CUDA's own
    /// headers.
    fn reads_user_files(&self) -> bool {
        const READING: [&str; 6] = [
            "-I",
            "--include-path",
            "-include",
            "--pre-include",
            "-pch",
            "--use-pch",
        ];
        let reads = |option: &String| {
            let option = option.trim_start();
            READING.iter().any(|start| option.starts_with(start))
        };
        let is_given = |operand: &str| {
            let quoted = operand
                .strip_prefix('"')
                .and_then(|rest| rest.split('"').next());
            operand.starts_with('<')
                || quoted.is_some_and(|quoted| self.headers.iter().any(|(name, _)| name == quoted))
        };
        !self.includes.is_empty()
            || self.options.iter().any(reads)
            || self
                .texts()
                .any(|text| included(text).any(|name| !is_given(name)))
    }

    fn target(&self) -> String {
        match self.output {
            Output::Ptx => format!("compute_{}", self.arch),
            Output::Cubin => format!("sm_{}", self.arch),
        }
    }
}

/// The includes of `text`, as written: `<NAME>`, `"NAME"`, which is searched for in the current
/// directory first, or a macro.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let directive = line.trim_start().strip_prefix('#')?.trim_start();
        Some(directive.strip_prefix("include")?.trim_start())
    })
}

/// A compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    output: Output,
    code: Vec<u8>,
    log: String,
    names: Vec<(String, String)>,
    cached: bool,
    warnings: Vec<Warning>,
}

impl Compiled {
    /// The PTX, if that is the output format.
    pub fn ptx(&self) -> Option<&str> {
        match self.output {
            Output::Ptx => std::str::from_utf8(&self.code).ok(),
            Output::Cubin => None,
        }
    }

    /// PTX or machine code.
    pub fn code(&self) -> &[u8] {
        &self.code
    }

    /// The image for [`Module::load`](crate::Module::load).
    pub fn image(&self) -> Image<'_> {
        match self.ptx() {
            Some(ptx) => Image::ptx(ptx),
            None => Image::compiled(&self.code),
        }
    }

    /// The compiler's warnings.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// The name in the compiled program of an [`Program::expression`].
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
    pub fn cache_warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

/// The compiler, with its cache. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    table: Arc<sys::Nvrtc>,
    version: (u32, u32),
    includes: Vec<PathBuf>,
    cache: Option<Cache>,
}

impl Nvrtc {
    /// The first of [`find::libraries`] that can be opened, with the cache in the user's cache
    /// directory.
    ///
    /// # Errors
    /// [`CompileError::NotFound`], with every path that was tried.
    pub fn find() -> Result<Self> {
        let mut attempts = Vec::new();
        let libraries = find::libraries();
        attempts.extend(libraries.refused.into_iter().map(|refused| Attempt {
            reason: format!("not opened, as {refused}"),
            name: refused.path,
        }));
        for candidate in libraries.files {
            // SAFETY: libraries of this name, in places that the user named or that only the
            // user and root can write to, where NVIDIA's is installed.
            match unsafe { Self::open(&candidate) } {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(CompileError::NotFound(error)) => attempts.extend(error.attempts),
                Err(error) => return Err(error),
            }
        }
        Err(CompileError::NotFound(OpenError {
            library: LIBRARY,
            attempts,
            advice: ADVICE,
        }))
    }

    /// The NVRTC in the file `path`.
    ///
    /// # Errors
    /// [`CompileError::NotFound`].
    ///
    /// # Safety
    /// The file is NVIDIA's NVRTC, or does not exist.
    pub unsafe fn open(path: &Path) -> Result<Self> {
        // SAFETY: the caller's contract.
        let table = unsafe { sys::Nvrtc::open(path) }.map_err(|reason| {
            CompileError::NotFound(OpenError {
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
            cache: Cache::of_user(),
        })
    }

    /// Caches compiled programs in `cache`, or not at all.
    pub fn with_cache(self, cache: Option<Cache>) -> Self {
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
    /// [`CompileError::Missing`] before CUDA 11.2.
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
    /// [`CompileError::Refused`], with the first error first.
    pub fn compile(&self, program: &Program) -> Result<Compiled> {
        let options = self.options_of(program);
        let Some(cache) = self.cache.as_ref().filter(|_| !program.reads_user_files()) else {
            return self.compile_now(program, &options);
        };
        let key = self.key(program, &options);
        let mut warnings = Vec::new();
        match cache.look_up(&key) {
            Lookup::Found(entry) => {
                return Ok(Compiled {
                    output: program.output,
                    code: entry.code,
                    log: entry.log,
                    names: entry.names,
                    cached: true,
                    warnings,
                });
            }
            Lookup::Absent => {}
            Lookup::Unusable(warning) => warnings.push(warning),
        }
        let mut compiled = self.compile_now(program, &options)?;
        let stored = cache.store(&key, &compiled.code, &compiled.log, &compiled.names);
        warnings.extend(stored.err());
        compiled.warnings = warnings;
        Ok(compiled)
    }

    fn options_of(&self, program: &Program) -> Vec<String> {
        let mut options = vec![format!("--gpu-architecture={}", program.target())];
        options.extend(program.options.iter().cloned());
        let directories = program.includes.iter().chain(&self.includes);
        options.extend(directories.map(|path| format!("--include-path={}", path.display())));
        options
    }

    fn key(&self, program: &Program, options: &[String]) -> Key {
        let mut key = Key::new();
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

    fn compile_now(&self, program: &Program, options: &[String]) -> Result<Compiled> {
        let name = &program.name;
        let c_text = |what: &str, text: &str| {
            CString::new(text).map_err(|_| CompileError::ZeroByte {
                name: name.clone(),
                what: what.to_owned(),
            })
        };
        let c_name = c_text("the name", name)?;
        let c_source = c_text("the source", &program.source)?;
        let c_list =
            |what: &str, texts: &mut dyn Iterator<Item = &String>| -> Result<Vec<CString>> {
                texts.map(|text| c_text(what, text)).collect()
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
            return Err(CompileError::Refused { name, target, log });
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
        if program.output == Output::Ptx {
            while code.last() == Some(&0) {
                code.pop();
            }
        }
        let log = running.log();
        let output = program.output;
        Ok(Compiled {
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

const ADVICE: &str = "fercuda setup nvrtc, pip install nvidia-cuda-nvrtc or the CUDA toolkit, \
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
    Err(CompileError::Call {
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

    fn code(&self, output: Output, name: &str) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is alive and `size` outlives the calls.
        let answer = unsafe {
            match output {
                Output::Ptx => self.table.nvrtcGetPTXSize(self.raw, &mut size)?,
                Output::Cubin => self.table.nvrtcGetCUBINSize(self.raw, &mut size)?,
            }
        };
        status(answer, "nvrtcGetPTXSize", name, String::new)?;
        let mut code = vec![0u8; size];
        // SAFETY: `code` has the size that the library reported.
        let answer = unsafe {
            match output {
                Output::Ptx => self.table.nvrtcGetPTX(self.raw, code.as_mut_ptr().cast())?,
                Output::Cubin => self
                    .table
                    .nvrtcGetCUBIN(self.raw, code.as_mut_ptr().cast())?,
            }
        };
        status(answer, "nvrtcGetPTX", name, String::new)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_read_in_the_forms_people_write() {
        for text in ["sm_90", "compute_90", "90"] {
            assert_eq!(Arch::parse(text).unwrap(), Arch::new(9, 0));
        }
        assert_eq!(Arch::parse("sm_90a").unwrap().to_string(), "90a");
        assert_eq!(Arch::parse("120").unwrap(), Arch::new(12, 0));
        for text in ["", "a", "9", "sm_", "sm_9x", "9000", "sm_-90", "é0"] {
            assert!(Arch::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_program_that_may_read_user_files_is_recognised() {
        let program = |source: &str| Program::new("k.cu", source, Arch::new(9, 0));
        let alone = program("#include <cuda_fp16.h>\n# include \"mine.h\"\n").header("mine.h", "");
        assert!(!alone.reads_user_files());
        assert!(program("  #include \"mine.h\"").reads_user_files());
        assert!(program("#include MINE").reads_user_files());
        let nested = program("").header("mine.h", "#include \"other.h\"");
        assert!(nested.reads_user_files());
        assert!(program("").include("/opt/headers").reads_user_files());
        assert!(program("").option("-I/opt/headers").reads_user_files());
        assert!(program("").option("--pre-include=a.h").reads_user_files());
        assert!(!program("").option("--use_fast_math").reads_user_files());
    }

    #[test]
    fn the_first_error_of_a_log_comes_first() {
        let log = "k.cu(1): warning #177-D: unused\n\nk.cu(3): error: identifier \"x\" is undefined\n1 error detected\n";
        let error = CompileError::Refused {
            name: "k.cu".into(),
            target: "compute_90".into(),
            log: log.into(),
        };
        let text = error.to_string();
        assert_eq!(
            text.lines().next().unwrap(),
            "cannot compile `k.cu` for compute_90: k.cu(3): error: identifier \"x\" is undefined"
        );
        assert!(text.contains("\n  | k.cu(1): warning"), "{text}");
    }
}
