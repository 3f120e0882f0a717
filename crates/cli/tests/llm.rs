//! `fercuda generate`, `fercuda chat` and `fercuda model random`, with a tiny random model.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn fercuda(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    let command = command
        .args(args)
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "0");
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("fercuda runs");
    // It may end before it has read all of it.
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).unwrap_or_default();
    drop(stdin);
    child.wait_with_output().expect("fercuda ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A tiny model in a folder of its own.
fn tiny(kind: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("tiny.gguf");
    let done = fercuda(
        &["model", "random", "tiny", path(&file), "--type", kind],
        "",
    );
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    (folder, file)
}

fn path(file: &Path) -> &str {
    file.to_str().expect("a path of UTF-8")
}

#[test]
fn text_behind_a_prompt_is_the_same_each_time_and_alone_on_stdout() {
    let (_folder, file) = tiny("Q4_1");
    let generate = |more: &[&str], input: &str| {
        let args = [&["generate", path(&file), "-n", "12"], more].concat();
        let done = fercuda(&args, input);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        (text(&done.stdout), text(&done.stderr))
    };
    let (first, noise) = generate(&["--prompt", "Hello"], "");
    assert!(!first.trim_end().is_empty());
    assert!(noise.is_empty(), "{noise}");
    assert_eq!(generate(&["--prompt", "-"], "Hello").0, first);
    let (json, _) = generate(&["--prompt", "Hello", "--json"], "");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["prompt_tokens"], 5);
    assert_eq!(json["tokens"].as_array().map(Vec::len), Some(12));
    assert_eq!(json["finish"], "length");
    assert_eq!(json["text"].as_str(), first.strip_suffix('\n'));
    let warm = ["--prompt", "Hello", "--temperature", "5", "--seed"];
    let seeded = |seed| generate(&[&warm[..], &[seed]].concat(), "").0;
    assert_eq!(seeded("3"), seeded("3"));
    assert_ne!(seeded("3"), seeded("4"));
}

#[test]
fn conversations_remember_and_obey_commands() {
    let (_folder, file) = tiny("Q8_0");
    let talk = |input: &str, more: &[&str]| {
        let done = fercuda(&[&["chat", path(&file), "-n", "8"], more].concat(), input);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        (text(&done.stdout), text(&done.stderr))
    };
    let (out, _) = talk(
        "Hi\n/history\n/exit\nnever read\n",
        &["--system", "Be brief."],
    );
    assert!(
        out.contains("system: Be brief.\nuser: Hi\nassistant: "),
        "{out}"
    );
    assert!(!out.contains("never read"), "{out}");
    let (again, _) = talk("Hi\n/again\n/history\n", &[]);
    assert_eq!(again.matches("user: Hi\n").count(), 1, "{again}");
    let (out, error) = talk("/again\n/clear\n/nothing\n/help\n", &[]);
    assert!(error.contains("there is no message yet"), "{error}");
    assert!(
        error.contains("/nothing is no command\ntry: /help"),
        "{error}"
    );
    assert!(out.contains("/system TEXT"), "{out}");
    let (_, error) = talk(&format!("{}\n", "long ".repeat(120)), &[]);
    assert!(error.contains("the context 512\ntry: /clear"), "{error}");
}

#[test]
fn models_and_options_that_do_not_fit_are_refused() {
    let (folder, file) = tiny("F32");
    let refused = |args: &[&str], message: &str| {
        let done = fercuda(args, "");
        assert!(matches!(done.status.code(), Some(1 | 2)), "{args:?}");
        let error = text(&done.stderr);
        assert!(error.contains(message), "{args:?}: {error}");
        assert!(done.stdout.is_empty(), "{args:?}");
    };
    let own = path(&file);
    refused(
        &["generate", own, "--prompt", "x", "--context", "513"],
        "a context of 513",
    );
    refused(
        &["generate", own, "--prompt", "x", "--top-p", "1.5"],
        "from 0 to 1",
    );
    let long = "x".repeat(600);
    refused(
        &["generate", own, "--prompt", &long],
        "600 tokens in 512 positions",
    );
    let missing = folder.path().join("missing.gguf");
    refused(
        &["generate", path(&missing), "--prompt", "x"],
        "missing.gguf",
    );
    let damaged = folder.path().join("damaged.gguf");
    let whole = std::fs::read(&file).expect("it is there");
    std::fs::write(&damaged, &whole[..whole.len() / 2]).expect("it is written");
    refused(
        &["generate", path(&damaged), "--prompt", "x"],
        "damaged.gguf",
    );
    refused(&["model", "random", "tiny", own], "exists");
    refused(&["model", "random", "huge", own], "try: one of tiny, ");
}
