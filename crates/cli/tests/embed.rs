//! `fercuda embed`, with a tiny random model.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

const HIDDEN: usize = 12;
const INNER: usize = 20;
const WORDS: [&str; 9] = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##d", ".",
];

fn fercuda(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    let command = command
        .args(args)
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "1");
    command.output().expect("fercuda runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Shapes of a checkpoint's tensors.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![
        (
            "embeddings.word_embeddings.weight".to_owned(),
            vec![WORDS.len(), HIDDEN],
        ),
        (
            "embeddings.position_embeddings.weight".to_owned(),
            vec![20, HIDDEN],
        ),
        (
            "embeddings.token_type_embeddings.weight".to_owned(),
            vec![2, HIDDEN],
        ),
    ];
    let own = "encoder.layer.0";
    for (part, inputs, outputs) in [
        ("attention.self.query", HIDDEN, HIDDEN),
        ("attention.self.key", HIDDEN, HIDDEN),
        ("attention.self.value", HIDDEN, HIDDEN),
        ("attention.output.dense", HIDDEN, HIDDEN),
        ("intermediate.dense", HIDDEN, INNER),
        ("output.dense", INNER, HIDDEN),
    ] {
        all.push((format!("{own}.{part}.weight"), vec![outputs, inputs]));
        all.push((format!("{own}.{part}.bias"), vec![outputs]));
    }
    let norms = ["attention.output.LayerNorm", "output.LayerNorm"].map(|it| format!("{own}.{it}"));
    for norm in norms.into_iter().chain(["embeddings.LayerNorm".to_owned()]) {
        all.push((format!("{norm}.weight"), vec![HIDDEN]));
        all.push((format!("{norm}.bias"), vec![HIDDEN]));
    }
    all
}

/// A folder with a tiny encoder and its tokenizer.
fn encoder() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    };
    let mut random = fastrand::Rng::new();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in shapes() {
        let from = data.len();
        for _ in 0..shape.iter().product() {
            data.extend_from_slice(&(random.f32() - 0.5).to_le_bytes());
        }
        let row = json!({ "dtype": "F32", "shape": shape, "data_offsets": [from, data.len()] });
        header.insert(name, row);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    write(
        "model.safetensors",
        &[&length[..], header.as_bytes(), &data].concat(),
    );
    let config = json!({
        "model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": INNER, "max_position_embeddings": 20,
        "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    });
    write("config.json", config.to_string().as_bytes());
    let special = (0..4).map(|id| {
        json!({ "id": id, "content": WORDS[id], "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false })
    });
    let words = WORDS
        .iter()
        .enumerate()
        .map(|(id, word)| ((*word).to_owned(), json!(id)));
    let tokenizer = json!({
        "version": "1.0", "added_tokens": special.collect::<Vec<Value>>(),
        "normalizer": { "type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": true, "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2] },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": words.collect::<serde_json::Map<String, Value>>() },
    });
    write("tokenizer.json", tokenizer.to_string().as_bytes());
    folder
}

/// The vectors of a report.
fn vectors(report: &Value) -> Vec<Vec<f64>> {
    let all = report["embeddings"].as_array().expect("vectors").iter();
    let elements = |it: &Value| {
        it.as_array()
            .map(|it| it.iter().filter_map(Value::as_f64).collect())
    };
    all.filter_map(elements).collect()
}

#[test]
fn texts_have_vectors_of_the_length_one() {
    let folder = encoder();
    let path = folder.path().to_str().expect("a path of UTF-8");
    let lines = folder.path().join("texts.txt");
    std::fs::write(&lines, "A bd.\n\nc\n").expect("a file");
    let embed = |more: &[&str]| {
        let done = fercuda(&[&["embed", path], more].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let report: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        report
    };
    let report = embed(&["--prompt", "a BD.", "--prompt", "c"]);
    // [CLS] a b ##d . [SEP], and [CLS] c [SEP].
    assert_eq!(report["tokens"], 9);
    let all = vectors(&report);
    assert_eq!(all.len(), 2);
    for vector in &all {
        let length: f64 = vector.iter().map(|it| it * it).sum();
        assert!(
            vector.len() == HIDDEN && (length - 1.0).abs() < 1e-5,
            "{vector:?}"
        );
    }
    assert_ne!(all[0], all[1]);
    assert_eq!(
        vectors(&embed(&["--lines", lines.to_str().expect("a path")])),
        all
    );
    for (args, said) in [
        (vec!["embed", path], "there is no text"),
        (
            vec!["embed", path, "--prompt", &"a ".repeat(19)],
            "21 tokens in 20 positions",
        ),
        (vec!["generate", path, "--prompt", "a"], "makes embeddings"),
        (
            vec!["embed", path_of(&lines), "--prompt", "a"],
            "cannot load",
        ),
    ] {
        let done = fercuda(&args);
        assert_ne!(done.status.code(), Some(0), "{args:?}");
        assert!(text(&done.stderr).contains(said), "{}", text(&done.stderr));
    }
}

fn path_of(path: &Path) -> &str {
    path.to_str().expect("a path of UTF-8")
}
