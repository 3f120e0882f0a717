//! Checks of the repository itself, each a promise that some document makes.
//!
//! Holds one function a check; a check pushes a line `where: what; try: how`
//! for each violation, and all checks run before the verdict.
//!
//! Elsewhere: format and lints (`.ci/run` calls rustfmt and clippy).

mod circles;
mod deny;
pub(crate) mod language;
mod packages;
mod repository;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use self::repository::{Repository, dependencies_of, name_of};
use crate::{benchmarks, book, headers as made, shell};

/// Longer files hold more than one subject.
const FILE_LIMIT_LINES: usize = 800;

/// Tables of an ABI: long because it is, and of one subject.
const TABLES: [&str; 3] = [
    "crates/cuda-sys/src/enums.rs",
    "crates/cuda-sys/src/table.rs",
    "crates/cuda-sys/src/types.rs",
];

/// Crates whose subject is a C ABI or raw memory (ARCHITECTURE.md, "Unsafe").
const MAY_BE_UNSAFE: [&str; 12] = [
    "fercuda-capi",
    "fercuda-cuda-sys",
    "fercuda-cuda",
    "fercuda-softgpu",
    "fercuda-dropin",
    "fercuda-cudart",
    "fercuda-governor",
    "fercuda-guest",
    "fercuda-hook",
    "fercuda-nvrtc",
    "fercuda-python",
    "fercuda-regime",
];

/// Crates where unsafe code is denied, with an `expect` and its reason where
/// it is needed: to launch a kernel, which only the caller can vouch for, or
/// to map memory.
const MAY_EXPECT: [&str; 10] = [
    "fercuda-cli",
    "fercuda-dispatcher",
    "fercuda-jit",
    "fercuda-kernels",
    "fercuda-ledger",
    "fercuda-modelfile",
    "fercuda-runtime",
    "fercuda-testkit",
    "fercuda-vendor",
    "fercuda-vramfs",
];

/// Licences that ask for nothing but the notice.
const LICENCES: [&str; 12] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates with another licence, which obliges only those that change them: chores use them, and
/// nothing of them is in what we build.
const OF_CHORES: [(&str, &str); 1] = [("cbindgen", "MPL-2.0")];

/// Crates in what we build whose licences are others: one obliges only those that change the crate,
/// the other is one of data.
const UNCHANGED: [(&str, &str); 2] = [
    ("option-ext", "MPL-2.0"),
    ("webpki-roots", "CDLA-Permissive-2.0"),
];

/// Runs every check.
pub(crate) fn run() -> Result<()> {
    let repository = Repository::read()?;
    let mut violations = Vec::new();
    let checks: [(&str, Check); 18] = [
        ("crate table and direction of dependencies", crate_table),
        ("every dependency explained", dependencies),
        ("licences", licences),
        ("cargo deny", deny::dependencies),
        ("manifests of published crates", packages::published),
        ("crate roots and READMEs", crates),
        ("headers and length of source files", sources),
        ("no circles between files of a crate", no_circles),
        ("words of the glossary", language::words),
        ("first lines of modules", language::headers),
        ("predicates, and types' own names", language::names),
        ("lines of prose", language::lines),
        ("headers of the C interface", headers),
        ("page of benchmarks", page_of_benchmarks),
        ("pages of the book", pages_of_the_book),
        ("wording", wording),
        ("environment variables documented", environment),
        ("links between documents", links),
    ];
    for (name, check) in checks {
        let before = violations.len();
        check(&repository, &mut violations);
        let found = violations.len() - before;
        let verdict = match found {
            0 => "ok".to_owned(),
            found => format!("{found} found"),
        };
        println!("tidy: {name:<44} {verdict}");
    }
    for violation in &violations {
        eprintln!("  {violation}");
    }
    if !violations.is_empty() {
        bail!("tidy found {} violations", violations.len());
    }
    Ok(())
}

type Check = fn(&Repository, &mut Vec<String>);

/// The rows of Markdown tables of crates, heads left out: each one's first
/// cell, unquoted, and the rest.
fn rows(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" |"))
        .map(|(cell, rest)| (cell.trim_matches('`'), rest))
        .filter(|(cell, _)| *cell != "crate")
}

/// First cells of tables' rows, in order.
fn first_cells(text: &str) -> Vec<&str> {
    rows(text).map(|(cell, _)| cell).collect()
}

/// ARCHITECTURE.md lists every crate, each above those that use it.
fn crate_table(repository: &Repository, violations: &mut Vec<String>) {
    let text = repository.text("ARCHITECTURE.md");
    let section = text.split_once("\n## Crates").map_or("", |(_, rest)| rest);
    let table = first_cells(section.split("\n## ").next().unwrap_or_default());
    let place = |package: &str| {
        let short = package.strip_prefix("fercuda-").unwrap_or(package);
        table.iter().position(|row| *row == short)
    };
    let mut known = BTreeSet::new();
    for package in repository.members() {
        let name = name_of(package);
        let Some(own) = place(name) else {
            violations.push(format!(
                "ARCHITECTURE.md: no row for {name}; try: add it to the crate table"
            ));
            continue;
        };
        known.insert(own);
        for dependency in dependencies_of(package) {
            let used = name_of(dependency);
            let direct = dependency["kind"].is_null();
            if direct && used.starts_with("fercuda-") && place(used).is_none_or(|at| at >= own) {
                violations.push(format!(
                    "{name}: depends on {used}, which the crate table does not put above it"
                ));
            }
        }
    }
    for (at, row) in table.iter().enumerate() {
        if !known.contains(&at) {
            violations.push(format!(
                "ARCHITECTURE.md: row {row} names no crate; try: remove it"
            ));
        }
    }
}

/// docs/dependencies.md has a row for each crate we asked for, and no other;
/// each names its users.
fn dependencies(repository: &Repository, violations: &mut Vec<String>) {
    let text = repository.text("docs/dependencies.md");
    let said_by_row = rows(text).map(|(name, rest)| {
        let second = rest.split('|').next();
        (name, second.map_or("", str::trim))
    });
    let listed: BTreeMap<&str, &str> = said_by_row.collect();
    let used = users(repository.members());
    for (name, by) in &used {
        match listed.get(name) {
            None => violations.push(format!(
                "docs/dependencies.md: {name}, used by {by}, has no row; try: say why it earns its place"
            )),
            Some(said) if said != by => violations.push(format!(
                "docs/dependencies.md: {name} is said to be used by {said}; try: {by}"
            )),
            Some(_) => {}
        }
    }
    for name in listed.keys() {
        if !used.contains_key(name) {
            violations.push(format!(
                "docs/dependencies.md: nothing uses {name}; try: remove its row"
            ));
        }
    }
}

/// The users of each crate that is not ours: `cli, hook; pool (tests)`.
fn users<'a>(packages: impl Iterator<Item = &'a Value>) -> BTreeMap<&'a str, String> {
    let mut users: BTreeMap<&str, [BTreeSet<&str>; 2]> = BTreeMap::new();
    for package in packages {
        let user = name_of(package);
        let user = user.strip_prefix("fercuda-").unwrap_or(user);
        for dependency in dependencies_of(package) {
            let name = name_of(dependency);
            if !name.starts_with("fercuda-") {
                let of_tests = dependency["kind"] == "dev";
                users.entry(name).or_default()[usize::from(of_tests)].insert(user);
            }
        }
    }
    let join = |users: &BTreeSet<&str>| Vec::from_iter(users.iter().copied()).join(", ");
    let said = |[all, tests]: [BTreeSet<&str>; 2]| match (join(&all), join(&tests)) {
        (all, tests) if tests.is_empty() => all,
        (all, tests) if all.is_empty() => format!("{tests} (tests)"),
        (all, tests) => format!("{all}; {tests} (tests)"),
    };
    users
        .into_iter()
        .map(|(name, by)| (name, said(by)))
        .collect()
}

fn licences(repository: &Repository, violations: &mut Vec<String>) {
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        if repository.text(file).is_empty() {
            violations.push(format!("{file}: missing"));
        }
    }
    for package in repository.members() {
        let chores_own =
            |dependency: &Value| OF_CHORES.iter().any(|(it, _)| *it == name_of(dependency));
        if name_of(package) != "fercuda-xtask" && dependencies_of(package).any(chores_own) {
            let name = name_of(package);
            violations.push(format!("{name}: depends on what only chores may use"));
        }
    }
    for package in repository.packages() {
        let licence = package["license"].as_str().unwrap_or("none");
        let allowed = if package["source"].is_null() {
            licence == "MIT OR Apache-2.0"
        } else {
            let own = (name_of(package), licence);
            permissive(licence) || OF_CHORES.contains(&own) || UNCHANGED.contains(&own)
        };
        if !allowed {
            violations.push(format!(
                "{}: licence {licence:?} is not on tidy's list",
                name_of(package)
            ));
        }
    }
}

/// Whether an SPDX expression can be met with listed licences alone.
fn permissive(expression: &str) -> bool {
    let flat = expression.replace(['(', ')'], "").replace('/', " OR ");
    flat.split(" AND ")
        .all(|part| part.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

/// A crate forbids unsafe code unless it is its subject; a library has a README.
fn crates(repository: &Repository, violations: &mut Vec<String>) {
    let root = shell::root();
    for package in repository.members() {
        let name = name_of(package);
        let targets = package["targets"].as_array().into_iter().flatten();
        for target in targets {
            let kind = target["kind"][0].as_str().unwrap_or_default();
            if !matches!(kind, "lib" | "bin" | "cdylib") || MAY_BE_UNSAFE.contains(&name) {
                continue;
            }
            let path = target["src_path"].as_str().unwrap_or_default();
            let path = path
                .strip_prefix(&format!("{}/", root.display()))
                .unwrap_or(path);
            let text = repository.text(path);
            let denied = MAY_EXPECT.contains(&name) && text.contains("#![deny(unsafe_code)]");
            if !denied && !text.contains("#![forbid(unsafe_code)]") {
                violations.push(format!("{path}: lacks #![forbid(unsafe_code)]"));
            }
        }
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let folder = manifest
            .strip_prefix(&format!("{}/", root.display()))
            .and_then(|manifest| manifest.strip_suffix("/Cargo.toml"));
        if let Some(folder) = folder
            && folder.starts_with("crates/")
            && repository.text(&format!("{folder}/README.md")).is_empty()
        {
            violations.push(format!(
                "{folder}/README.md: missing; try: contract, invariants, one request followed through"
            ));
        }
    }
}

fn sources(repository: &Repository, violations: &mut Vec<String>) {
    for (path, text) in &repository.files {
        if !path.ends_with(".rs") {
            continue;
        }
        if !text.starts_with("//!") {
            violations.push(format!("{path}:1: no header saying what lives here"));
        }
        let lines = text.lines().count();
        if lines > FILE_LIMIT_LINES && !TABLES.contains(&path.as_str()) {
            violations.push(format!(
                "{path}: {lines} lines, the limit is {FILE_LIMIT_LINES}; try: one module a subject"
            ));
        }
    }
}

/// No file of a crate reaches itself by way of others (ARCHITECTURE.md, "Files").
fn no_circles(repository: &Repository, violations: &mut Vec<String>) {
    let root = shell::root();
    for package in repository.members() {
        let targets = package["targets"].as_array().into_iter().flatten();
        for target in targets {
            let kind = target["kind"][0].as_str().unwrap_or_default();
            let path = Path::new(target["src_path"].as_str().unwrap_or_default());
            let Ok(path) = path.strip_prefix(&root) else {
                continue;
            };
            if !matches!(kind, "lib" | "bin" | "cdylib") {
                continue;
            }
            let arrows =
                match circles::ImportGraph::read(&path.to_string_lossy(), &repository.files) {
                    Ok(graph) => graph.arrows(),
                    Err(error) => {
                        violations.push(format!("{error:#}"));
                        continue;
                    }
                };
            for circle in circles::circles(&arrows) {
                let of_circle = |file: &String| circle.contains(file);
                let inside = arrows
                    .iter()
                    .filter(|((a, b), _)| of_circle(a) && of_circle(b));
                let ties = inside.map(|((from, to), names)| {
                    let names = Vec::from_iter(names.iter().map(String::as_str)).join(", ");
                    format!("\n      {from} -> {to}: {names}")
                });
                violations.push(format!(
                    "{} files name each other; try: move what both need into a file of its own{}",
                    circle.len(),
                    ties.collect::<String>()
                ));
            }
        }
    }
}

/// include/fercuda is what the C interface's sources say.
fn headers(repository: &Repository, violations: &mut Vec<String>) {
    let said = match made::generate() {
        Ok(said) => said,
        Err(error) => {
            violations.push(format!("crates/capi: {error:#}"));
            return;
        }
    };
    for (path, text) in said {
        if repository.text(&path) != text {
            violations.push(format!(
                "{path}: is not what crates/capi says; try: cargo xtask headers"
            ));
        }
    }
}

/// docs/benchmarks.md is made of the figures.
fn page_of_benchmarks(repository: &Repository, violations: &mut Vec<String>) {
    match benchmarks::page(repository.text(benchmarks::FIGURES)) {
        Ok(page) if page == repository.text(benchmarks::PAGE) => {}
        Ok(_) => violations.push(format!(
            "{}: is not what the figures make; try: cargo xtask benchmarks",
            benchmarks::PAGE
        )),
        Err(error) => violations.push(format!("{error:#}")),
    }
}

/// The book's table of contents has each page of docs/, and no file that is not there; each once.
fn pages_of_the_book(repository: &Repository, violations: &mut Vec<String>) {
    let summary = book::SUMMARY;
    let mut listed = BTreeSet::new();
    for page in book::pages(repository.text(summary)) {
        if !repository.files.contains_key(&page) {
            violations.push(format!("{summary}: there is no {page}"));
        }
        if !listed.insert(page.clone()) {
            violations.push(format!("{summary}: {page} is there twice"));
        }
    }
    for path in repository.files.keys() {
        let is_page = path.starts_with("docs/") && path.ends_with(".md") && path != summary;
        if is_page && !listed.contains(path) {
            violations.push(format!("{path}: not in {summary}; try: a line there"));
        }
    }
}

/// Words that never reach a commit. Each is written here in two halves, so
/// that this file passes its own check.
const FORBIDDEN: [(&str, &str, &str); 9] = [
    ("TO", "DO", "do it, or open an issue"),
    ("FIX", "ME", "mend it, or open an issue"),
    ("XX", "X:", "mend it, or open an issue"),
    (
        "#[ign",
        "ore",
        "run on the software device, or delete the test",
    ),
    ("/ho", "me/", "no path of one machine"),
    ("/ro", "ot/", "no path of one machine"),
    ("/wo", "rk/", "no path of one machine"),
    ("--index", "-url", "no registry but the default"),
    ("replace-", "with =", "no registry but the default"),
];

fn wording(repository: &Repository, violations: &mut Vec<String>) {
    for (path, text) in &repository.files {
        for (number, line) in text.lines().enumerate() {
            for (head, tail, hint) in FORBIDDEN {
                let word = format!("{head}{tail}");
                if line.contains(&word) {
                    violations.push(format!("{path}:{}: {word:?}; try: {hint}", number + 1));
                }
            }
        }
        if path.ends_with("Cargo.lock") {
            for line in text.lines().filter(|line| line.starts_with("source = ")) {
                if line != "source = \"registry+https://github.com/rust-lang/crates.io-index\"" {
                    violations.push(format!("{path}: {line}; only crates.io may be a source"));
                }
            }
        }
    }
}

/// The table of all variables, which warnings about others come from. To be in
/// it is not to be read.
const VARIABLES: &str = "crates/governor/src/variables.rs";

/// docs/environment.md names each variable that the code reads, and no other.
/// Its rows are held to [`VARIABLES`] by a test there.
fn environment(repository: &Repository, violations: &mut Vec<String>) {
    let document = "docs/environment.md";
    let documented: BTreeSet<&str> = variables(repository.text(document)).collect();
    let mut read = BTreeMap::new();
    for (path, text) in &repository.files {
        if path == VARIABLES {
            continue;
        }
        if [".rs", ".py", ".sh"].iter().any(|end| path.ends_with(end)) {
            for variable in variables(text) {
                read.entry(variable).or_insert(path);
            }
        }
    }
    for (variable, path) in &read {
        if !documented.contains(variable) {
            violations.push(format!("{document}: no word of {variable}, read by {path}"));
        }
    }
    for variable in documented {
        if !read.contains_key(variable) {
            violations.push(format!("{document}: nothing reads {variable}"));
        }
    }
}

fn variables(text: &str) -> impl Iterator<Item = &str> {
    const PREFIX: &str = "FERCUDA_";
    text.match_indices(PREFIX)
        .map(|(at, _)| {
            let rest = &text[at..];
            let end = rest
                .find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
                .unwrap_or(rest.len());
            &rest[..end]
        })
        .filter(|name| name.len() > PREFIX.len() && !name.ends_with('_'))
        // A test's message to a process of its own is no setting.
        .filter(|name| !name.contains("_TEST_"))
}

/// Relative links between Markdown files lead somewhere.
fn links(repository: &Repository, violations: &mut Vec<String>) {
    let root = shell::root();
    for (path, text) in &repository.files {
        if !path.ends_with(".md") {
            continue;
        }
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in book::links(text) {
            let link = &text[link];
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            if !root.join(folder).join(target).exists() {
                violations.push(format!("{path}: link to {link} leads nowhere"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_choice_needs_one_listed_and_a_sum_needs_all() {
        assert!(permissive("MIT OR GPL-3.0"));
        assert!(permissive("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(permissive("Unlicense/MIT"));
        assert!(!permissive("MIT AND GPL-3.0"));
        assert!(!permissive("none"));
    }

    #[test]
    fn users_of_a_crate_are_listed_with_tests_apart() {
        let package = |name: &str, kind: Value| {
            serde_json::json!({
                "name": name,
                "dependencies": [
                    {"name": "fercuda-ptx", "kind": null},
                    {"name": "all", "kind": null},
                    {"name": "some", "kind": kind},
                    {"name": "tests", "kind": "dev"},
                ],
            })
        };
        let packages = [
            package("fercuda-pool", "dev".into()),
            package("fercuda-cli", Value::Null),
        ];
        let users = users(packages.iter());
        assert_eq!(
            users,
            BTreeMap::from([
                ("all", "cli, pool".to_owned()),
                ("some", "cli; pool (tests)".to_owned()),
                ("tests", "cli, pool (tests)".to_owned()),
            ])
        );
    }

    #[test]
    fn first_cells_are_read_with_and_without_backquotes() {
        let table = "| crate | why |\n|---|---|\n| `a` | x |\n| b | y |\n| `c-d` | z |\n";
        assert_eq!(first_cells(table), ["a", "b", "c-d"]);
    }

    #[test]
    fn variables_end_where_their_name_ends() {
        let text = "set FERCUDA_SOFT_CHECK=1, not FERCUDA_ nor FERCUDA_*; FERCUDA_SEED.";
        let found: Vec<_> = variables(text).collect();
        assert_eq!(found, ["FERCUDA_SOFT_CHECK", "FERCUDA_SEED"]);
    }
}
