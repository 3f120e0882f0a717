//! `fercuda jit`, as a user runs it, on the software device.

use std::process::{Command, Output};

use serde_json::Value;

fn jit(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    let command = command.arg("jit").args(args);
    let command = command
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_CACHE", "");
    command.output().expect("fercuda runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_form_is_shown_and_the_ptx_is_ptx() {
    let done = jit(&[
        "--show",
        "all",
        "softmax(x * 0.125 + m, axis=-1)",
        "--input",
        "x:f16[8,128]",
        "--input",
        "m:f16[128]",
    ]);
    let out = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    for wanted in [
        "%0 f16[8, 128] = input x: f16[8, 128]",
        "a0 f32[8] = max",
        "k0: rows [n] of [128], 16 lanes a row, 8 at a time, kept",
        "k0: 1 block of 256 threads, n = 8",
    ] {
        assert!(out.contains(wanted), "{wanted} in\n{out}");
    }
    let ptx = out.split("\nptx\n").nth(1).expect("the text comes last");
    let ptx = ptx.split("\nexpression ").next().unwrap_or_default();
    fercuda_ptx::parse(ptx).expect("it is PTX");
}

#[test]
fn a_form_alone_is_all_of_the_output_and_values_are_not_taken() {
    let done = jit(&["--show", "ptx", "softmax(x)", "--input", "x:f32[4,8]"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    fercuda_ptx::parse(&text(&done.stdout)).expect("it is PTX");
    let said = text(&done.stderr);
    assert!(said.contains("k0: 1 block of"), "{said}");
    let refused = jit(&["--run", "x", "--input", "x:f32[4,8]=@values.txt"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert!(said.contains("values are not taken"), "{said}");
}

#[test]
fn a_run_agrees_with_the_reference() {
    let done = jit(&[
        "--run",
        "--json",
        "--seed",
        "7",
        "y = layer_norm(x, g); n = argmax(y, axis=0); i32(y) % 3",
        "-i",
        "x:bf16[5,33]@[1,5]",
        "-i",
        "g:bf16[33]",
    ]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let report: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let run = &report["run"];
    assert_eq!(run["seed"], 7);
    assert_eq!(run["origin"], "compiled");
    let names: Vec<_> = run["outputs"].as_array().into_iter().flatten().collect();
    assert_eq!(names.len(), 2);
    for output in names {
        assert_eq!(output["wrong"], 0, "{output}");
    }
    assert!(report.get("ptx").is_none());
}

#[test]
fn elements_that_share_a_place_have_one_value() {
    let done = jit(&["--run", "x + 1", "-i", "x:f32[3,4]@[0,1]"]);
    let out = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{out}");
    assert!(out.contains("ok out: f32[3, 4], 12 elements"), "{out}");
}

#[test]
fn a_syntax_error_shows_its_column_and_invalid_inputs_are_named() {
    for (args, wanted) in [
        (
            &["x * (y + 1)", "-i", "x:f32[4]"][..],
            "column 6: there is no \"y\"\n  x * (y + 1)\n       ^",
        ),
        (&["x", "-i", "x:f33[4]"], "there is no dtype \"f33\""),
        (&["x", "-i", "x[4]"], "it has no type and shape"),
        (&["x", "-i", "x:f32[4,q]"], "\"q\" is not an integer"),
        (&["x", "-i", "x:f32[4]", "-i", "x:f32[4]"], "two inputs"),
        (
            &["x + 1", "-i", "x:f32[4]", "--arch", "sm_x"],
            "not an architecture",
        ),
        (
            &["x + 1", "-i", "x:f32[4]", "--arch", "sm_10"],
            "from sm_50 on",
        ),
        (
            &[
                "f16(f8e4m3(x)) + 1",
                "-i",
                "x:f16[4]",
                "--arch",
                "sm_80",
                "--show",
                "ptx",
            ],
            "sm_89",
        ),
    ] {
        let done = jit(args);
        let said = text(&done.stderr);
        let said: String = said
            .lines()
            .map(|line| line.trim_start_matches("error: ").to_owned() + "\n")
            .collect();
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat(&said).contains(&flat(wanted)), "{args:?}: {said}");
    }
}

/// `fercuda jit -` of this standard input.
fn jit_of_stdin(text: &[u8]) -> Output {
    use std::io::Write as _;
    use std::process::Stdio;
    let mut child = Command::new(env!("CARGO_BIN_EXE_fercuda"))
        .args(["jit", "-", "-i", "x:f32[4]", "--show", "expr-graph"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fercuda runs");
    let mut input = child.stdin.take().expect("it has a standard input");
    input.write_all(text).expect("it is read");
    drop(input);
    child.wait_with_output().expect("it ends")
}

#[test]
fn an_expression_is_read_from_standard_input() {
    let done = jit_of_stdin(b"x * 2\n");
    assert_eq!(done.status.code(), Some(0));
    assert!(text(&done.stdout).contains("mul"), "{}", text(&done.stdout));
    for (input, wanted) in [
        (&b"x * \xe9"[..], "is not UTF-8 at byte 4"),
        (&[b' '; (1 << 20) + 1], "more than 1.0 MiB"),
    ] {
        let done = jit_of_stdin(input);
        assert_eq!(done.status.code(), Some(2));
        assert!(
            text(&done.stderr).contains(wanted),
            "{}",
            text(&done.stderr)
        );
    }
}

#[test]
fn a_run_that_is_too_large_is_refused_before_anything_is_allocated() {
    for (shape, more, wanted) in [
        (
            "100000000000",
            &[][..],
            "of device memory (800000000000 bytes)",
        ),
        ("1000000000", &[], "the limit is 33554432"),
        (
            "100,100",
            &["--max-values", "100"],
            "try: smaller shapes, or --max-values 40001",
        ),
    ] {
        let input = format!("x:f32[{shape}]");
        let words = ["--run", "x + 1", "-i", &input];
        let done = jit(&[&words[..], more].concat());
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
}
