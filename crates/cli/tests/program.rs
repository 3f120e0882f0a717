//! The real binary, with valid and invalid command lines.
//!
//! Every test runs `fercuda` as a user would, without a terminal, on the software device;
//! kernels are PTX in this file, so only the tests that compile CUDA C++ need NVRTC (`cargo
//! xtask test` brings it).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// y = a * x + y, correct for any length.
const SAXPY: &str = "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<6>;
    ld.param.f32 %f0, [a];
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra $done;
    mul.wide.u32 %rd2, %r4, 4;
    add.s64 %rd3, %rd0, %rd2;
    add.s64 %rd4, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    ld.global.f32 %f2, [%rd4];
    fma.rn.f32 %f3, %f0, %f1, %f2;
    st.global.f32 [%rd4], %f3;
$done:
    ret;
}
";

const ENDLESS: &str = "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry endless()
{
$again:
    bra $again;
}
";

const TRAP: &str = "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry stop()
{
    trap;
    ret;
}
";

const SAXPY_ARGS: &str = "--arg f32:2 --arg buf:f32[100]=iota --arg out:f32[100]=1 --arg u32:100";

struct Run {
    status: i32,
    out: String,
    err: String,
}

fn fercuda() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    command.env("FERCUDA_DEVICE", "soft");
    for name in ["NO_COLOR", "FERCUDA_SOFT_CHECK", "FERCUDA_SOFT_MEMORY"] {
        command.env_remove(name);
    }
    command
}

fn finish(command: &mut Command) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program starts");
    Run {
        status: status.code().expect("the program is not killed"),
        out: String::from_utf8(stdout).expect("UTF-8 on stdout"),
        err: String::from_utf8(stderr).expect("UTF-8 on stderr"),
    }
}

fn written(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file in a folder of our own");
    path
}

/// `fercuda check` of a PTX text, with these options.
fn check(text: &str, words: &str) -> Run {
    let folder = tempfile::tempdir().expect("a folder of our own");
    let file = written(folder.path(), "kernel.ptx", text);
    finish(&mut check_of(&file, words))
}

/// The same for CUDA C++ in a file of this name, compiled without a cache entry.
fn check_source(name: &str, text: &str, words: &str) -> Run {
    let folder = tempfile::tempdir().expect("a folder of our own");
    let file = written(folder.path(), name, text);
    finish(check_of(&file, words).env("XDG_CACHE_HOME", folder.path()))
}

fn check_of(file: &Path, words: &str) -> Command {
    let mut command = fercuda();
    let words = words.split_ascii_whitespace();
    command.arg("check").arg(file).args(words);
    command
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn a_clean_kernel_passes_and_its_output_is_printed() {
    let run = check(SAXPY, &format!("--grid 1 --block 128 {SAXPY_ARGS}"));
    assert_eq!(run.status, 0, "{}{}", run.out, run.err);
    assert_contains(&run.out, &["no findings", "out:f32[100]", "1 3 5 7"]);
}

#[test]
fn an_access_past_the_end_is_reported_with_line_thread_and_allocation() {
    let words = "--kernel saxpy --grid 1 --block 128 \
                 --arg f32:2 --arg buf:f32[100]=iota --arg out:f32[128]=1 --arg u32:128";
    let run = check(SAXPY, words);
    assert_eq!(run.status, 1, "{}{}", run.out, run.err);
    assert_contains(
        &run.out,
        &[
            "out of bounds",
            "saxpy",
            "PTX line 23",
            "thread: (100,0,0)",
            "400 bytes",
        ],
    );
}

#[test]
fn reading_uninitialised_memory_is_a_finding() {
    let words = "--grid 1 --block 128 \
                 --arg f32:2 --arg buf:f32[100] --arg out:f32[100]=1 --arg u32:100";
    let run = check(SAXPY, words);
    assert_eq!(run.status, 1, "{}{}", run.out, run.err);
    assert_contains(&run.out, &["uninitialised"]);
}

#[test]
fn the_report_as_json_is_one_object_with_the_findings() {
    let words = "--json --grid 1 --block 128 \
                 --arg f32:2 --arg buf:f32[100]=iota --arg out:f32[128]=1 --arg u32:128";
    let run = check(SAXPY, words);
    assert_eq!(run.status, 1);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json["kernel"], "saxpy");
    assert_eq!(json["findings"][0]["kind"], "out of bounds");
    assert_eq!(json["findings"][0]["ptx_line"], 23);
    assert_eq!(json["outputs"][0]["element"], "f32");
}

#[test]
fn broken_ptx_is_refused_with_line_and_column() {
    let broken = SAXPY.replace("mul.wide", "mull.wide");
    let run = check(&broken, "--grid 1 --block 1");
    assert_eq!(run.status, 2);
    assert_contains(&run.err, &["kernel.ptx", "line 20", "column", "mull"]);
}

#[test]
fn a_misspelt_kernel_is_refused_with_the_right_name() {
    let run = check(SAXPY, "--kernel saxpi --grid 1 --block 1");
    assert_eq!(run.status, 2);
    assert_contains(
        &run.err,
        &[
            "no kernel \"saxpi\"",
            "saxpy(.f32, .u64, .u64, .u32)",
            "did you mean saxpy?",
        ],
    );
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_anything_runs() {
    let given = format!("--grid 1 --block 1 {SAXPY_ARGS}");
    let few = check(SAXPY, given.trim_end_matches("--arg u32:100"));
    assert_eq!(few.status, 2);
    assert_contains(
        &few.err,
        &["takes 4 arguments, given 3", "try: add --arg u32:1024"],
    );

    let wide = check(SAXPY, &given.replace("f32:2", "f64:2"));
    assert_eq!(wide.status, 2);
    assert_contains(
        &wide.err,
        &["argument 1 is f64:2", "8 bytes", "4 bytes", "f32:1.0"],
    );

    let typed = check(SAXPY, &given.replace("f32:2", "f32:two"));
    assert_eq!(typed.status, 2);
    assert_contains(&typed.err, &["\"two\" is not a valid f32", "try: f32:2.5"]);
}

#[test]
fn a_launch_outside_the_limits_is_refused_with_the_limit() {
    for (geometry, parts) in [
        ("--grid 1 --block 2048", ["2048", "1024"]),
        ("--grid 1 --block 64,32", ["2048", "1024"]),
        ("--grid 1,70000 --block 32", ["70000", "65535"]),
        ("--grid 0 --block 32", ["0", "minimum is 1"]),
    ] {
        let run = check(SAXPY, &format!("{geometry} {SAXPY_ARGS}"));
        assert_eq!(run.status, 2, "{geometry:?}: {}{}", run.out, run.err);
        assert_contains(&run.err, &parts);
        assert_contains(&run.err, &["try: "]);
    }
    let words = format!("--grid 1 --block 32 --shared 1000000 {SAXPY_ARGS}");
    let run = check(SAXPY, &words);
    assert_eq!(run.status, 2, "{}{}", run.out, run.err);
    assert_contains(&run.err, &["1000000", "232448"]);
}

#[test]
fn a_buffer_that_does_not_fit_the_device_is_refused_with_both_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "kernel.ptx", SAXPY);
    let words = "--grid 1 --block 32 \
                 --arg f32:1 --arg buf:f32[100000000] --arg out:f32[1] --arg u32:1";
    let run = finish(check_of(&file, words).env("FERCUDA_SOFT_MEMORY", "64MiB"));
    assert_eq!(run.status, 2, "{}{}", run.out, run.err);
    assert_contains(&run.err, &["381.5 MiB", "64.0 MiB", "try: "]);
}

#[test]
fn a_kernel_that_never_ends_is_stopped_and_reported() {
    let run = check(ENDLESS, "--grid 1 --block 32 --timeout 300ms");
    assert_eq!(run.status, 1, "{}{}", run.out, run.err);
    assert_contains(&run.out, &["300 ms", "endless"]);
}

#[test]
fn a_kernel_that_traps_is_reported_with_its_thread() {
    let run = check(TRAP, "--grid 2 --block 32");
    assert_eq!(run.status, 1, "{}{}", run.out, run.err);
    assert_contains(&run.out, &["trap", "stop", "thread: (0,0,0)"]);
    assert_eq!(run.out.matches("kernel: stop").count(), 1, "{}", run.out);
    assert!(!run.err.contains("trap"), "it is said once: {}", run.err);
}

#[test]
fn an_access_that_is_reported_and_ends_the_kernel_is_described_once() {
    let null = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry wild()\n{\n\
        .reg .b64 %a;\n mov.u64 %a, 8;\n st.global.u32 [%a], 1;\n ret;\n}\n";
    let run = check(null, "--grid 1 --block 1");
    assert_eq!(run.status, 1, "{}{}", run.out, run.err);
    let brief = "illegal address: 4-byte global write at 0x8, as reported above";
    assert_contains(
        &run.out,
        &["out of bounds: 4-byte global write at 0x8", brief],
    );
    assert_eq!(run.out.matches("kernel: wild").count(), 1, "{}", run.out);
}

#[test]
fn buffers_come_from_files_and_go_to_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "kernel.ptx", SAXPY);
    let x = folder.path().join("x.txt");
    std::fs::write(&x, "1 2\n3 4\n").unwrap();
    let y = folder.path().join("y.bin");
    let first = "--grid 1 --block 4 --arg f32:10 --arg";
    let run = finish(
        check_of(&file, first)
            .arg(format!("buf:f32[4]=@{}", x.display()))
            .arg("--arg")
            .arg(format!("out:f32[4]=0.5@{}", y.display()))
            .args(["--arg", "u32:4"]),
    );
    assert_eq!(run.status, 0, "{}{}", run.out, run.err);
    let got: Vec<f32> = std::fs::read(&y)
        .unwrap()
        .chunks(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(got, [10.5, 20.5, 30.5, 40.5]);

    let short = finish(
        check_of(&file, first)
            .arg(format!("buf:f32[5]=@{}", x.display()))
            .args(["--arg", "out:f32[5]", "--arg", "u32:4"]),
    );
    assert_eq!(short.status, 2);
    assert_contains(&short.err, &["16 bytes", "20 bytes", "try: f32[4]"]);
}

#[test]
fn a_file_that_is_not_source_code_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fatbin = written(folder.path(), "kernel.fatbin", "\u{1}\u{2}");
    let run = finish(&mut check_of(&fatbin, "--grid 1 --block 1"));
    assert_eq!(run.status, 2);
    assert_contains(&run.err, &["kernel.fatbin", ".cu", ".ptx"]);

    let none = folder.path().join("none.ptx");
    let run = finish(&mut check_of(&none, "--grid 1 --block 1"));
    assert_eq!(run.status, 2);
    assert_contains(&run.err, &["cannot read", "none.ptx"]);
}

const CUDA_BUG: &str = r#"
extern "C" __global__ void shift(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = x[i + 1];
}
"#;

#[test]
fn cuda_source_is_compiled_and_reported_by_its_own_line() {
    let words = "--grid 1 --block 64 --arg out:f32[64]=iota --arg s32:64";
    let run = check_source("shift.cu", CUDA_BUG, words);
    assert_eq!(run.status, 1, "{}{}", run.out, run.err);
    assert_contains(
        &run.out,
        &["out of bounds", "shift.cu:4", "thread: (63,0,0)"],
    );
}

#[test]
fn cuda_source_that_does_not_compile_shows_the_compilers_first_error() {
    let bad = CUDA_BUG.replace("float*", "flaot*");
    let run = check_source("bad.cu", &bad, "--grid 1 --block 64");
    assert_eq!(run.status, 2, "{}{}", run.out, run.err);
    assert_contains(&run.err, &["bad.cu(2)", "flaot"]);
}

#[test]
fn a_failed_assertion_and_earlier_output_are_shown() {
    let source = r#"
extern "C" __global__ void positive(const float* x) {
    if (threadIdx.x == 0) printf("first %.1f\n", x[0]);
    assert(x[threadIdx.x] > 0.0f);
}
"#;
    let words = "--grid 1 --block 32 --arg buf:f32[32]=-1";
    let run = check_source("positive.cu", source, words);
    assert_eq!(run.status, 1, "{}{}", run.out, run.err);
    assert_contains(
        &run.out,
        &[
            "first -1.0",
            "positive.cu:4",
            "assertion `x[threadIdx.x] > 0.0f` failed",
        ],
    );
}

#[test]
fn a_cache_that_cannot_be_written_does_not_stop_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let source = r#"extern "C" __global__ void add(float* x, int n) { x[threadIdx.x] += n; }"#;
    let file = written(folder.path(), "add.cu", source);
    // A file where the cache's folder should be: even root cannot write there.
    let blocked = written(folder.path(), "cache", "");
    let words = "--grid 1 --block 63 --arg out:f32[64]=iota --arg s32:64";
    let run = finish(
        check_of(&file, words)
            .env("XDG_CACHE_HOME", &blocked)
            .env("FERCUDA_CACHE", blocked.join("inside")),
    );
    assert_eq!(run.status, 0, "{}{}", run.out, run.err);
}

#[test]
fn without_a_terminal_no_escape_sequence_is_written() {
    for words in [
        &["--help"][..],
        &["doctor"],
        &["check", "none.ptx", "--grid", "1", "--block", "1"],
    ] {
        let run = finish(fercuda().args(words));
        assert!(!run.out.contains('\x1b'), "{words:?}: {}", run.out);
        assert!(!run.err.contains('\x1b'), "{words:?}: {}", run.err);
    }
}

#[test]
fn version_names_the_commit_the_target_and_the_software_device() {
    let run = finish(fercuda().arg("--version"));
    assert_eq!(run.status, 0);
    assert_contains(
        &run.out,
        &[env!("CARGO_PKG_VERSION"), "x86_64", "software device"],
    );
    // `fercuda 0.1.0 (0123456789ab 2026-11-28)`, or what a build outside of a checkout says.
    let first = run.out.lines().next().unwrap();
    let head = concat!("fercuda ", env!("CARGO_PKG_VERSION"), " (");
    let of = first.strip_prefix(head).and_then(|of| of.strip_suffix(')'));
    let of = of.unwrap_or_else(|| panic!("no commit in {first:?}"));
    let Some((commit, date)) = of.split_once(' ').filter(|_| !of.starts_with("unknown")) else {
        assert!(of.starts_with("unknown commit"), "{first}");
        return;
    };
    assert!(commit.len() >= 12, "{first}");
    assert!(
        commit.chars().take(12).all(|c| c.is_ascii_hexdigit()),
        "{first}"
    );
    let digits: Vec<usize> = date.split('-').map(str::len).collect();
    assert_eq!(digits, [4, 2, 2], "{first}");
}

#[test]
fn usage_errors_exit_with_2_and_help_shows_examples() {
    assert_eq!(finish(fercuda().arg("chekc")).status, 2);
    let help = finish(fercuda().args(["check", "--help"]));
    assert_eq!(help.status, 0);
    assert_contains(
        &help.out,
        &[
            "Examples:",
            "buf:f32[1024]=iota",
            "random:SEED",
            "Exit status",
        ],
    );
    for line in help.out.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn doctor_prints_text_and_json_and_never_fails() {
    let words = finish(
        fercuda()
            .arg("doctor")
            .env("FERCUDA_NVRTC", "/nonexistent/libnvrtc.so"),
    );
    assert_eq!(words.status, 0, "{}{}", words.out, words.err);
    assert_contains(
        &words.out,
        &["driver", "software", "NVRTC", "cuDNN", "NCCL", "FUSE"],
    );
    let json = finish(fercuda().args(["doctor", "--json"]));
    assert_eq!(json.status, 0);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["items"].as_array().map(Vec::len), Some(8));
    assert_contains(json["chosen"].as_str().unwrap(), &["software device"]);
}

#[test]
fn the_tour_passes_fits_80_columns_and_repeats_with_its_seed() {
    let run = finish(fercuda().args(["demo", "--seed", "7"]));
    assert_eq!(run.status, 0, "{}{}", run.out, run.err);
    for line in run.out.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_contains(
        &run.out,
        &["vector add", "softmax", "attention", "two streams", "graph"],
    );
    let json = finish(fercuda().args(["demo", "--seed", "7", "--json"]));
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["seed"], 7);
    assert_eq!(json["passed"], true);
    let steps = json["steps"].as_array().unwrap();
    assert!(steps.len() >= 6, "{steps:?}");
    assert!(steps.iter().all(|step| step["passed"] == true));
}

#[test]
fn an_unknown_device_is_an_error_with_a_hint() {
    let run = finish(fercuda().env("FERCUDA_DEVICE", "tpu").arg("demo"));
    assert_eq!(run.status, 2);
    assert_contains(&run.err, &["tpu", "try: soft, gpu or auto"]);
    let run = finish(fercuda().args(["demo", "--device", "5"]));
    assert_eq!(run.status, 1);
    assert_contains(&run.err, &["device 5", "try: "]);
}

#[test]
fn a_closed_pipe_ends_the_program_silently() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fercuda"))
        .args(["doctor"])
        .env("FERCUDA_DEVICE", "soft")
        // With checks on, the device reports its number of findings at exit.
        .env("FERCUDA_SOFT_CHECK", "0")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
