//! Kernel parameters as declared in PTX, and validation of `--arg`s against them.
//!
//! Invariant: arguments that pass [`KernelSignature::accept`] match the parameters in number,
//! size and kind (integer, float, address).

use std::fmt;

use anyhow::{Result, bail};
use fercuda_ptx::ast::{Directive, Item, PtxFunction, PtxModule, Var};
use fercuda_ptx::words::ScalarType;
use fercuda_tensor::Dtype;

use super::spec::ArgSpec;
use super::symbols::{self, NameMatch};
use crate::terminal;

/// A kernel that the module defines.
#[derive(Debug)]
pub(crate) struct KernelSignature {
    /// As the PTX spells it; C++ names are mangled.
    pub symbol: String,
    /// Its name for people, demangled.
    pub name: String,
    pub params: Vec<KernelParam>,
    /// Most threads per block, if the kernel declares it.
    pub most_threads: Option<u64>,
}

/// One parameter.
#[derive(Debug)]
pub(crate) struct KernelParam {
    /// As the PTX spells it: `.u64`, `.b8[24]`.
    pub declared: String,
    pub size: u64,
    nature: ParamKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParamKind {
    Integer,
    Float,
    /// `.bN` and arrays: any bits.
    Bits,
}

/// Finds the kernel called `name`.
///
/// # Errors
/// Lists the module's kernels, the closest name first.
pub(crate) fn find(module: &PtxModule, name: Option<&str>) -> Result<KernelSignature> {
    let kernels: Vec<KernelSignature> = module
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Function(function) if function.entry && function.body.is_some() => {
                Some(kernel(module, function))
            }
            _ => None,
        })
        .collect();
    if kernels.is_empty() {
        bail!(
            "the module defines no kernel\ntry: declare one `extern \"C\" __global__ void name(...)`, or `.visible .entry` in PTX"
        );
    }
    let Some(name) = name else {
        if kernels.len() == 1 {
            return Ok(kernels.into_iter().next().unwrap_or_else(|| unreachable!()));
        }
        bail!(
            "which kernel? the module defines{}\ntry: --kernel NAME",
            list(&kernels)
        );
    };
    let fits = |kernel: &KernelSignature| NameMatch::of(name, &kernel.symbol);
    if let Some(best) = kernels.iter().filter_map(fits).min() {
        let mut fitting: Vec<KernelSignature> = kernels
            .into_iter()
            .filter(|kernel| NameMatch::of(name, &kernel.symbol) == Some(best))
            .collect();
        return match fitting.pop() {
            Some(kernel) if fitting.is_empty() => Ok(kernel),
            last => {
                fitting.extend(last);
                bail!(
                    "{name:?} is the name of {}{}\ntry: --kernel with the whole name of one",
                    terminal::count(fitting.len(), "kernel"),
                    list(&fitting)
                )
            }
        };
    }
    let names: Vec<String> = kernels.iter().map(KernelSignature::short_name).collect();
    let hint = match terminal::closest(name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {near}?"),
        None => "try: --kernel with one of these".to_owned(),
    };
    bail!(
        "no kernel {name:?}; the module defines{}\n{hint}",
        list(&kernels)
    )
}

/// The kernels, a line each.
fn list(kernels: &[KernelSignature]) -> String {
    let lines = kernels.iter().map(|kernel| format!("\n  {kernel}"));
    lines.collect()
}

fn kernel(module: &PtxModule, function: &PtxFunction) -> KernelSignature {
    let product = |wanted: &str| {
        function
            .directives
            .iter()
            .find_map(|directive| match directive {
                Directive::Numbers(word, numbers) if word == wanted => {
                    Some(numbers.iter().map(|&n| u64::from(n)).product())
                }
                _ => None,
            })
    };
    let symbol = module.symbols.name(function.name);
    KernelSignature {
        symbol: symbol.to_owned(),
        name: symbols::demangled(symbol).unwrap_or_else(|| symbol.to_owned()),
        params: function.params.iter().map(param).collect(),
        most_threads: product("maxntid").or_else(|| product("reqntid")),
    }
}

fn param(var: &Var) -> KernelParam {
    let (size, nature) = scalar(var.ty);
    let count: u64 = var.dims.iter().map(|dim| dim.unwrap_or(1)).product();
    let mut declared = format!(".{}", var.ty.text());
    if !var.dims.is_empty() {
        declared.push_str(&format!("[{count}]"));
    }
    KernelParam {
        declared,
        size: size * count,
        nature: if var.dims.is_empty() {
            nature
        } else {
            ParamKind::Bits
        },
    }
}

fn scalar(ty: ScalarType) -> (u64, ParamKind) {
    match ty {
        ScalarType::U8 | ScalarType::S8 => (1, ParamKind::Integer),
        ScalarType::U16 | ScalarType::S16 => (2, ParamKind::Integer),
        ScalarType::U32 | ScalarType::S32 => (4, ParamKind::Integer),
        ScalarType::U64 | ScalarType::S64 => (8, ParamKind::Integer),
        ScalarType::F32 => (4, ParamKind::Float),
        ScalarType::F64 => (8, ParamKind::Float),
        ScalarType::B8 | ScalarType::E4m3 | ScalarType::E5m2 => (1, ParamKind::Bits),
        ScalarType::B16 | ScalarType::F16 | ScalarType::Bf16 => (2, ParamKind::Bits),
        ScalarType::B64 => (8, ParamKind::Bits),
        ScalarType::B128 => (16, ParamKind::Bits),
        _ => (4, ParamKind::Bits),
    }
}

impl fmt::Display for KernelSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        // A demangled name has the parameters' types in C++ already.
        f.write_str(if self.is_mangled() { " takes (" } else { "(" })?;
        for (at, param) in self.params.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{}", param.declared)?;
        }
        f.write_str(")")
    }
}

impl KernelSignature {
    /// Whether the PTX has another name for it than its source.
    pub(crate) fn is_mangled(&self) -> bool {
        self.name != self.symbol
    }

    /// Its name without parameters.
    fn short_name(&self) -> String {
        symbols::name_of(&self.symbol).unwrap_or_else(|| self.symbol.clone())
    }

    /// Checks that the arguments fit the parameters.
    ///
    /// # Errors
    /// Names the first argument that does not fit, with both sizes.
    pub(crate) fn accept(&self, args: &[ArgSpec]) -> Result<()> {
        if args.len() != self.params.len() {
            let missing: Vec<String> = self.params[args.len().min(self.params.len())..]
                .iter()
                .map(KernelParam::example)
                .collect();
            bail!(
                "kernel {} takes {}, given {}\n  {self}\n{}",
                self.name,
                terminal::count(self.params.len(), "argument"),
                args.len(),
                if missing.is_empty() {
                    format!("try: without the last {}", args.len() - self.params.len())
                } else {
                    format!("try: add --arg {}", missing.join(" --arg "))
                }
            );
        }
        for (at, (arg, param)) in args.iter().zip(&self.params).enumerate() {
            let refuse = |why: &str| {
                bail!(
                    "argument {} is {arg}: {why}\n  {self}\ntry: --arg {} in its place",
                    at + 1,
                    param.example()
                )
            };
            let (size, nature) = match arg {
                ArgSpec::Buffer(_) => (8, ParamKind::Integer),
                ArgSpec::Bytes(bytes) => (bytes.len() as u64, ParamKind::Bits),
                ArgSpec::Scalar { dtype, bytes } => (bytes.len() as u64, nature_of(*dtype)),
            };
            if size != param.size {
                let what = if matches!(arg, ArgSpec::Buffer(_)) {
                    "an address of 8 bytes".to_owned()
                } else {
                    terminal::count(size as usize, "byte")
                };
                return refuse(&format!(
                    "{what}, but the kernel takes {} ({})",
                    param.declared,
                    terminal::count(param.size as usize, "byte")
                ));
            }
            if nature != param.nature
                && nature != ParamKind::Bits
                && param.nature != ParamKind::Bits
            {
                return refuse(&format!(
                    "the same size as {}, but another kind",
                    param.declared
                ));
            }
        }
        Ok(())
    }
}

fn nature_of(dtype: Dtype) -> ParamKind {
    match dtype {
        Dtype::F32 | Dtype::F64 => ParamKind::Float,
        // PTX declares the small floats as bits, and a bool as an integer of any kind.
        _ if dtype.is_float() || dtype == Dtype::Bool => ParamKind::Bits,
        _ => ParamKind::Integer,
    }
}

impl KernelParam {
    /// An `--arg` that would fit.
    fn example(&self) -> String {
        match (self.nature, self.size) {
            (ParamKind::Float, 4) => "f32:1.0".to_owned(),
            (ParamKind::Float, _) => "f64:1.0".to_owned(),
            (_, 8) if !self.declared.contains('[') => "buf:f32[1024]=iota".to_owned(),
            (ParamKind::Integer, 4) => "u32:1024".to_owned(),
            (ParamKind::Integer, size) => format!("u{}:1", 8 * size),
            (ParamKind::Bits, size) => format!("bytes:{}", "00".repeat(size.min(16) as usize)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)\n\
        .maxntid 256, 1, 1\n{ ret; }\n\
        .visible .entry _Z4axpyf(.param .align 4 .b8 s[12]) { ret; }\n\
        .visible .entry _Z4copyIfEvPT_(.param .u64 x) { ret; }\n\
        .visible .entry _Z4copyIdEvPT_(.param .u64 x) { ret; }\n";

    fn refusal(kernel: Option<&str>, args: &[&str]) -> String {
        let module = fercuda_ptx::parse(MODULE).unwrap();
        let kernel = match find(&module, kernel) {
            Ok(kernel) => kernel,
            Err(error) => return format!("{error:#}"),
        };
        let args: Vec<ArgSpec> = args.iter().map(|arg| arg.parse().unwrap()).collect();
        match kernel.accept(&args) {
            Ok(()) => "accepted".to_owned(),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn fitting_arguments_are_accepted() {
        let args = ["f32:2", "buf:f32[4]", "out:f32[4]", "u32:4"];
        assert_eq!(refusal(Some("saxpy"), &args), "accepted");
        let bytes = ["bytes:000000000000000000000000"];
        assert_eq!(refusal(Some("_Z4axpyf"), &bytes), "accepted");
    }

    #[test]
    fn a_declared_thread_limit_is_read() {
        let module = fercuda_ptx::parse(MODULE).unwrap();
        let saxpy = find(&module, Some("saxpy")).unwrap();
        assert_eq!(saxpy.most_threads, Some(256));
        assert_eq!(saxpy.to_string(), "saxpy(.f32, .u64, .u64, .u32)");
    }

    #[test]
    fn too_few_arguments_are_refused_with_those_to_add() {
        let text = refusal(Some("saxpy"), &["f32:2"]);
        assert!(text.contains("takes 4 arguments, given 1"), "{text}");
        assert!(text.ends_with("--arg u32:1024"), "{text}");
    }

    #[test]
    fn a_wrong_size_or_kind_is_refused_with_both_values() {
        let wide = ["f64:2", "buf:f32[4]", "out:f32[4]", "u32:4"];
        let text = refusal(Some("saxpy"), &wide);
        assert!(
            text.contains("argument 1 is f64:2: 8 bytes, but the kernel takes .f32 (4 bytes)"),
            "{text}"
        );
        let integer = ["u32:2", "buf:f32[4]", "out:f32[4]", "u32:4"];
        assert!(refusal(Some("saxpy"), &integer).contains("but another kind"));
        let buffer = ["f32:2", "buf:f32[4]", "out:f32[4]", "buf:u32[4]"];
        assert!(refusal(Some("saxpy"), &buffer).contains("an address of 8 bytes"));
    }

    #[test]
    fn a_kernel_is_found_by_its_demangled_name_if_only_one_has_it() {
        let module = fercuda_ptx::parse(MODULE).unwrap();
        for (given, symbol) in [
            ("axpy", "_Z4axpyf"),
            ("axpy(float)", "_Z4axpyf"),
            ("_Z4copyIfEvPT_", "_Z4copyIfEvPT_"),
            ("copy<double>", "_Z4copyIdEvPT_"),
            ("copy<float>(float *)", "_Z4copyIfEvPT_"),
        ] {
            let found = find(&module, Some(given)).map(|kernel| kernel.symbol);
            assert_eq!(found.unwrap(), symbol, "{given}");
        }
        let text = refusal(Some("copy"), &[]);
        assert_eq!(
            text,
            "\"copy\" is the name of 2 kernels\n  copy<float>(float*) takes (.u64)\n  \
             copy<double>(double*) takes (.u64)\ntry: --kernel with the whole name of one"
        );
    }

    #[test]
    fn an_unknown_kernel_is_refused_with_the_closest_name() {
        assert!(refusal(Some("saxby"), &[]).ends_with("did you mean saxpy?"));
        assert!(refusal(Some("saxpi"), &[]).contains("\n  axpy(float) takes (.b8[12])\n"));
        assert!(refusal(None, &[]).contains("which kernel?"));
    }
}
