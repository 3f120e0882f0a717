//! The tenants of a process of ours, where there is no Python for them: this
//! program, and our runtime as a library that it loads.
//!
//! `fercuda demo` starts it under the hook; it answers as `tenants.py` does.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_cuda::{Context, Cuda, DeviceBuffer, Select};
use fercuda_cuda_sys::SharedLibrary;

use super::together::{Answer, Part};
use super::tour::{self, Tour};
use crate::out::say;

type Take = unsafe extern "C" fn(u32, u64, *mut c_char, usize) -> c_int;
type GiveBack = unsafe extern "C" fn(*mut c_char, usize) -> c_int;

/// Does the work of both, waits for a line, and lets all memory go.
pub(super) fn run(guest: &Path, device: u32, seed: u64) -> Result<ExitCode> {
    // The driver of the process, whatever stands in its place.
    let device = Cuda::select(Select::Hardware)?.device(device)?;
    let context = Context::primary(device)?;
    let kept = answered("fercuda", || own(&context, seed));
    let library = answered("our runtime", || taken(guest, device.ordinal(), seed));
    // The hook compares its account with the driver's when it is asked this.
    context.memory_info()?;
    answer(&Answer::Holding)?;
    io::stdin().read_line(&mut String::new())?;
    if let Some(library) = library {
        answered("our runtime", || given_back(library));
    }
    if let Some((tour, kept)) = kept {
        answered("fercuda", || still_there(&tour, kept));
    }
    context.memory_info()?;
    answer(&Answer::Done)?;
    Ok(ExitCode::SUCCESS)
}

fn answer(answer: &Answer) -> Result<()> {
    say!("{}", serde_json::to_string(answer)?);
    Ok(())
}

/// Says how `work` went; none if it failed.
fn answered<T>(part: &str, work: impl FnOnce() -> Result<(T, String)>) -> Option<T> {
    let part = part.to_owned();
    let (kept, said) = match work() {
        Ok((kept, what)) => (Some(kept), Answer::Did(Part { part, what })),
        Err(error) => {
            let what = format!("{error:#}");
            (None, Answer::Failed(Part { part, what }))
        }
    };
    // Text as JSON is written always.
    answer(&said).ok().and(kept)
}

/// Memory of this program's own, and what was put there.
struct Kept {
    buffer: DeviceBuffer<f32>,
    holds: Vec<f32>,
}

/// Steps of the tour, by this program itself.
fn own(context: &Context, seed: u64) -> Result<((Tour, Kept), String)> {
    let mut tour = Tour::new(context.clone(), seed)?;
    let mut steps = 0;
    for (name, step) in tour::STEPS.into_iter().take(2) {
        if !step(&mut tour)?.passed {
            bail!("{name}: a result is out of bounds");
        }
        steps += 1;
    }
    let holds = tour.numbers(500_009);
    let buffer = tour.upload(&holds)?;
    let kept = Kept { buffer, holds };
    Ok(((tour, kept), format!("{steps} steps of the tour right")))
}

fn still_there(tour: &Tour, kept: Kept) -> Result<((), String)> {
    if tour.download(&kept.buffer)? != kept.holds {
        bail!("a buffer holds something else than was put there");
    }
    Ok(((), "it held what was put there".to_owned()))
}

/// Loads our runtime and lets it take memory.
fn taken(guest: &Path, device: u32, seed: u64) -> Result<(SharedLibrary, String)> {
    // SAFETY: a library of ours, which has no initialisers.
    let library = unsafe { SharedLibrary::open(guest) }.map_err(|reason| anyhow!(reason))?;
    let take = library
        .find(c"fercuda_guest_take")
        .context("it has no fercuda_guest_take")?;
    // SAFETY: the function of this name has this type.
    let take = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Take>(take.as_ptr()) };
    // SAFETY: the text has room for as many bytes as are named.
    let said = told(|text, bytes| unsafe { take(device, seed, text, bytes) })?;
    Ok((library, said))
}

fn given_back(library: SharedLibrary) -> Result<((), String)> {
    let give = library.find(c"fercuda_guest_give_back");
    let give = give.context("it has no fercuda_guest_give_back")?;
    // SAFETY: the function of this name has this type.
    let give = unsafe { std::mem::transmute::<*mut std::ffi::c_void, GiveBack>(give.as_ptr()) };
    // SAFETY: as above.
    let said = told(|text, bytes| unsafe { give(text, bytes) })?;
    Ok(((), said))
}

/// What a function of the library says of itself.
fn told(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<String> {
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
