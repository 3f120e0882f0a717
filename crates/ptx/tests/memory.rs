//! Tests that time and memory grow linearly with expensive inputs.
//!
//! A child process, this test again, parses them under a limit on its address space.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::time::{Duration, Instant};

const CHILD: &str = "FERCUDA_PTX_TEST_CHILD";
const LEN_BYTES: usize = 2 << 20;
/// Bytes that may be needed for each byte read: the tree of `a:a:`, which is a list of statements
/// growing by doubling and then cut to size.
const BYTES_PER_BYTE: usize = 300;
/// The process itself, its threads' stacks and the reserves of its allocator.
const BASE_BYTES: usize = 192 << 20;

fn expensive() -> Vec<(&'static str, String)> {
    let fill = |unit: &str| unit.repeat(LEN_BYTES / unit.len());
    let body = |unit: &str| format!(".version 9.0 .target sm_90 .entry k() {{ {} }}", fill(unit));
    let global = |start: &str, unit: &str, end: &str| {
        format!(
            ".version 9.0 .target sm_90 .global .b8 x{start}{}{end};",
            fill(unit)
        )
    };
    vec![
        ("blocks", body("{}")),
        ("labels", body("a:")),
        ("instructions", body("ret;")),
        (
            "modifiers",
            body("add.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.a.a.a;"),
        ),
        (
            "operands",
            body("or a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a;"),
        ),
        (
            "vectors",
            body("or {},{},{},{},{},{},{},{},{},{},{},{},{},{};"),
        ),
        ("pairs", body("or a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a;")),
        (
            "registers",
            body(".reg .b8 a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a;"),
        ),
        ("counts", body(".reg .b8 a<4294967295>;")),
        ("locations", body(".loc 1 1 1\n")),
        (
            "variables",
            format!(".version 9.0 .target sm_90 .global .b8 x{};", fill(",a")),
        ),
        ("attributes", {
            let half = ",.managed".repeat(LEN_BYTES / 20);
            format!(
                ".version 9.0 .target sm_90 .global .attribute(.managed{half}) .b8 x{};",
                ",a".repeat(LEN_BYTES / 4)
            )
        }),
        ("numbered", body("{.reg .b8 a0; .reg .b8 a<1>;}")),
        ("numbered at once", {
            let names: String = (0..LEN_BYTES / 40)
                .map(|i| format!(".reg .b8 a{i}, b{i}, c{i}<2>;"))
                .collect();
            format!(".version 9.0 .target sm_90 .entry k() {{ {names} }}")
        }),
        ("undeclared", {
            let names: String = (0..LEN_BYTES / 40)
                .map(|i| format!("or.b32 a{i}, b{i}, c{i};"))
                .collect();
            format!(".version 9.0 .target sm_90 .entry k() {{ {names} }}")
        }),
        ("targets", body("{a:.branchtargets a,a;}")),
        ("dimensions", global("", "[]", "")),
        ("values", global("[]={", "1,", "1}")),
        ("lists", global("[]={", "{},", "1}")),
        (
            "lines",
            format!(".version 9.0 .target sm_90 .section .x {{{}}}", fill("a\n")),
        ),
        ("comments", fill("/**/")),
        ("comments that never end", fill("/*/ ")),
        (
            "sum",
            format!(
                ".version 9.0 .target sm_90 .global .b8 x = 1{};",
                fill("+1")
            ),
        ),
        (
            "one line",
            format!(".version 9.0 .target sm_90 {}", fill("\u{e9}")),
        ),
        ("open brackets", fill("{")),
    ]
}

#[test]
fn reading_needs_time_and_memory_in_proportion_to_the_text() {
    if std::env::var_os(CHILD).is_some() {
        for (name, text) in expensive() {
            let start = Instant::now();
            let read = fercuda_ptx::parse(&text).map(|module| fercuda_ptx::check(&module).len());
            let spent = start.elapsed();
            // 40 times slower than the slowest of them here: quadratic time would be 10^5 times.
            assert!(
                spent < Duration::from_secs(20),
                "{name}: {spent:?}, {:?}",
                read.map_err(|e| e.message)
            );
        }
        return;
    }
    let limit_kib = (BASE_BYTES + BYTES_PER_BYTE * LEN_BYTES) / 1024;
    let output = Command::new("sh")
        .args([
            "-c",
            &format!("ulimit -v {limit_kib}; exec \"$0\" --nocapture"),
        ])
        .arg(std::env::current_exe().expect("this test"))
        .env(CHILD, "1")
        .output()
        .expect("a shell");
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
