//! Environment of the programs that tests start.

use std::process::Command;

/// Removes the variables of this process that begin with one of `prefixes` from the command's.
pub(crate) fn remove_variables(command: &mut Command, prefixes: &[&str]) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
}
