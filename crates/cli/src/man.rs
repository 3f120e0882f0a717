//! `fercuda man`: manual pages, generated from the command line's definition.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap_mangen::Man;

use crate::out::note;
use crate::output::{OutputFile, check_writable};
use crate::status::ExitStatus;
use crate::terminal::count;

/// Writes manual pages, one for each command.
#[derive(clap::Args)]
#[command(after_help = "\
`cargo xtask dist` installs the pages into share/man/man1.

Examples:
  fercuda man --out ~/.local/share/man/man1
  man fercuda-run")]
pub(crate) struct Args {
    /// Folder to write the pages to; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Replace existing pages.
    #[arg(long)]
    force: bool,
}

/// Writes the pages of `command`, the whole command line.
pub(crate) fn run(args: &Args, command: clap::Command) -> Result<ExitCode> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages)?;
    // All are checked before one is written.
    for (name, _) in &pages {
        check_writable(&args.out.join(name), args.force, &[])?;
    }
    let what = || format!("cannot create {}", args.out.display());
    fs::create_dir_all(&args.out).with_context(what)?;
    for (name, text) in &pages {
        write_page(&args.out.join(name), text, args.force)?;
    }
    note!(
        "{} written to {}",
        count(pages.len(), "page"),
        args.out.display()
    );
    Ok(ExitStatus::Success.into())
}

fn write_page(path: &Path, text: &[u8], force: bool) -> Result<()> {
    let mut file = OutputFile::open(path, force, &[])?.for_all_users();
    let what = || format!("cannot write {}", path.display());
    file.write_all(text).with_context(what)?;
    file.finish()
}

/// Name and text of the page of a command, and of those of its visible subcommands.
fn collect(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        collect(below, pages)?;
    }
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.get_subcommands().any(|it| !it.is_hide_set()) {
        page.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = command.get_after_help() {
        write_notes(&mut text, &notes.to_string())?;
    }
    pages.push((page.get_filename(), text));
    Ok(())
}

/// The text below the options, whose lines are tables and examples, so they stay as they are.
fn write_notes(page: &mut Vec<u8>, notes: &str) -> io::Result<()> {
    page.write_all(b".SH NOTES\n.nf\n")?;
    for line in notes.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // At the begin of a line these characters are commands.
        let guard = match line.starts_with(['.', '\'']) {
            true => "\\&",
            false => "",
        };
        writeln!(page, "{guard}{line}")?;
    }
    page.write_all(b".fi\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_keep_their_lines_and_characters() {
        let mut page = Vec::new();
        write_notes(&mut page, "a \\\n.b --c\n  'd'").unwrap();
        let text = String::from_utf8(page).unwrap();
        assert_eq!(text, ".SH NOTES\n.nf\na \\e\n\\&.b \\-\\-c\n  'd'\n.fi\n");
    }
}
