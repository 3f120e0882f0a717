//! Modules, kernels and launches.

use core::ffi::{c_char, c_void};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fercuda_cuda::{Function, Image, Launch, Module};
use fercuda_runtime::LaunchArgument;

use super::graphs::CAPTURES;
use super::types::{fer_argument, fer_kernel, fer_launch, fer_module, fer_session};
use crate::handles::{Handles, SESSIONS, buffer as known};
use crate::pointers::{OutPointer, list, read_pointer, text};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// Maximum size of a structure argument, which is also that of a kernel's parameters.
const MOST_BYTES: u32 = 32764;

/// A module of the C interface.
pub(crate) struct LoadedModule {
    pub(crate) session: u64,
    module: Module,
    /// Kernels that were looked up.
    kernels: Mutex<HashMap<String, u64>>,
}

pub(crate) static MODULES: Handles<LoadedModule> = Handles::new(3);

/// A kernel of the C interface.
pub(crate) struct ModuleKernel {
    pub(crate) session: u64,
    module: u64,
    function: Function,
}

pub(crate) static KERNELS: Handles<ModuleKernel> = Handles::new(4);

/// Loads PTX, a zero-terminated text, onto the session's device. Invalid PTX is FER_ERROR_MODULE,
/// and the message has the compiler's log. Unloaded by fer_module_unload, or with its session.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_module_load_ptx(
    session: fer_session,
    ptx: *const c_char,
    module: *mut fer_module,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (ptx, place) = unsafe { (text("ptx", ptx)?, OutPointer::new("module", module)?) };
        load(session, &Image::ptx(ptx), place)
    })
}

/// Loads machine code (a cubin), a fatbin, or PTX without a zero byte. Only the lengths in it are
/// validated: NVIDIA's driver trusts machine code, so it must come from a trusted source.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_module_load_image(
    session: fer_session,
    image: *const c_void,
    len_bytes: u64,
    module: *mut fer_module,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (bytes, place) = unsafe {
            (
                list("image", image.cast::<u8>(), len_bytes)?,
                OutPointer::new("module", module)?,
            )
        };
        // SAFETY: that machine code is unmodified compiler output is the caller's promise.
        let image = unsafe { Image::binary(bytes) }
            .map_err(|error| CallFailure::new(fer_status::FER_ERROR_MODULE, error.to_string()))?;
        load(session, &image, place)
    })
}

fn load(session: fer_session, image: &Image<'_>, place: OutPointer<fer_module>) -> Result<()> {
    let open = SESSIONS.get("session", session)?;
    let loaded = LoadedModule {
        session,
        module: open.session.load(image)?,
        kernels: Mutex::default(),
    };
    place.put(MODULES.insert_of(&SESSIONS, session, loaded)?);
    Ok(())
}

/// Invalidates a module's handle and those of its kernels at once, and unloads its code behind its
/// last launch, for which this waits; while a dispatcher runs on the device it does not wait, and
/// the code is unloaded when none does. Graphs that launch it keep it loaded.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_module_unload(module: fer_module) -> fer_status {
    catch_panics(|| {
        MODULES.remove("module", module)?;
        drop(KERNELS.take(|kernel| kernel.module == module));
        Ok(())
    })
}

/// Looks up a module's kernel by its name, mangled if it has C++ linkage; returns the same handle
/// each time. It is closed with its module.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_module_kernel(
    module: fer_module,
    name: *const c_char,
    kernel: *mut fer_kernel,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (name, place) = unsafe { (text("name", name)?, OutPointer::new("kernel", kernel)?) };
        let loaded = MODULES.get("module", module)?;
        let mut kernels = loaded
            .kernels
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name) {
            place.put(*kernel);
            return Ok(());
        }
        let function = loaded.module.function(name).map_err(from_cuda)?;
        let kernel = ModuleKernel {
            session: loaded.session,
            module,
            function,
        };
        let kernel = KERNELS.insert_of(&MODULES, module, kernel)?;
        kernels.insert(name.to_owned(), kernel);
        place.put(kernel);
        Ok(())
    })
}

fn from_cuda(error: fercuda_cuda::Error) -> CallFailure {
    fercuda_runtime::Error::from(error).into()
}

/// Launches a kernel behind the session's work, with `count` arguments; `arguments` may be NULL for
/// none. They are compared with the kernel's declaration, and buffers must belong to the session;
/// if anything does not match nothing is launched. Never waits for the kernel: its failure is
/// reported by a later call.
///
/// Instead of the session a fer_capture may be passed. Then nothing is launched, and the launch
/// becomes a part of the capture; a mismatch with the kernel is reported when that is finished.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_ptxlaunch_submit(
    session: fer_session,
    kernel: fer_kernel,
    launch: *const fer_launch,
    arguments: *const fer_argument,
    count: u64,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (launch, arguments) = unsafe {
            (
                read_pointer("launch", launch)?,
                list("arguments", arguments, count)?,
            )
        };
        let capture = match CAPTURES.may_have(session) {
            true => Some(CAPTURES.get("session", session)?),
            false => None,
        };
        let of = capture.as_ref().map_or(session, |capture| capture.session);
        let (open, kernel) = (SESSIONS.get("session", of)?, KERNELS.get("kernel", kernel)?);
        let arguments = arguments.iter().enumerate().map(|(at, argument)| {
            // SAFETY: that a structure argument's pointer is valid is part of the caller's promise.
            unsafe { read(at, argument) }
        });
        let arguments: Vec<LaunchArgument> = arguments.collect::<Result<_>>()?;
        let [grid, block] = [("grid", launch.grid), ("block", launch.block)].map(|(name, it)| {
            if it.contains(&0) {
                let what = format!("launch.{name}: {it:?} has a 0\ntry: 1 where there is one");
                return Err(CallFailure::new(fer_status::FER_ERROR_LAUNCH, what));
            }
            Ok((it[0], it[1], it[2]))
        });
        let shape = Launch::new(grid?, block?).shared_bytes(launch.shared_bytes);
        let shape = match launch.is_cooperative {
            0 => shape,
            _ => shape.cooperative(),
        };
        if let Some(capture) = capture {
            let ready = open
                .session
                .prepare_launch(&kernel.function, shape, &arguments)?;
            return capture.add(ready);
        }
        // SAFETY: that the kernel accesses only what it may is the caller's promise.
        Ok(unsafe { open.session.launch(&kernel.function, shape, &arguments) }?)
    })
}

/// # Safety
/// A structure argument points to as many bytes as it has.
unsafe fn read(at: usize, argument: &fer_argument) -> Result<LaunchArgument> {
    let name = |field: &str| format!("arguments[{at}].{field}");
    let value = argument.value;
    match argument.kind {
        1 => {
            if !matches!(argument.bytes, 0 | 8) {
                let what = format!("{} for a buffer\ntry: 8", argument.bytes);
                return Err(CallFailure::argument(&name("bytes"), what));
            }
            // SAFETY: every bit pattern is a number.
            let buffer = unsafe { value.buffer };
            Ok(known(&name("value.buffer"), buffer)?.into())
        }
        2 => {
            // SAFETY: as above.
            let bytes = unsafe { value.bytes };
            let [a, b, c, d, ..] = bytes;
            match argument.bytes {
                1 => Ok(a.into()),
                2 => Ok(u16::from_ne_bytes([a, b]).into()),
                4 => Ok(u32::from_ne_bytes([a, b, c, d]).into()),
                8 => Ok(u64::from_ne_bytes(bytes).into()),
                other => Err(CallFailure::argument(
                    &name("bytes"),
                    format!("{other} for a number\ntry: 1, 2, 4 or 8, or a structure"),
                )),
            }
        }
        3 => {
            if argument.bytes == 0 || argument.bytes > MOST_BYTES {
                let what = format!("{} for a structure\ntry: 1 to {MOST_BYTES}", argument.bytes);
                return Err(CallFailure::argument(&name("bytes"), what));
            }
            let field = name("value.structure");
            // SAFETY: every bit pattern is an address; that it points to this many bytes is the
            // caller's promise.
            let bytes =
                unsafe { list(&field, value.structure.cast::<u8>(), argument.bytes.into()) }?;
            Ok(LaunchArgument::Structure(Arc::from(bytes)))
        }
        other => Err(CallFailure::argument(
            &name("kind"),
            format!("{other} is not a fer_argument_kind\ntry: 1 to 3"),
        )),
    }
}
