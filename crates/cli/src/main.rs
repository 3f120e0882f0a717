//! The program `fercuda`: what a person types.
//!
//! Holds the words of the command line and the exit status; each command is a
//! module of its own.
//!
//! Invariant: results go to stdout, errors to stderr; 0 means that all is well,
//! 1 that something was found or failed, 2 that the question could not be asked;
//! what a command's help says of others is its own.
#![deny(unsafe_code)]
#![expect(clippy::print_stderr, reason = "a program that talks to a person")]

mod bench;
mod check;
mod demo;
mod doctor;
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

use crate::out::note;
use crate::terminal::Paint;

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
  fercuda demo          a short tour, every result checked
  fercuda doctor        what this machine has, and how to get what it lacks
  fercuda setup         install what is optional: compilers, Python packages
  fercuda check --help  find what is wrong with a kernel, without a GPU
  fercuda run --help    run a program with its device memory governed
  fercuda top           who holds how much device memory now
  fercuda reboot --help ask a process to give its runtime's memory back
  fercuda replay --help what a trace costs with each allocator
  fercuda bench alloc   what an allocation costs, beside the driver's
  fercuda jit --help    an expression, its forms down to PTX, and its run
  fercuda vram --help   files in device memory, mounted like any others")]
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
            // A check that could not be made is not a finding.
            return check::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
        Command::Setup(args) => {
            // 1 is what could not be installed.
            return setup::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
        Command::Reboot(args) => {
            // 1 is what the process answered.
            return reboot::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
        Command::Jit(args) => {
            // 1 is a difference that was found.
            return jit::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
        Command::Run(args) => {
            // 1 is the program's to say.
            return run::run(&args).unwrap_or_else(|error| report(&error, 2));
        }
    };
    done.unwrap_or_else(|error| report(&error, 1))
}

/// Prints what went wrong, its causes and what to try, each on lines of its own.
fn report(error: &anyhow::Error, status: u8) -> ExitCode {
    let paint = Paint::stderr();
    let mut lines: Vec<String> = Vec::new();
    for cause in error.chain() {
        for line in cause.to_string().lines() {
            // It may name what others have named.
            let parts: Vec<String> = line.split('\t').map(terminal::plain_text).collect();
            let line = parts.join("\t");
            // Who passes a cause on may have said it, too.
            let is_said = |said: &String| {
                said.strip_suffix(&*line)
                    .is_some_and(|before| before.is_empty() || before.ends_with(": "))
            };
            if !lines.iter().any(is_said) {
                lines.push(line);
            }
        }
    }
    // What to try comes last, whichever cause knew it.
    let (hints, what): (Vec<String>, Vec<String>) = lines
        .into_iter()
        .partition(|line| line.starts_with("try: "));
    let mut what = what.into_iter();
    note!(
        "{} {}",
        paint.bad("error:"),
        what.next().unwrap_or_else(|| "unknown".to_owned())
    );
    for line in what {
        note!("  {line}");
    }
    for hint in hints {
        note!("{hint}");
    }
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Commands with all that are below them.
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
