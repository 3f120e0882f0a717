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

mod arrays;
mod bench;
mod check;
mod completions;
mod demo;
mod doctor;
mod errors;
mod input;
mod jit;
mod ledgers;
mod llm;
mod man;
mod memory;
mod model;
mod ops;
mod out;
mod output;
mod own_program;
mod progress;
mod reboot;
mod replay;
mod run;
mod setup;
mod size;
mod status;
mod terminal;
mod top;
mod variables;
mod vram;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::errors::report;
use crate::status::ExitStatus;

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
#[command(after_help = concat!("\
The device: FERCUDA_DEVICE=auto takes a GPU if there is one, else the software
device; =soft and =gpu insist. All variables, and the guides:
",
    env!("CARGO_PKG_REPOSITORY"), "/tree/main/docs
Sizes: bytes, or with a unit of 1024 (8G, 1.5GiB, 512M, 4K) or 1000 (8GB).

Start with:
  fercuda demo          run a short tour of kernels and check every result
  fercuda doctor        show drivers, GPUs, compilers and libraries found here
  fercuda setup         install optional parts: compilers, Python packages
  fercuda check --help  check a kernel for undefined behaviour, without a GPU
  fercuda check -- P    check all kernels that program P launches
  fercuda run --help    run a program with its device memory in one pool
  fercuda top           monitor device memory by process, as it changes
  fercuda reboot --help reset another process's runtime and free its memory
  fercuda replay --help replay an allocation trace on each allocator
  fercuda bench alloc   measure the latency of allocations
  fercuda jit --help    compile an expression to PTX, show it and run it
  fercuda ops list      list operations on arrays; show, run and time one
  fercuda model --help  show model files; convert and quantise them
  fercuda generate      generate text with a language model
  fercuda chat          talk with a language model
  fercuda serve         serve a language model over HTTP
  fercuda embed         compute embeddings of texts
  fercuda vram --help   mount a filesystem in device memory
  fercuda completions   print a completion script for a shell
  fercuda man           write manual pages

Exit status: 0 success; 1 something was found or failed; 2 the command could not
be run: wrong arguments or variables, or something that is not implemented. The
help of a command lists others."))]
struct Args {
    #[command(flatten)]
    verbosity: out::VerbosityArgs,
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
    Ops(ops::Args),
    Model(model::Args),
    Generate(Box<llm::generate::Args>),
    Chat(Box<llm::chat::Args>),
    Serve(Box<llm::serve::Args>),
    Embed(Box<llm::embed::Args>),
    Vram(vram::Args),
    Completions(completions::Args),
    Man(man::Args),
}

fn main() -> ExitCode {
    let words = vram::helper::full_words(std::env::args_os().collect());
    if let Some(done) = vram::helper::run(&words) {
        // As mount(8) expects.
        return done.unwrap_or_else(|error| report(&error, ExitStatus::Failure));
    }
    let args = Args::try_parse_from(&words).unwrap_or_else(|error| refuse(&error, &words));
    args.verbosity.apply();
    let otherwise = status_of_errors(&args.command);
    check_variables(&args.command)
        .and_then(|()| dispatch(args.command))
        .unwrap_or_else(|error| report(&error, ExitStatus::of_error(&error, otherwise)))
}

/// Ends because of words that are no command line of ours, or that ask for help.
fn refuse(error: &clap::Error, words: &[OsString]) -> ! {
    let checked = words.iter().position(|word| word == "check");
    if let Some(checked) = checked.filter(|_| error.use_stderr())
        && let Err(error) = check::refuse_program(&words[checked + 1..])
    {
        report(&error, ExitStatus::Usage);
        std::process::exit(ExitStatus::Usage as i32);
    }
    error.exit()
}

/// The status for an error of a command that is no usage error.
fn status_of_errors(command: &Command) -> ExitStatus {
    match command {
        // A check that could not be run is not a finding; 1 means that a package could not be
        // installed, that the process refused or failed, that a result differs from the reference,
        // that a file could not be written, or is the program's own status.
        Command::Check(_)
        | Command::Setup(_)
        | Command::Reboot(_)
        | Command::Jit(_)
        | Command::Model(_)
        | Command::Run(_) => ExitStatus::Usage,
        _ => ExitStatus::Failure,
    }
}

fn check_variables(command: &Command) -> Result<()> {
    match command {
        // It refuses them itself if it governs the program.
        Command::Run(_) => {}
        // The process that started it has warned.
        Command::Vram(args) if args.is_internal() => {}
        _ => variables::warn_about_unknown(),
    }
    match command {
        // They use no device, or show what is wrong.
        Command::Doctor(_) | Command::Model(_) | Command::Completions(_) | Command::Man(_) => {
            Ok(())
        }
        _ => variables::check_software_device(),
    }
}

fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Vram(args) => vram::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Setup(args) => setup::run(&args),
        Command::Reboot(args) => reboot::run(&args),
        Command::Jit(args) => jit::run(&args),
        Command::Ops(args) => ops::run(&args),
        Command::Model(args) => model::run(&args),
        Command::Generate(args) => llm::generate::run(&args),
        Command::Chat(args) => llm::chat::run(&args),
        Command::Serve(args) => llm::serve::run(&args),
        Command::Embed(args) => llm::embed::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Completions(args) => completions::run(&args, &mut Args::command()),
        Command::Man(args) => man::run(&args, Args::command()),
    }
}

#[cfg(test)]
mod tests {
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
