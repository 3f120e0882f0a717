//! Language rules of the repository: words, headers, names and the length of prose lines.
//!
//! The words that are not used, and what is said instead, are a table of docs/glossary.md.
//!
//! Invariant: code for tests is held to the rules of words and lines, and not to those of names:
//! a test's helper types are read beside their test.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::circles::is_for_tests;
use super::repository::Repository;

/// The document that names words, and the heading above the table of those not used.
const GLOSSARY: &str = "docs/glossary.md";
const NOT_USED: &str = "\n## Words that are not used\n";

/// Files whose text is prose or holds it.
const WITH_PROSE: [&str; 5] = [".rs", ".md", ".py", ".pyi", ".h"];

/// The longest line of prose.
pub(crate) const LINE_CHARS: usize = 100;

/// Type names that crates may share: each is the usual name of its one role in a crate.
const SHARED_NAMES: [(&str, &str); 3] = [
    ("Error", "a crate's one error type"),
    ("Result", "the alias beside it"),
    ("Args", "what clap reads for one command"),
];

/// docs/glossary.md's words that are not used are nowhere else.
pub(super) fn words(repository: &Repository, violations: &mut Vec<String>) {
    let text = repository.text(GLOSSARY);
    let forbidden = forbidden(text);
    if forbidden.is_empty() {
        violations.push(format!("{GLOSSARY}: no table of words that are not used"));
        return;
    }
    for (path, text) in &repository.files {
        if path == GLOSSARY || !WITH_PROSE.iter().any(|end| path.ends_with(end)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for word in words_of(line) {
                let word = word.to_lowercase();
                if let Some(instead) = forbidden.get(word.as_str()) {
                    violations.push(format!("{path}:{}: {word:?}; try: {instead}", number + 1));
                }
            }
        }
    }
}

/// Words of the table under [`NOT_USED`], each with what its row says instead.
fn forbidden(text: &str) -> BTreeMap<&str, &str> {
    let section = text.split_once(NOT_USED).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut found = BTreeMap::new();
    for line in section.lines().filter_map(|line| line.strip_prefix("| ")) {
        let mut cells = line.split('|').map(str::trim);
        let (Some(words), Some(instead)) = (cells.next(), cells.next()) else {
            continue;
        };
        if words != "word" && !words.starts_with("--") {
            found.extend(words.split(", ").map(|word| (word, instead)));
        }
    }
    found
}

/// Words as `grep -w` sees them.
fn words_of(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
}

/// A module's first line is a noun phrase that names its concept.
pub(super) fn headers(repository: &Repository, violations: &mut Vec<String>) {
    for (path, text) in &repository.files {
        let Some(first) = text
            .strip_prefix("//! ")
            .and_then(|rest| rest.lines().next())
        else {
            continue;
        };
        if path.ends_with(".rs")
            && let Some(reason) = clause_reason(first)
        {
            violations.push(format!(
                "{path}:1: {first:?} {reason}; try: a noun phrase that names the concept"
            ));
        }
    }
}

/// Why a header's first line is a clause, if it can be seen from its first words.
fn clause_reason(line: &str) -> Option<&'static str> {
    const CLAUSES: [&str; 16] = [
        "what", "where", "when", "how", "why", "whether", "which", "that", "there", "it", "this",
        "these", "if", "is", "are", "lets",
    ];
    const AFTER_VERBS: [&str; 8] = ["the", "a", "an", "its", "all", "each", "every", "what"];
    // With what follows a word, so that "Errors, each with" is no verb and its object.
    let mut words = line.split_whitespace();
    let first = words.next()?.to_lowercase();
    if CLAUSES.contains(&first.as_str()) {
        return Some("begins a clause");
    }
    let second = words.next().unwrap_or_default();
    if first.ends_with('s') && !first.ends_with("ss") && AFTER_VERBS.contains(&second) {
        return Some("begins with a verb");
    }
    None
}

/// Functions called `is_...` return a bool and change nothing; types have names of their own.
pub(super) fn names(repository: &Repository, violations: &mut Vec<String>) {
    let mut types: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in &repository.files {
        let is_source = path.contains("/src/") && path.ends_with(".rs");
        let is_test = path.contains("/tests/") || path.ends_with("/tests.rs");
        if !is_source || is_test {
            continue;
        }
        let Ok(file) = syn::parse_file(text) else {
            violations.push(format!("{path}: is not Rust"));
            continue;
        };
        let mut found = Names::default();
        found.visit_file(&file);
        for name in found.predicates {
            violations.push(format!(
                "{path}: {name} is no predicate; try: a verb, or fn {name}(&self) -> bool"
            ));
        }
        if !path.starts_with("crates/cuda-sys/") {
            for name in found.types {
                types.entry(name).or_default().insert(path);
            }
        }
    }
    for (name, files) in types {
        let is_shared = SHARED_NAMES.iter().any(|(shared, _)| *shared == name);
        if files.len() > 1 && !is_shared {
            let files = Vec::from_iter(files).join(", ");
            violations.push(format!(
                "type {name} is declared in {files}; try: names that say what each is"
            ));
        }
    }
}

#[derive(Default)]
struct Names {
    types: Vec<String>,
    predicates: Vec<String>,
}

impl Names {
    fn function(&mut self, signature: &syn::Signature) {
        let name = signature.ident.to_string();
        if !name.starts_with("is_") {
            return;
        }
        let is_bool = matches!(&signature.output, syn::ReturnType::Type(_, it) if is_bool(it));
        let changes = matches!(
            signature.inputs.first(),
            Some(syn::FnArg::Receiver(receiver))
                if receiver.reference.is_some() && receiver.mutability.is_some()
        );
        if !is_bool || changes {
            self.predicates.push(name);
        }
    }
}

/// A bool, or what has one if the answer can be missing.
fn is_bool(kind: &syn::Type) -> bool {
    let syn::Type::Path(path) = kind else {
        return false;
    };
    path.path.segments.last().is_some_and(|last| {
        last.ident == "bool"
            || matches!(&last.arguments, syn::PathArguments::AngleBracketed(of)
                if matches!(of.args.first(), Some(syn::GenericArgument::Type(it)) if is_bool(it)))
    })
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(super::circles::attributes(item)) {
            return;
        }
        match item {
            syn::Item::Struct(it) => self.types.push(it.ident.to_string()),
            syn::Item::Enum(it) => self.types.push(it.ident.to_string()),
            syn::Item::Trait(it) => self.types.push(it.ident.to_string()),
            syn::Item::Type(it) => self.types.push(it.ident.to_string()),
            syn::Item::Union(it) => self.types.push(it.ident.to_string()),
            syn::Item::Fn(it) => self.function(&it.sig),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            self.function(&function.sig);
            visit::visit_impl_item_fn(self, function);
        }
    }
}

/// Lines of prose have at most [`LINE_CHARS`] characters: comments, and paragraphs of documents.
pub(super) fn lines(repository: &Repository, violations: &mut Vec<String>) {
    for (path, text) in &repository.files {
        let is_rust = path.ends_with(".rs");
        if !is_rust && !path.ends_with(".md") {
            continue;
        }
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            let trimmed = line.trim_start();
            is_code ^= !is_rust && trimmed.starts_with("```");
            let is_prose = match is_rust {
                true => trimmed.starts_with("//"),
                false => !is_code && !trimmed.starts_with('|'),
            };
            let chars = line.chars().count();
            // A link cannot be broken.
            if is_prose && chars > LINE_CHARS && !line.contains("](") && !line.contains("://") {
                violations.push(format!(
                    "{path}:{}: {chars} characters of prose; try: at most {LINE_CHARS}",
                    number + 1
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_not_used_come_from_the_glossary() {
        let text = "# Glossary\n\n| word | x |\n|---|---|\n| pool | y |\n\
                    \n## Words that are not used\n\n| word | say instead |\n|---|---|\n\
                    | alpha, beta | letter |\n| gamma | ray |\n\n## Else\n| a | b |\n";
        let found = forbidden(text);
        let words: Vec<_> = found.keys().copied().collect();
        assert_eq!(words, ["alpha", "beta", "gamma"]);
        assert_eq!(found["beta"], "letter");
    }

    #[test]
    fn words_are_whole() {
        let words: Vec<_> = words_of("It's so: sole, `is_so()`.").collect();
        assert_eq!(words, ["It", "s", "so", "sole", "is_so"]);
    }

    #[test]
    fn clauses_and_verbs_are_no_noun_phrases() {
        for line in [
            "Leader/follower pool.",
            "Checks of files.",
            "Class of a block.",
            "Errors, each with a hint.",
            "The pool.",
        ] {
            assert_eq!(clause_reason(line), None, "{line}");
        }
        for line in [
            "What a block is.",
            "Puts the program there.",
            "Where it is.",
            "Lets go.",
        ] {
            assert!(clause_reason(line).is_some(), "{line}");
        }
    }

    #[test]
    fn predicates_return_a_bool_and_take_nothing_to_change() {
        let text = "fn is_a() -> bool { true } fn is_b() {} fn is_c() -> Result<bool> { Ok(true) }
                    impl T { fn is_d(&mut self) -> bool { true } fn is_e(self) -> Self { self } }
                    #[cfg(test)] mod tests { fn is_f() {} struct Of; }
                    struct T; mod inner { pub enum Of {} }";
        let mut names = Names::default();
        names.visit_file(&syn::parse_file(text).unwrap());
        assert_eq!(names.predicates, ["is_b", "is_d", "is_e"]);
        assert_eq!(names.types, ["T", "Of"]);
    }
}
