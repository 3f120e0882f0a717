//! `fercuda model`, as a user runs it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fercuda_modelfile::{GgufBuilder, GgufKind, GgufValue, ModelFile};
use serde_json::Value;

fn model(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    let command = command.arg("model").args(args).current_dir(folder);
    command.output().expect("fercuda runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command says on stderr that ends with this status.
fn said(folder: &Path, status: i32, args: &[&str]) -> String {
    let done = model(folder, args);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(status), "{args:?}: {said}");
    said
}

/// A model with two matrices, a vector and a name that would clear a terminal.
fn write_model(path: &Path) -> Vec<f32> {
    let f32s = "F32".parse().expect("a type");
    let mut builder = GgufBuilder::new();
    let set = [
        ("general.architecture", GgufValue::String(b"llama")),
        ("general.name", GgufValue::String(b"tiny\x1b[2J")),
        ("llama.block_count", GgufValue::U32(1)),
        ("llama.eps", GgufValue::F32(1e-5)),
    ];
    for (key, value) in set {
        builder.set(key.as_bytes(), &value).expect("a key");
    }
    let tokens = [&b"<s>"[..], b"a"].map(GgufValue::String);
    let array = builder.set_array(b"tokenizer.ggml.tokens", GgufKind::String, tokens);
    array.expect("an array");
    let tensors: [(&str, &[u64]); 3] = [
        ("token_embd.weight", &[2, 256]),
        ("blk.0.attn_q.weight", &[4, 64]),
        ("output_norm.weight", &[64]),
    ];
    for (name, shape) in tensors {
        builder.add_tensor(name, f32s, shape).expect("a tensor");
    }
    let values: Vec<f32> = (0..512 + 256 + 64)
        .map(|at| (at % 37) as f32 / 8.0 - 2.0)
        .collect();
    let mut writer = builder.start(Vec::new()).expect("a head");
    for value in &values {
        writer.write(&value.to_le_bytes()).expect("data");
    }
    fs::write(path, writer.finish().expect("a file")).expect("a file");
    values
}

#[test]
fn a_model_is_shown_with_metadata_and_tensors_and_no_control_characters() {
    let folder = tempfile::tempdir().expect("a folder");
    write_model(&folder.path().join("m.gguf"));
    let done = model(folder.path(), &["show", "m.gguf"]);
    let out = text(&done.stdout);
    for wanted in [
        "m.gguf: GGUF 3, 3.",
        "general.architecture   llama",
        "general.name           tiny\\u{1b}[2J",
        "tokenizer.ggml.tokens  2 of String",
        "blk.0.attn_q.weight  F32      4x64               1.0 KiB",
    ] {
        assert!(out.contains(wanted), "{wanted} in\n{out}");
    }
    assert!(!out.contains('\x1b'), "{out}");
    assert!(text(&done.stderr).contains("3 tensors: 3 F32 3.2 KiB"));
    let done = model(
        folder.path(),
        &["show", "m.gguf", "--json", "--tensors", "*weight*d*"],
    );
    assert!(done.status.success());
    let shown: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(shown["tensors"].as_array().map(Vec::len), Some(0));
    let done = model(
        folder.path(),
        &["show", "m.gguf", "--json", "--tensors", "token*"],
    );
    let shown: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(shown["tensors"][0]["shape"], serde_json::json!([2, 256]));
    assert_eq!(shown["tensors"][0]["type"], "F32");
    assert_eq!(shown["metadata"][2]["value"], 1);
    assert_eq!(shown["metadata"][4]["value"]["length"], 2);
    assert_eq!(shown["files"][0]["format"], "GGUF 3");
}

#[test]
fn a_model_is_quantised_and_converted_and_no_file_is_replaced_unasked() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    let values = write_model(&place.join("m.gguf"));
    let quantise = ["quantize", "m.gguf", "q.gguf", "--type", "q4_k"];
    assert!(said(place, 0, &quantise).contains("q.gguf: 3 tensors"));
    let quantised = ModelFile::open(&place.join("q.gguf")).expect("a model");
    let kinds: Vec<_> = quantised.tensors().map(|it| it.kind.name()).collect();
    assert_eq!(kinds, ["Q4_K", "Q5_0", "F32"]);
    assert!(said(place, 2, &quantise).contains("q.gguf exists\ntry: --force"));
    said(place, 0, &[&quantise[..], &["--force"]].concat());
    let onto_itself = said(place, 2, &["convert", "m.gguf", "m.gguf", "--force"]);
    assert!(onto_itself.contains("would be overwritten while it is read"));
    said(place, 0, &["convert", "m.gguf", "m.safetensors"]);
    let converted = ModelFile::open(&place.join("m.safetensors")).expect("a model");
    let embedding = converted
        .read_tensor("token_embd.weight")
        .expect("a tensor");
    assert_eq!(embedding, values[..512]);
    said(
        place,
        0,
        &["convert", "q.gguf", "back.safetensors", "--type", "BF16"],
    );
    let again = said(
        place,
        0,
        &["quantize", "q.gguf", "r.gguf", "--type", "Q8_0"],
    );
    assert!(
        again.contains("1 tensor of Q4_K are quantised again"),
        "{again}"
    );
}

#[test]
fn what_cannot_be_read_or_written_is_named_with_what_to_try() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    write_model(&place.join("m.gguf"));
    let whole = fs::read(place.join("m.gguf")).expect("a file");
    fs::write(place.join("cut.gguf"), &whole[..whole.len() / 2]).expect("a file");
    for (args, expected) in [
        (&["show", "absent.gguf"][..], "cannot open absent.gguf"),
        (&["show", "cut.gguf"], "cut.gguf: byte "),
        (&["show", "."], "has 2 GGUF models"),
        (&["convert", "m.gguf", "m.bin"], "m.bin: no known format"),
        (
            &["quantize", "m.gguf", "o.gguf", "--type", "IQ2_S"],
            "IQ2_S is not encoded",
        ),
        (
            &["quantize", "m.gguf", "o.gguf", "--type", "Q9"],
            "there is no type \"Q9\"",
        ),
        (
            &["convert", "m.gguf", "no/o.gguf"],
            "cannot write no/o.gguf",
        ),
    ] {
        let said = said(place, 2, args);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    assert!(!place.join("o.gguf").exists());
}
