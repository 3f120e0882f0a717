//! Parses PTX files, checks their names and the round trip, and prints the speed of both.
//!
//! `cargo run --release -p fercuda-ptx --example roundtrip -- [--to DIR] FILE.ptx ...`
//!
//! With `--to`, the printed texts are written there under the same names, for ptxas to compare.
#![expect(clippy::print_stdout, reason = "printing is what this program does")]

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let mut failed = false;
    let mut directory = None;
    let mut args = std::env::args().skip(1);
    while let Some(path) = args.next() {
        if path == "--to" {
            directory = args.next();
            continue;
        }
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                println!("{path}: {error}");
                failed = true;
                continue;
            }
        };
        let start = Instant::now();
        let module = match fercuda_ptx::parse(&text) {
            Ok(module) => module,
            Err(error) => {
                println!("{path}: {error}");
                failed = true;
                continue;
            }
        };
        let parse_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let printed = fercuda_ptx::print(&module);
        let print_s = start.elapsed().as_secs_f64();
        if let (Some(directory), Some(name)) = (&directory, Path::new(&path).file_name())
            && let Err(error) = std::fs::write(Path::new(directory).join(name), &printed)
        {
            println!("{path}: {error}");
            failed = true;
        }
        let verdict = match fercuda_ptx::parse(&printed) {
            Ok(again) if again == module => "equal".to_owned(),
            Ok(_) => {
                failed = true;
                "DIFFERS".to_owned()
            }
            Err(error) => {
                failed = true;
                format!("DOES NOT READ BACK: {error}")
            }
        };
        let start = Instant::now();
        let diagnostics = fercuda_ptx::check(&module);
        let check_s = start.elapsed().as_secs_f64();
        for diagnostic in &diagnostics {
            println!("{path}, {diagnostic}");
            failed = true;
        }
        println!(
            "{path}: {} bytes, parse {:.0} MB/s, print {:.0} MB/s, check {:.0} MB/s, {verdict}",
            text.len(),
            text.len() as f64 / parse_s / 1e6,
            printed.len() as f64 / print_s / 1e6,
            text.len() as f64 / check_s / 1e6,
        );
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
