//! Texts of the kernels: CUDA C++, with the values of their macros.
//!
//! Invariant: a text, its macros and the names of its kernels determine the code; nothing else is
//! read.

use std::collections::BTreeSet;

use fercuda_tensor::Dtype;

/// Headers that every text may include.
pub(crate) const HEADERS: [(&str, &str); 23] = [
    ("attention.cuh", include_str!("../cuda/attention.cuh")),
    ("block_codes.cuh", include_str!("../cuda/block_codes.cuh")),
    (
        "block_formats.cuh",
        include_str!("../cuda/block_formats.cuh"),
    ),
    ("block_iq.cuh", include_str!("../cuda/block_iq.cuh")),
    ("block_k.cuh", include_str!("../cuda/block_k.cuh")),
    ("block_simple.cuh", include_str!("../cuda/block_simple.cuh")),
    ("block_units.cuh", include_str!("../cuda/block_units.cuh")),
    ("blocks.cuh", include_str!("../cuda/blocks.cuh")),
    ("checked.cuh", include_str!("../cuda/checked.cuh")),
    ("classes.cuh", include_str!("../cuda/classes.cuh")),
    ("common.cuh", include_str!("../cuda/common.cuh")),
    ("epilogue.cuh", include_str!("../cuda/epilogue.cuh")),
    ("fragments.cuh", include_str!("../cuda/fragments.cuh")),
    ("hopper.cuh", include_str!("../cuda/hopper.cuh")),
    ("keys.cuh", include_str!("../cuda/keys.cuh")),
    ("matrices.cuh", include_str!("../cuda/matrices.cuh")),
    ("overlap.cuh", include_str!("../cuda/overlap.cuh")),
    ("philox.cuh", include_str!("../cuda/philox.cuh")),
    ("rows.cuh", include_str!("../cuda/rows.cuh")),
    ("runs.cuh", include_str!("../cuda/runs.cuh")),
    ("token_lanes.cuh", include_str!("../cuda/token_lanes.cuh")),
    ("token_tiles.cuh", include_str!("../cuda/token_tiles.cuh")),
    ("window.cuh", include_str!("../cuda/window.cuh")),
];

/// A text of kernels, with its macros, and the names of those that are compiled: the others are
/// left out, as code generation is most of what compiling takes. Equal texts are compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelText {
    pub(crate) file: &'static str,
    pub(crate) source: &'static str,
    pub(crate) macros: Vec<(&'static str, String)>,
    pub(crate) kernels: BTreeSet<&'static str>,
    /// Whether it has instructions that later architectures do not.
    pub(crate) is_specific: bool,
}

impl KernelText {
    pub(crate) fn new(file: &'static str, source: &'static str) -> Self {
        Self {
            file,
            source,
            macros: Vec::new(),
            kernels: BTreeSet::new(),
            is_specific: false,
        }
    }

    /// Compiles it for the device's architecture alone, with all features of that.
    pub(crate) fn specific(mut self) -> Self {
        self.is_specific = true;
        self
    }

    /// Compiles those of its kernels.
    pub(crate) fn of_kernels(mut self, kernels: BTreeSet<&'static str>) -> Self {
        self.kernels = kernels;
        self
    }

    /// Defines a macro.
    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.macros.push((name, value.to_string()));
        self
    }

    /// Defines a macro as the C++ type of elements.
    pub(crate) fn with_type(self, name: &'static str, dtype: Dtype) -> Self {
        self.with(name, c_type(dtype))
    }
}

/// The C++ type whose only property is its size: elements that are moved.
pub(crate) fn unit_type(bytes: u64) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "Bytes16",
    }
}

/// The C++ type of elements in memory; `common.cuh` defines those that C++ lacks.
pub(crate) fn c_type(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "double",
        Dtype::F32 => "float",
        Dtype::F16 => "Half",
        Dtype::Bf16 => "Bfloat",
        Dtype::F8E4m3 => "Float8e4m3",
        Dtype::F8E5m2 => "Float8e5m2",
        Dtype::I8 => "signed char",
        Dtype::I16 => "short",
        Dtype::I32 => "int",
        Dtype::I64 => "long long",
        Dtype::U8 => "unsigned char",
        Dtype::U16 => "unsigned short",
        Dtype::U32 => "unsigned int",
        Dtype::U64 => "unsigned long long",
        Dtype::Bool => "Bool",
    }
}

/// The C++ type in which elements are computed.
pub(crate) fn computed_type(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "double",
        dtype if dtype.is_float() => "float",
        Dtype::Bool => "unsigned char",
        dtype => c_type(dtype),
    }
}

/// Everything that is compiled, so that what is kept of its speed is dropped when it changes.
const SOURCES: [&str; 44] = [
    include_str!("../cuda/algebra.cu"),
    include_str!("../cuda/attention.cu"),
    include_str!("../cuda/block_product.cu"),
    include_str!("../cuda/block_rows.cu"),
    include_str!("../cuda/boxes.cu"),
    include_str!("../cuda/causal_convolution.cu"),
    include_str!("../cuda/choice.cu"),
    include_str!("../cuda/copy.cu"),
    include_str!("../cuda/ctc.cu"),
    include_str!("../cuda/draw.cu"),
    include_str!("../cuda/eigen.cu"),
    include_str!("../cuda/expert.cu"),
    include_str!("../cuda/fft.cu"),
    include_str!("../cuda/flash_attention.cu"),
    include_str!("../cuda/gemv.cu"),
    include_str!("../cuda/head_inputs.cu"),
    include_str!("../cuda/index.cu"),
    include_str!("../cuda/jacobi.cu"),
    include_str!("../cuda/linear_loss.cu"),
    include_str!("../cuda/loss.cu"),
    include_str!("../cuda/maths.cu"),
    include_str!("../cuda/multiply.cu"),
    include_str!("../cuda/norm.cu"),
    include_str!("../cuda/optimise.cu"),
    include_str!("../cuda/pairs.cu"),
    include_str!("../cuda/patch.cu"),
    include_str!("../cuda/place.cu"),
    include_str!("../cuda/quantise.cu"),
    include_str!("../cuda/random.cu"),
    include_str!("../cuda/recurrence.cu"),
    include_str!("../cuda/sample.cu"),
    include_str!("../cuda/scan.cu"),
    include_str!("../cuda/segment.cu"),
    include_str!("../cuda/select.cu"),
    include_str!("../cuda/sequence_attention.cu"),
    include_str!("../cuda/skinny.cu"),
    include_str!("../cuda/sort.cu"),
    include_str!("../cuda/sparse.cu"),
    include_str!("../cuda/tensor.cu"),
    include_str!("../cuda/token_attention.cu"),
    include_str!("../cuda/token_product.cu"),
    include_str!("../cuda/warpgroup.cu"),
    include_str!("../cuda/warpgroup_attention.cu"),
    include_str!("../cuda/window.cu"),
];

/// A number that changes with any text of the kernels.
pub fn fingerprint() -> u64 {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hasher = DefaultHasher::new();
    let headers = HEADERS.iter().map(|(_, text)| *text);
    for text in headers.chain(SOURCES) {
        hasher.write(text.as_bytes());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_covers_every_file() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda");
        let mut texts: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
            .collect();
        let headers = HEADERS.iter().map(|(_, text)| *text);
        let mut known: Vec<&str> = headers.chain(SOURCES).collect();
        texts.sort();
        known.sort_unstable();
        assert_eq!(known, texts);
    }

    #[test]
    fn each_kernel_of_several_in_a_text_can_be_compiled_alone() {
        for text in SOURCES {
            let lines: Vec<&str> = text.lines().collect();
            let begins = |line: &&&str| line.contains("__global__");
            if lines.iter().filter(begins).count() < 2 {
                continue;
            }
            let mut guards = Vec::new();
            for (at, line) in lines.iter().enumerate() {
                match line.split_once(' ') {
                    Some(("#ifdef" | "#ifndef" | "#if", what)) => guards.push(what),
                    _ if *line == "#endif" => drop(guards.pop()),
                    _ => (),
                }
                if !line.contains("__global__") {
                    continue;
                }
                let of_kernels = guards.iter().filter_map(|it| it.strip_prefix("KERNEL_"));
                let [name] = of_kernels.collect::<Vec<_>>()[..] else {
                    panic!("{line} is in {guards:?}");
                };
                let signature = lines[at..].iter().take(3);
                let begins = |line: &&str| line.contains(&format!("{name}("));
                assert!(
                    signature.copied().any(|line| begins(&line)),
                    "{line} is in {name}"
                );
            }
        }
    }
}
