//! Sources of the book, laid out for mdBook.
//!
//! The guide is `docs/`; the design is the READMEs of the root and of the crates. Their links are
//! relative to where they lie, so the book's source folder is an image of the repository with the
//! book's pages alone. A link to a README is one to the `index` that mdBook makes of it, a link to
//! what is no page leads to the repository, and the table of contents, `docs/SUMMARY.md`, has its
//! links rewritten to the root. Nothing is kept in the repository twice.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};

use crate::{cargo, shell};

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
    let repository = repository()?;
    let pages = pages(&summary);
    for name in &pages {
        let to = source.join(name);
        let folder = to.parent().context("a file is in a folder")?;
        fs::create_dir_all(folder)?;
        let text = relinked(&read(&root.join(name))?, |link| {
            book_link(&root, name, &pages, &repository, link)
        });
        fs::write(&to, text).with_context(|| format!("cannot write {}", to.display()))?;
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
    links(summary)
        .into_iter()
        .map(|link| rooted(&summary[link]))
        .collect()
}

/// A link of a file in `docs/`, as one of the root.
fn rooted(link: &str) -> String {
    match link.strip_prefix("../") {
        Some(rest) => rest.to_owned(),
        None => format!("docs/{link}"),
    }
}

fn from_the_root(summary: &str) -> String {
    relinked(summary, |link| Some(rooted(link)))
}

/// The targets of a text's links, by their places. What is in backticks is no link.
pub(crate) fn links(text: &str) -> Vec<Range<usize>> {
    let starts = text.match_indices("](").filter_map(|(at, _)| {
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let is_code = text[line..at].matches('`').count() % 2 == 1;
        (!is_code).then_some(at + 2)
    });
    let whole = |start: usize| Some(start..start + text[start..].find(')')?);
    starts.filter_map(whole).collect()
}

/// A text with its links replaced by what `change` returns for them.
fn relinked(text: &str, change: impl Fn(&str) -> Option<String>) -> String {
    let mut changed = String::new();
    let mut end = 0;
    for link in links(text) {
        changed.push_str(&text[end..link.start]);
        end = link.end;
        let link = &text[link];
        changed.push_str(change(link).as_deref().unwrap_or(link));
    }
    changed.push_str(&text[end..]);
    changed
}

/// Where the workspace's source is published.
fn repository() -> Result<String> {
    let metadata = cargo::metadata()?;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let url = packages.find_map(|package| package["repository"].as_str());
    Ok(url
        .context("no package says where its repository is")?
        .to_owned())
}

/// A page's link as the book has it; `None` if it stays.
fn book_link(
    root: &Path,
    page: &str,
    pages: &[String],
    repository: &str,
    link: &str,
) -> Option<String> {
    let (path, anchor) = match link.split_once('#') {
        Some((path, anchor)) => (path, format!("#{anchor}")),
        None => (link, String::new()),
    };
    if path.is_empty() || path.contains(':') {
        return None;
    }
    let target = joined(page, path)?;
    if pages.contains(&target) {
        let index = path.strip_suffix("README.md")?;
        return Some(format!("{index}index.md{anchor}"));
    }
    let kind = if root.join(&target).is_dir() {
        "tree"
    } else {
        "blob"
    };
    Some(format!("{repository}/{kind}/main/{target}{anchor}"))
}

/// A path relative to a file, from the root; `None` if it leads out of it.
fn joined(file: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{book_link, from_the_root, links, pages};

    const SUMMARY: &str = "# Summary\n[a](../README.md)\n- [b](guide/b.md)\n";

    #[test]
    fn links_are_moved_to_the_root() {
        let moved = "# Summary\n[a](README.md)\n- [b](docs/guide/b.md)\n";
        assert_eq!(from_the_root(SUMMARY), moved);
        assert_eq!(pages(SUMMARY), ["README.md", "docs/guide/b.md"]);
    }

    #[test]
    fn code_has_no_links() {
        let text = "`K[g](a)` and [b](c)\n[d](e`f)";
        let links: Vec<&str> = links(text).into_iter().map(|link| &text[link]).collect();
        assert_eq!(links, ["c", "e`f"]);
    }

    #[test]
    fn links_lead_to_pages_or_to_the_repository() {
        let pages = ["README.md", "docs/a.md", "crates/pool/README.md"].map(str::to_owned);
        let of = |page: &str, link: &str| {
            book_link(Path::new("/nowhere"), page, &pages, "https://host/it", link)
        };
        assert_eq!(
            of("docs/a.md", "../README.md#x").as_deref(),
            Some("../index.md#x")
        );
        assert_eq!(
            of("README.md", "crates/pool/README.md").as_deref(),
            Some("crates/pool/index.md")
        );
        assert_eq!(of("README.md", "docs/a.md"), None);
        assert_eq!(of("README.md", "#limits"), None);
        assert_eq!(of("README.md", "https://elsewhere/README.md"), None);
        assert_eq!(
            of("crates/pool/README.md", "../trials/README.md").as_deref(),
            Some("https://host/it/blob/main/crates/trials/README.md")
        );
        assert_eq!(of("README.md", "../outside.md"), None);
    }
}
