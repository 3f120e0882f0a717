//! `fercuda vram`: files in device memory, mounted, looked at, and worked on while they are.
//!
//! A mount is a process (`daemon`). All others ask it: by what it says of itself (`show`, `top`), by steps that it does
//! when it is asked (`tools`), or as any program uses files (`snapshot`).
//!
//! Elsewhere: what is mounted, and how requests are answered (`fercuda-vramfs`).

mod daemon;
mod export;
pub(crate) mod helper;
mod show;
mod snapshot;
mod tools;
mod top;

use std::process::ExitCode;

use anyhow::Result;

/// Files in device memory, corrected by the device.
#[derive(clap::Args)]
#[command(after_help = "\
What is in it is gone when it is unmounted, when its process ends, and when the
device fails. It is for scratch files, not for what you want to keep: of those,
`save` makes a copy on a disk.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Mount(Box<daemon::MountArgs>),
    #[command(hide = true)]
    Kernels(daemon::KernelsArgs),
    Umount(show::UmountArgs),
    Df(show::DfArgs),
    Stat(show::StatArgs),
    Top(top::Args),
    Scrub(tools::ScrubArgs),
    Inject(tools::InjectArgs),
    Grow(tools::GrowArgs),
    Shrink(tools::ShrinkArgs),
    Save(snapshot::SaveArgs),
    Load(snapshot::LoadArgs),
    Export(export::ExportArgs),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Mount(args) => daemon::mount(args),
        What::Kernels(args) => daemon::write_kernels(args),
        What::Umount(args) => show::umount(args),
        What::Df(args) => show::df(args),
        What::Stat(args) => show::stat(args),
        What::Top(args) => top::run(args),
        What::Scrub(args) => tools::scrub(args),
        What::Inject(args) => tools::inject(args),
        What::Grow(args) => tools::grow(args),
        What::Shrink(args) => tools::shrink(args),
        What::Save(args) => snapshot::save(args),
        What::Export(args) => export::export(args),
        What::Load(args) => snapshot::load(args),
    }
}
