//! Names of models: paths, and names of repositories.

use std::fmt;
use std::path::{Path, PathBuf};

/// The longest part of a repository's name.
const MOST_PART: usize = 96;
/// The longest name of a file or a type of weights behind a repository's.
const MOST_CHOICE: usize = 512;

/// What a caller has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelName {
    /// A file or a folder.
    Path(PathBuf),
    /// A repository of the hub.
    Hub(HubName),
}

/// A repository of the hub, and what of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// `owner/name`.
    repository: String,
    /// A file, or a type of weights as `Q4_K_M`.
    choice: Option<String>,
}

impl ModelName {
    /// Reads a name: what is there as a file or a folder is a path; what has the form `owner/name`
    /// or `owner/name:choice` is a repository; all else is a path, which is not there.
    pub fn parse(name: impl AsRef<Path>) -> ModelName {
        let path = name.as_ref();
        if !path.exists()
            && let Some(name) = path.to_str().and_then(HubName::parse)
        {
            return ModelName::Hub(name);
        }
        ModelName::Path(path.to_owned())
    }
}

impl HubName {
    /// A repository's name, if the text has the form of one.
    pub fn parse(text: &str) -> Option<HubName> {
        let (repository, choice) = match text.split_once(':') {
            Some((repository, choice)) => (repository, Some(choice)),
            None => (text, None),
        };
        let (owner, name) = repository.split_once('/')?;
        let is_part = |part: &str| {
            let is_sign = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'.' | b'_' | b'-');
            (1..=MOST_PART).contains(&part.len())
                && part.bytes().all(is_sign)
                && part.bytes().any(|it| it != b'.')
                && !part.starts_with(['.', '-'])
                && !part.ends_with('.')
                && !part.contains("..")
        };
        let is_file = [".gguf", ".safetensors", ".json", ".bin"]
            .iter()
            .any(|end| name.ends_with(end));
        let is_choice =
            |it: &str| (1..=MOST_CHOICE).contains(&it.len()) && !it.chars().any(char::is_control);
        let is_name = is_part(owner) && is_part(name) && !is_file;
        (is_name && choice.is_none_or(is_choice)).then(|| HubName {
            repository: repository.to_owned(),
            choice: choice.map(str::to_owned),
        })
    }

    /// `owner/name`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The file, or the type of weights, that was named.
    pub fn choice(&self) -> Option<&str> {
        self.choice.as_deref()
    }

    /// The name without its owner.
    pub fn short(&self) -> &str {
        self.repository.split_once('/').map_or("", |(_, name)| name)
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.choice {
            Some(choice) => write!(f, "{}:{choice}", self.repository),
            None => f.write_str(&self.repository),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_repositories_are_told_from_paths() {
        for (text, repository, choice) in [
            ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", None),
            ("a/b.c_d-e:Q4_K_M", "a/b.c_d-e", Some("Q4_K_M")),
            (
                "a/b:x/y-00001-of-00002.gguf",
                "a/b",
                Some("x/y-00001-of-00002.gguf"),
            ),
        ] {
            let name = HubName::parse(text).unwrap();
            assert_eq!((name.repository(), name.choice()), (repository, choice));
            assert_eq!(name.to_string(), text);
            assert_eq!(ModelName::parse(text), ModelName::Hub(name));
        }
        for text in [
            "",
            "a",
            "/a/b",
            "./a/b",
            "../a",
            "a/b/c",
            "a//b",
            "a/..",
            "a/b:",
            "a/b c",
            "a/b.gguf",
            "~/x/y",
            "a/b:\n",
            "-a/b",
            "a/b\\c",
            "http://a/b",
            "a/é",
        ] {
            assert_eq!(HubName::parse(text), None, "{text:?}");
            assert_eq!(ModelName::parse(text), ModelName::Path(text.into()));
        }
        assert_eq!(
            ModelName::parse("src/lib.rs"),
            ModelName::Path("src/lib.rs".into())
        );
    }
}
