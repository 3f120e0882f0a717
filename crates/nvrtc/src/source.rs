//! CUDA C++ to compile: source, headers, options, architecture and output format.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use crate::error::{NvrtcError, Result};

/// An architecture, for instance 9.0 or 9.0a.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GpuArch {
    number: u32,
    suffix: Option<char>,
}

impl GpuArch {
    /// Compute capability `major`.`minor`.
    pub fn new(major: u32, minor: u32) -> Self {
        Self {
            number: major * 10 + minor,
            suffix: None,
        }
    }

    /// The same architecture with the features that no other one has: `90a`.
    pub fn specific(self) -> Self {
        Self {
            suffix: Some('a'),
            ..self
        }
    }

    /// Reads `sm_90`, `compute_90`, `90` or, with features of this
    /// architecture alone, `90a`.
    ///
    /// # Errors
    /// [`NvrtcError::Architecture`].
    pub fn parse(text: &str) -> Result<Self> {
        let bare = text
            .strip_prefix("sm_")
            .or(text.strip_prefix("compute_"))
            .unwrap_or(text);
        let suffix = bare.chars().last().filter(|last| matches!(last, 'a' | 'f'));
        let digits = &bare[..bare.len() - suffix.map_or(0, char::len_utf8)];
        let plausible =
            (2..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        match digits.parse() {
            Ok(number) if plausible => Ok(Self { number, suffix }),
            _ => Err(NvrtcError::Architecture {
                text: text.to_owned(),
            }),
        }
    }
}

impl fmt::Display for GpuArch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        self.suffix.map_or(Ok(()), |suffix| write!(f, "{suffix}"))
    }
}

/// The output format of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeFormat {
    /// PTX text, which a driver compiles for its device.
    Ptx,
    /// Machine code for the one architecture.
    Cubin,
}

/// A program to compile, as CUDA C++.
#[derive(Clone, Debug)]
pub struct CudaSource {
    pub(crate) name: String,
    /// Text in any encoding that agrees with ASCII, as the compiler takes it.
    pub(crate) source: Vec<u8>,
    pub(crate) arch: GpuArch,
    pub(crate) output: CodeFormat,
    pub(crate) options: Vec<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) includes: Vec<PathBuf>,
    pub(crate) expressions: Vec<String>,
}

impl CudaSource {
    /// CUDA C++ `source`, called `name` in messages, to PTX for `arch`.
    pub fn new(name: impl Into<String>, source: impl Into<String>, arch: GpuArch) -> Self {
        Self::from_bytes(name, source.into().into_bytes(), arch)
    }

    /// The same for source in another encoding, such as Latin-1: bytes outside of ASCII may stand
    /// in comments and literals, and reach the compiler as they are.
    pub fn from_bytes(name: impl Into<String>, source: Vec<u8>, arch: GpuArch) -> Self {
        Self {
            name: name.into(),
            source,
            arch,
            output: CodeFormat::Ptx,
            options: Vec::new(),
            headers: Vec::new(),
            includes: Vec::new(),
            expressions: Vec::new(),
        }
    }

    /// Compiles to `output` instead.
    pub fn output(mut self, output: CodeFormat) -> Self {
        self.output = output;
        self
    }

    /// Adds an option of NVRTC's, for instance `--use_fast_math`.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Adds a header that the source includes by `name`.
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.headers.push((name.into(), text.into()));
        self
    }

    /// Adds a directory to search for headers, before CUDA's own. Its files may change, so such a
    /// program is not cached.
    pub fn include(mut self, directory: impl Into<PathBuf>) -> Self {
        self.includes.push(directory.into());
        self
    }

    /// Requests an instance of a template, with a name in the compiled program that
    /// [`CompiledProgram::lowered`](crate::CompiledProgram::lowered) returns.
    pub fn expression(mut self, expression: impl Into<String>) -> Self {
        self.expressions.push(expression.into());
        self
    }

    /// The source and the headers that come with it.
    fn texts(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let headers = self.headers.iter().map(|(_, text)| Cow::from(text));
        std::iter::once(String::from_utf8_lossy(&self.source)).chain(headers)
    }

    /// Whether it may include files with text that is not part of it, apart from CUDA's own
    /// headers.
    pub(crate) fn reads_user_files(&self) -> bool {
        const READING: [&str; 6] = [
            "-I",
            "--include-path",
            "-include",
            "--pre-include",
            "-pch",
            "--use-pch",
        ];
        let reads = |option: &String| {
            let option = option.trim_start();
            READING.iter().any(|start| option.starts_with(start))
        };
        let is_given = |operand: &str| {
            let quoted = operand
                .strip_prefix('"')
                .and_then(|rest| rest.split('"').next());
            operand.starts_with('<')
                || quoted.is_some_and(|quoted| self.headers.iter().any(|(name, _)| name == quoted))
        };
        let reads_others = |text: Cow<'_, str>| {
            // Trigraphs of `#` and of the backslash, which some modes of the compiler know.
            let has_trigraphs = text.contains("??=") || text.contains("??/");
            has_trigraphs || !included(&spliced(&text)).all(is_given)
        };
        !self.includes.is_empty()
            || self.options.iter().any(reads)
            || self.texts().any(reads_others)
    }

    pub(crate) fn target(&self) -> String {
        match self.output {
            CodeFormat::Ptx => format!("compute_{}", self.arch),
            CodeFormat::Cubin => format!("sm_{}", self.arch),
        }
    }
}

/// `text` with lines joined that end with a backslash, as the compiler reads them: with blanks
/// behind it too.
fn spliced(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::from(text);
    }
    let mut whole = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match line.trim_end().strip_suffix('\\') {
            Some(begin) => whole.push_str(begin),
            None => whole.push_str(line),
        }
    }
    Cow::from(whole)
}

/// The files that `text` may include or ask for, as written: `<NAME>`, `"NAME"`, which is searched
/// for in the current directory first, or a macro. Comments and strings are not distinguished from
/// code, but for lines that are a comment: what is in them counts too.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(['#', '%', '_'])
        .filter_map(|(at, sign)| {
            let begin = text[..at].rfind('\n').map_or(0, |at| at + 1);
            let before = text[begin..at].trim_start();
            if before.starts_with("//") && !before.contains("*/") {
                return None;
            }
            let behind = &text[at..];
            if sign == "_" {
                let words = ["__has_include_next", "__has_include", "__has_embed"];
                let rest = words.iter().find_map(|word| behind.strip_prefix(word))?;
                let rest = skip_blanks(rest);
                return Some(skip_blanks(rest.strip_prefix('(').unwrap_or(rest)));
            }
            let behind = behind.strip_prefix('#').or(behind.strip_prefix("%:"))?;
            let behind = skip_blanks(behind);
            let words = ["include_next", "include", "import", "embed"];
            let rest = words.iter().find_map(|word| behind.strip_prefix(word))?;
            Some(skip_blanks(rest))
        })
}

/// `text` without blanks and comments at its begin.
fn skip_blanks(text: &str) -> &str {
    let mut rest = text.trim_start();
    while let Some(comment) = rest.strip_prefix("/*") {
        let behind = comment.find("*/").map_or("", |at| &comment[at + 2..]);
        rest = behind.trim_start();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_read_in_the_forms_people_write() {
        for text in ["sm_90", "compute_90", "90"] {
            assert_eq!(GpuArch::parse(text).unwrap(), GpuArch::new(9, 0));
        }
        assert_eq!(GpuArch::parse("sm_90a").unwrap().to_string(), "90a");
        assert_eq!(GpuArch::parse("120").unwrap(), GpuArch::new(12, 0));
        for text in ["", "a", "9", "sm_", "sm_9x", "9000", "sm_-90", "é0"] {
            assert!(GpuArch::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_program_that_may_read_user_files_is_recognised() {
        let program = |source: &str| CudaSource::new("k.cu", source, GpuArch::new(9, 0));
        let alone = program("#include <cuda_fp16.h>\n# include \"mine.h\"\n").header("mine.h", "");
        assert!(!alone.reads_user_files());
        assert!(program("  #include \"mine.h\"").reads_user_files());
        assert!(program("#include MINE").reads_user_files());
        for hidden in [
            "/**/#include \"x\"",
            "/* a\n// */ #include \"x\"",
            "#\\\ninclude \"x\"",
            "#inc\\ \t\r\nlude \"x\"",
            "%:include \"x\"",
            "% :\n%: /* a */ include \"x\"",
            "??=include \"x\"",
            "#/**/include/* a */\"x\"",
            "#include_next \"x\"",
            "#embed \"x\"",
            "#if __has_include(\"x\")\n#endif",
            "#if defined(A) || __has_include ( /**/ X)\n#endif",
        ] {
            assert!(program(hidden).reads_user_files(), "{hidden}");
        }
        for harmless in [
            "// #include \"x\"\n",
            "  // see #include \"x\"\nint x;",
            "#if __has_include(<cuda_fp8.h>)\n#include <cuda_fp8.h>\n#endif",
            "#/**/include/* a */ <cuda_fp16.h>",
            "int include = 5 % 3; // includes \"x\"",
            "#define A(x) #x\\\n include",
        ] {
            assert!(!program(harmless).reads_user_files(), "{harmless}");
        }
        let nested = program("").header("mine.h", "#include \"other.h\"");
        assert!(nested.reads_user_files());
        assert!(program("").include("/opt/headers").reads_user_files());
        assert!(program("").option("-I/opt/headers").reads_user_files());
        assert!(program("").option("--pre-include=a.h").reads_user_files());
        assert!(!program("").option("--use_fast_math").reads_user_files());
    }
}
