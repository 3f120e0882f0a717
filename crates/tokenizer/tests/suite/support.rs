//! Vocabularies of the references, and GGUF files made of them.

use std::path::{Path, PathBuf};

use fercuda_modelfile::{Gguf, GgufBuilder, GgufKind, GgufValue};
use fercuda_tokenizer::Tokenizer;
use serde_json::Value;

/// The references with vectors.
pub(crate) const NAMES: [&str; 4] = ["bytes", "pieces", "words", "unigram"];

pub(crate) fn reference(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references");
    folder.join(name)
}

pub(crate) fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(reference(name)).unwrap()).unwrap()
}

pub(crate) fn from_json(name: &str) -> Tokenizer {
    let file = std::fs::read(reference(&format!("{name}.json"))).unwrap();
    Tokenizer::from_json(&file).unwrap()
}

/// Numbers of an array.
pub(crate) fn ids(of: &Value) -> Vec<u32> {
    let items = of.as_array().unwrap().iter();
    items.map(|it| it.as_u64().unwrap() as u32).collect()
}

/// Tokens of a tokenizer.json by id, with their scores.
fn tokens(file: &Value) -> Vec<(String, f32)> {
    let vocab = &file["model"]["vocab"];
    if let Some(list) = vocab.as_array() {
        let token = |it: &Value| {
            let text = it[0].as_str().unwrap().to_owned();
            (text, it[1].as_f64().unwrap() as f32)
        };
        return list.iter().map(token).collect();
    }
    let members = vocab.as_object().unwrap().iter();
    let mut by_id: Vec<(u64, String)> = members
        .map(|(text, id)| (id.as_u64().unwrap(), text.clone()))
        .collect();
    by_id.sort_unstable();
    let token = |(id, text): (u64, String)| (text, -(id as f32));
    by_id.into_iter().map(token).collect()
}

/// A GGUF file of a reference, with an end for its keys.
pub(crate) fn gguf_bytes(name: &str) -> Vec<u8> {
    gguf_with("gpt-2", name)
}

/// The same, with this pre-tokenizer where it has one.
pub(crate) fn gguf_with(pre: &str, name: &str) -> Vec<u8> {
    let file = json(&format!("{name}.json"));
    let (model, pre) = match name {
        "bytes" => ("gpt2", pre),
        "pieces" => ("llama", ""),
        "words" => ("bert", ""),
        _ => ("t5", ""),
    };
    let mut builder = GgufBuilder::new();
    let mut set = |key: &str, value: GgufValue<'_>| {
        let key = format!("tokenizer.ggml.{key}");
        builder.set(key.as_bytes(), &value).unwrap();
    };
    set("model", GgufValue::String(model.as_bytes()));
    if !pre.is_empty() {
        set("pre", GgufValue::String(pre.as_bytes()));
        set("add_bos_token", GgufValue::Bool(true));
    }
    if name == "unigram" {
        set("add_space_prefix", GgufValue::Bool(true));
    }
    let (bos, eos, unknown) = if name == "words" {
        (2, 3, 1)
    } else {
        (1, 2, 0)
    };
    set("bos_token_id", GgufValue::U32(bos));
    set("eos_token_id", GgufValue::U32(eos));
    set("seperator_token_id", GgufValue::U32(eos));
    set("unknown_token_id", GgufValue::U32(unknown));
    let tokens = tokens(&file);
    let specials = file["added_tokens"].as_array().unwrap();
    let kind = |(id, (text, _)): (usize, &(String, f32))| {
        let is_special = specials.iter().any(|it| it["id"] == id as u64);
        let is_byte = name == "pieces" && text.len() == 6 && text.starts_with("<0x");
        match (is_special, is_byte) {
            (true, _) if id as u32 == unknown => 2,
            (true, _) => 3,
            (_, true) => 6,
            _ => 1,
        }
    };
    let kinds: Vec<i32> = tokens.iter().enumerate().map(kind).collect();
    let spelled = |(text, _): &(String, f32)| match (name, text.strip_prefix("##")) {
        ("words", Some(rest)) => rest.to_owned(),
        ("words", None) if !text.starts_with('[') || text.len() == 1 => format!("\u{2581}{text}"),
        _ => text.clone(),
    };
    let texts: Vec<String> = tokens.iter().map(spelled).collect();
    let texts = texts.iter().map(|it| GgufValue::String(it.as_bytes()));
    let mut array = |key: &str, kind, values: Vec<GgufValue<'_>>| {
        let key = format!("tokenizer.ggml.{key}");
        builder.set_array(key.as_bytes(), kind, values).unwrap();
    };
    array("tokens", GgufKind::String, texts.collect());
    let kinds = kinds.into_iter().map(GgufValue::I32);
    array("token_type", GgufKind::I32, kinds.collect());
    let scores = tokens.iter().map(|it| GgufValue::F32(it.1));
    array("scores", GgufKind::F32, scores.collect());
    if name == "bytes" {
        let merges = file["model"]["merges"].as_array().unwrap().iter();
        let merge = |it: &Value| format!("{} {}", it[0].as_str().unwrap(), it[1].as_str().unwrap());
        let merges: Vec<String> = merges.map(merge).collect();
        let merges = merges.iter().map(|it| GgufValue::String(it.as_bytes()));
        array("merges", GgufKind::String, merges.collect());
    }
    builder.start(Vec::new()).unwrap().finish().unwrap()
}

pub(crate) fn from_gguf(name: &str) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::parse(gguf_bytes(name)).unwrap()).unwrap()
}
