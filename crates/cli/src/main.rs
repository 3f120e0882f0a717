//! Command line of the program `fercuda`: subcommands, error output, exit status.
//!
//! Each subcommand is a module.
//!
//! Invariant: results go to stdout, errors to stderr; 0 means success, 1 that something was
//! found or failed, 2 that the command could not be run; a command's help lists any further
//! exit statuses.
#![deny(unsafe_code)]
#![expect(
    clippy::print_stderr,
    reason = "a command-line program reports on stderr"
)]

mod bench;
mod check;
mod demo;
mod doctor;
mod errors;
mod jit;
mod ledgers;
mod memory;
mod out;
mod reboot;
mod replay;
mod run;
mod setup;
mod terminal;
mod top;
mod vram;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::errors::report;

/// Version, commit and date, target and the software device, for `--version`.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " ",
    env!("BUILD_OF"),
    "\ntarget: ",
    env!("BUILD_TARGET"),
    "\nsoftware device: compute capability 9.0, CUDA driver API 13.0"
);

/// Runs and checks CUDA kernels, with a GPU or without one.
#[derive(Parser)]
#[command(name = "fercuda", version = VERSION, max_term_width = 80)]
#[command(after_help = "\
The device: FERCUDA_DEVICE=auto takes a GPU if there is one, else the software
device; =soft and =gpu insist. All variables: docs/environment.md.

Start with:
  fercuda demo          run a short tour of kernels and check every result
  fercuda doctor        show drivers, GPUs, compilers and libraries found here
  fercuda setup         install optional parts: compilers, Python packages
  fercuda check --help  check a kernel for undefined behaviour, without a GPU
  fercuda run --help    run a program with its device memory in one pool
  fercuda top           monitor device memory by process, as it changes
  fercuda reboot --help reset another process's runtime and free its memory
  fercuda replay --help replay an allocation trace on each allocator
  fercuda bench alloc   measure the latency of allocations
  fercuda jit --help    compile an expression to PTX, show it and run it
  fercuda vram --help   mount a filesystem in device memory")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Doctor(doctor::Args),
    Setup(setup::Args),
    Check(Box<check::Args>),
    Run(Box<run::Args>),
    Top(top::Args),
    Reboot(reboot::Args),
    Replay(replay::Args),
    Bench(bench::Args),
    Jit(jit::Args),
    Vram(vram::Args),
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(done) = vram::helper::run(&words) {
        return done.unwrap_or_else(|error| report(&error, 1));
    }
    let done = match Args::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Vram(args) => vram::run(&args),
        Command::Check(args) => {
            // A check that could not be run is not a finding.
            return check::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
        Command::Setup(args) => {
            // 1: a package could not be installed.
            return setup::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
        Command::Reboot(args) => {
            // 1: the process refused or failed.
            return reboot::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
        Command::Jit(args) => {
            // 1: a result differs from the reference.
            return jit::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
        Command::Run(args) => {
            // 1 is an exit status of the program.
            return run::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
    };
    done.unwrap_or_else(|error| report(&error, 1))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// A command and all its subcommands.
    fn commands(of: &clap::Command) -> Vec<&clap::Command> {
        let below = of.get_subcommands().flat_map(commands);
        std::iter::once(of).chain(below).collect()
    }

    #[test]
    fn help_is_broken_into_lines_where_it_was_written() {
        let all = Args::command();
        for command in commands(&all) {
            let Some(text) = command.get_after_help() else {
                continue;
            };
            for line in text.to_string().lines() {
                let name = command.get_name();
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
        }
    }
}
