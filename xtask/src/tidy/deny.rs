//! Examination of the dependencies by cargo-deny, as `deny.toml` says: licences by the texts that
//! the crates carry, duplicates, sources, and known vulnerabilities.
//!
//! The database of vulnerabilities is a git repository that cargo-deny clones, which CI may not
//! reach. A copy that is there is used; `cargo deny fetch` makes one.

use std::path::PathBuf;

use super::repository::Repository;
use crate::{setup, shell};

/// Pushes a line for what `deny.toml` does not allow.
pub(super) fn dependencies(_: &Repository, violations: &mut Vec<String>) {
    let program = match setup::deny_tool() {
        Ok(program) => program,
        Err(error) => {
            violations.push(format!("cargo-deny cannot be installed: {error:#}"));
            return;
        }
    };
    let mut checks = vec!["licenses", "bans", "sources"];
    match has_database() {
        true => checks.push("advisories"),
        false => println!(
            "tidy: no database of vulnerabilities is here, so they are not looked for; \
             try: {} fetch",
            program.display()
        ),
    }
    let mut command = shell::command(&program);
    // Cargo has fetched for its own tables what it needs.
    command.args(["--locked", "--offline", "--log-level", "error", "check"]);
    command.args(&checks);
    if let Err(error) = shell::run(command) {
        violations.push(format!("deny.toml: {error:#}; try: what is printed above"));
    }
}

/// Whether cargo-deny has cloned a database in cargo's folder.
fn has_database() -> bool {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let copies = cargo.map(|it| it.join("advisory-dbs").read_dir());
    copies.is_some_and(|it| it.is_ok_and(|mut copies| copies.next().is_some()))
}
