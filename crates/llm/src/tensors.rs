//! Tensors of a model by their names in GGUF files, whatever the files are.

use std::borrow::Cow;
use std::collections::HashSet;

use fercuda_modelfile::{ModelFile, StoredTensor, TensorType};
use fercuda_tensor::Dtype;

use crate::config::{ExpertConfig, ModelConfig};
use crate::error::{LlmError, unsupported};
use crate::expert_tensors::{ExpertTensors, is_multiplied};
use crate::file_matrix::FileMatrix;
pub(crate) use crate::file_matrix::MatrixFormat;
use crate::model::ExpertPart;

type Result<T> = std::result::Result<T, LlmError>;

/// The tensors of a model's files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelTensors<'a> {
    file: &'a ModelFile,
    config: &'a ModelConfig,
}

impl<'a> ModelTensors<'a> {
    pub(crate) fn of(file: &'a ModelFile, config: &'a ModelConfig) -> Self {
        Self { file, config }
    }

    pub(crate) fn config(&self) -> &'a ModelConfig {
        self.config
    }

    /// The name in the files.
    fn name(&self, name: &str) -> String {
        let there = self.config.checkpoint.as_ref();
        let there = there.and_then(|it| it.name(self.file, name));
        there.unwrap_or_else(|| name.to_owned())
    }

    /// What `of` gives of the experts that a checkpoint's tensor is of, if it is of experts; with
    /// the matrix, and the end of the tensor's name.
    fn with_experts<T>(
        &self,
        name: &str,
        of: impl FnOnce(&ExpertTensors<'a, '_>, ExpertPart, &str) -> T,
    ) -> Option<T> {
        let checkpoint = self.config.checkpoint.as_ref()?;
        let (layer, part, end) = checkpoint.spec.expert_part(name)?;
        let experts = ExpertTensors {
            file: self.file,
            names: checkpoint.spec.experts?,
            layer: &format!("{}layers.{layer}.", checkpoint.prefix),
            count: self.config.experts?.count,
        };
        Some(of(&experts, part, end))
    }

    /// Whether the model has a tensor. A head that a checkpoint's configuration ties to the
    /// embedding is none of its own.
    pub(crate) fn has(&self, name: &str) -> bool {
        let checkpoint = self.config.checkpoint.as_ref();
        let of_experts = self.with_experts(name, |experts, part, end| match end {
            "bias" => experts.has_bias(part),
            _ => experts.has(part),
        });
        match (of_experts, checkpoint) {
            (Some(is_there), _) => is_there,
            (None, Some(own)) if name == "output.weight" => !own.is_tied,
            _ => self.file.has_weight(&self.name(name)),
        }
    }

    /// The experts of a layer, if it has some instead of one gated unit.
    pub(crate) fn experts_of(&self, layer: u64) -> Option<ExpertConfig> {
        let has = |part: &str| self.has(&format!("blk.{layer}.{part}.weight"));
        let is_without_unit = self.config.feed_forward == 0;
        let has_experts =
            |_: &ExpertConfig| is_without_unit || has("ffn_gate_inp") || !has("ffn_down");
        self.config.experts.filter(has_experts)
    }

    /// The error of a tensor that the model does not have.
    pub(crate) fn missing(&self, name: &str) -> LlmError {
        let of_experts = self.with_experts(name, |experts, part, _| experts.missing(part));
        self.not_there(&of_experts.unwrap_or_else(|| self.name(name)))
    }

    /// The error of a tensor that the files do not have under that name.
    fn not_there(&self, there: &str) -> LlmError {
        let architecture = &self.config.architecture;
        match self.config.checkpoint {
            Some(_) => unsupported(
                format!("the files do not have {there}, which {architecture} needs"),
                "all files of the model, as its authors publish them",
            ),
            None => unsupported(
                format!("the file does not have {there}, which {architecture} needs"),
                "a file with all tensors of its architecture, as a current converter writes it",
            ),
        }
    }

    /// Checks that no tensor of a layer of a GGUF file is left, which would change what the model
    /// computes. Those of frequencies are read elsewhere, or follow from the metadata.
    pub(crate) fn check_read(&self, read: &HashSet<String>) -> Result<()> {
        if self.config.checkpoint.is_some() {
            return Ok(());
        }
        let layer_of = |name: &str| {
            let number = name.strip_prefix("blk.")?.split('.').next()?;
            number.parse::<u64>().ok()
        };
        let is_left = |name: &str| {
            let of_layer = layer_of(name).is_some_and(|it| it < self.config.layers);
            of_layer
                && !read.contains(name)
                && !name.contains("rope_")
                && !name.contains("rot_embd")
        };
        match self.file.tensors().find(|it| is_left(&it.name)) {
            Some(left) => {
                let architecture = &self.config.architecture;
                Err(unsupported(
                    format!(
                        "the file has {}, which {architecture} is computed without here",
                        left.name
                    ),
                    "another file of the model",
                ))
            }
            None => Ok(()),
        }
    }

    /// Replaces the error of a tensor that is not there.
    fn found<T>(&self, there: &str, read: fercuda_modelfile::Result<T>) -> Result<T> {
        read.map_err(|error| match error {
            fercuda_modelfile::Error::NoTensor { .. } => self.not_there(there),
            error => error.into(),
        })
    }

    fn tensor(&self, name: &str) -> Result<StoredTensor<'a>> {
        self.tensor_there(&self.name(name))
    }

    fn tensor_there(&self, there: &str) -> Result<StoredTensor<'a>> {
        self.found(there, self.file.tensor(there))
    }

    /// Extent of the first dimension.
    pub(crate) fn first_extent(&self, name: &str) -> Result<u64> {
        let tensor = self.tensor(name)?;
        Ok(tensor.shape.first().copied().unwrap_or_default())
    }

    /// A vector's elements.
    pub(crate) fn floats(&self, name: &str, length: u64) -> Result<Vec<f32>> {
        let of_experts = self.with_experts(name, |experts, part, _| match experts.has_bias(part) {
            true => experts.biases(part, length / experts.count),
            false => Err(self.missing(name)),
        });
        if let Some(biases) = of_experts {
            return biases;
        }
        let tensor = self.tensor(name)?;
        if tensor.elements() != length {
            let what = format!(
                "{} has {} elements, not {length}",
                tensor.name,
                tensor.elements()
            );
            return Err(unsupported(what, "another file: this one is damaged"));
        }
        Ok(tensor.decode()?)
    }

    /// A matrix of so many inputs, and outputs, if they are known; or one of each expert.
    pub(crate) fn matrices(
        &self,
        name: &str,
        experts: Option<u64>,
        inputs: u64,
        outputs: Option<u64>,
    ) -> Result<FileMatrix<'a>> {
        let of_experts = self.with_experts(name, |experts, part, _| {
            let outputs = outputs.unwrap_or_default();
            if !experts.has(part) {
                return Err(self.missing(name));
            }
            if experts.separate(part, 0).is_none() {
                return experts.matrices(part, inputs, outputs);
            }
            let names = (0..experts.count).filter_map(|it| experts.separate(part, it));
            let all = names.map(|it| self.stored(&it, None, inputs, Some(outputs)));
            experts.together(all.collect::<Result<_>>()?)
        });
        match of_experts {
            Some(all) => all,
            None => self.stored(&self.name(name), experts, inputs, outputs),
        }
    }

    /// The same of the tensors that the files call `there`.
    fn stored(
        &self,
        there: &str,
        experts: Option<u64>,
        inputs: u64,
        outputs: Option<u64>,
    ) -> Result<FileMatrix<'a>> {
        // Outputs of each.
        let check = |shape: &[u64]| {
            let own = match (experts, shape) {
                (None, &[own, width]) if width == inputs => own,
                (Some(experts), &[all, own, width]) if (all, width) == (experts, inputs) => own,
                _ => 0,
            };
            if own > 0 && outputs.is_none_or(|it| it == own) {
                return Ok(own);
            }
            let wanted = outputs.map_or("any".to_owned(), |it| it.to_string());
            let of = experts.map_or(String::new(), |it| format!("{it}, "));
            let what = format!("{there} is {shape:?}, not [{of}{wanted}, {inputs}]");
            Err(unsupported(what, "another file: this one is damaged"))
        };
        let count = experts.unwrap_or(1);
        let plain = |dtype, bytes, outputs| FileMatrix {
            pieces: vec![bytes],
            format: MatrixFormat::Plain(dtype),
            dtype,
            experts: count,
            outputs,
            row: inputs,
        };
        let checkpoint = self.config.checkpoint.as_ref();
        match self.tensor_there(there) {
            Ok(tensor) => match tensor.kind {
                TensorType::Scalar(dtype) if is_multiplied(dtype) => {
                    let own = check(&tensor.shape)?;
                    return Ok(plain(dtype, Cow::Borrowed(tensor.bytes), own));
                }
                TensorType::Block(format) => {
                    let own = check(&tensor.shape)?;
                    return Ok(FileMatrix {
                        row: tensor.bytes.len() as u64 / (own * count),
                        pieces: vec![Cow::Borrowed(tensor.bytes)],
                        format: MatrixFormat::Blocks(format),
                        dtype: Dtype::U8,
                        experts: count,
                        outputs: own,
                    });
                }
                kind if checkpoint.is_none() => {
                    return Err(unsupported(
                        format!("{there} has elements of {kind}"),
                        "`fercuda model quantize` to another type",
                    ));
                }
                _ => {}
            },
            Err(error) if checkpoint.is_none() => return Err(error),
            Err(_) => {}
        }
        // Checkpoints spread a quantised weight over several tensors.
        let weight = self.found(there, self.file.read_weight(there))?;
        let own = check(&weight.shape)?;
        let dtype = self.unpacked();
        let kind = TensorType::Scalar(dtype);
        let mut bytes = vec![0; weight.values.len() * dtype.bytes() as usize];
        kind.encode(&weight.values, &mut bytes)?;
        Ok(plain(dtype, Cow::Owned(bytes), own))
    }

    /// The type of what is unpacked.
    fn unpacked(&self) -> Dtype {
        let checkpoint = self.config.checkpoint.as_ref();
        checkpoint.map_or(Dtype::F32, |it| it.unpacked)
    }

    /// Types of matrices that are narrower than f32, as they lie in device memory.
    pub(crate) fn narrow_types(&self) -> Vec<Dtype> {
        let mut all = Vec::new();
        for tensor in self.file.tensors().filter(|it| it.shape.len() > 1) {
            let dtype = match tensor.kind {
                TensorType::Scalar(dtype) if is_multiplied(dtype) => dtype,
                _ => self.unpacked(),
            };
            if dtype != Dtype::F32 && !all.contains(&dtype) {
                all.push(dtype);
            }
        }
        all
    }

    /// Bytes that the weights need on the device.
    pub(crate) fn bytes(&self) -> u64 {
        let Some(checkpoint) = &self.config.checkpoint else {
            return self.file.tensors().map(|it| it.bytes.len() as u64).sum();
        };
        let config = self.config;
        // Numbers of a file that lies may be of any size.
        let whole = |number: u64| u128::from(number);
        let lengths = whole(config.key_length) + whole(config.value_length);
        let gates = match config.spec.has_attention_gate {
            true => whole(config.heads) * whole(config.value_length),
            false => 0,
        };
        let heads = (whole(config.heads) + whole(config.shared_heads)) * lengths + gates;
        let recurrent = config
            .recurrence
            .as_ref()
            .map_or(0, |it| it.projected() + it.values());
        let attention_layers = whole(config.attention_layers());
        let mixers =
            attention_layers * heads + (whole(config.layers) - attention_layers) * whole(recurrent);
        let [units, of_experts] = self.unit_sizes(checkpoint.unpacked);
        let vocabulary = self.first_extent("token_embd.weight").unwrap_or_default();
        let matrices = if checkpoint.is_tied { 1 } else { 2 };
        let beside = whole(vocabulary) * whole(config.hidden) * matrices;
        let size = self.matrices_type().unwrap_or(checkpoint.unpacked).bytes();
        let all = (whole(config.hidden) * mixers + units + beside) * whole(size) + of_experts;
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Elements of the gated units of a checkpoint's layers that all tokens are multiplied by, and
    /// bytes of those of experts.
    fn unit_sizes(&self, unpacked: Dtype) -> [u128; 2] {
        let config = self.config;
        let whole = |number: u64| u128::from(number);
        let each = |inner: u64| 3 * whole(inner) * whole(config.hidden);
        let (mut units, mut of_experts) = (0, 0);
        for layer in 0..config.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let has_experts = config.experts.filter(|_| self.has(&name("ffn_gate_inp")));
            let Some(ExpertConfig {
                count,
                feed_forward,
                shared,
                ..
            }) = has_experts
            else {
                units += each(config.feed_forward);
                continue;
            };
            units += whole(count) * whole(config.hidden);
            if self.has(&name("ffn_gate_shexp")) {
                units += each(shared);
            }
            let elements = whole(count) * each(feed_forward);
            let part = name("ffn_down_exps");
            let bytes = self.with_experts(&part, |experts, part, _| {
                experts.bytes_of(part, elements, unpacked)
            });
            of_experts += bytes.unwrap_or_default();
        }
        [units, of_experts]
    }

    /// The type of a checkpoint's matrices, by those of the first layer.
    fn matrices_type(&self) -> Option<Dtype> {
        let parts = ["ffn_up", "attn_output", "ssm_out"];
        let mut names = parts.iter().map(|it| format!("blk.0.{it}.weight"));
        let found = names.find(|it| self.file.has_weight(&self.name(it)))?;
        self.matrix_type(&found)
    }

    /// The type of a matrix that lies as it is in device memory.
    pub(crate) fn matrix_type(&self, name: &str) -> Option<Dtype> {
        match self.file.tensor(&self.name(name)).ok()?.kind {
            TensorType::Scalar(dtype) if is_multiplied(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// Reads the tensors of a layer from the disk in advance, while others are uploaded.
    pub(crate) fn prefetch(&self, layer: u64) {
        let begin = self.name(&format!("blk.{layer}.attn_norm.weight"));
        let Some((begin, _)) = begin
            .split_once(&format!(".{layer}."))
            .map(|(begin, rest)| (format!("{begin}.{layer}."), rest))
        else {
            return;
        };
        self.file.prefetch(&begin);
    }
}
