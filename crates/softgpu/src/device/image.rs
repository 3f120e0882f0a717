//! Loading of images: PTX text, a fat binary, or our linker's output.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::time::Instant;

use fercuda_cuda_sys::types::{CUjit_option as J, CUresult};

use super::fatbin::{self, FatbinError};
use super::objects::Jit;
use super::{CuResult, err};
use crate::exec;

/// The magic of `cuLinkComplete`'s output; the text's length, the text and a zero byte follow.
pub(crate) const LINKED_MAGIC: &[u8; 16] = b"feRcuda linked 1";
const WRAPPER_MAGIC: u32 = 0x4662_43b1;
const SM: u32 = 90;
/// The last version of PTX that is read.
const LAST_PTX: (u32, u32) = (9, 5);

impl Jit {
    /// Reads an option list.
    ///
    /// # Safety
    /// `options` and `values` have `count` entries, and buffers are as long as they say.
    pub(crate) unsafe fn read(
        count: u32,
        options: *const J,
        values: *mut *mut c_void,
    ) -> CuResult<Self> {
        let mut jit = Jit {
            started: Some(Instant::now()),
            ..Jit::default()
        };
        if count == 0 {
            return Ok(jit);
        }
        if options.is_null() || values.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let none = (std::ptr::null_mut::<c_char>(), 0usize);
        let (mut info, mut error) = (none, none);
        for i in 0..count as usize {
            // SAFETY: by this function's contract.
            let (option, at) = unsafe { (*options.add(i), values.add(i)) };
            // SAFETY: likewise.
            let value = unsafe { *at };
            match option {
                J::CU_JIT_INFO_LOG_BUFFER => info.0 = value.cast(),
                J::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => info.1 = value as usize as u32 as usize,
                J::CU_JIT_ERROR_LOG_BUFFER => error.0 = value.cast(),
                J::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => error.1 = value as usize as u32 as usize,
                J::CU_JIT_LOG_VERBOSE => jit.verbose = value as usize & 0xffff_ffff != 0,
                _ if option.0 >= J::CU_JIT_NUM_OPTIONS.0 => return Err(err::INVALID_VALUE),
                _ => {}
            }
            jit.values.push((option.0, at));
        }
        jit.info = Some(info).filter(|b| !b.0.is_null() && b.1 > 0);
        jit.error = Some(error).filter(|b| !b.0.is_null() && b.1 > 0);
        for buffer in [jit.info, jit.error].into_iter().flatten() {
            // SAFETY: a buffer of at least one byte, by this function's contract.
            unsafe { *buffer.0 = 0 };
        }
        Ok(jit)
    }

    fn append(buffer: Option<(*mut c_char, usize)>, used: &mut usize, text: &str) {
        let Some((at, size)) = buffer else { return };
        let room = size.saturating_sub(*used + 1).min(text.len());
        // SAFETY: `used + room + 1 <= size`, and the buffer is as long as the client said (`read`'s
        // contract).
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), at.add(*used), room);
            *at.add(*used + room) = 0;
        }
        *used += room;
    }

    /// Writes to the client's log, or to standard error if it has none.
    pub(crate) fn say_error(&mut self, text: &str) {
        if self.error.is_none() {
            if super::machine().is_ok_and(|m| !m.config.quiet) {
                super::say(text);
            }
            return;
        }
        Self::append(self.error, &mut self.error_len, &format!("{text}\n"));
    }

    pub(crate) fn say_info(&mut self, text: &str) {
        Self::append(self.info, &mut self.info_len, &format!("{text}\n"));
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Writes back the values that are results.
    pub(crate) fn finish(&mut self) {
        for &(option, at) in &self.values {
            let result = match J(option) {
                J::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => self.info_len,
                J::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => self.error_len,
                J::CU_JIT_WALL_TIME => {
                    let ms = self
                        .started
                        .map_or(0.0, |s| s.elapsed().as_secs_f32() * 1e3);
                    ms.to_bits() as usize
                }
                _ => continue,
            };
            // SAFETY: a slot of the client's value array (`read`'s contract), which outlives the
            // call.
            unsafe { *at = result as *mut c_void };
        }
    }
}

/// The PTX inside an image.
///
/// # Safety
/// `image` is a NUL-terminated text, or a container as long as its own header says.
pub(crate) unsafe fn text_of(image: *const c_void, jit: &mut Jit) -> CuResult<String> {
    if image.is_null() {
        return Err(err::INVALID_VALUE);
    }
    // Byte by byte: a text may be shorter than the magic numbers.
    let mut head = [0u8; 4];
    for (i, byte) in head.iter_mut().enumerate() {
        // SAFETY: not past a zero byte, which ends a text; containers are longer.
        *byte = unsafe { *image.cast::<u8>().add(i) };
        if *byte == 0 {
            break;
        }
    }
    match u32::from_le_bytes(head) {
        fatbin::MAGIC => {
            // SAFETY: a fat binary has at least its header.
            let header = unsafe { &*image.cast::<[u8; fatbin::HEADER]>() };
            let len = fatbin::declared_len(header).map_err(|e| refuse(&e, jit))?;
            // SAFETY: as long as its header says, by this function's contract.
            let container = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), len) };
            fatbin::ptx(container, SM).map_err(|e| refuse(&e, jit))
        }
        WRAPPER_MAGIC => {
            // SAFETY: the wrapper is magic, version, pointer to the container.
            let inner = unsafe { image.cast::<*const c_void>().add(1).read_unaligned() };
            // SAFETY: one level only, since a container does not begin with a wrapper's magic; its
            // data is by contract a container or a text.
            if inner.is_null() || unsafe { inner.cast::<u32>().read_unaligned() } == WRAPPER_MAGIC {
                return Err(err::INVALID_IMAGE);
            }
            // SAFETY: as above.
            unsafe { text_of(inner, jit) }
        }
        _ if head == *b"\x7fELF" => {
            let text = "the image is a CUBIN: machine code of a GPU, which the software device cannot run; \
                        give it PTX (nvcc -ptx, or NVRTC's PTX for compute_90 and older)";
            jit.say_error(&format!("error   : {text}"));
            Err(err::NO_BINARY_FOR_GPU)
        }
        _ => {
            // SAFETY: a NUL-terminated text, by this function's contract; our linked container is
            // read by its length.
            let whole = unsafe { CStr::from_ptr(image.cast()) }.to_bytes();
            let text = if whole.starts_with(LINKED_MAGIC) {
                // SAFETY: our own container: 16 bytes of magic, 8 bytes of length in decimal-free
                // text, then the text.
                whole
                    .get(LINKED_MAGIC.len() + 16..)
                    .ok_or(err::INVALID_IMAGE)?
            } else {
                whole
            };
            std::str::from_utf8(text)
                .map(str::to_owned)
                .map_err(|_| err::INVALID_IMAGE)
        }
    }
}

/// The same for bytes of known length.
pub(crate) fn text_of_bytes(bytes: &[u8], jit: &mut Jit) -> CuResult<String> {
    if bytes.starts_with(&fatbin::MAGIC.to_le_bytes()) {
        return fatbin::ptx(bytes, SM).map_err(|e| refuse(&e, jit));
    }
    if bytes.starts_with(b"\x7fELF") {
        jit.say_error("error   : the image is a CUBIN; the software device needs PTX");
        return Err(err::NO_BINARY_FOR_GPU);
    }
    let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
    let text = if text.starts_with(LINKED_MAGIC) {
        text.get(LINKED_MAGIC.len() + 16..)
            .ok_or(err::INVALID_IMAGE)?
    } else {
        text
    };
    std::str::from_utf8(text)
        .map(str::to_owned)
        .map_err(|_| err::INVALID_IMAGE)
}

fn refuse(e: &FatbinError, jit: &mut Jit) -> CUresult {
    jit.say_error(&format!("error   : {e}"));
    match e {
        FatbinError::Malformed(_) => err::INVALID_IMAGE,
        FatbinError::OnlyBinary(_) => err::NO_BINARY_FOR_GPU,
    }
}

/// The line and the numbers of a text's first `.version`, if it has one.
fn stated_version(text: &str) -> Option<(u32, (u32, u32))> {
    let mut lines = (1..).zip(text.lines());
    let (line, rest) =
        lines.find_map(|(n, l)| Some((n, l.trim_start().strip_prefix(".version")?)))?;
    let (major, minor) = rest.split_whitespace().next()?.split_once('.')?;
    Some((line, (major.parse().ok()?, minor.parse().ok()?)))
}

/// Parses and compiles PTX; errors go to the client's log in `ptxas`'s format.
pub(crate) fn compile(text: &str, jit: &mut Jit) -> CuResult<Arc<exec::CompiledModule>> {
    if text.trim().is_empty() {
        jit.say_error("error   : the image is empty");
        return Err(err::INVALID_IMAGE);
    }
    let complain = |jit: &mut Jit, line: u32, message: &str| {
        jit.say_error(&format!(
            "ptxas application ptx input, line {line}; error   : {message}"
        ));
        jit.say_error("ptxas fatal   : Ptx assembly aborted due to errors");
        err::INVALID_PTX
    };
    // First, since a later version may have words that are not known.
    if let Some((line, (major, minor))) = stated_version(text).filter(|v| v.1 > LAST_PTX) {
        let (last, last_minor) = LAST_PTX;
        let message =
            format!("unsupported .version {major}.{minor}; the last is {last}.{last_minor}");
        complain(jit, line, &message);
        return Err(err::UNSUPPORTED_PTX_VERSION);
    }
    let module = fercuda_ptx::parse(text).map_err(|e| complain(jit, e.line, &e.message))?;
    if let Some(arch) = module.target.first().and_then(|t| t.strip_prefix("sm_")) {
        let digits: String = arch.chars().take_while(char::is_ascii_digit).collect();
        if digits.parse::<u32>().is_ok_and(|sm| sm > SM) {
            jit.say_error(&format!(
                "error   : PTX for sm_{arch} does not run on this device, which is sm_{SM}"
            ));
            return Err(err::NO_BINARY_FOR_GPU);
        }
    }
    let mut problems = fercuda_ptx::check(&module);
    if problems.is_empty() {
        problems = fercuda_ptx::check_operands(&module);
    }
    if let Some(first) = problems.first() {
        for p in &problems[1..] {
            jit.say_error(&format!(
                "ptxas application ptx input, line {}; error   : {}",
                p.line, p.message
            ));
        }
        return Err(complain(jit, first.line, &first.message));
    }
    let image = exec::compile(&module, &exec::CompileOptions::default())
        .map_err(|e| complain(jit, e.line, &e.message))?;
    if jit.is_verbose() {
        for kernel in image.kernels() {
            jit.say_info(&format!(
                "ptxas info    : Function properties for {}: {} registers, {} bytes shared, {} bytes local",
                kernel.name, kernel.registers, kernel.static_shared_bytes, kernel.local_bytes
            ));
        }
    }
    Ok(image)
}
