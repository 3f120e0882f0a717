//! Source of the checked kernel: CUDA C++ or PTX, from a file or standard input.
//!
//! CUDA C++ reaches NVRTC byte for byte, in any encoding that agrees with ASCII.
//!
//! Invariant: what is returned is PTX text with the lines and columns of the source, or of NVRTC's
//! output. Elsewhere: explaining what NVRTC refuses (`refusal`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fercuda_nvrtc::{CudaSource, GpuArch, Nvrtc};

use super::{host_headers, refusal};
use crate::input::{read_at_most, read_stdin};
use crate::out::{alert, note};
use crate::output::is_stream;
use crate::status::bail_usage;

/// Compute capability of the software device, ten times major plus minor: it runs no PTX for a
/// later one.
const DEVICE_ARCH: u32 = 90;

/// The oldest architecture that a version of NVRTC with 64-bit CUDA C++ 17 compiles for.
const OLDEST_ARCH: u32 = 50;

/// Bytes of standard input that are read.
const MOST_STDIN_BYTES: u64 = 64 << 20;

/// What the source is compiled with, if it is CUDA C++.
#[derive(clap::Args)]
pub(crate) struct CompileArgs {
    /// Architecture to compile CUDA C++ for: sm_50 to sm_90, as NVRTC has them.
    #[arg(long, value_name = "sm_NN", default_value = "sm_90", value_parser = arch)]
    arch: GpuArch,
    /// Include directory for CUDA C++ (may be repeated).
    #[arg(long, short = 'I', value_name = "DIR")]
    include: Vec<PathBuf>,
    /// Define a macro for CUDA C++, as 1 without a value (may be repeated).
    #[arg(long, short = 'D', value_name = "NAME[=VALUE]", value_parser = definition)]
    define: Vec<String>,
    /// Language standard for CUDA C++ [default: NVRTC's].
    #[arg(long, value_name = "STD", value_parser = ["c++11", "c++14", "c++17", "c++20"])]
    std: Option<String>,
}

/// An architecture that the software device can be given code for.
fn arch(text: &str) -> Result<GpuArch, String> {
    let range = OLDEST_ARCH..=DEVICE_ARCH;
    match GpuArch::parse(text) {
        // The only one in the range with features of its own.
        Ok(arch) if arch.to_string() == "90a" => Ok(arch),
        Ok(arch) if arch.to_string().parse().is_ok_and(|it| range.contains(&it)) => Ok(arch),
        _ => Err(format!(
            "the software device takes sm_{OLDEST_ARCH} to sm_{DEVICE_ARCH}, and sm_90a"
        )),
    }
}

/// A macro definition in the form of the compiler's option.
fn definition(text: &str) -> Result<String, String> {
    let (name, value) = text.split_once('=').unwrap_or((text, "1"));
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty()
        || !name.chars().all(is_word)
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(format!(
            "{name:?} is not the name of a macro: letters, digits and _, no digit first"
        ));
    }
    if value.contains(['\n', '\r', '\0']) {
        return Err("a value is one line".to_owned());
    }
    Ok(format!("{name}={value}"))
}

/// The language of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceKind {
    Cuda,
    Ptx,
}

/// The name of `file` in reports and messages.
pub(crate) fn name_of(file: &Path) -> String {
    match is_stream(file) {
        true => "<stdin>".to_owned(),
        false => file.display().to_string(),
    }
}

/// The PTX of `file`, compiled if necessary; `-` is standard input.
///
/// # Errors
/// It cannot be read, is neither of the two languages, or NVRTC was not found or refuses it.
pub(crate) fn ptx_of(file: &Path, args: &CompileArgs) -> Result<String> {
    let (kind, bytes) = match is_stream(file) {
        true => {
            let bytes = read_stdin("a kernel", MOST_STDIN_BYTES)?;
            (kind_of(&bytes), bytes)
        }
        false => {
            let kind = kind_by_name(file)?;
            let bytes = read_at_most(file, MOST_STDIN_BYTES)?;
            if bytes.len() as u64 > MOST_STDIN_BYTES {
                let most = crate::terminal::bytes(MOST_STDIN_BYTES);
                bail_usage!(
                    "{} has more than {most}\ntry: a smaller file",
                    file.display()
                );
            }
            (kind, bytes)
        }
    };
    let name = name_of(file);
    check_text(&bytes, &name)?;
    match kind {
        SourceKind::Cuda => compile(bytes, file, args),
        SourceKind::Ptx => {
            let is_given = !args.include.is_empty() || !args.define.is_empty();
            if is_given || args.std.is_some() {
                note!("note: {name} is PTX, to which -D, -I and --std do not apply");
            }
            ptx_text(bytes, &name)
        }
    }
}

fn kind_by_name(file: &Path) -> Result<SourceKind> {
    match file.extension().and_then(|it| it.to_str()) {
        Some("cu") => Ok(SourceKind::Cuda),
        Some("ptx") => Ok(SourceKind::Ptx),
        _ => bail_usage!(
            "{} is neither CUDA C++ (.cu) nor PTX (.ptx)\n\
             try: nvcc -ptx to get PTX; machine code only runs on a GPU",
            file.display()
        ),
    }
}

/// PTX begins with a directive, `.version`; no CUDA C++ begins with a full stop.
fn kind_of(bytes: &[u8]) -> SourceKind {
    let mut rest = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    loop {
        rest = rest.trim_ascii_start();
        let comment = match rest {
            [b'/', b'/', ..] => end_of(rest, b"\n"),
            [b'/', b'*', ..] => end_of(rest, b"*/"),
            [b'.', ..] => return SourceKind::Ptx,
            _ => return SourceKind::Cuda,
        };
        rest = &rest[comment..];
    }
}

/// UTF-8's, which some editors write.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The index behind the first `end` after a comment's two first bytes, or the length.
fn end_of(bytes: &[u8], end: &[u8]) -> usize {
    let rest = bytes.get(2..).unwrap_or_default();
    let at = rest.windows(end.len()).position(|window| window == end);
    at.map_or(bytes.len(), |at| 2 + at + end.len())
}

/// Refuses machine code and UTF-16, which contain zero bytes.
fn check_text(bytes: &[u8], name: &str) -> Result<()> {
    // A C string that was written with its terminator is common.
    let text = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let Some(at) = text.iter().position(|byte| *byte == 0) else {
        return Ok(());
    };
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            bail_usage!("{name} is UTF-16\ntry: iconv -f UTF-16 -t UTF-8")
        }
        _ => bail_usage!(
            "{name} is not text: byte {at} is 0\n\
             try: nvcc -ptx to get PTX; machine code only runs on a GPU"
        ),
    }
}

/// PTX as text. In comments and strings, such as names of files, each byte that is not UTF-8
/// becomes `?`, which keeps lines and columns.
///
/// # Errors
/// Names line and column of such a byte elsewhere.
fn ptx_text(mut bytes: Vec<u8>, name: &str) -> Result<String> {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    if std::str::from_utf8(&bytes).is_err() {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let len = match rest {
                [b'/', b'/', ..] => end_of(rest, b"\n"),
                [b'/', b'*', ..] => end_of(rest, b"*/"),
                [b'"', ..] => end_of_string(rest),
                [byte, ..] if !byte.is_ascii() => {
                    let before = &bytes[..at];
                    let line = 1 + before.iter().filter(|it| **it == b'\n').count();
                    let begun = before.iter().rposition(|it| *it == b'\n');
                    bail_usage!(
                        "{name} line {line}, column {}: byte {byte:#04x} is outside of ASCII\n\
                         try: such bytes in comments and strings only",
                        at - begun.map_or(0, |it| it + 1) + 1
                    );
                }
                _ => 1,
            };
            replace_invalid(&mut bytes[at..at + len]);
            at += len;
        }
    }
    String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8"))
}

/// Replaces each byte that is not UTF-8 by `?`.
fn replace_invalid(bytes: &mut [u8]) {
    let mut at = 0;
    while let Err(error) = std::str::from_utf8(&bytes[at..]) {
        let start = at + error.valid_up_to();
        let end = error.error_len().map_or(bytes.len(), |len| start + len);
        bytes[start..end].fill(b'?');
        at = end;
    }
}

/// The length of the string that `bytes` begins with, with its quotes.
fn end_of_string(bytes: &[u8]) -> usize {
    let mut escaped = false;
    let end = bytes.iter().skip(1).position(|byte| {
        let ends = !escaped && *byte == b'"' || *byte == b'\n';
        escaped = !escaped && *byte == b'\\';
        ends
    });
    end.map_or(bytes.len(), |end| end + 2)
}

/// CUDA C++ to PTX with line information, by NVRTC.
///
/// # Errors
/// NVRTC was not found (the error lists the paths tried), or the compiler's own message, below an
/// explanation if the cause is known.
fn compile(source: Vec<u8>, file: &Path, args: &CompileArgs) -> Result<String> {
    let nvrtc = Nvrtc::find()?;
    check_arch(&nvrtc, args.arch)?;
    let includes_files = source.windows(7).any(|window| window == b"include");
    let uses_int128 = source.windows(8).any(|window| window == b"__int128");
    let mut program =
        CudaSource::from_bytes(name_of(file), source, args.arch).option("--generate-line-info");
    for define in &args.define {
        program = program.option(format!("--define-macro={define}"));
    }
    // nvcc takes the type without an option.
    if uses_int128 {
        program = program.option("--device-int128");
    }
    if let Some(std) = &args.std {
        program = program.option(format!("--std={std}"));
    }
    let mut directories = args.include.clone();
    // A program that names include directories is not cached, so this one is named only where it
    // may be needed.
    if includes_files {
        let beside = file.parent().filter(|it| !it.as_os_str().is_empty());
        directories.push(beside.map_or_else(|| PathBuf::from("."), Path::to_path_buf));
    }
    for directory in &directories {
        program = program.include(directory);
    }
    if includes_files {
        program = host_headers::given(program, &directories);
    }
    let compiled = match nvrtc.compile(&program) {
        Ok(compiled) => compiled,
        Err(error) => {
            directories.extend_from_slice(nvrtc.include_directories());
            return Err(refusal::explained(error, &directories));
        }
    };
    for line in compiled.log().lines() {
        alert!("{line}");
    }
    for warning in compiled.cache_warnings() {
        alert!("warning: {warning}");
    }
    let ptx = compiled.ptx().context("NVRTC did not return PTX")?;
    Ok(ptx.to_owned())
}

/// Refuses an architecture that this NVRTC does not compile for.
fn check_arch(nvrtc: &Nvrtc, arch: GpuArch) -> Result<()> {
    // Before CUDA 11.2 it does not say; then the compiler refuses it.
    let Ok(mut known) = nvrtc.architectures() else {
        return Ok(());
    };
    known.retain(|it| *it <= DEVICE_ARCH);
    known.sort_unstable();
    let number = arch.to_string();
    let number = number.trim_end_matches(char::is_alphabetic);
    if known.is_empty() || known.iter().any(|it| it.to_string() == number) {
        return Ok(());
    }
    let (major, minor) = nvrtc.version();
    let list: Vec<String> = known.iter().map(|it| format!("sm_{it}")).collect();
    bail_usage!(
        "NVRTC {major}.{minor} does not compile for sm_{arch}\ntry: --arch {}",
        list.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use fercuda_cuda::{Cuda, Select};

    use super::*;

    #[test]
    fn the_latest_architecture_is_the_devices() {
        let device = Cuda::select(Select::Software).unwrap().device(0).unwrap();
        let (major, minor) = device.compute_capability().unwrap();
        assert_eq!(10 * major + minor, DEVICE_ARCH);
    }

    #[test]
    fn an_architecture_that_the_device_cannot_be_is_refused_with_the_range() {
        for text in ["sm_50", "compute_75", "90", "sm_90a"] {
            assert!(arch(text).is_ok(), "{text}");
        }
        for text in [
            "sm_10", "sm_49", "sm_91", "sm_100", "sm_90f", "sm_80a", "9x", "", "gpu",
        ] {
            let error = arch(text).expect_err(text);
            assert!(error.contains("sm_50 to sm_90"), "{text}: {error}");
        }
    }

    #[test]
    fn a_definition_needs_the_name_of_a_macro() {
        assert_eq!(definition("N"), Ok("N=1".to_owned()));
        assert_eq!(definition("N="), Ok("N=".to_owned()));
        assert_eq!(definition("T=a = b"), Ok("T=a = b".to_owned()));
        for text in ["", "=1", "1N", "f(x)=x", "a-b", "N=1\n2"] {
            assert!(definition(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ptx_is_recognised_behind_comments() {
        let ptx = [
            "// a\n/* .b\n*/ .version 8.0",
            ".version 8.0",
            "\u{feff}.version",
        ];
        for text in ptx {
            assert_eq!(kind_of(text.as_bytes()), SourceKind::Ptx, "{text}");
        }
        let cuda = [
            "",
            "/",
            "// .version",
            "/* .version",
            "#include <a>",
            "/**/ int x; .y",
        ];
        for text in cuda {
            assert_eq!(kind_of(text.as_bytes()), SourceKind::Cuda, "{text}");
        }
    }

    #[test]
    fn bytes_of_another_encoding_stay_within_comments_and_strings_of_ptx() {
        let read = |bytes: &[u8]| ptx_text(bytes.to_vec(), "k.ptx");
        let text = read(b"// \xe9\n/* \xe9\xe8 */ .file 1 \"\\\"\xe9\" // \xc3\xa9").unwrap();
        assert_eq!(text, "// ?\n/* ?? */ .file 1 \"\\\"?\" // \u{e9}");
        let error = read(b"// \xe9\n.vers\xe9on").unwrap_err().to_string();
        assert!(
            error.starts_with("k.ptx line 2, column 6: byte 0xe9"),
            "{error}"
        );
        assert!(read(b"\xe9").is_err());
        assert_eq!(read(b"\xef\xbb\xbf.version").unwrap(), ".version");
        assert_eq!(read(b"/").unwrap(), "/");
        assert_eq!(read(b"\"").unwrap(), "\"");
    }

    #[test]
    fn machine_code_and_utf_16_are_refused() {
        let error = |bytes: &[u8]| check_text(bytes, "it").unwrap_err().to_string();
        assert!(error(b"\x7fELF\x02\x01\0\0").contains("byte 6 is 0"));
        assert!(error(b"\xff\xfe/\0/\0").contains("iconv"));
        assert!(check_text(b".version 8.0\n\0", "it").is_ok());
    }
}
