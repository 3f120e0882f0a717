//! Files of LoRA adapters: a folder that PEFT has saved, or a GGUF file.
//!
//! Invariant: of each matrix that is named there are both factors, of one rank. Elsewhere: the
//! comparison with a model (`adapters`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fercuda_modelfile::{Gguf, ModelFile, StoredTensor};

use crate::error::{LlmError, unsupported};
use crate::peft_config::PeftConfig;

type Result<T> = std::result::Result<T, LlmError>;

/// Where a PEFT folder has its tensors.
const PEFT_TENSORS: &str = "adapter_model.safetensors";
/// Where it has its configuration.
const PEFT_CONFIG: &str = "adapter_config.json";
/// What names there begin with.
const PEFT_PREFIX: &str = "base_model.model.";
/// What stands there before the layers.
const LAYERS: [&str; 4] = [
    "model.layers.",
    "model.language_model.layers.",
    "language_model.model.layers.",
    "layers.",
];

/// Modules of checkpoints, and the names of their matrices in GGUF files.
const MODULES: [(&str, &str); 12] = [
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
];

/// Which rows of queries and keys are turned together, of a model whose converter permutes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// Those that are half a head apart, as in checkpoints.
    Halves,
    /// Neighbours, as in files of llama.cpp.
    Adjacent,
}

/// One of the two factors of what is added to a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoraFactor {
    A,
    B,
}

/// Two factors, whose product is added to a matrix.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoraPair {
    /// Names of `[rank, inputs]` and of `[outputs, rank]` in the file.
    names: [String; 2],
    pub(crate) rank: u64,
    /// By what the product is multiplied.
    pub(crate) scale: f64,
}

/// A matrix: its layer, and its name in GGUF files.
pub(crate) type MatrixName = (u64, String);

/// An adapter's files, parsed and checked.
#[derive(Debug)]
pub struct AdapterFile {
    path: PathBuf,
    file: ModelFile,
    /// Of the model that it is for, if the file says so.
    pub(crate) architecture: Option<String>,
    pub(crate) order: RowOrder,
    pub(crate) pairs: BTreeMap<MatrixName, LoraPair>,
}

/// A name, cut where it is long: a file may have anything there.
pub(crate) fn cut(name: &str) -> String {
    match name.char_indices().nth(100) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name.to_owned(),
    }
}

/// The place and the factor of a tensor of PEFT, and the name of its module in the model.
fn of_peft(name: &str) -> Result<(MatrixName, LoraFactor, &str)> {
    let unknown = |what: &str| {
        let modules: Vec<&str> = MODULES.iter().map(|(there, _)| *there).collect();
        unsupported(
            format!("the adapter has {:?}: {what}", cut(name)),
            format!(
                "an adapter of matrices of layers alone: {}",
                modules.join(", ")
            ),
        )
    };
    let rest = name.strip_prefix(PEFT_PREFIX).unwrap_or(name);
    if rest.contains("lora_embedding_") {
        return Err(unknown("adapters of embeddings are not supported"));
    }
    if rest.contains("lora_magnitude_vector") {
        return Err(unknown("DoRA is not supported"));
    }
    // PEFT leaves out the adapter's name in files; other programs do not.
    let is_end = |end: &str| matches!(end, ".weight" | ".default.weight");
    let split = |factor: &str| {
        let (module, end) = rest.split_once(factor)?;
        is_end(end).then_some(module)
    };
    let (module, factor) = match (split(".lora_A"), split(".lora_B")) {
        (Some(module), None) => (module, LoraFactor::A),
        (None, Some(module)) => (module, LoraFactor::B),
        _ => return Err(unknown("it is no factor of a matrix")),
    };
    let in_layers = LAYERS.iter().find_map(|it| module.strip_prefix(it));
    let Some((layer, part)) = in_layers.and_then(|it| it.split_once('.')) else {
        return Err(unknown("it is of no layer"));
    };
    let Ok(layer) = layer.parse::<u64>() else {
        return Err(unknown("its layer is no number"));
    };
    match MODULES.iter().find(|(there, _)| *there == part) {
        Some((_, own)) => Ok(((layer, (*own).to_owned()), factor, module)),
        None => Err(unknown("its module is not supported")),
    }
}

/// The place and the factor of a tensor of a GGUF file.
fn of_gguf(name: &str) -> Result<(MatrixName, LoraFactor)> {
    let unknown = |what: &str| {
        unsupported(
            format!("the adapter has {:?}: {what}", cut(name)),
            "an adapter of matrices of layers alone, as attn_q, attn_output or ffn_down",
        )
    };
    let split = |end: &str| name.strip_suffix(end);
    let (place, factor) = match (split(".weight.lora_a"), split(".weight.lora_b")) {
        (Some(place), _) => (place, LoraFactor::A),
        (_, Some(place)) => (place, LoraFactor::B),
        _ => return Err(unknown("it is no factor of a matrix")),
    };
    let in_layers = place.strip_prefix("blk.").and_then(|it| it.split_once('.'));
    let Some((layer, part)) = in_layers else {
        return Err(unknown("it is of no layer"));
    };
    match layer.parse::<u64>() {
        Ok(layer) => Ok(((layer, part.to_owned()), factor)),
        Err(_) => Err(unknown("its layer is no number")),
    }
}

/// Factors while they are found.
#[derive(Debug, Default)]
struct FoundPairs(BTreeMap<MatrixName, [Option<FoundFactor>; 2]>);

/// A factor: its name, its shape, and its module in a checkpoint.
type FoundFactor = (String, [u64; 2], String);

impl FoundPairs {
    fn add(
        &mut self,
        (place, factor): (MatrixName, LoraFactor),
        tensor: &StoredTensor<'_>,
        module: &str,
    ) -> Result<()> {
        let name = tensor.name.as_ref();
        let &[rows, columns] = tensor.shape.as_slice() else {
            let what = format!("{:?} is {:?}, and no matrix", cut(name), tensor.shape);
            return Err(unsupported(what, "another file: this one is damaged"));
        };
        let slot = &mut self.0.entry(place).or_default()[factor as usize];
        if let Some((other, ..)) = slot {
            let what = format!("{:?} and {:?} are for one matrix", cut(other), cut(name));
            return Err(unsupported(what, "one adapter in a file"));
        }
        *slot = Some((name.to_owned(), [rows, columns], module.to_owned()));
        Ok(())
    }

    /// The pairs, with the scale of each by its module in a checkpoint and its rank.
    fn pairs(
        self,
        scale: impl Fn(&str, u64) -> Result<f64>,
    ) -> Result<BTreeMap<MatrixName, LoraPair>> {
        let mut all = BTreeMap::new();
        for (place, found) in self.0 {
            let (a, b) = match found {
                [Some(a), Some(b)] => (a, b),
                [a, b] => {
                    let name = a.or(b).map(|it| it.0).unwrap_or_default();
                    let what = format!("{:?} is there without its other factor", cut(&name));
                    return Err(unsupported(what, "another file: this one is damaged"));
                }
            };
            let (rank, width) = (a.1[0], b.1[1]);
            if rank != width || rank == 0 {
                let what = format!(
                    "{:?} has {rank} rows, {:?} {width} columns",
                    cut(&a.0),
                    cut(&b.0)
                );
                return Err(unsupported(what, "factors of one rank, 1 at least"));
            }
            let pair = LoraPair {
                scale: scale(&a.2, rank)?,
                names: [a.0, b.0],
                rank,
            };
            all.insert(place, pair);
        }
        match all.is_empty() {
            false => Ok(all),
            true => Err(unsupported(
                "the adapter changes no matrix",
                "the folder or the file that the training has saved",
            )),
        }
    }
}

impl AdapterFile {
    /// Opens a folder with adapter_config.json and adapter_model.safetensors, that
    /// safetensors file, or a GGUF file.
    ///
    /// # Errors
    /// [`LlmError::File`]; [`LlmError::Model`] of what is no LoRA adapter or of a kind that is not
    /// supported: DoRA, biases, modules that are saved whole, embeddings.
    pub fn open(path: &Path) -> Result<Self> {
        let is_gguf = path.extension().is_some_and(|it| it == "gguf");
        let folder = match path.is_dir() {
            true => path,
            false => path.parent().unwrap_or(Path::new("")),
        };
        let config = folder.join(PEFT_CONFIG);
        if !is_gguf && config.is_file() {
            let config = PeftConfig::read(&config)?;
            let tensors = match path.is_dir() {
                true => path.join(PEFT_TENSORS),
                false => path.to_owned(),
            };
            if path.is_dir() && !tensors.is_file() {
                return Err(unsupported(
                    format!("{} does not have {PEFT_TENSORS}", path.display()),
                    "save_pretrained of PEFT, which writes it; pickles are not read",
                ));
            }
            return Self::peft(path, ModelFile::open(&tensors)?, &config);
        }
        let file = ModelFile::open(path)?;
        let Some(gguf) = file.gguf() else {
            let what = format!("there is no {PEFT_CONFIG} beside {}", path.display());
            return Err(unsupported(what, "the folder that PEFT has saved"));
        };
        let (architecture, alpha) = described(gguf)?;
        Self::gguf(path, file, (architecture, alpha))
    }

    fn peft(path: &Path, file: ModelFile, config: &PeftConfig) -> Result<Self> {
        let mut found = FoundPairs::default();
        for tensor in file.tensors() {
            let (place, factor, module) = of_peft(&tensor.name)?;
            found.add((place, factor), &tensor, module)?;
        }
        let pairs = found.pairs(|module, rank| config.scale(module, rank))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            architecture: None,
            order: RowOrder::Halves,
            pairs,
        })
    }

    fn gguf(path: &Path, file: ModelFile, (architecture, alpha): (String, f64)) -> Result<Self> {
        let mut found = FoundPairs::default();
        for tensor in file.tensors() {
            found.add(of_gguf(&tensor.name)?, &tensor, "")?;
        }
        // As llama.cpp computes it.
        let scale = |rank: u64| match alpha == 0.0 {
            true => 1.0,
            false => alpha / rank as f64,
        };
        let pairs = found.pairs(|_, rank| Ok(scale(rank)))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            architecture: Some(architecture),
            order: RowOrder::Adjacent,
            pairs,
        })
    }

    /// The largest rank of its matrices.
    pub fn rank(&self) -> u64 {
        self.pairs.values().map(|it| it.rank).max().unwrap_or(0)
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The factors of a pair as the file has them: `[rank, inputs]` and `[outputs, rank]`.
    pub(crate) fn factors(&self, pair: &LoraPair) -> Result<[StoredTensor<'_>; 2]> {
        let [a, b] = &pair.names;
        Ok([self.file.tensor(a)?, self.file.tensor(b)?])
    }
}

/// The architecture and alpha of a GGUF file.
fn described<B: AsRef<[u8]>>(file: &Gguf<B>) -> Result<(String, f64)> {
    let text = |key: &str| file.get(key).and_then(|it| it.as_str().map(str::to_owned));
    let is = |key: &str, wanted: &str| match text(key) {
        Some(own) if own == wanted => Ok(()),
        own => {
            let own = own.map_or("absent".to_owned(), |it| format!("{:?}", cut(&it)));
            let what = format!("{key} is {own}, not {wanted:?}: the file is no LoRA adapter");
            let advice = "a file that convert_lora_to_gguf.py of llama.cpp has written";
            Err(unsupported(what, advice))
        }
    };
    is("general.type", "adapter")?;
    is("adapter.type", "lora")?;
    let of_some_tokens = "adapter.alora.invocation_tokens";
    if file.get(of_some_tokens).is_some() {
        let what = format!("{of_some_tokens} is there: the adapter begins behind some tokens");
        return Err(unsupported(what, "an adapter of all tokens"));
    }
    let Some(architecture) = text("general.architecture") else {
        return Err(unsupported(
            "the adapter does not have general.architecture",
            "a file that convert_lora_to_gguf.py of llama.cpp has written",
        ));
    };
    let alpha = file.get("adapter.lora.alpha").and_then(|it| it.as_f64());
    match alpha.filter(|it| it.is_finite()) {
        Some(alpha) => Ok((architecture, alpha)),
        None => Err(unsupported(
            "adapter.lora.alpha is absent or no number",
            "a file that convert_lora_to_gguf.py of llama.cpp has written",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_kinds_are_the_same_matrices() {
        let wanted = (7, "attn_q".to_owned());
        for name in [
            "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight",
            "base_model.model.model.layers.7.self_attn.q_proj.lora_A.default.weight",
            "base_model.model.model.language_model.layers.7.self_attn.q_proj.lora_A.weight",
        ] {
            let (place, factor, module) = of_peft(name).unwrap();
            assert_eq!((place, factor), (wanted.clone(), LoraFactor::A));
            assert!(module.ends_with("layers.7.self_attn.q_proj"));
        }
        let own = of_gguf("blk.7.attn_q.weight.lora_b").unwrap();
        assert_eq!(own, (wanted, LoraFactor::B));
        for name in [
            "base_model.model.lm_head.lora_A.weight",
            "base_model.model.model.embed_tokens.lora_embedding_A",
            "base_model.model.model.layers.x.self_attn.q_proj.lora_A.weight",
            "base_model.model.model.layers.0.self_attn.rotary.lora_A.weight",
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.bias",
            "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
            "",
        ] {
            assert!(of_peft(name).is_err(), "{name}");
            assert!(of_gguf(name).is_err(), "{name}");
        }
    }
}
