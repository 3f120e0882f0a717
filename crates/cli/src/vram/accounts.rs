//! Users and groups on the command line: numbers, or names that the system knows.

use std::process::{Command, Stdio};

use fercuda_nvrtc::find::program_of_path;

/// A user's number, for clap's `value_parser`.
///
/// # Errors
/// The system has no user of that name.
pub(super) fn user(text: &str) -> Result<u32, String> {
    number(text, "user", "/etc/passwd", "passwd")
}

/// A group's number, for clap's `value_parser`.
///
/// # Errors
/// The system has no group of that name.
pub(super) fn group(text: &str) -> Result<u32, String> {
    number(text, "group", "/etc/group", "group")
}

/// Looks a name up in `file`, then in `database` of other sources (LDAP and the like) by getent(1).
fn number(text: &str, kind: &str, file: &str, database: &str) -> Result<u32, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = text.parse::<u32>().ok().filter(|it| *it != u32::MAX);
        return number.ok_or_else(|| format!("{text} is out of range\ntry: 0 to 4294967294"));
    }
    let entries = std::fs::read_to_string(file).unwrap_or_default();
    let found = in_entries(text, &entries).or_else(|| in_entries(text, &ask(database, text)?));
    found.ok_or_else(|| format!("there is no {kind} {text:?}\ntry: a number, or a name of {file}"))
}

/// The third field of the line that begins with `name`.
fn in_entries(name: &str, entries: &str) -> Option<u32> {
    let mut lines = entries.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| match fields.next() {
        Some(first) if first == name && !name.is_empty() => fields.nth(1)?.parse().ok(),
        _ => None,
    })
}

fn ask(database: &str, name: &str) -> Option<String> {
    let mut getent = Command::new(program_of_path("getent")?);
    getent.args([database, "--", name]);
    let output = getent.stdin(Stdio::null()).stderr(Stdio::null()).output();
    String::from_utf8(output.ok()?.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_accepted() {
        assert_eq!(user("root"), Ok(0));
        assert_eq!(group("root"), Ok(0));
        assert_eq!(user("1000"), Ok(1000));
        for wrong in ["", "-1", "no such user", "4294967296", "4294967295"] {
            let error = user(wrong).unwrap_err();
            assert!(error.contains("\ntry: "), "{error}");
        }
    }

    #[test]
    fn the_number_is_the_third_field() {
        let entries = "rooty:x:9:\nroot:x:7:8:name\n";
        assert_eq!(in_entries("root", entries), Some(7));
        assert_eq!(in_entries("roo", entries), None);
    }
}
