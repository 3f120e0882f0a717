//! Files of a repository that a model needs.

use std::collections::BTreeMap;

use crate::error::{HubError, Result};

/// Files beside the weights of a checkpoint.
const BESIDE: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    // How sentence-transformers makes a text's vector of its tokens'.
    "1_Pooling/config.json",
];
/// Types of weights that are taken where a repository has several and the caller names none.
const USUAL: [&str; 2] = ["Q4_K_M", "Q8_0"];
/// The most names in an error.
const SHOWN: usize = 24;

/// Files to have, small ones first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) files: Vec<String>,
    /// The file to open; `None` for the folder that has them.
    pub(crate) opened: Option<String>,
}

/// Numbers of a file of several: `name-00002-of-00005.gguf`.
fn shard(name: &str) -> Option<(&str, u32, u32, &str)> {
    let (stem, end) = name.rsplit_once('.')?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let digits = |it: &str| it.len() == 5 && it.bytes().all(|byte| byte.is_ascii_digit());
    match (number.parse(), count.parse()) {
        (Ok(number), Ok(count)) if digits(number_text(rest)) && digits(count_text(stem)) => {
            Some((prefix, number, count, end))
        }
        _ => None,
    }
}

fn number_text(rest: &str) -> &str {
    rest.rsplit_once('-').map_or("", |(_, it)| it)
}

fn count_text(stem: &str) -> &str {
    stem.rsplit_once("-of-").map_or("", |(_, it)| it)
}

fn missing(what: String, advice: impl Into<String>) -> HubError {
    HubError::Missing {
        what,
        advice: advice.into(),
    }
}

fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(SHOWN);
    let mut text = names[..names.len() - more].join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} others"));
    }
    text
}

/// Files of one model each: all that differ in the number of a shard alone, by the name that they
/// share.
fn models<'a>(files: &'a [String], end: &str) -> BTreeMap<String, Vec<&'a str>> {
    let mut all: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for file in files.iter().filter(|it| it.ends_with(end)) {
        let key = match shard(file) {
            Some((prefix, _, count, _)) => format!("{prefix}-of-{count:05}{end}"),
            None => file.clone(),
        };
        all.entry(key).or_default().push(file);
    }
    all
}

/// The files of a model in order, if all are there.
fn whole(repository: &str, mut files: Vec<&str>) -> Result<Vec<String>> {
    files.sort_unstable();
    if let Some((prefix, _, count, _)) = files.first().and_then(|it| shard(it))
        && files.len() != count as usize
    {
        return Err(missing(
            format!(
                "{repository} has {} of {count} files {prefix}-...",
                files.len()
            ),
            "again with a network, or another model",
        ));
    }
    Ok(files.into_iter().map(str::to_owned).collect())
}

/// Whether a name has a type of weights: `Q4_K_M` in `model-q4_k_m.gguf`, and not `Q4_K`.
fn has_type(name: &str, wanted: &str) -> bool {
    let words = name.split(|it: char| !it.is_alphanumeric() && it != '_');
    let mut words = words.map(str::to_ascii_uppercase);
    words.any(|it| it == wanted.to_ascii_uppercase())
}

/// Files of a GGUF model: the one of this type, or the usual one.
fn of_type(repository: &str, files: &[String], wanted: Option<&str>) -> Result<Selection> {
    let mut all = models(files, ".gguf");
    // Parts for pictures and sounds are no models of their own.
    all.retain(|name, _| !name.to_ascii_lowercase().contains("mmproj"));
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    let one = |wanted: &str| -> Vec<&String> {
        all.keys().filter(|name| has_type(name, wanted)).collect()
    };
    let found = match wanted {
        Some(wanted) => one(wanted),
        None if all.len() == 1 => all.keys().collect(),
        None => {
            let usual = USUAL.iter().map(|it| one(it));
            let mut usual = usual.filter(|it| it.len() == 1);
            usual.next().unwrap_or_default()
        }
    };
    let advice = || format!("{repository}:FILE with one of: {}", listed(&names));
    match found[..] {
        [key] => {
            let files = whole(repository, all[key].clone())?;
            Ok(Selection {
                opened: files.first().cloned(),
                files,
            })
        }
        [] if names.is_empty() => Err(missing(
            format!(
                "{repository} has neither safetensors files with a config.json, nor GGUF files"
            ),
            "another repository of the model",
        )),
        [] => Err(missing(
            match wanted {
                Some(wanted) => format!("{repository} has no GGUF file of the type {wanted:?}"),
                None => format!("{repository} has {} GGUF models", names.len()),
            },
            advice(),
        )),
        _ => Err(missing(
            format!(
                "{repository} has {} GGUF models of the type {:?}",
                found.len(),
                wanted.unwrap_or_default()
            ),
            advice(),
        )),
    }
}

fn beside(files: &[String]) -> Vec<String> {
    let there = BESIDE
        .iter()
        .filter(|name| files.iter().any(|it| it == *name));
    there.map(|it| (*it).to_owned()).collect()
}

/// Files of a checkpoint: its index and what that names, or its only file.
fn checkpoint(repository: &str, files: &[String]) -> Result<Option<Selection>> {
    let top: Vec<String> = files
        .iter()
        .filter(|it| !it.contains('/'))
        .cloned()
        .collect();
    let has = |name: &str| top.iter().any(|it| it == name);
    if !has("config.json") {
        return Ok(None);
    }
    let mut all = models(&top, ".safetensors");
    let index = "model.safetensors.index.json";
    let key = match (has(index), has("model.safetensors")) {
        (true, _) => {
            let is_own = |key: &&String| key.starts_with("model-of-");
            all.keys().find(is_own).cloned()
        }
        (false, true) => Some("model.safetensors".to_owned()),
        (false, false) if all.len() == 1 => all.keys().next().cloned(),
        (false, false) if all.len() > 1 => {
            let names: Vec<&str> = all.keys().map(String::as_str).collect();
            return Err(missing(
                format!("{repository} has {} safetensors models", names.len()),
                format!("{repository}:FILE with one of: {}", listed(&names)),
            ));
        }
        (false, false) => None,
    };
    let Some(weights) = key.and_then(|key| all.remove(&key)) else {
        return Ok(None);
    };
    let mut beside = beside(files);
    if has(index) {
        beside.push(index.to_owned());
    }
    beside.extend(whole(repository, weights)?);
    Ok(Some(Selection {
        files: beside,
        opened: None,
    }))
}

/// Chooses files of a repository: those of the file or the type that is named, else its checkpoint,
/// else its only or its usual GGUF model.
///
/// # Errors
/// [`HubError::Missing`], with what there is.
pub(crate) fn select(
    repository: &str,
    files: &[String],
    choice: Option<&str>,
) -> Result<Selection> {
    let Some(choice) = choice else {
        return match checkpoint(repository, files)? {
            Some(selection) => Ok(selection),
            None => of_type(repository, files, None),
        };
    };
    let is_file = files.iter().any(|it| it == choice);
    if !is_file && !choice.contains('.') && !choice.contains('/') {
        return of_type(repository, files, Some(choice));
    }
    let mut ends = [".gguf", ".safetensors"].into_iter();
    let Some(end) = ends.find(|end| choice.ends_with(end)) else {
        return Err(missing(
            format!("{choice:?} is no GGUF or safetensors file"),
            "the name of one",
        ));
    };
    let all = models(files, end);
    let Some(own) = all.into_values().find(|it| it.contains(&choice)) else {
        let names: Vec<&str> = files
            .iter()
            .map(String::as_str)
            .filter(|it| it.ends_with(end))
            .collect();
        return Err(missing(
            format!("{repository} has no file {choice:?}"),
            match names.is_empty() {
                true => format!("another repository: this one has no {end} file"),
                false => format!("one of: {}", listed(&names)),
            },
        ));
    };
    let own = whole(repository, own)?;
    let is_checkpoint = end == ".safetensors";
    let mut selected = match is_checkpoint {
        true => beside(files),
        false => Vec::new(),
    };
    let opened = own.first().cloned();
    selected.extend(own);
    Ok(Selection {
        files: selected,
        opened,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|it| (*it).to_owned()).collect()
    }

    fn chosen(names: &[&str], choice: Option<&str>) -> (Vec<String>, Option<String>) {
        let selection = select("a/b", &files(names), choice).unwrap();
        (selection.files, selection.opened)
    }

    fn refused(names: &[&str], choice: Option<&str>) -> String {
        let error = select("a/b", &files(names), choice).unwrap_err();
        error.to_string()
    }

    #[test]
    fn a_checkpoint_comes_with_its_small_files_and_all_shards() {
        let all = [
            "1_Pooling/config.json",
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "original/config.json",
            "pytorch_model.bin",
            "tokenizer.json",
            "x-Q4_K_M.gguf",
        ];
        let wanted = [
            "config.json",
            "tokenizer.json",
            "1_Pooling/config.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(chosen(&all, None), (files(&wanted), None));
        let (own, opened) = chosen(&all, Some("consolidated.safetensors"));
        assert_eq!(own.last(), opened.as_ref());
        assert_eq!(chosen(&all, Some("q4_k_m")).0, ["x-Q4_K_M.gguf"]);
        let error = refused(&all[..5], None);
        assert!(error.contains("2 safetensors models"), "{error}");
        let error = refused(&[all[2], all[4], all[6]], None);
        assert!(error.contains("1 of 2 files model-..."), "{error}");
    }

    #[test]
    fn types_of_gguf_files_are_words_of_their_names() {
        let all = [
            "BF16/m-BF16-00001-of-00002.gguf",
            "BF16/m-BF16-00002-of-00002.gguf",
            "m-Q4_K_M.gguf",
            "m.q4_0.gguf",
            "mmproj-Q8_0.gguf",
        ];
        assert_eq!(chosen(&all, None).0, ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen(&all, Some("Q4_0")).0, ["m.q4_0.gguf"]);
        let (both, opened) = chosen(&all, Some("bf16"));
        assert_eq!((both.len(), opened.as_deref()), (2, Some(all[0])));
        assert_eq!(chosen(&all, Some(all[1])).1.as_deref(), Some(all[0]));
        assert_eq!(chosen(&all[3..], None).0, ["m.q4_0.gguf"]);
        for (names, choice, message) in [
            (&all[..], Some("Q4_K"), "no GGUF file of the type \"Q4_K\""),
            (&all[..], Some("none.gguf"), "has no file \"none.gguf\""),
            (&all[..], Some("a/b.txt"), "no GGUF or safetensors file"),
            (&all[1..2], None, "1 of 2 files"),
            (
                &["a.q4_0.gguf", "b.q4_0.gguf"],
                Some("Q4_0"),
                "2 GGUF models of the type",
            ),
            (&["a.gguf", "b.gguf"], None, "has 2 GGUF models"),
            (&["README.md"], None, "neither safetensors files"),
            (&[], Some("x.safetensors"), "has no .safetensors file"),
        ] {
            let error = refused(names, choice);
            assert!(
                error.contains(message) && error.contains("\ntry: "),
                "{error}"
            );
        }
    }
}
