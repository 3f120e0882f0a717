//! `fercuda generate`, `chat`, `serve` and `model random`, with a tiny random model.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
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

/// What a server answers to a request, if it is there: head and body.
fn post(address: &str, path: &str, body: &Value) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer k\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).ok()?;
    let mut all = String::new();
    stream.read_to_string(&mut all).ok()?;
    let (head, body) = all.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

/// A server of the model `tiny` with the key `k`, and its address.
fn served(file: &Path, more: &[&str]) -> (Child, String) {
    let mut server = Command::new(env!("CARGO_BIN_EXE_fercuda"))
        .args(["serve", path(file), "--port", "0", "--api-key", "k"])
        .args(more)
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("fercuda runs");
    let mut line = String::new();
    let stdout = server.stdout.as_mut().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("tiny at http://");
    (server, address.expect("an address").to_owned())
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
fn texts_follow_a_schema_an_expression_or_a_grammar() {
    let (folder, file) = tiny("Q8_0");
    let own = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let generate = |more: &[&str], input: &str| {
        let args = ["generate", path(&file), "-n", "60", "--prompt", "Hello"];
        fercuda(&[&args[..], more].concat(), input)
    };
    let schema = r#"{"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}"#;
    let rules = own("rules.lark", "start: \"<\" WORD \">\"\nWORD: /[a-c]{2}/\n");
    let schema_file = own("schema.json", schema);
    let is_numbers =
        |text: &str| serde_json::from_str::<Vec<u8>>(text).is_ok_and(|it| it.len() == 2);
    let is_word = |text: &str| text.len() == 4 && text.starts_with('<') && text.ends_with('>');
    let is_year = |text: &str| text.len() == 4 && text.starts_with("20");
    for (more, input, is_it) in [
        (
            ["--json-schema", path(&schema_file)],
            "",
            &is_numbers as &dyn Fn(&str) -> bool,
        ),
        (["--json-schema", "-"], schema, &is_numbers),
        (["--regex", "20[0-9]{2}"], "", &is_year),
        (["--grammar", path(&rules)], "", &is_word),
    ] {
        let done = generate(&more, input);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let said = text(&done.stdout);
        assert!(is_it(said.trim_end()), "{more:?}: {said}");
    }
    let json = text(&generate(&["--regex", "20[0-9]{2}", "--json"], "").stdout);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["finish"], "end", "{json}");
    let wrong = own(
        "wrong.json",
        r#"{"type": "integer", "minimum": 3, "maximum": 1}"#,
    );
    for (more, said) in [
        (&["--json-schema", path(&wrong)][..], "no text follows"),
        (&["--regex", "("], "unclosed group"),
        (
            &["--regex", "a", "--grammar", path(&rules)],
            "cannot be used with",
        ),
        (&["--grammar", "-"], "the grammar is empty"),
    ] {
        let done = generate(more, "");
        assert_eq!(done.status.code(), Some(2), "{more:?}");
        assert!(text(&done.stderr).contains(said), "{}", text(&done.stderr));
    }
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
fn conversations_go_on_behind_what_a_template_refuses_and_odd_bytes() {
    let (folder, file) = tiny("Q8_0");
    let template = folder.path().join("chat.jinja");
    let source = "{% for m in messages %}{% if m.content == 'no' %}\
        {{ raise_exception('not that') }}{% endif %}{{ m.content }}{% endfor %}";
    std::fs::write(&template, source).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    let command = command
        .args([
            "chat",
            path(&file),
            "-n",
            "4",
            "--chat-template",
            path(&template),
        ])
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("fercuda runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin
        .write_all(b"no\nodd \xff\n/history\n")
        .expect("it reads");
    drop(stdin);
    let done = child.wait_with_output().expect("it ends");
    let (out, error) = (text(&done.stdout), text(&done.stderr));
    assert_eq!(done.status.code(), Some(0), "{error}");
    assert!(
        error.contains("line 1: ") && error.contains("not that"),
        "{error}"
    );
    assert!(out.contains("user: odd \u{fffd}\nassistant: "), "{out}");
    assert!(!out.contains("user: no"), "{out}");
}

#[test]
fn an_interrupted_generation_says_so_by_status_and_note() {
    let (_folder, file) = tiny("Q8_0");
    let mut child = Command::new(env!("CARGO_BIN_EXE_fercuda"))
        .args(["generate", path(&file), "--prompt", "Hello", "-n", "500"])
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fercuda runs");
    let mut first = [0];
    let stdout = child.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut first).expect("a token");
    kill_process(Pid::from_child(&child), Signal::INT).expect("a signal");
    let done = child.wait_with_output().expect("it ends");
    let error = text(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{error}");
    assert!(error.contains("interrupted: "), "{error}");
}

#[test]
fn speed_is_measured_behind_a_depth_and_within_the_context() {
    let (_folder, file) = tiny("Q8_0");
    let bench = |args: &[&str]| {
        let done = fercuda(
            &[&["bench", "model", path(&file), "-r", "1"], args].concat(),
            "",
        );
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    };
    let most = u32::MAX.to_string();
    let args = [
        "-p",
        &most,
        "-n",
        "3",
        "-d",
        "500",
        "--parallel",
        "2",
        "--json",
    ];
    let (status, out, error) = bench(&args);
    assert_eq!(status, Some(0), "{error}");
    assert!(
        error.contains("pp4294967295 @ d500 is reduced to pp12 @ d500"),
        "{error}"
    );
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| row["test"].as_str()).collect();
    assert_eq!(names, [Some("pp12 @ d500"), Some("tg3 @ d500")]);
    for row in rows {
        let rate = row["tokens_per_second"].as_f64().expect("a number");
        // The software device has not computed a million tokens a second yet.
        assert!(rate > 0.0 && rate < 1e6, "{row}");
    }
    let (status, _, error) = bench(&["-d", "600"]);
    assert_eq!(status, Some(2), "{error}");
    assert!(error.contains("--depths 600: "), "{error}");
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
    let other = folder.path().join("other.gguf");
    refused(
        &["model", "random", "tiny", path(&other), "--type", "F64"],
        "--type F64: models of it are not run",
    );
    assert!(!other.exists());
    let plain = folder.path().join("plain.jinja");
    std::fs::write(&plain, b"\xff").expect("a file");
    refused(
        &["chat", own, "--chat-template", path(&plain)],
        "no text of UTF-8",
    );
}

/// Where a compiler is installed besides, the server has to answer.
#[test]
fn a_server_without_a_compiler_ends_before_it_says_its_address() {
    let (folder, file) = tiny("Q8_0");
    let mut server = Command::new(env!("CARGO_BIN_EXE_fercuda"))
        .args(["serve", path(&file), "--port", "0"])
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "0")
        .env("HOME", folder.path())
        .env_remove("XDG_CACHE_HOME")
        .env_remove("FERCUDA_WHEELS")
        .env_remove("FERCUDA_PYTHON")
        .env_remove("FERCUDA_NVRTC")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fercuda runs");
    let mut line = String::new();
    let stdout = server.stdout.as_mut().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("text");
    if let Some(address) = line.trim().strip_prefix("tiny at http://") {
        let body = json!({ "prompt": "x", "max_tokens": 1 });
        let answer = post(address, "/v1/completions", &body);
        kill_process(Pid::from_child(&server), Signal::TERM).expect("a signal");
        let (head, answer) = answer.expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200"), "{head} {answer}");
    }
    let done = server.wait_with_output().expect("it ends");
    let error = text(&done.stderr);
    match line.is_empty() {
        true => {
            assert_eq!(done.status.code(), Some(1), "{error}");
            assert!(error.contains("cannot be computed"), "{error}");
            assert!(error.contains("\ntry: "), "{error}");
        }
        false => assert_eq!(done.status.code(), Some(0), "{error}"),
    }
}

#[test]
fn a_served_model_answers_as_the_command_line_does_and_ends_by_signals() {
    let (_folder, file) = tiny("Q8_0");
    let prompt = "A prompt of more than sixteen tokens";
    let args = [
        "generate",
        path(&file),
        "-n",
        "12",
        "--json",
        "--prompt",
        prompt,
    ];
    let done = fercuda(&args, "");
    let wanted: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let (mut server, address) = served(&file, &["--queue", "3"]);
    let address = address.as_str();
    let mut body = json!({
        "model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2,
    });
    let mut answers = Vec::new();
    for _ in 0..2 {
        let (head, answer) = post(address, "/v1/completions", &body).expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200"), "{head} {answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["choices"][0]["text"], wanted["text"]);
        assert_eq!(answer["usage"]["prompt_tokens"], wanted["prompt_tokens"]);
        answers.push(answer);
    }
    let cached = |at: usize| &answers[at]["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!((cached(0), cached(1)), (&json!(0), &json!(32)));
    let log = answers[0]["choices"][0]["logprobs"]["token_logprobs"][0].as_f64();
    assert!(log.is_some_and(|log| log < 0.0), "{log:?}");
    body["prompt"] = "x".repeat(600).into();
    let (head, answer) = post(address, "/v1/completions", &body).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 400"), "{head} {answer}");
    let chat = json!({
        "messages": [{ "role": "user", "content": "Hi" }], "stream": true, "max_tokens": 5,
    });
    let (head, events) = post(address, "/v1/chat/completions", &chat).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200"), "{head} {events}");
    assert!(events.contains("data: [DONE]"), "{events}");
    // The second Ctrl-C cancels what the first lets end.
    let endless = json!({
        "prompt": "x", "max_tokens": 500, "stream": true, "ignore_eos": true,
    });
    let endless = endless.to_string();
    let mut stream = TcpStream::connect(address).expect("a connection");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer k\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        endless.len()
    );
    stream
        .write_all((head + &endless).as_bytes())
        .expect("it is sent");
    stream.read_exact(&mut [0; 100]).expect("it has begun");
    let id = Pid::from_child(&server);
    kill_process(id, Signal::INT).expect("a signal");
    std::thread::sleep(std::time::Duration::from_millis(100));
    kill_process(id, Signal::INT).expect("a signal");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap_or_default();
    assert!(!rest.contains("[DONE]"), "{rest}");
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
    assert!(post(address, "/v1/completions", &body).is_none());
}

#[test]
fn a_name_without_a_network_is_refused_and_a_folder_of_shards_is_a_model() {
    let (folder, file) = tiny("F16");
    let home = folder.path().join("home");
    let named = |name: &str| {
        let done = Command::new(env!("CARGO_BIN_EXE_fercuda"))
            .args(["generate", name, "--prompt", "x"])
            .env("FERCUDA_DEVICE", "soft")
            .env("HF_HOME", &home)
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .env("HF_TOKEN", "hf_secret")
            .env_remove("HF_HUB_CACHE")
            .env("NO_PROXY", "127.0.0.1")
            .output()
            .expect("fercuda runs");
        assert_eq!(done.status.code(), Some(1));
        assert!(done.stdout.is_empty());
        text(&done.stderr)
    };
    let error = named("own/tiny:Q8_0");
    assert!(
        error.contains("cannot reach 127.0.0.1:9 for own/tiny"),
        "{error}"
    );
    assert!(error.contains("try: a network, HF_ENDPOINT"), "{error}");
    assert!(!error.contains("hf_secret"), "{error}");
    // What has the form of a file is one, and not there.
    let error = named("own/tiny.gguf");
    assert!(error.contains("cannot open own/tiny.gguf"), "{error}");
    // A folder with the file is the file's model.
    let generate = |model: &Path| {
        let args = ["generate", path(model), "-n", "6", "--prompt", "Hello"];
        let done = fercuda(&args, "");
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stdout)
    };
    let wanted = generate(&file);
    assert_eq!(generate(folder.path()), wanted);
    // What the cache has is found without a network, by its name.
    let cached = home.join("hub/models--own--tiny");
    let snapshot = cached.join("snapshots/0123456789");
    std::fs::create_dir_all(&snapshot).expect("a folder");
    std::fs::create_dir_all(cached.join("refs")).expect("a folder");
    std::fs::write(cached.join("refs/main"), "0123456789").expect("it is written");
    std::fs::rename(&file, snapshot.join("tiny-F16.gguf")).expect("it is moved");
    let done = Command::new(env!("CARGO_BIN_EXE_fercuda"))
        .args(["generate", "own/tiny", "-n", "6", "--prompt", "Hello"])
        .env("FERCUDA_DEVICE", "soft")
        .env("HF_HOME", &home)
        .env("HF_HUB_OFFLINE", "1")
        .env_remove("HF_HUB_CACHE")
        .output()
        .expect("fercuda runs");
    assert_eq!(text(&done.stdout), wanted, "{}", text(&done.stderr));
}

/// A folder with a LoRA adapter of the tiny model, as PEFT saves one, whose factors have this size.
fn low_rank(folder: &Path, name: &str, size: f64) -> PathBuf {
    let own = folder.join(name);
    std::fs::create_dir(&own).expect("a folder");
    let config = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none" });
    std::fs::write(own.join("adapter_config.json"), config.to_string()).expect("a file");
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (factor, shape) in [("lora_A", [2, 512]), ("lora_B", [256, 2])] {
        let from = data.len();
        for at in 0..shape[0] * shape[1] {
            let value = size * f64::from(at * at + 1).sin();
            data.extend_from_slice(&(value as f32).to_le_bytes());
        }
        let name = format!("base_model.model.model.layers.1.mlp.down_proj.{factor}.weight");
        let row = json!({ "dtype": "F32", "shape": shape, "data_offsets": [from, data.len()] });
        header.insert(name, row);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    std::fs::write(own.join("adapter_model.safetensors"), file).expect("a file");
    own
}

#[test]
fn adapters_change_texts_and_are_served_by_their_names() {
    let (folder, file) = tiny("Q8_0");
    let large = low_rank(folder.path(), "large", 3.0);
    let none = low_rank(folder.path(), "none", 0.0);
    let generate = |more: &[&str]| {
        let args = ["generate", path(&file), "-n", "8", "--prompt", "Hello"];
        let done = fercuda(&[&args[..], more].concat(), "");
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stdout)
    };
    let plain = generate(&[]);
    let changed = generate(&["--lora", path(&large)]);
    assert_ne!(changed, plain);
    assert_eq!(generate(&["--lora", path(&none)]), plain);
    let off = ["--lora", path(&large), "--lora-scale", "0"];
    assert_eq!(generate(&off), plain);
    let adapters = [&large, &none].map(|it| format!("{}={}", text_name(it), path(it)));
    let adapters = ["--lora", &adapters[0], "--lora-modules", &adapters[1]];
    let (mut server, address) = served(&file, &adapters);
    let address = address.as_str();
    for (name, wanted) in [("large", &changed), ("tiny", &plain), ("none", &plain)] {
        let body = json!({
            "model": name, "prompt": "Hello", "max_tokens": 8, "temperature": 0,
        });
        let (head, answer) = post(address, "/v1/completions", &body).expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200"), "{head} {answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let said = answer["choices"][0]["text"].as_str();
        assert_eq!(said, wanted.strip_suffix('\n'), "{name}");
        assert_eq!(answer["model"], name);
    }
    let body = json!({ "model": "other", "prompt": "Hello" });
    let (head, answer) = post(address, "/v1/completions", &body).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 404"), "{head} {answer}");
    kill_process(Pid::from_child(&server), Signal::INT).expect("a signal");
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
    for (more, said) in [
        (
            &[
                "generate",
                path(&file),
                "--prompt",
                "x",
                "--lora",
                path(&file),
            ][..],
            "no LoRA adapter",
        ),
        (
            &[
                "generate",
                path(&file),
                "--prompt",
                "x",
                "--lora-scale",
                "2",
            ],
            "--lora",
        ),
        (&["serve", path(&file), "--lora", "poet"], "NAME=PATH"),
        (
            &["serve", path(&file), "--lora", "tiny=x"],
            "several models are named",
        ),
    ] {
        let done = fercuda(more, "");
        assert_ne!(done.status.code(), Some(0));
        assert!(text(&done.stderr).contains(said), "{}", text(&done.stderr));
    }
}

/// The last part of a path.
fn text_name(path: &Path) -> String {
    let name = path.file_name().expect("a name");
    name.to_string_lossy().into_owned()
}

#[test]
fn guesses_and_sizes_of_the_cache_change_no_text() {
    let (folder, file) = tiny("F32");
    let generate = |more: &[&str]| {
        let args = ["generate", path(&file), "-n", "16", "--json", "--prompt"];
        let done = fercuda(&[&args[..], &["Hello hello hello"], more].concat(), "");
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let json: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        (json["tokens"].clone(), json["guessed_tokens"].clone())
    };
    let (plain, none) = generate(&[]);
    assert!(none.is_null());
    for (more, is_guessed) in [
        (&["--draft", "ngram"][..], true),
        (&["--draft", path(&file), "--draft-tokens", "2"], true),
        (&["--kv", "1M"], false),
        (&["--gpu-memory", "0.01"], false),
    ] {
        let (tokens, guessed) = generate(more);
        assert_eq!(tokens, plain, "{more:?}");
        assert_eq!(guessed.is_array(), is_guessed, "{more:?}");
    }
    let args = ["generate", path(&file), "-n", "2", "--prompt", "Hello"];
    let done = fercuda(&[&args[..], &["--cache-tokens", "1"]].concat(), "");
    assert!(text(&done.stderr).contains("conversations have 16 positions, not"));
    // The model itself is right.
    let (_, guessed) = generate(&["--draft", path(&file)]);
    assert!(guessed[1].as_u64() > Some(4), "{guessed}");
    let other = folder.path().join("other.gguf");
    let args = [
        "model",
        "random",
        "smollm2-135m",
        path(&other),
        "--type",
        "Q4_0",
    ];
    assert_eq!(fercuda(&args, "").status.code(), Some(0));
    for (more, status, message) in [
        (&["--draft", path(&other)][..], 2, "is \"token 512\""),
        (&["--draft-tokens", "3"], 2, "--draft"),
        (&["--kv", "10"], 1, "a cache of 10 bytes"),
        (&["--gpu-memory", "2"], 2, "at most 1, as 0.9"),
        // Not rounded to a part in which it fits.
        (
            &["--gpu-memory", "0.0000001"],
            1,
            "858 bytes of the device's",
        ),
        (&["--draft", "absent.gguf"], 1, "try: the path of a file"),
        (&["--lora", "absent"], 1, "try: the path of a file"),
        (
            &["--kv", "1M", "--cache-tokens", "64"],
            2,
            "cannot be used with",
        ),
    ] {
        let args = ["generate", path(&file), "--prompt", "Hello"];
        let done = fercuda(&[&args[..], more].concat(), "");
        let noise = text(&done.stderr);
        assert_eq!(done.status.code(), Some(status), "{more:?}: {noise}");
        assert!(noise.contains(message), "{more:?}: {noise}");
    }
}
