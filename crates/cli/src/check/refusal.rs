//! Explanation of what NVRTC refuses that `nvcc` takes: host code, and headers that are missing.
//!
//! Invariant: the compiler's own log stays, below the explanation.

use std::path::PathBuf;

use fercuda_nvrtc::NvrtcError;

/// The error, below an explanation if its cause is known; `directories` were searched for headers.
pub(crate) fn explained(error: NvrtcError, directories: &[PathBuf]) -> anyhow::Error {
    let explanation = match &error {
        NvrtcError::Refused { log, .. } => explanation(log, directories),
        _ => None,
    };
    match explanation {
        Some(text) => anyhow::Error::new(error).context(text),
        None => error.into(),
    }
}

fn explanation(log: &str, directories: &[PathBuf]) -> Option<String> {
    missing_header(log)
        .map(|(place, header)| explain_header(place, header, directories))
        .or_else(|| Some(explain_host_code(host_function(log)?)))
}

/// Where a header is included that was not found, as `k.cu(1)`, and its name.
fn missing_header(log: &str) -> Option<(&str, &str)> {
    log.lines().find_map(|line| {
        let (before, after) = line.split_once("open source file \"")?;
        let (header, _) = after.split_once('"')?;
        Some((before.split_once(": ")?.0, header))
    })
}

/// Where the first function is that is for the host, because it says so or says nothing.
fn host_function(log: &str) -> Option<&str> {
    let line = log
        .lines()
        .find(|line| line.contains("host") && line.contains("not allowed in JIT mode"))?;
    Some(line.split_once(": ")?.0)
}

fn explain_header(place: &str, header: &str, directories: &[PathBuf]) -> String {
    if HOST_HEADERS.contains(&header) {
        let of_device = format!("cuda/std/{header}");
        let is_there = |it: &PathBuf| it.join(&of_device).is_file();
        let instead = match directories.iter().any(is_there) {
            true => format!("\ntry: <{of_device}>, which kernels can use"),
            false => String::new(),
        };
        return format!(
            "{place} includes <{header}>, a header of the host's compiler: only kernels are \
             compiled here\n{SEPARATE_HOST_CODE}{instead}"
        );
    }
    let mut text = format!("{place} includes \"{header}\", which is in none of these directories:");
    for directory in directories {
        text.push_str(&format!("\n  {}", directory.display()));
    }
    text.push_str("\ntry: -I DIR, with the directory that contains it");
    if CUDA_HEADERS.iter().any(|it| header.starts_with(it)) {
        text.push_str("\ntry: fercuda doctor, for where CUDA's own headers are searched for");
    }
    text
}

fn explain_host_code(place: &str) -> String {
    format!(
        "{place} is host code, a function without __device__ or __global__: only kernels are \
         compiled here\n{SEPARATE_HOST_CODE}"
    )
}

const SEPARATE_HOST_CODE: &str = "\
    try: #ifndef __CUDACC_RTC__ before and #endif after host code, or kernels in a file of their \
    own\n\
    try: fercuda check -- ./program, to check the kernels that a program launches";

/// Beginnings of names of headers that CUDA installs.
const CUDA_HEADERS: [&str; 8] = [
    "cuda",
    "mma.h",
    "cooperative_groups",
    "curand",
    "cub/",
    "thrust/",
    "nv/",
    "cooperative_",
];

/// Headers of the host's C and C++ library that kernels' sources include, without those that
/// kernels are given.
const HOST_HEADERS: [&str; 29] = [
    "atomic",
    "condition_variable",
    "deque",
    "exception",
    "filesystem",
    "fstream",
    "future",
    "iomanip",
    "ios",
    "iostream",
    "istream",
    "list",
    "map",
    "mutex",
    "ostream",
    "queue",
    "random",
    "set",
    "sstream",
    "stack",
    "stdexcept",
    "string",
    "string_view",
    "sys/time.h",
    "thread",
    "unistd.h",
    "unordered_map",
    "unordered_set",
    "vector",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_is_missing_is_named_with_the_directories() {
        let log = "a/k.cu(3): catastrophic error: cannot open source file \"mine.h\"\n\
                   \x20 #include \"mine.h\"\n                   ^\n";
        let text = explanation(log, &["inc".into(), "a".into()]).unwrap();
        assert_eq!(
            text,
            "a/k.cu(3) includes \"mine.h\", which is in none of these directories:\n  inc\n  a\n\
             try: -I DIR, with the directory that contains it"
        );
        let cuda = log.replace("mine.h", "cuda_fp16.h");
        assert!(explanation(&cuda, &[]).unwrap().contains("fercuda doctor"));
    }

    #[test]
    fn a_header_of_the_host_is_explained_as_such_with_the_devices_own_if_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("cuda/std")).unwrap();
        std::fs::write(folder.path().join("cuda/std/atomic"), "").unwrap();
        let of = |header: &str| {
            let log = format!("k.cu(1): error: could not open source file \"{header}\"");
            explanation(&log, &[folder.path().into()]).unwrap()
        };
        assert!(of("iostream").starts_with("k.cu(1) includes <iostream>, a header of the host"));
        assert!(of("iostream").contains("__CUDACC_RTC__"));
        assert!(!of("iostream").contains("cuda/std"));
        assert!(of("atomic").ends_with("try: <cuda/std/atomic>, which kernels can use"));
    }

    #[test]
    fn host_code_is_explained_and_other_errors_are_not() {
        let log = "k.cu(2): error: A function without execution space annotations is considered \
                   a host function, and host functions are not allowed in JIT mode.\n";
        let text = explanation(log, &[]).unwrap();
        assert!(text.starts_with("k.cu(2) is host code"), "{text}");
        assert!(text.contains("try: fercuda check -- ./program"), "{text}");
        let log = "k.cu(3): error: A function explicitly marked as a __host__ function is not \
                   allowed in JIT mode\n";
        let text = explanation(log, &[]).unwrap();
        assert!(text.starts_with("k.cu(3) is host code"), "{text}");
        assert_eq!(
            explanation("k.cu(2): error: identifier \"x\" is undefined", &[]),
            None
        );
    }
}
