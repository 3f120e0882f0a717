//! Facts of the build for `fercuda --version`: target, commit and date.
//!
//! The commit is `FERCUDA_COMMIT`, else git's of the checkout that this package lies in; the
//! date is `SOURCE_DATE_EPOCH`, else the commit's. Both are of the UTC.
//!
//! Invariant: the script runs again only after one of the variables or the checked-out commit
//! has changed; every file that it names to cargo exists, or cargo would run it on each build.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Seconds in a day.
const DAY_S: i64 = 86_400;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(target) = std::env::var("TARGET") {
        println!("cargo::rustc-env=BUILD_TARGET={target}");
    }
    println!("cargo::rustc-env=BUILD_OF={}", build_of());
}

/// `(COMMIT DATE)`, `(unknown commit, DATE)` or `(unknown commit)`.
fn build_of() -> String {
    let root = checkout();
    if let Some(root) = &root {
        watch(root);
    }
    let git = |words: &[&str]| root.as_deref().and_then(|root| git(root, words));
    let named = variable("FERCUDA_COMMIT");
    let is_named = named.is_some();
    let commit = named.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    let date = match variable("SOURCE_DATE_EPOCH") {
        Some(text) => Some(
            text.parse()
                .unwrap_or_else(|_| panic!("SOURCE_DATE_EPOCH={text}: no number of seconds")),
        ),
        // Of a commit that was named, the checkout may know nothing.
        None if is_named => None,
        None => git(&["log", "-1", "--format=%ct"]).and_then(|text| text.parse().ok()),
    };
    match (commit, date.map(day)) {
        (Some(commit), Some(date)) => format!("({commit} {date})"),
        (Some(commit), None) => format!("({commit})"),
        (None, Some(date)) => format!("(unknown commit, {date})"),
        (None, None) => "(unknown commit)".to_owned(),
    }
}

/// A variable that is set and not empty; cargo compares it from then on.
fn variable(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The root of the checkout of feRcuda, and not of a repository that contains a copy of it.
fn checkout() -> Option<PathBuf> {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    let root = package.ancestors().nth(2)?.canonicalize().ok()?;
    let top = git(&root, &["rev-parse", "--show-toplevel"])?;
    (Path::new(&top).canonicalize().ok()? == root).then_some(root)
}

/// Has cargo run this script again after a commit or a checkout: both write git's log of
/// HEAD; where no log is kept, they write HEAD, the branch that it names, or the packed ones.
fn watch(root: &Path) {
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
    let files = ["logs/HEAD", "HEAD", "packed-refs"];
    for file in files.into_iter().chain(branch.as_deref()) {
        let path = git(root, &["rev-parse", "--git-path", file]).map(|path| root.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

/// What git prints, in one line; nothing if git is missing or refuses.
fn git(root: &Path, words: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(words).stderr(Stdio::null());
    let output = git.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The day of a time in seconds since 1970, as YYYY-MM-DD. Days are counted from a first of
/// March, in eras of 400 years, so that a leap day is the last of its year.
fn day(time_s: i64) -> String {
    const ERA_DAYS: i64 = 146_097;
    let since_march_0 = time_s.div_euclid(DAY_S) + 719_468;
    let era = since_march_0.div_euclid(ERA_DAYS);
    let of_era = since_march_0.rem_euclid(ERA_DAYS);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
