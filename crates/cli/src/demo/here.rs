//! Tenants in a process of our own, without Python: this program, and our runtime as a shared
//! library that it loads.
//!
//! `fercuda demo` starts it under the hook; it uses the same messages as `tenants.py`.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_cuda::{Context, Cuda, DeviceBuffer, Select};
use fercuda_cuda_sys::SharedLibrary;

use super::together::{PartMessage, TenantMessage};
use super::tour::{self, Tour};
use crate::out::say;

type GuestTakeFn = unsafe extern "C" fn(u32, u64, *mut c_char, usize) -> c_int;
type GuestGiveBackFn = unsafe extern "C" fn(*mut c_char, usize) -> c_int;

/// Runs both tenants, waits for a line on stdin, and frees all memory.
pub(super) fn run(guest: &Path, device: u32, seed: u64) -> Result<ExitCode> {
    // The driver of the process, whether real or interposed.
    let device = Cuda::select(Select::Hardware)?.device(device)?;
    let context = Context::primary(device)?;
    let kept = answered("fercuda", || own(&context, seed));
    let library = answered("our runtime", || taken(guest, device.ordinal(), seed));
    // On this query the hook compares its account with the driver's.
    context.memory_info()?;
    answer(&TenantMessage::Holding)?;
    io::stdin().read_line(&mut String::new())?;
    if let Some(library) = library {
        answered("our runtime", || given_back(library));
    }
    if let Some((tour, kept)) = kept {
        answered("fercuda", || still_there(&tour, kept));
    }
    context.memory_info()?;
    answer(&TenantMessage::Done)?;
    Ok(ExitCode::SUCCESS)
}

fn answer(answer: &TenantMessage) -> Result<()> {
    say!("{}", serde_json::to_string(answer)?);
    Ok(())
}

/// Reports the result of `work`; `None` if it failed.
fn answered<T>(part: &str, work: impl FnOnce() -> Result<(T, String)>) -> Option<T> {
    let part = part.to_owned();
    let (kept, said) = match work() {
        Ok((kept, what)) => (Some(kept), TenantMessage::Did(PartMessage { part, what })),
        Err(error) => {
            let what = format!("{error:#}");
            (None, TenantMessage::Failed(PartMessage { part, what }))
        }
    };
    // A string is always serialised successfully.
    answer(&said).ok().and(kept)
}

/// A buffer of this program, and the values written to it.
struct KeptBuffer {
    buffer: DeviceBuffer<f32>,
    holds: Vec<f32>,
}

/// Runs some steps of the tour in this process.
fn own(context: &Context, seed: u64) -> Result<((Tour, KeptBuffer), String)> {
    let mut tour = Tour::new(context.clone(), seed)?;
    let mut steps = 0;
    for (name, step) in tour::STEPS.into_iter().take(2) {
        if !step(&mut tour)?.passed {
            bail!("{name}: a result is outside its error bound");
        }
        steps += 1;
    }
    let holds = tour.numbers(500_009);
    let buffer = tour.upload(&holds)?;
    let kept = KeptBuffer { buffer, holds };
    Ok(((tour, kept), format!("{steps} steps of the tour right")))
}

fn still_there(tour: &Tour, kept: KeptBuffer) -> Result<((), String)> {
    if tour.download(&kept.buffer)? != kept.holds {
        bail!("a buffer does not hold the values written to it");
    }
    Ok(((), "its buffer held the values written to it".to_owned()))
}

/// Loads our runtime, which then allocates memory.
fn taken(guest: &Path, device: u32, seed: u64) -> Result<(SharedLibrary, String)> {
    // SAFETY: a library of ours, which has no initialisers.
    let library = unsafe { SharedLibrary::open(guest) }.map_err(|reason| anyhow!(reason))?;
    let take = library
        .find(c"fercuda_guest_take")
        .context("it has no fercuda_guest_take")?;
    // SAFETY: the function of this name has this type.
    let take = unsafe { std::mem::transmute::<*mut std::ffi::c_void, GuestTakeFn>(take.as_ptr()) };
    // SAFETY: the text buffer has room for as many bytes as are passed.
    let said = call_guest(|text, bytes| unsafe { take(device, seed, text, bytes) })?;
    Ok((library, said))
}

fn given_back(library: SharedLibrary) -> Result<((), String)> {
    let give = library.find(c"fercuda_guest_give_back");
    let give = give.context("it has no fercuda_guest_give_back")?;
    // SAFETY: the function of this name has this type.
    let give =
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, GuestGiveBackFn>(give.as_ptr()) };
    // SAFETY: as above.
    let said = call_guest(|text, bytes| unsafe { give(text, bytes) })?;
    Ok(((), said))
}

/// Calls a function of the library and returns the text that it wrote.
fn call_guest(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<String> {
    let mut text = [0_u8; 1000];
    let code = call(text.as_mut_ptr().cast(), text.len());
    let said = CStr::from_bytes_until_nul(&text)?
        .to_string_lossy()
        .into_owned();
    match code {
        0 => Ok(said),
        _ => bail!(said),
    }
}
