//! `fercuda vram`: mounts files in device memory, inspects them and maintains them while mounted.
//!
//! Each mount is served by a daemon (`daemon`). The other commands query its statistics (`show`,
//! `top`), request maintenance in short steps (`tools`), or use its files as any program does
//! (`snapshot`).
//!
//! Elsewhere: the filesystem itself and the FUSE requests (`fercuda-vramfs`).

mod accounts;
mod daemon;
mod export;
pub(crate) mod helper;
mod memory_test;
mod show;
mod snapshot;
mod tools;
mod top;

use std::process::ExitCode;

use anyhow::Result;

/// Mount and manage filesystems in GPU memory, with error correction.
#[derive(clap::Args)]
#[command(after_help = "\
The files are lost when the filesystem is unmounted, when its daemon exits, and
when the device fails. Use it for scratch files; `save` copies them to a disk.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: VramCommand,
}

#[derive(clap::Subcommand)]
enum VramCommand {
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
    Test(memory_test::TestArgs),
}

impl Args {
    /// Whether `fercuda` itself starts it, as a part of another command.
    pub(crate) fn is_internal(&self) -> bool {
        match &self.command {
            VramCommand::Mount(args) => args.is_detached(),
            VramCommand::Kernels(_) => true,
            _ => false,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        VramCommand::Mount(args) => daemon::mount(args),
        VramCommand::Kernels(args) => daemon::write_kernels(args),
        VramCommand::Umount(args) => show::umount(args),
        VramCommand::Df(args) => show::df(args),
        VramCommand::Stat(args) => show::stat(args),
        VramCommand::Top(args) => top::run(args),
        VramCommand::Scrub(args) => tools::scrub(args),
        VramCommand::Inject(args) => tools::inject(args),
        VramCommand::Grow(args) => tools::grow(args),
        VramCommand::Shrink(args) => tools::shrink(args),
        VramCommand::Save(args) => snapshot::save(args),
        VramCommand::Export(args) => export::export(args),
        VramCommand::Load(args) => snapshot::load(args),
        VramCommand::Test(args) => memory_test::test(args),
    }
}
