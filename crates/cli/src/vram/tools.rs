//! Maintenance of a mounted filesystem: scrubbing, fault injection, growing and shrinking.
//!
//! The daemon works in short steps, and the client requests one after the other. Interrupting the
//! client stops the work; completed steps stay done.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use fercuda_governor::MemorySize;
use fercuda_vramfs::control::{Control, InjectedFault, ScrubResult};
use fercuda_vramfs::layout::DATA_BYTES;
use indicatif::ProgressBar;
use serde_json::json;

use super::show::MountStats;
use crate::out::say;
use crate::progress::progress_bar;
use crate::status::ExitStatus;
use crate::terminal::{bytes, count};

/// Show the progress of scrubbing, or check all blocks at once (--now).
#[derive(clap::Args)]
#[command(after_help = "\
A filesystem with an error-correcting code (--ecc rs) is scrubbed in the
background, as fast as --scrub-rate of `mount` allows. Without --now this shows
the progress of that. With --now all blocks in use are checked at once, by
low-priority kernels.

Exit status: 0; 1 if blocks were lost or could not be checked.

Examples:
  fercuda vram scrub /mnt/vram
  fercuda vram scrub --now /mnt/vram")]
pub(crate) struct ScrubArgs {
    /// Mount point.
    dir: PathBuf,
    /// Check all blocks now, and wait until that is done.
    #[arg(long)]
    now: bool,
    /// Print a JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub(super) fn scrub(args: &ScrubArgs) -> Result<ExitCode> {
    let what = || format!("cannot scrub {}", args.dir.display());
    let figures = MountStats::query(&args.dir).with_context(what)?;
    if figures.text("ecc")? == "off" {
        bail!(
            "{} has no error-correcting code (--ecc off), so errors cannot be detected\ntry: fercuda vram mount without --ecc off",
            args.dir.display()
        );
    }
    if !args.now {
        let names = [
            "scrub_rounds",
            "scrubbed_blocks",
            "scrub_failures",
            "corrected_blocks",
            "corrected_symbols",
            "corrected_rows",
            "corrected_records",
            "lost_blocks",
        ];
        let all: Result<serde_json::Map<_, _>> = names
            .iter()
            .map(|name| Ok(((*name).to_owned(), figures.number(name)?.into())))
            .collect();
        let all = all?;
        match args.json {
            true => say!("{}", serde_json::Value::Object(all)),
            false => all
                .iter()
                .for_each(|(name, value)| say!("{:<18} {value}", name.replace('_', " "))),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let control = Control::open(&args.dir).with_context(what)?;
    let bar = progress_bar("scrubbing", figures.number("size_bytes")?, true);
    let mut all = ScrubResult::default();
    loop {
        let step = control.scrub(all.next).with_context(what)?;
        all.verified += step.verified;
        all.corrected += step.corrected;
        all.lost += step.lost;
        all.next = step.next;
        bar.set_position(step.next.saturating_mul(DATA_BYTES as u64));
        if step.next == 0 {
            break;
        }
    }
    bar.finish_and_clear();
    match args.json {
        true => say!(
            "{}",
            json!({"looked_at": all.verified, "corrected": all.corrected, "lost": all.lost})
        ),
        false => say!(
            "{} checked, {} corrected, {} lost",
            count(all.verified as usize, "block"),
            all.corrected,
            all.lost
        ),
    }
    Ok(ExitStatus::of_findings(all.lost > 0).into())
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum InjectedFaultKind {
    /// One symbol of one codeword.
    Symbol,
    /// A row of 1 KiB, of data or of parity.
    Row,
    /// Up to 3 contiguous KiB.
    Burst,
    /// The record, which has the owners of a block's pages.
    Metadata,
}

/// Inject faults into blocks in use, to test error correction.
#[derive(clap::Args)]
#[command(after_help = "\
Given a directory, faults hit any blocks in use; given a file on it, only blocks
with its data. A single fault of any kind in a block is corrected; so are
several that touch at most four rows. With more the block is lost, and reading
it is an error.

Exit status: 0; 1 if no fault could be injected.

Examples:
  fercuda vram inject /mnt/vram --kind symbol --count 100
  fercuda vram inject /mnt/vram/file --kind row --seed 7
  fercuda vram scrub --now /mnt/vram")]
pub(crate) struct InjectArgs {
    /// Mount point, or a file on it.
    path: PathBuf,
    /// Kind of fault.
    #[arg(long, value_enum, default_value = "symbol")]
    kind: InjectedFaultKind,
    /// Number of faults.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// Seed of the random locations [default: random].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

pub(super) fn inject(args: &InjectArgs) -> Result<ExitCode> {
    let what = || format!("cannot inject faults into {}", args.path.display());
    let fault = match args.kind {
        InjectedFaultKind::Symbol => InjectedFault::Symbol,
        InjectedFaultKind::Row => InjectedFault::Row,
        InjectedFaultKind::Burst => InjectedFault::Burst,
        InjectedFaultKind::Metadata => InjectedFault::Metadata,
    };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let control = Control::open(&args.path).with_context(what)?;
    let (mut done, mut blocks) = (0, 0);
    while done < u64::from(args.count) {
        let left = u64::from(args.count) - done;
        // Each step has its own random numbers, which the seed determines.
        let (more, among) = control
            .inject(fault, left, seed.wrapping_add(done))
            .with_context(what)?;
        if more == 0 {
            break;
        }
        done += more;
        blocks = among;
    }
    if done == 0 && args.count > 0 {
        bail!(
            "no block of {} is in use, so no fault can be injected\ntry: write data first",
            args.path.display()
        );
    }
    say!(
        "{} injected into {} in use; seed {seed}",
        count(done as usize, "fault"),
        count(blocks as usize, "block")
    );
    Ok(ExitCode::SUCCESS)
}

/// Grow a mounted filesystem.
#[derive(clap::Args)]
#[command(after_help = "\
It stays mounted and usable.

Examples:
  fercuda vram grow /mnt/vram --size 16GiB")]
pub(crate) struct GrowArgs {
    /// Mount point.
    dir: PathBuf,
    /// New capacity for data, such as 16GiB.
    #[arg(long, value_name = "BYTES")]
    size: MemorySize,
}

/// Shrink a mounted filesystem, returning memory to the device.
#[derive(clap::Args)]
#[command(after_help = "\
It stays mounted and usable: data in memory that is to be freed are moved. The
data in use have to fit into the new size. Memory is freed in segments of at
most 274 MiB, and the last one may be freed only in part.

Examples:
  fercuda vram shrink /mnt/vram --size 4GiB")]
pub(crate) struct ShrinkArgs {
    /// Mount point.
    dir: PathBuf,
    /// New capacity for data, such as 4GiB.
    #[arg(long, value_name = "BYTES")]
    size: MemorySize,
}

pub(super) fn grow(args: &GrowArgs) -> Result<ExitCode> {
    let (capacity, wanted) = (MountCapacity::query(&args.dir)?, args.size.get());
    if wanted < capacity.offered {
        bail!(
            "{} {}\ntry: a larger --size, or fercuda vram shrink",
            args.dir.display(),
            capacity.describe("already")
        );
    }
    resize(&args.dir, wanted)
}

pub(super) fn shrink(args: &ShrinkArgs) -> Result<ExitCode> {
    let (capacity, wanted) = (MountCapacity::query(&args.dir)?, args.size.get());
    if wanted > capacity.offered {
        bail!(
            "{} {}\ntry: a smaller --size, or fercuda vram grow",
            args.dir.display(),
            capacity.describe("only")
        );
    }
    resize(&args.dir, wanted)
}

/// Requested and usable capacity for data, in bytes.
struct MountCapacity {
    /// Capacity that memory was allocated for: `--size`, or the last resize.
    offered: u64,
    /// Usable capacity: less if a device of an array has failed or blocks are lost.
    usable: u64,
}

impl MountCapacity {
    fn query(dir: &Path) -> Result<Self> {
        let what = || format!("cannot query {}", dir.display());
        let figures = MountStats::query(dir).with_context(what)?;
        Ok(Self {
            offered: figures.number("offered_bytes").with_context(what)?,
            usable: figures.number("size_bytes").with_context(what)?,
        })
    }

    fn describe(&self, how: &str) -> String {
        let (offered, usable) = (bytes(self.offered), bytes(self.usable));
        match self.usable < self.offered {
            false => format!("has a capacity of {offered} {how}"),
            true => format!(
                "has a capacity of {offered} {how}, of which {usable} are usable, as a device has failed or blocks are lost"
            ),
        }
    }
}

fn resize(dir: &Path, wanted: u64) -> Result<ExitCode> {
    let what = || format!("cannot resize {}", dir.display());
    let blocks = wanted.div_ceil(DATA_BYTES as u64).max(1);
    let control = Control::open(dir).with_context(what)?;
    let mut shown: Option<ProgressBar> = None;
    let moving = |left: u64| {
        let bar = shown.get_or_insert_with(|| progress_bar("moving blocks", left, false));
        bar.set_position(bar.length().unwrap_or(left).saturating_sub(left));
    };
    let taken = control.resize(blocks, moving).with_context(what)?;
    if let Some(bar) = shown {
        bar.finish_and_clear();
    }
    let capacity = MountCapacity::query(dir)?;
    say!(
        "{} has a capacity of {}, in {} of device memory",
        dir.display(),
        bytes(capacity.usable),
        bytes(taken)
    );
    Ok(ExitCode::SUCCESS)
}
