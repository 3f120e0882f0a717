//! Modules, kernels and launches.

use core::ffi::{c_char, c_void};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fercuda_cuda::{Function, Image, Launch, Module};
use fercuda_runtime::Argument;

use super::types::{fer_argument, fer_kernel, fer_launch, fer_module, fer_session};
use crate::handles::{CAPTURES, KERNELS, MODULES, SESSIONS, buffer as known};
use crate::pointers::{Place, given, list, text};
use crate::status::{Failure, Result, fer_status, guarded};

/// A structure that is an argument has at most so many bytes, which no kernel's
/// parameters exceed.
const MOST_BYTES: u32 = 32764;

/// A module as C holds it.
pub(crate) struct Loaded {
    pub(crate) session: u64,
    module: Module,
    /// Kernels that were asked for.
    kernels: Mutex<HashMap<String, u64>>,
}

/// A kernel as C holds it.
pub(crate) struct Kernel {
    pub(crate) session: u64,
    module: u64,
    function: Function,
}

/// Loads PTX text, which ends with a zero byte, into the session's device. A mistake in
/// it is FER_ERROR_MODULE, and the message has the compiler's log. Unloaded by
/// fer_module_unload, or with its session.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_module_load_ptx(
    session: fer_session,
    ptx: *const c_char,
    module: *mut fer_module,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (ptx, place) = unsafe { (text("ptx", ptx)?, Place::new("module", module)?) };
        load(session, &Image::ptx(ptx), place)
    })
}

/// Loads machine code (a cubin), a fatbin, or PTX text without a zero byte. Lengths in
/// it are checked, and no more: NVIDIA's driver believes machine code, so it has to come
/// from who is trusted.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_module_load_image(
    session: fer_session,
    image: *const c_void,
    len_bytes: u64,
    module: *mut fer_module,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (bytes, place) = unsafe {
            (
                list("image", image.cast::<u8>(), len_bytes)?,
                Place::new("module", module)?,
            )
        };
        // SAFETY: that machine code is as its compiler made it is the caller's promise.
        let image = unsafe { Image::binary(bytes) }
            .map_err(|error| Failure::new(fer_status::FER_ERROR_MODULE, error.to_string()))?;
        load(session, &image, place)
    })
}

fn load(session: fer_session, image: &Image<'_>, place: Place<fer_module>) -> Result<()> {
    let open = SESSIONS.get("session", session)?;
    let loaded = Loaded {
        session,
        module: open.session.load(image)?,
        kernels: Mutex::default(),
    };
    place.put(MODULES.insert_of(&SESSIONS, session, loaded)?);
    Ok(())
}

/// Ends a module's handle and those of its kernels at once, and its code behind the last
/// launch of it, for which this waits; while a dispatcher runs on the device it does not, and
/// the code goes when none does. Graphs that launch it keep it.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_module_unload(module: fer_module) -> fer_status {
    guarded(|| {
        MODULES.remove("module", module)?;
        drop(KERNELS.take(|kernel| kernel.module == module));
        Ok(())
    })
}

/// A module's kernel by its name, mangled if it has C++'s linkage; the same handle each
/// time. It ends with its module.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_module_kernel(
    module: fer_module,
    name: *const c_char,
    kernel: *mut fer_kernel,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (name, place) = unsafe { (text("name", name)?, Place::new("kernel", kernel)?) };
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
        let kernel = Kernel {
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

fn from_cuda(error: fercuda_cuda::Error) -> Failure {
    fercuda_runtime::Error::from(error).into()
}

/// Launches a kernel behind the session's work, with `count` arguments; `arguments` may
/// be NULL for none. They are compared with what the kernel declares, and buffers have
/// to be of the session; if anything does not fit nothing is launched. Never waits for
/// the kernel: what fails in it is heard of by what comes after it.
///
/// In the session's place there may be a fer_capture. Then nothing is launched, and the launch
/// is a part of what it captures; what does not fit the kernel is told when that is finished.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_ptxlaunch_submit(
    session: fer_session,
    kernel: fer_kernel,
    launch: *const fer_launch,
    arguments: *const fer_argument,
    count: u64,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (launch, arguments) = unsafe {
            (
                given("launch", launch)?,
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
            // SAFETY: what a structure's argument leads to is part of the caller's
            // promise.
            unsafe { read(at, argument) }
        });
        let arguments: Vec<Argument> = arguments.collect::<Result<_>>()?;
        let [grid, block] = [("grid", launch.grid), ("block", launch.block)].map(|(name, it)| {
            if it.contains(&0) {
                let what = format!("launch.{name}: {it:?} has a 0\ntry: 1 where there is one");
                return Err(Failure::new(fer_status::FER_ERROR_LAUNCH, what));
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
        // SAFETY: that the kernel touches what it may is the caller's promise.
        Ok(unsafe { open.session.launch(&kernel.function, shape, &arguments) }?)
    })
}

/// # Safety
/// A structure leads to as many bytes as it says.
unsafe fn read(at: usize, argument: &fer_argument) -> Result<Argument> {
    let name = |field: &str| format!("arguments[{at}].{field}");
    let value = argument.value;
    match argument.kind {
        1 => {
            if !matches!(argument.bytes, 0 | 8) {
                let what = format!("{} for a buffer\ntry: 8", argument.bytes);
                return Err(Failure::argument(&name("bytes"), what));
            }
            // SAFETY: any bits are a number.
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
                other => Err(Failure::argument(
                    &name("bytes"),
                    format!("{other} for a number\ntry: 1, 2, 4 or 8, or a structure"),
                )),
            }
        }
        3 => {
            if argument.bytes == 0 || argument.bytes > MOST_BYTES {
                let what = format!("{} for a structure\ntry: 1 to {MOST_BYTES}", argument.bytes);
                return Err(Failure::argument(&name("bytes"), what));
            }
            let field = name("value.structure");
            // SAFETY: any bits are an address; that it leads to so many bytes is the
            // caller's promise.
            let bytes =
                unsafe { list(&field, value.structure.cast::<u8>(), argument.bytes.into()) }?;
            Ok(Argument::Structure(Arc::from(bytes)))
        }
        other => Err(Failure::argument(
            &name("kind"),
            format!("{other} is no fer_argument_kind\ntry: 1 to 3"),
        )),
    }
}
