//! Check of the published crates' manifests: what crates.io shows, and what it refuses.

use serde_json::Value;

use super::repository::{Repository, dependencies_of, name_of};
use crate::packages::PUBLISHED;

/// Slugs of crates.io's categories that describe these crates; it ignores those that it does not
/// know.
const CATEGORIES: [&str; 13] = [
    "api-bindings",
    "caching",
    "compilers",
    "concurrency",
    "data-structures",
    "development-tools::debugging",
    "emulators",
    "external-ffi-bindings",
    "filesystem",
    "hardware-support",
    "mathematics",
    "memory-management",
    "parser-implementations",
];

/// Limits of crates.io: keywords, and characters of each.
const MAX_KEYWORDS: usize = 5;
const MAX_KEYWORD_CHARS: usize = 20;

/// The published crates are those of the list, and their manifests are complete.
pub(super) fn published(repository: &Repository, violations: &mut Vec<String>) {
    let members = Vec::from_iter(repository.members());
    violations.extend(lints(&members, &PUBLISHED));
}

/// The violations of a workspace's packages if those named in `published` are.
fn lints(members: &[&Value], published: &[&str]) -> Vec<String> {
    let mut violations = Vec::new();
    for name in published {
        if !members.iter().any(|package| name_of(package) == *name) {
            violations.push(format!(
                "xtask/src/packages.rs: there is no {name}; try: remove it from PUBLISHED"
            ));
        }
    }
    for package in members {
        let name = name_of(package);
        // Null: to any registry. An empty list: `publish = false`.
        let is_publishable = package["publish"].is_null();
        match (published.contains(&name), is_publishable) {
            (true, true) => {
                let lacks = lacks_of_manifest(package).into_iter();
                violations.extend(lacks.map(|what| format!("{name}: {what}")));
                let unfit = unfit_dependencies(package, published).into_iter();
                violations.extend(unfit.map(|what| format!("{name}: {what}")));
            }
            (true, false) => violations.push(format!(
                "{name}: in PUBLISHED with `publish = false`; try: remove that line"
            )),
            (false, true) => violations.push(format!(
                "{name}: not in PUBLISHED; try: `publish = false`, or xtask/src/packages.rs"
            )),
            (false, false) => {}
        }
    }
    violations
}

fn lacks_of_manifest(package: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    for field in ["description", "readme", "repository", "license"] {
        if package[field].as_str().is_none_or(str::is_empty) {
            violations.push(format!("no {field}; try: a line in [package]"));
        }
    }
    let texts = |field: &str| -> Vec<&str> {
        let values = package[field].as_array().into_iter().flatten();
        values.filter_map(Value::as_str).collect()
    };
    let keywords = texts("keywords");
    if keywords.is_empty() || keywords.len() > MAX_KEYWORDS {
        let count = keywords.len();
        violations.push(format!("{count} keywords; try: 1 to {MAX_KEYWORDS}"));
    }
    for keyword in keywords.iter().filter(|keyword| !fits(keyword)) {
        violations.push(format!(
            "keyword {keyword:?}; try: at most {MAX_KEYWORD_CHARS} letters, digits, - or _"
        ));
    }
    let categories = texts("categories");
    if categories.is_empty() {
        violations.push("no categories; try: a line in [package]".to_owned());
    }
    for category in categories.iter().filter(|it| !CATEGORIES.contains(it)) {
        violations.push(format!(
            "category {category:?}; try: a slug of crates.io, in tidy's list"
        ));
    }
    violations
}

/// Whether crates.io takes a keyword.
fn fits(keyword: &str) -> bool {
    let is_of_words = |c: char| c.is_ascii_alphanumeric() || "-_+".contains(c);
    keyword.starts_with(|c: char| c.is_ascii_alphanumeric())
        && keyword.len() <= MAX_KEYWORD_CHARS
        && keyword.chars().all(is_of_words)
}

/// A crate of ours that a published one needs is published, with a version; one that only its tests
/// need has none unless it is published, so that cargo leaves it out.
fn unfit_dependencies(package: &Value, published: &[&str]) -> Vec<String> {
    let mut violations = Vec::new();
    let ours = dependencies_of(package).filter(|it| name_of(it).starts_with("fercuda-"));
    for dependency in ours {
        let used = name_of(dependency);
        let has_version = dependency["req"] != "*";
        let is_of_tests = dependency["kind"] == "dev";
        match (published.contains(&used), has_version) {
            (true, true) => {}
            (true, false) => violations.push(format!(
                "depends on {used} without a version; try: one in the root's Cargo.toml"
            )),
            (false, true) => violations.push(format!(
                "{used} has a version and is not published; try: only its path"
            )),
            (false, false) if is_of_tests => {}
            (false, false) => violations.push(format!(
                "depends on {used}, which is not published; try: xtask/src/packages.rs"
            )),
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn complete(name: &str, dependencies: &Value) -> Value {
        json!({
            "name": name,
            "publish": null,
            "description": "A crate.",
            "readme": "README.md",
            "repository": "https://example.org",
            "license": "MIT",
            "keywords": ["gpu"],
            "categories": ["compilers"],
            "dependencies": dependencies,
        })
    }

    fn private(name: &str) -> Value {
        json!({ "name": name, "publish": [], "dependencies": [] })
    }

    #[test]
    fn complete_manifests_have_no_violations() {
        let uses = json!([
            {"name": "fercuda-b", "req": "^0.1.0", "kind": null},
            {"name": "fercuda-trials", "req": "*", "kind": "dev"},
            {"name": "serde", "req": "^1", "kind": null},
        ]);
        let (a, b) = (
            complete("fercuda-a", &uses),
            complete("fercuda-b", &json!([])),
        );
        let trials = private("fercuda-trials");
        let found = lints(&[&a, &b, &trials], &["fercuda-a", "fercuda-b"]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn each_missing_field_is_named() {
        let mut package = complete("fercuda-a", &json!([]));
        for field in ["description", "readme", "repository", "license"] {
            package[field] = Value::Null;
        }
        package["keywords"] = json!(["", "of two words", "a", "b", "c", "d"]);
        package["categories"] = json!(["graphics-cards"]);
        let found = lints(&[&package], &["fercuda-a"]).join("\n");
        for part in [
            "no description",
            "no readme",
            "no repository",
            "no license",
            "6 keywords",
            "keyword \"\"",
            "keyword \"of two words\"",
            "category \"graphics-cards\"",
        ] {
            assert!(found.contains(part), "{part}: {found}");
        }
        assert_eq!(found.lines().count(), 8, "{found}");
    }

    #[test]
    fn list_and_manifests_agree() {
        let (a, b) = (complete("fercuda-a", &json!([])), private("fercuda-b"));
        let found = lints(&[&a, &b], &["fercuda-b", "fercuda-c"]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("there is no fercuda-c"), "{found:?}");
        assert!(
            found[1].starts_with("fercuda-a: not in PUBLISHED"),
            "{found:?}"
        );
        assert!(found[2].starts_with("fercuda-b: in PUBLISHED"), "{found:?}");
    }

    #[test]
    fn needs_of_a_published_crate_are_published_with_a_version() {
        let uses = json!([
            {"name": "fercuda-b", "req": "*", "kind": null},
            {"name": "fercuda-c", "req": "*", "kind": null},
            {"name": "fercuda-d", "req": "^0.1.0", "kind": "dev"},
        ]);
        let (a, b) = (
            complete("fercuda-a", &uses),
            complete("fercuda-b", &json!([])),
        );
        let found = lints(&[&a, &b], &["fercuda-a", "fercuda-b"]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found[0].contains("fercuda-b without a version"),
            "{found:?}"
        );
        assert!(
            found[1].contains("fercuda-c, which is not published"),
            "{found:?}"
        );
        assert!(found[2].contains("fercuda-d has a version"), "{found:?}");
    }
}
