//! MB/s of parsing, printing and checking: `cargo bench -p fercuda-ptx [-- FILE.ptx ...]`.
//!
//! Without files, a module of 8 MB is generated in the style of NVRTC's output: four parts code
//! with source lines, one part debugging data. One core, the fastest, median and slowest of the
//! runs.
#![expect(clippy::print_stdout, reason = "printing is what this program does")]

use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

const RUNS: usize = 15;

fn main() {
    let files: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    println!("{}, {} MHz now", cpu("model name"), cpu("cpu MHz"));
    println!("{:<32} {:>9}  MB/s: fastest, median, slowest", "", "bytes");
    if files.is_empty() {
        measure("generated", &generated(8_000_000));
    }
    for file in files {
        match std::fs::read_to_string(&file) {
            Ok(text) => measure(file.rsplit('/').next().unwrap_or(&file), &text),
            Err(error) => println!("{file}: {error}"),
        }
    }
}

/// A field of the first processor's description.
fn cpu(field: &str) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with(field));
    line.and_then(|line| line.split_once(": "))
        .map_or_else(|| "unknown".to_owned(), |(_, value)| value.to_owned())
}

fn measure(name: &str, text: &str) {
    let module = match fercuda_ptx::parse(text) {
        Ok(module) => module,
        Err(error) => {
            println!("{name}: {error}");
            return;
        }
    };
    let printed = fercuda_ptx::print(&module).len();
    report(name, "parse", text.len(), || {
        black_box(fercuda_ptx::parse(black_box(text)).is_ok());
    });
    report(name, "print", printed, || {
        black_box(fercuda_ptx::print(black_box(&module)));
    });
    report(name, "check", text.len(), || {
        black_box(fercuda_ptx::check(black_box(&module)));
    });
}

fn report(name: &str, what: &str, len_bytes: usize, mut run: impl FnMut()) {
    let mut rates: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            len_bytes as f64 / 1e6 / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!(
        "{name:<26} {what:<5} {len_bytes:>9}  {:>6.0} {:>6.0} {:>6.0}",
        rates[RUNS - 1],
        rates[RUNS / 2],
        rates[0]
    );
}

fn generated(len_bytes: usize) -> String {
    let mut text = String::from(
        ".version 9.0\n.target sm_90\n.address_size 64\n\n\t.file\t1 \"generated.cu\"\n",
    );
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut kernel = 0;
    while text.len() < len_bytes / 5 * 4 {
        let name = format!("_Z{}kernel{kernel}PKfS0_Pfi", 8 + kernel);
        kernel += 1;
        let line = |text: &mut String, arguments: std::fmt::Arguments<'_>| {
            text.write_fmt(arguments)
                .expect("a String takes what is written");
            text.push('\n');
        };
        line(
            &mut text,
            format_args!("\n\t// .globl\t{name}\n.visible .entry {name}("),
        );
        for i in 0..3 {
            line(
                &mut text,
                format_args!("\t.param .u64 .ptr .align 1 {name}_param_{i},"),
            );
        }
        line(
            &mut text,
            format_args!("\t.param .u32 {name}_param_3\n)\n{{"),
        );
        line(
            &mut text,
            format_args!(
                "\t.reg .pred \t%p<200>;\n\t.reg .b32 \t%r<2000>;\n\t.reg .b64 \t%rd<200>;"
            ),
        );
        for label in 0..40 {
            line(&mut text, format_args!("$L__BB{kernel}_{label}:"));
            for i in 0..30 {
                let (a, b, c, d) = (random(2000), random(2000), random(2000), random(200));
                match random(10) {
                    0 => line(&mut text, format_args!("\t.loc\t1 {} {}", 1 + a, 1 + d)),
                    1 => line(
                        &mut text,
                        format_args!("\tld.global.nc.f32 \t%r{a}, [%rd{d}+{}];", 4 * i),
                    ),
                    2 => line(&mut text, format_args!("\tst.shared.b32 \t[%r{a}], %r{b};")),
                    3 => line(
                        &mut text,
                        format_args!("\tsetp.ge.s32 \t%p{d}, %r{a}, %r{b};"),
                    ),
                    4 => line(
                        &mut text,
                        format_args!("\t@%p{d} bra \t$L__BB{kernel}_{};", random(40)),
                    ),
                    5 => line(
                        &mut text,
                        format_args!("\tmul.wide.s32 \t%rd{d}, %r{a}, 4;"),
                    ),
                    6 => line(
                        &mut text,
                        format_args!("\tmov.b32 \t%r{a}, 0f{:08X};", random(1 << 32)),
                    ),
                    7 => line(
                        &mut text,
                        format_args!(
                            "\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%r{a}, %r{b}, %r{c}, %r7}}, \
                             {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, {{%r{a}, %r{b}, %r{c}, %r7}};"
                        ),
                    ),
                    _ => line(
                        &mut text,
                        format_args!("\tfma.rn.f32 \t%r{a}, %r{b}, %r{c}, %r{a};"),
                    ),
                }
            }
        }
        line(&mut text, format_args!("\tret;\n\n}}"));
    }
    text.push_str("\t.section\t.debug_str\n\t{\n");
    while text.len() < len_bytes {
        text.push_str(".b8 ");
        for _ in 0..12 {
            text.push_str(&format!("{},", random(256)));
        }
        text.push_str("0\n");
    }
    text.push_str("\t}\n");
    text
}
