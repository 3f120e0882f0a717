//! What is done to a filesystem while it is mounted: looking at all of it, making faults, more room or less.
//!
//! The daemon does steps of a moment each, which are asked for here one after the other: who ends this ends the work, and
//! what was done stays done.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use fercuda_governor::ByteSize;
use fercuda_vramfs::control::{Control, Fault, Scrubbed};
use fercuda_vramfs::layout::DATA_BYTES;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::show::Figures;
use crate::out::say;
use crate::terminal::{bytes, count};

/// A bar on standard error, if that is a terminal.
pub(super) fn bar(what: &'static str, length: u64, is_bytes: bool) -> ProgressBar {
    let how = match is_bytes {
        true => "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {eta} left",
        false => "{msg} {wide_bar} {pos} of {len}",
    };
    let bar = ProgressBar::new(length).with_message(what);
    match ProgressStyle::with_template(how) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Looks at all blocks that are in use, and corrects what is wrong.
#[derive(clap::Args)]
#[command(after_help = "\
A filesystem with a code (--ecc rs) looks at its blocks in the background, as
fast as --scrub-rate of `mount` says. Without --now this says how far that is.
With it, all blocks in use are looked at now, by work that the device does when
it has no other.

Exit status: 0; 1 if something was lost, or could not be looked at.

Examples:
  fercuda vram scrub /mnt/vram
  fercuda vram scrub --now /mnt/vram")]
pub(crate) struct ScrubArgs {
    /// Where it is mounted.
    dir: PathBuf,
    /// Look at all of it now, and wait until that is done.
    #[arg(long)]
    now: bool,
    /// Print a JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub(super) fn scrub(args: &ScrubArgs) -> Result<ExitCode> {
    let what = || format!("cannot look at the blocks of {}", args.dir.display());
    let figures = Figures::of(&args.dir).with_context(what)?;
    if figures.text("ecc")? == "off" {
        bail!(
            "{} has no code, so nobody can tell what is right\ntry: fercuda vram mount without --ecc off",
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
    let bar = bar("looking at blocks", figures.number("size_bytes")?, true);
    let mut all = Scrubbed::default();
    loop {
        let step = control.scrub(all.next).with_context(what)?;
        all.looked += step.looked;
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
            json!({"looked_at": all.looked, "corrected": all.corrected, "lost": all.lost})
        ),
        false => say!(
            "{} looked at, {} corrected, {} lost",
            count(all.looked as usize, "block"),
            all.corrected,
            all.lost
        ),
    }
    Ok(ExitCode::from(u8::from(all.lost > 0)))
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// One symbol of one word of the code.
    Symbol,
    /// A row of 1 KiB, of data or of parity.
    Row,
    /// Up to 3 KiB side by side.
    Burst,
    /// The record, which says whose a block is.
    Metadata,
}

/// Makes something wrong in blocks that are in use, to see it corrected.
#[derive(clap::Args)]
#[command(after_help = "\
Of a directory, any block in use may be hit; of a file in it, those that have
its data. One fault of any kind in a block is corrected; so are several, as long
as they touch four rows at most. What is beyond that is lost: who reads it gets
an error.

Exit status: 0; 1 if nothing could be made wrong.

Examples:
  fercuda vram inject /mnt/vram --kind symbol --count 100
  fercuda vram inject /mnt/vram/file --kind row --seed 7
  fercuda vram scrub --now /mnt/vram")]
pub(crate) struct InjectArgs {
    /// Where it is mounted, or a file there.
    path: PathBuf,
    /// What becomes wrong.
    #[arg(long, value_enum, default_value = "symbol")]
    kind: Kind,
    /// How often.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// What decides where; random without it.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

pub(super) fn inject(args: &InjectArgs) -> Result<ExitCode> {
    let what = || format!("cannot make faults in {}", args.path.display());
    let fault = match args.kind {
        Kind::Symbol => Fault::Symbol,
        Kind::Row => Fault::Row,
        Kind::Burst => Fault::Burst,
        Kind::Metadata => Fault::Metadata,
    };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let control = Control::open(&args.path).with_context(what)?;
    let (mut done, mut blocks) = (0, 0);
    while done < u64::from(args.count) {
        let left = u64::from(args.count) - done;
        // Each step has other numbers, and the same ones for the same seed.
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
            "no block of {} is in use, so there is nothing to make wrong\ntry: after something was written",
            args.path.display()
        );
    }
    say!(
        "{} made, among {}; seed {seed}",
        count(done as usize, "fault"),
        count(blocks as usize, "block")
    );
    Ok(ExitCode::SUCCESS)
}

/// Gives it more room.
#[derive(clap::Args)]
#[command(after_help = "\
It stays mounted, and who uses it notices nothing but the room.

Examples:
  fercuda vram grow /mnt/vram --size 16GiB")]
pub(crate) struct GrowArgs {
    /// Where it is mounted.
    dir: PathBuf,
    /// Room for data from now on, such as 16GiB.
    #[arg(long, value_name = "BYTES")]
    size: ByteSize,
}

/// Gives memory back to the device.
#[derive(clap::Args)]
#[command(after_help = "\
It stays mounted: what lies in memory that is to go is moved, which who uses it
does not notice. What is in use has to fit into what is left. Memory goes in
pieces of 274 MiB at most, and the last may stay in part.

Examples:
  fercuda vram shrink /mnt/vram --size 4GiB")]
pub(crate) struct ShrinkArgs {
    /// Where it is mounted.
    dir: PathBuf,
    /// Room for data from now on, such as 4GiB.
    #[arg(long, value_name = "BYTES")]
    size: ByteSize,
}

pub(super) fn grow(args: &GrowArgs) -> Result<ExitCode> {
    let (has, wanted) = (Sizes::of(&args.dir)?, args.size.get());
    if wanted < has.offered {
        bail!(
            "{} {}\ntry: a larger --size, or fercuda vram shrink",
            args.dir.display(),
            has.shown("already")
        );
    }
    resize(&args.dir, wanted)
}

pub(super) fn shrink(args: &ShrinkArgs) -> Result<ExitCode> {
    let (has, wanted) = (Sizes::of(&args.dir)?, args.size.get());
    if wanted > has.offered {
        bail!(
            "{} {}\ntry: a smaller --size, or fercuda vram grow",
            args.dir.display(),
            has.shown("only")
        );
    }
    resize(&args.dir, wanted)
}

/// Bytes of data.
struct Sizes {
    /// That memory was given to it for, which --size is.
    offered: u64,
    /// That there is room for: less, if a device of several has failed or blocks are lost.
    there: u64,
}

impl Sizes {
    fn of(dir: &Path) -> Result<Self> {
        let what = || format!("cannot look at {}", dir.display());
        let figures = Figures::of(dir).with_context(what)?;
        Ok(Self {
            offered: figures.number("offered_bytes").with_context(what)?,
            there: figures.number("size_bytes").with_context(what)?,
        })
    }

    fn shown(&self, how: &str) -> String {
        let (offered, there) = (bytes(self.offered), bytes(self.there));
        match self.there < self.offered {
            false => format!("has room for {offered} {how}"),
            true => format!(
                "has {offered} {how}, and room for {there}, as a device has failed or blocks are lost"
            ),
        }
    }
}

fn resize(dir: &Path, wanted: u64) -> Result<ExitCode> {
    let what = || format!("cannot change the size of {}", dir.display());
    let blocks = wanted.div_ceil(DATA_BYTES as u64).max(1);
    let control = Control::open(dir).with_context(what)?;
    let mut shown: Option<ProgressBar> = None;
    let moving = |left: u64| {
        let bar = shown.get_or_insert_with(|| bar("moving blocks", left, false));
        bar.set_position(bar.length().unwrap_or(left).saturating_sub(left));
    };
    let taken = control.resize(blocks, moving).with_context(what)?;
    if let Some(bar) = shown {
        bar.finish_and_clear();
    }
    let has = Sizes::of(dir)?;
    say!(
        "{} has room for {}, in {} of the device",
        dir.display(),
        bytes(has.there),
        bytes(taken)
    );
    Ok(ExitCode::SUCCESS)
}
