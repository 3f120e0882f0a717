//! Sources of the book, laid out for mdBook.
//!
//! The guide is `docs/`; the design is the READMEs of the root and of the crates. Their links
//! are relative to where they lie, so the book's source folder is an image of the repository
//! with those files alone, and the table of contents, `docs/SUMMARY.md`, has its links rewritten
//! to the root. Nothing is kept in the repository twice.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};

use crate::shell;

/// The table of contents.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// Lays out the sources in `target/book` and has mdBook build them, if it is installed.
pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    let book = root.join("target/book");
    let source = book.join("src");
    if source.exists() {
        fs::remove_dir_all(&source)
            .with_context(|| format!("cannot empty {}", source.display()))?;
    }
    let summary = read(&root.join(SUMMARY))?;
    let mut list = shell::command("git");
    list.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
    ]);
    // What the pages link to besides each other.
    list.args(["*.md", "examples", "include", "LICENSE-*"]);
    for name in shell::capture(list)?
        .split('\0')
        .filter(|name| !name.is_empty())
    {
        let to = source.join(name);
        let folder = to.parent().context("a file is in a folder")?;
        fs::create_dir_all(folder)?;
        fs::copy(root.join(name), &to).with_context(|| format!("cannot copy {name}"))?;
    }
    fs::write(source.join("SUMMARY.md"), from_the_root(&summary))?;
    fs::copy(root.join("docs/book.toml"), book.join("book.toml"))?;
    let mut version = shell::command("mdbook");
    version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if !version.status().is_ok_and(|status| status.success()) {
        println!(
            "written: {}, the sources alone, as mdbook is not installed\n\
             try: cargo install --locked mdbook, then cargo xtask book",
            source.display()
        );
        return Ok(());
    }
    let mut build = shell::command("mdbook");
    build.arg("build").arg(&book);
    shell::run(build)?;
    println!("written: {}", book.join("html/index.html").display());
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Paths, from the root, of the pages that the table of contents links to, in order.
pub(crate) fn pages(summary: &str) -> Vec<String> {
    let links = summary.split("](").skip(1);
    let links = links.filter_map(|rest| rest.split_once(')').map(|(link, _)| link));
    links.map(rooted).collect()
}

/// A link of a file in `docs/`, as one of the root.
fn rooted(link: &str) -> String {
    match link.strip_prefix("../") {
        Some(rest) => rest.to_owned(),
        None => format!("docs/{link}"),
    }
}

fn from_the_root(summary: &str) -> String {
    let mut parts = summary.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("](");
        match part.split_once(')') {
            Some((link, rest)) => {
                text.push_str(&rooted(link));
                text.push(')');
                text.push_str(rest);
            }
            None => text.push_str(part),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{from_the_root, pages};

    const SUMMARY: &str = "# Summary\n[a](../README.md)\n- [b](guide/b.md)\n";

    #[test]
    fn links_are_moved_to_the_root() {
        let moved = "# Summary\n[a](README.md)\n- [b](docs/guide/b.md)\n";
        assert_eq!(from_the_root(SUMMARY), moved);
        assert_eq!(pages(SUMMARY), ["README.md", "docs/guide/b.md"]);
    }
}
