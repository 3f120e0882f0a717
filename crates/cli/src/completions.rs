//! `fercuda completions`: completion scripts for shells, from the command line's definition.

use std::process::ExitCode;

use anyhow::Result;
use clap_complete::Shell;

use crate::out;
use crate::status::ExitStatus;

/// Prints a completion script for a shell.
#[derive(clap::Args)]
#[command(after_help = "\
`cargo xtask dist` installs the scripts of bash, zsh and fish under share/.

Examples:
  source <(fercuda completions bash)
  fercuda completions zsh > ~/.zfunc/_fercuda     # a folder of fpath
  fercuda completions fish > ~/.config/fish/completions/fercuda.fish
  fercuda completions elvish >> ~/.config/elvish/rc.elv
  fercuda completions powershell >> $PROFILE")]
pub(crate) struct Args {
    /// Shell to complete in.
    shell: Shell,
}

/// Prints the script for `command`, the whole command line.
pub(crate) fn run(args: &Args, command: &mut clap::Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "fercuda", &mut script);
    out::write(format_args!("{}", String::from_utf8(script)?));
    Ok(ExitStatus::Success.into())
}
