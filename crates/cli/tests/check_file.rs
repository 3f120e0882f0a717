//! `fercuda check FILE`, as a user runs it: sources, options of the compiler, names, files, and
//! what each exit status means. The findings themselves: `program`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

struct Run {
    status: i32,
    out: String,
    err: String,
}

/// `fercuda check` in `folder`, with these words and this standard input.
fn check_with(folder: &Path, words: &[&str], input: &[u8]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fercuda"));
    command
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_CACHE", "");
    let mut child = command
        .arg("check")
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("it has a standard input");
    // It may end without reading.
    stdin.write_all(input).unwrap_or_default();
    drop(stdin);
    let done = child.wait_with_output().expect("it ends");
    Run {
        status: done.status.code().expect("it is not killed"),
        out: String::from_utf8(done.stdout).expect("UTF-8 on stdout"),
        err: String::from_utf8(done.stderr).expect("UTF-8 on stderr"),
    }
}

/// The same for a file of this name and text in a folder of its own.
fn check(name: &str, text: &str, words: &str) -> Run {
    let folder = tempfile::tempdir().expect("a folder of our own");
    fs::write(folder.path().join(name), text).expect("a file in it");
    let words: Vec<&str> = [name].into_iter().chain(words.split(' ')).collect();
    check_with(folder.path(), &words, b"")
}

#[track_caller]
fn assert_ends(run: &Run, status: i32, stdout: &[&str], stderr: &[&str]) {
    let Run { out, err, .. } = run;
    assert_eq!(run.status, status, "{out}{err}");
    for part in stdout {
        assert!(out.contains(part), "{part:?} is not in stdout:\n{out}");
    }
    for part in stderr {
        assert!(err.contains(part), "{part:?} is not in stderr:\n{err}");
    }
}

/// Writes `VALUE` behind the end of 32 elements.
const PAST: &str = "\
__global__ void past(int* x) {
    x[threadIdx.x + 1] = VALUE;
}
";

const PAST_WORDS: [&str; 6] = ["--grid", "1", "--block", "32", "--arg", "out:i32[32]=zeros"];

/// A kernel `k` of one address, with this body.
fn ptx(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .visible .entry k(.param .u64 p)\n{{\n.reg .b64 %a;\n.reg .b32 %r;\n.reg .f32 %f<5>;\n\
         ld.param.u64 %a, [p];\n{body}\nret;\n}}\n"
    )
}

#[test]
fn cuda_and_ptx_are_read_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let words: Vec<&str> = ["-", "-D", "VALUE=7"]
        .into_iter()
        .chain(PAST_WORDS)
        .collect();
    let run = check_with(folder.path(), &words, PAST.as_bytes());
    assert_ends(
        &run,
        1,
        &["out of bounds", "source: <stdin>:2", "thread: (31,0,0)"],
        &[],
    );
    let words: Vec<&str> = ["-", "--json"].into_iter().chain(PAST_WORDS).collect();
    let run = check_with(
        folder.path(),
        &words,
        ptx("st.global.b32 [%a+128], 5;").as_bytes(),
    );
    assert_ends(&run, 1, &["\"file\": \"<stdin>\"", "out of bounds"], &[]);

    let words: Vec<&str> = ["-"].into_iter().chain(PAST_WORDS).collect();
    let run = check_with(folder.path(), &words, b".version 8.0\n.target");
    assert_ends(&run, 2, &[], &["<stdin> is not valid PTX", "line 2"]);
    let run = check_with(folder.path(), &words, b"\x7fELF\x02\x01\x01\0\0");
    assert_ends(&run, 2, &[], &["<stdin> is not text", "nvcc -ptx"]);
    let run = check_with(folder.path(), &words, &vec![b' '; (64 << 20) + 1]);
    assert_ends(&run, 2, &[], &["more than 64.0 MiB"]);
}

#[test]
fn definitions_and_the_standard_reach_the_compiler() {
    let source = "\
#if __cplusplus != STANDARD
#error another standard
#endif
__global__ void k(int* x) { x[threadIdx.x] = N SIGN; }
";
    let words = "--grid 1 --block 1 --arg out:i32[1] -D N=42 --define SIGN= -DSTANDARD=";
    let run = check("k.cu", source, &format!("{words}201703L --std c++17"));
    assert_ends(&run, 0, &["out:i32[1] = 42"], &[]);
    let run = check("k.cu", source, &format!("{words}202002L --std c++20"));
    assert_ends(&run, 0, &["out:i32[1] = 42"], &[]);
    let run = check("k.cu", source, &format!("{words}201703L --std c++20"));
    assert_ends(&run, 2, &[], &["another standard"]);

    for (bad, said) in [
        ("-D 1N", "is not the name of a macro"),
        ("--std c++98", "possible values"),
        ("--arch sm_10", "sm_50 to sm_90"),
        ("--arch sm_100", "sm_50 to sm_90"),
        ("--arch hopper", "sm_50 to sm_90"),
        ("--arch sm_81", "try: --arch sm_"),
    ] {
        let run = check("k.cu", source, &format!("{words}201703L {bad}"));
        assert_ends(&run, 2, &[], &[said]);
    }
    let given = "--grid 1 --block 1 --arg out:i32[1]=zeros -D N";
    let run = check("k.ptx", &ptx(""), given);
    assert_ends(
        &run,
        0,
        &[],
        &["k.ptx is PTX, to which -D, -I and --std do not apply"],
    );
}

#[test]
fn host_code_and_missing_headers_are_explained_above_the_compilers_log() {
    let kernel = "__global__ void k(int* x) { *x = 1; }\n";
    let words = "--grid 1 --block 1 --arg out:i32[1]";
    for (source, said) in [
        (
            format!("{kernel}int main() {{ k<<<1, 1>>>(nullptr); }}\n"),
            "error: k.cu(2) is host code",
        ),
        (
            format!("{kernel}__host__ void f() {{}}\n"),
            "error: k.cu(2) is host code",
        ),
        (
            format!("#include <iostream>\n{kernel}"),
            "error: k.cu(1) includes <iostream>, a header of the host's compiler",
        ),
        (
            format!("\n#include \"mine.h\"\n{kernel}"),
            "error: k.cu(2) includes \"mine.h\", which is in none of these directories:\n    inc",
        ),
    ] {
        let run = check("k.cu", &source, &format!("{words} -I inc"));
        assert_ends(
            &run,
            2,
            &[],
            &[said, "\n  cannot compile `k.cu`", "\ntry: "],
        );
    }
    let guarded = format!("{kernel}#ifndef __CUDACC_RTC__\n#include <iostream>\n#endif\n");
    let run = check("k.cu", &guarded, words);
    assert_ends(&run, 0, &["out:i32[1] = 1"], &[]);
}

#[test]
fn headers_of_the_c_library_and_of_cub_can_be_included() {
    let source = "\
#include <assert.h>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdint.h>
#include <stdlib.h>
#include <algorithm>
#include <tuple>
#include <cub/cub.cuh>
#include <thrust/complex.h>
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/std/cmath>
template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
__device__ T twice(T x) { return std::clamp<T>(2 * x, 0, 10); }
__global__ void k(uint32_t* x) {
    assert(x != NULL && twice(3) == 6 && std::get<1>(std::make_tuple(1, 2)) == 2);
    static_assert(sizeof(sqrt(1.0f)) == 4 && sizeof(std::sqrt(1)) == 8 && sizeof(pow(1.0f, 2.0)) == 8);
    std::size_t bytes = sizeof(float);
    float v = std::sqrt(16.0f) + std::fma(2.0f, 3.0f, 1.0f), w;
    std::memcpy(&w, &v, bytes);
    if (w < FLT_MAX && w < std::numeric_limits<float>::max() && w > 3 * M_PI) printf(\"%.0f\\n\", w);
    __shared__ cub::WarpReduce<int>::TempStorage memory;
    int sum = cub::WarpReduce<int>(memory).Sum(abs(-1));
    thrust::complex<float> z(0, 1);
    if (threadIdx.x == 0) x[0] = sum - (int)(z * z).real() + (INT_MAX == INT32_MAX);
}
";
    let run = check("k.cu", source, "--grid 1 --block 32 --arg out:u32[1]");
    assert_ends(&run, 0, &["out:u32[1] = 34", "11"], &[]);
    assert!(!run.err.contains("redefinition"), "{}", run.err);

    // Those of C with any standard, and with their names as global ones.
    let source = "\
#include <stdint.h>
#include <stdio.h>
#include <assert.h>
#include <math.h>
#include <string.h>
#include <float.h>
#include <limits.h>
#include <inttypes.h>
using namespace std;
__constant__ float most = FLT_MAX;
__global__ void k(uint64_t* x, int n) {
    float v = most, w = INFINITY;
    memcpy(&v, &w, sizeof v);
    if (isinf(v) && isnan(NAN) && !isfinite(HUGE_VAL)) printf(\"%\" PRIu64 \"\\n\", x[0]);
    x[0] = UINT32_MAX + (uint64_t)abs(INT_MIN + 1) + SIZE_MAX + std::uint8_t(sqrt(n) + pow(2, n));
}
";
    for standard in ["c++11", "c++20"] {
        let words = format!("--grid 1 --block 1 --arg out:u64[1]=7 --arg i32:4 --std {standard}");
        let run = check("k.cu", source, &words);
        assert_ends(&run, 0, &["out:u64[1] = 6442450959", "7\n"], &[]);
    }
}

#[test]
fn a_header_beside_the_kernel_comes_before_that_of_the_c_library() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("limits.h"), "#define LIMIT 5\n").unwrap();
    let source = "#include \"limits.h\"\n__global__ void k(int* x) { *x = LIMIT; }\n";
    let words = format!(
        "--grid 1 --block 1 --arg out:i32[1] -I {}",
        folder.path().display()
    );
    let run = check("k.cu", source, &words);
    assert_ends(&run, 0, &["out:i32[1] = 5"], &[]);
}

const GRID_SYNC: &str = "\
#include <cooperative_groups.h>
__global__ void reversed(const int* x, int* shared, int* y) {
    auto grid = cooperative_groups::this_grid();
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    shared[i] = x[i];
    grid.sync();
    y[i] = shared[gridDim.x * blockDim.x - 1 - i];
}
";

#[test]
fn a_kernel_that_synchronises_its_grid_needs_a_cooperative_launch() {
    let words = "--grid 4 --block 32 --arg buf:i32[128]=iota --arg buf:i32[128] --arg out:i32[128]";
    let run = check("k.cu", GRID_SYNC, words);
    assert_ends(&run, 1, &["trap\n", "\ntry: --cooperative"], &[]);
    assert_eq!(
        run.out.matches("kernel: reversed(").count(),
        1,
        "{}",
        run.out
    );
    assert!(!run.err.contains("trap"), "it is said once: {}", run.err);
    let json = check("k.cu", GRID_SYNC, &format!("{words} --json"));
    let report: Value = serde_json::from_str(&json.out).unwrap();
    let hint = report["fault"]["hint"].as_str().unwrap();
    assert!(hint.contains("--cooperative"), "{hint}");

    let run = check("k.cu", GRID_SYNC, &format!("{words} --cooperative"));
    assert_ends(&run, 0, &["out:i32[128] = 127 126 125"], &[]);
    let large = words.replace("--grid 4", "--grid 1000000");
    let run = check("k.cu", GRID_SYNC, &format!("{large} --cooperative"));
    assert_ends(
        &run,
        2,
        &[],
        &[
            "--grid has 1000000 blocks",
            // 32 on each of its 132 multiprocessors.
            "has at most 4224, which run at once",
        ],
    );

    // A trap of its own has nothing to do with it.
    let run = check(
        "k.ptx",
        &ptx("trap;"),
        "--grid 1 --block 1 --arg buf:i32[1]",
    );
    assert_ends(&run, 1, &["trap\n"], &[]);
    assert!(!run.out.contains("--cooperative"), "{}", run.out);
}

#[test]
fn a_grid_that_waits_for_a_block_that_has_left_is_stopped_at_the_programs_line() {
    let source = GRID_SYNC.replace(
        "    auto grid",
        "    if (blockIdx.x == 2) return;\n    auto grid",
    );
    let words = "--grid 4 --block 32 --arg buf:i32[128]=iota --arg buf:i32[128] --arg out:i32[128]";
    let words = format!("{words} --cooperative --timeout 500ms");
    let run = check("k.cu", &source, &words);
    let line = 1 + source
        .lines()
        .position(|it| it.contains("grid.sync"))
        .unwrap();
    let said = [
        "the watchdog's 500 ms; its first block that had not ended was here",
        &format!("source: k.cu:{line}"),
        "of block (0,0,0)",
    ];
    assert_ends(&run, 1, &said, &[]);
}

const NAMES: &str = "\
namespace image {
template <class T> __global__ void scale(T* x) { x[threadIdx.x + 1] = 2; }
template __global__ void scale<float>(float*);
template __global__ void scale<double>(double*);
}
";

#[test]
fn kernels_are_named_as_in_their_source_and_keep_their_symbol_in_json() {
    let words = "--grid 1 --block 4 --arg out:f32[4]=zeros --kernel";
    for name in [
        "scale<float>",
        "image::scale<float>",
        "_ZN5image5scaleIfEEvPT_",
    ] {
        let run = check("k.cu", NAMES, &format!("{words} {name}"));
        assert_ends(
            &run,
            1,
            &[
                "   kernel: image::scale<float>(float*), PTX line",
                "found: image::scale<float>(float*), grid 1x1x1",
            ],
            &[],
        );
        assert!(!run.out.contains("_Z"), "{}", run.out);
    }
    let run = check("k.cu", NAMES, &format!("{words} scale"));
    assert_ends(
        &run,
        2,
        &[],
        &[
            "\"scale\" is the name of 2 kernels",
            "image::scale<double>(double*) takes (.u64)",
        ],
    );
    let run = check("k.cu", NAMES, &format!("{words} scale<float> --json"));
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["kernel"], "image::scale<float>(float*)");
    assert_eq!(report["symbol"], "_ZN5image5scaleIfEEvPT_");
}

#[test]
fn a_comment_in_another_encoding_hurts_neither_language() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        // Latin-1: the bytes of these characters are their numbers.
        let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
        fs::write(folder.path().join(name), bytes).unwrap();
    };
    let words = |name| [name].into_iter().chain(PAST_WORDS).collect::<Vec<_>>();
    write(
        "k.cu",
        &format!("// caf\u{e9}\n{}", PAST.replace("VALUE", "7")),
    );
    let run = check_with(folder.path(), &words("k.cu"), b"");
    assert_ends(&run, 1, &["out of bounds", "source: k.cu:3"], &[]);
    write(
        "print.cu",
        "__global__ void k(int* x) { *x = 1; printf(\"caf\u{e9}\\n\"); }",
    );
    let one = [
        "print.cu",
        "--grid",
        "1",
        "--block",
        "1",
        "--arg",
        "buf:i32[1]",
    ];
    assert_ends(&check_with(folder.path(), &one, b""), 0, &["caf"], &[]);
    write(
        "k.ptx",
        &format!("// caf\u{e9}\n{}", ptx("st.global.b32 [%a+128], 5;")),
    );
    let run = check_with(folder.path(), &words("k.ptx"), b"");
    assert_ends(&run, 1, &["out of bounds", "PTX line 11"], &[]);
    write("bad.ptx", ".version 8.0\n.targ\u{e9}t sm_80\n");
    let run = check_with(folder.path(), &words("bad.ptx"), b"");
    assert_ends(&run, 2, &[], &["bad.ptx line 2, column 6: byte 0xe9"]);
}

#[test]
fn outputs_replace_neither_inputs_nor_without_force_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("k.ptx"), ptx("")).unwrap();
    fs::write(path("x.txt"), "1 2\n").unwrap();
    fs::write(path("old.txt"), "old").unwrap();
    fs::hard_link(path("x.txt"), path("same.txt")).unwrap();
    let run = |arg: &str, more: &[&str]| {
        let words = ["k.ptx", "--grid", "1", "--block", "1", "--arg", arg];
        check_with(folder.path(), &[&words[..], more].concat(), b"")
    };
    for arg in [
        "out:i32[2]=@x.txt@x.txt",
        "out:i32[2]=@x.txt@same.txt",
        "out:i32[2]=zeros@k.ptx",
    ] {
        let refused = run(arg, &["--force"]);
        assert_ends(&refused, 2, &[], &["would be overwritten while it is read"]);
    }
    assert_eq!(fs::read_to_string(path("x.txt")).unwrap(), "1 2\n");
    assert_eq!(fs::read_to_string(path("k.ptx")).unwrap(), ptx(""));
    let refused = run("out:i32[2]=@x.txt@old.txt", &[]);
    assert_ends(&refused, 2, &[], &["old.txt exists", "try: --force"]);
    assert_eq!(fs::read_to_string(path("old.txt")).unwrap(), "old");
    assert_ends(&run("out:i32[2]=@x.txt@old.txt", &["--force"]), 0, &[], &[]);
    assert_eq!(fs::read_to_string(path("old.txt")).unwrap(), "1\n2\n");
    assert_ends(
        &run("out:i32[2]=zeros@-", &[]),
        2,
        &[],
        &["where the report is"],
    );

    let two = ptx("").replace("(.param .u64 p)", "(.param .u64 p, .param .u64 q)");
    fs::write(path("k.ptx"), two).unwrap();
    let twice = run("out:i32[1]=zeros@new", &["--arg", "out:i32[1]=zeros@./new"]);
    assert_ends(&twice, 2, &[], &["new and ./new are one file"]);
    assert!(!path("new").exists());
}

#[test]
fn two_outputs_are_never_one_file_and_endless_inputs_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("k.ptx"), ptx("")).unwrap();
    fs::write(path("old"), "old").unwrap();
    std::os::unix::fs::symlink("old", path("link")).unwrap();
    let run = |arg: &str, more: &[&str]| {
        let words = ["k.ptx", "--grid", "1", "--block", "1", "--arg", arg];
        check_with(folder.path(), &[&words[..], more].concat(), b"")
    };
    for (report, force) in [("new", "--json=new"), ("link", "--json=old")] {
        let refused = run(&format!("out:i32[1]=zeros@{report}"), &[force, "--force"]);
        assert_eq!((refused.status, refused.out.as_str()), (2, ""));
    }
    let refused = run(
        "buf:i32[1]=zeros",
        &["--json=old", "--sarif", "link", "--force"],
    );
    assert_ends(&refused, 2, &[], &["old and link are one file"]);
    assert_eq!(fs::read_to_string(path("old")).unwrap(), "old");
    assert!(!path("new").exists());
    // Without an end, it would take all memory.
    let refused = run("buf:u32[1]=@/dev/zero", &[]);
    assert_ends(
        &refused,
        2,
        &[],
        &["/dev/zero holds more than the 4 bytes of u32[1]"],
    );
}

#[test]
fn what_the_device_does_not_implement_is_no_finding() {
    let texture = "tex.2dms.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%a, {%r, %r, %r, %r}];";
    let words = "--grid 1 --block 1 --arg buf:i32[1]=zeros";
    let run = check("k.ptx", &ptx(texture), words);
    assert_ends(
        &run,
        2,
        &[
            "not implemented on the software device: tex.2dms",
            "not checked: k, grid 1x1x1",
        ],
        &[],
    );
    assert_eq!(run.out.matches("tex.2dms.v4.f32.s32 at line").count(), 1);
    assert!(
        !run.err.contains("tex.2dms"),
        "it is said once: {}",
        run.err
    );
    let json = check("k.ptx", &ptx(texture), &format!("{words} --json"));
    let report: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json.status, 2);
    assert_eq!(report["fault"]["not_implemented"], true);
    assert_eq!(report["passed"], false);

    // A finding before it stands.
    let both = format!("ld.global.b32 %r, [%a+4];\n{texture}");
    let run = check("k.ptx", &ptx(&both), words);
    assert_ends(&run, 1, &["out of bounds", "not implemented"], &[]);
}

#[test]
fn races_of_volatile_and_of_equal_values_are_reported_on_request() {
    let volatile = "mov.u32 %r, %ctaid.x;\nst.volatile.global.b32 [%a], %r;";
    let equal = "st.global.b32 [%a], 7;";
    let words = "--grid 2 --block 32 --arg buf:i32[1]";
    for (body, option) in [(volatile, "--volatile-races"), (equal, "--same-value")] {
        assert_ends(&check("k.ptx", &ptx(body), words), 0, &[], &[]);
        let reported = check("k.ptx", &ptx(body), &format!("{words} {option}"));
        assert_ends(&reported, 1, &["global memory race"], &[]);
    }
}
