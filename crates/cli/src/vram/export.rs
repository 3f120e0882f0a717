//! `fercuda vram export`: device location of a file, as another process would map it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use fercuda_vramfs::import::Export;
use serde_json::json;

use crate::out::say;
use crate::terminal::{bytes, count};

/// Show where a file lies in device memory, for programs that map it.
#[derive(clap::Args)]
#[command(after_help = "\
The file's path is the handle: a program passes it to Session.map_vram of the
Python package fercuda_runtime, or to Import::open of the crate fercuda-vramfs,
and uses the bytes in place, without a copy, until it closes the mapping or
exits. While the file is mapped, calls that modify it fail with EBUSY; while it
is mapped writable, all calls on its data do.

Only root and the mount's owner may map files, as a mapping
includes other files' blocks. The whole file is checked first, and errors are
corrected.

Exit status: 0; 1 if the file cannot be mapped.
Examples:
  fercuda vram export /mnt/vram/weights.bin
  fercuda vram export --json /mnt/vram/weights.bin")]
pub(crate) struct ExportArgs {
    /// File to locate.
    file: PathBuf,
    /// Check that it could also be mapped writable.
    #[arg(long)]
    write: bool,
    /// Print a JSON object with all segments instead of text.
    #[arg(long)]
    json: bool,
}

/// Formats a device UUID as NVIDIA's tools do.
fn uuid(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    format!("GPU-{}", parts.join("-"))
}

pub(super) fn export(args: &ExportArgs) -> Result<ExitCode> {
    let what = || format!("cannot export {}", args.file.display());
    let it = Export::of(&args.file, args.write).with_context(what)?;
    let device = uuid(it.device());
    let held: u64 = it.segments().iter().map(|it| it.bytes).sum();
    if args.json {
        let segment = |it: &fercuda_vramfs::import::FileSegment| json!({"offset": it.offset, "bytes": it.bytes, "at": it.at});
        let segments: Vec<serde_json::Value> = it.segments().iter().map(segment).collect();
        say!(
            "{}",
            json!({
                "file": args.file.display().to_string(),
                "device": device,
                "size_bytes": it.size(),
                "block_bytes": it.block_bytes(),
                "mapped_bytes": it.mapped_bytes(),
                "segments": segments,
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    say!("{:<12} {device}", "device");
    say!("{:<12} {}", "size", bytes(it.size()));
    say!(
        "{:<12} {} in {}",
        "memory",
        bytes(held),
        count(it.segments().len(), "segment")
    );
    say!(
        "{:<12} {}, with other blocks of the filesystem",
        "mapped",
        bytes(it.mapped_bytes())
    );
    Ok(ExitCode::SUCCESS)
}
