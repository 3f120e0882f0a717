//! Folders of checkpoints: tokenizer, ends of a generation, chat templates.

use std::fs;
use std::path::Path;

use fercuda_hub::{ModelSource, SourceError};
use fercuda_tokenizer::{ChatRequest, ChatValue};
use tempfile::TempDir;

/// A safetensors file with one tensor.
fn weights() -> Vec<u8> {
    let header = r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&[0; 4]);
    file
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    fs::write(path.join("model.safetensors"), weights()).unwrap();
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tokenizer/tests/references");
    fs::copy(tokenizer.join("bytes.json"), path.join("tokenizer.json")).unwrap();
    for (name, text) in files {
        fs::write(path.join(name), text).unwrap();
    }
    folder
}

fn rendered(source: &ModelSource) -> String {
    let template = source.chat_template().unwrap().unwrap();
    let request = ChatRequest::new(vec![ChatValue::message("user", "Hi")]);
    template.render(&request).unwrap().text().to_owned()
}

const PLAIN: &str = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";

#[test]
fn a_template_is_taken_from_where_it_is() {
    let tokens = r#""bos_token": {"content": "<b>"}, "eos_token": "<e>", "unk_token": null"#;
    let config = |template: &str| format!("{{{tokens}, \"chat_template\": {template}}}");
    let text = format!("{PLAIN:?}");
    let named = format!(
        "[{{\"name\": \"tool_use\", \"template\": \"no\"}}, \
          {{\"name\": \"default\", \"template\": {text}}}]"
    );
    for (config, other) in [
        (config(&text), None),
        (config(&named), None),
        (
            config("null"),
            Some((
                "chat_template.json",
                format!("{{\"chat_template\": {text}}}"),
            )),
        ),
        // A file of its own counts more.
        (
            config("\"no\""),
            Some(("chat_template.jinja", PLAIN.to_owned())),
        ),
    ] {
        let mut files = vec![("tokenizer_config.json", config.as_str())];
        files.extend(other.as_ref().map(|(name, text)| (*name, text.as_str())));
        let folder = folder(&files);
        let source = ModelSource::open(folder.path()).unwrap();
        assert_eq!(rendered(&source), "<b>Hi<e>");
        assert_eq!(source.template(), Some(PLAIN));
    }
    let bare = folder(&[]);
    let source = ModelSource::open(bare.path()).unwrap();
    assert!(source.chat_template().unwrap().is_none() && source.template().is_none());
    let name = bare
        .path()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    assert_eq!(source.name, name);
    // One file of it names the whole folder's tokenizer.
    let file = bare.path().join("model.safetensors");
    assert_eq!(ModelSource::open(&file).unwrap().name, "model");
}

#[test]
fn a_generation_ends_at_the_tokens_that_files_name() {
    let ends = |files: &[(&str, &str)]| {
        let folder = folder(files);
        let source = ModelSource::open(folder.path()).unwrap();
        source.tokenizer.generation_ends().to_vec()
    };
    let by_text = ends(&[]);
    assert_eq!(
        ends(&[("generation_config.json", "{\"eos_token_id\": [5, 7]}")]),
        [5, 7]
    );
    assert_eq!(ends(&[("config.json", "{\"eos_token_id\": 6}")]), [6]);
    assert_eq!(
        ends(&[
            ("config.json", "{\"eos_token_id\": 6}"),
            ("generation_config.json", "{\"eos_token_id\": 5}"),
        ]),
        [5]
    );
    // What is no token of the vocabulary is none.
    for other in ["4000000000", "-1", "null", "\"x\"", "[]", "{}"] {
        let text = format!("{{\"eos_token_id\": {other}}}");
        assert_eq!(ends(&[("config.json", &text)]), by_text, "{other}");
    }
    // The end of a turn besides.
    let source = ModelSource::open(folder(&[]).path()).unwrap();
    let piece = source.tokenizer.piece(9).unwrap();
    let config = serde_json::json!({ "eos_token": piece }).to_string();
    let both = ends(&[
        ("tokenizer_config.json", &config),
        ("generation_config.json", "{\"eos_token_id\": 5}"),
    ]);
    assert_eq!(both, [5, 9]);
}

#[test]
fn folders_that_lack_or_damage_a_file_are_refused_by_its_name() {
    let refused = |files: &[(&str, &str)], gone: &[&str]| {
        let folder = folder(files);
        for name in gone {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        let error = ModelSource::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("\ntry: "), "{error}");
        error
    };
    let error = refused(&[], &["tokenizer.json"]);
    assert!(matches!(&error, SourceError::Folder { .. }), "{error}");
    assert!(
        error.to_string().contains("has no tokenizer.json"),
        "{error}"
    );
    for name in [
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.json",
    ] {
        let error = refused(&[(name, "{\"a\": ")], &[]);
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = refused(&[("tokenizer.json", "{}")], &[]);
    assert!(matches!(&error, SourceError::Tokenizer(_)), "{error}");
    let error = refused(&[], &["model.safetensors"]);
    assert!(matches!(&error, SourceError::File(_)), "{error}");
}
