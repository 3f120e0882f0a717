//! Models written again: as GGUF or safetensors, with other element types.
//!
//! A plan says of each weight which type it will have; writing reads, decodes and encodes a part of
//! a tensor at a time, so that memory holds no more than one packed weight.
//!
//! Names and the order of elements stay those of the source: a GGUF file made of a checkpoint in
//! safetensors files has its names, and none of the metadata that programs of llama.cpp need.

use std::io::Write;
use std::thread;

use fercuda_tensor::{BlockFormat, Dtype};

use crate::error::{Error, Result};
use crate::gguf::{GgufBuilder, GgufValue};
use crate::kinds::TensorType;
use crate::model::{ModelFile, StoredTensor};

/// Elements that a thread decodes and encodes at a time, at least a row.
const PART: usize = 1 << 18;

/// Which weights of a model will be of which type.
#[derive(Clone, Debug)]
pub struct RewritePlan {
    tensors: Vec<PlannedTensor>,
    /// The requested type of matrices.
    requested: Option<TensorType>,
}

/// A weight of a plan.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// Its name, here and there.
    pub name: String,
    /// The outermost dimension first.
    pub shape: Vec<u64>,
    /// The type that its tensor has; `None` of a weight of several tensors.
    pub from: Option<TensorType>,
    /// The type that it will have.
    pub to: TensorType,
}

impl PlannedTensor {
    /// Bytes that it will have.
    pub fn bytes(&self) -> u64 {
        let elements = self.shape.iter().product();
        self.to.bytes_of(elements).unwrap_or(0)
    }
}

/// The type that takes a K-quant's or a ternary format's place where rows are no whole blocks of
/// 256: llama.cpp's, but for Q2_K and Q3_K, for which that has IQ4_NL, which is not encoded here.
fn fallback(format: BlockFormat) -> BlockFormat {
    match format {
        BlockFormat::Q4_K => BlockFormat::Q5_0,
        BlockFormat::Q5_K => BlockFormat::Q5_1,
        BlockFormat::Q6_K | BlockFormat::Q8_K => BlockFormat::Q8_0,
        _ => BlockFormat::Q4_0,
    }
}

/// The type for rows of this length: the requested one, one with smaller blocks, or F16.
fn fitting(requested: TensorType, row: u64) -> TensorType {
    let TensorType::Block(format) = requested else {
        return requested;
    };
    let candidates = [format, fallback(format)].map(TensorType::Block);
    let mut candidates = candidates.into_iter();
    let found = candidates.find(|it| row.is_multiple_of(it.block_elements()));
    found.unwrap_or(TensorType::Scalar(Dtype::F16))
}

/// Whether a weight is a matrix that takes part in products, and no choice of experts.
fn is_quantised(name: &str, shape: &[u64]) -> bool {
    let is_kept = ["norm", "gate_inp", ".router", "position_embd", "ssm_conv1d"];
    shape.len() >= 2 && !is_kept.iter().any(|part| name.contains(part)) && name.ends_with("weight")
}

impl RewritePlan {
    /// Quantises matrices; vectors, norms and routers become F32.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type that cannot be encoded; those of reading shapes.
    pub fn quantised(model: &ModelFile, requested: TensorType) -> Result<RewritePlan> {
        check_encodable(requested)?;
        let plan = |name: &str, shape: &[u64], from: Option<TensorType>| {
            let is_integer = matches!(from, Some(TensorType::Scalar(it)) if !it.is_float());
            match is_quantised(name, shape) {
                _ if is_integer => None,
                true => Some(fitting(requested, shape.last().copied().unwrap_or(1))),
                false => Some(TensorType::Scalar(Dtype::F32)),
            }
        };
        Self::of(model, Some(requested), plan)
    }

    /// Keeps types, or makes all floats and blocks `requested`. Weights of several tensors become
    /// `requested` too, F16 without.
    ///
    /// # Errors
    /// As of [`RewritePlan::quantised`].
    pub fn converted(model: &ModelFile, requested: Option<TensorType>) -> Result<RewritePlan> {
        if let Some(requested) = requested {
            check_encodable(requested)?;
        }
        let packed = requested.unwrap_or(TensorType::Scalar(Dtype::F16));
        let plan = |_: &str, shape: &[u64], from: Option<TensorType>| {
            let row = shape.last().copied().unwrap_or(1);
            match from {
                None => Some(fitting(packed, row)),
                Some(TensorType::Scalar(dtype)) if !dtype.is_float() => None,
                Some(_) => requested.map(|it| fitting(it, row)),
            }
        };
        Self::of(model, None, plan)
    }

    fn of(
        model: &ModelFile,
        requested: Option<TensorType>,
        plan: impl Fn(&str, &[u64], Option<TensorType>) -> Option<TensorType>,
    ) -> Result<RewritePlan> {
        let mut tensors = Vec::new();
        for name in model.weight_names() {
            let (shape, from) = match model.plain_tensor(&name) {
                Some(tensor) => (tensor.shape, Some(tensor.kind)),
                None => (model.read_weight(&name)?.shape, None),
            };
            let to = plan(&name, &shape, from);
            let kept = from.unwrap_or(TensorType::Scalar(Dtype::F32));
            tensors.push(PlannedTensor {
                to: to.unwrap_or(kept),
                name,
                shape,
                from,
            });
        }
        Ok(RewritePlan { tensors, requested })
    }

    /// The weights in order.
    pub fn tensors(&self) -> &[PlannedTensor] {
        &self.tensors
    }

    /// Bytes of all weights as they will be.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(PlannedTensor::bytes).sum()
    }

    /// Writes a GGUF file, with the metadata of the first file if that is one. `written` gets the
    /// number of a tensor's bytes after each part.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for what GGUF does not take, and for elements that are infinite or no
    /// number where a block format is to have them; [`Error::Io`] of `path`, which stands for `to`.
    pub fn write_gguf(
        &self,
        model: &ModelFile,
        to: &mut dyn Write,
        path: &std::path::Path,
        mut written: impl FnMut(u64),
    ) -> Result<()> {
        let mut builder = GgufBuilder::new();
        self.set_metadata(model, &mut builder)?;
        for tensor in &self.tensors {
            builder.add_tensor(&tensor.name, tensor.to, &tensor.shape)?;
        }
        let failed = failed_write(path);
        let mut writer = builder.start(to).map_err(&failed)?;
        for tensor in &self.tensors {
            encode(model, tensor, &mut |bytes| {
                writer.write(bytes).map_err(&failed)?;
                written(bytes.len() as u64);
                Ok(())
            })?;
        }
        writer.finish().map_err(&failed)?;
        Ok(())
    }

    fn set_metadata(&self, model: &ModelFile, builder: &mut GgufBuilder) -> Result<()> {
        let Some(file) = model.gguf() else {
            return Ok(());
        };
        let number = self.requested.and_then(file_type);
        for (key, value) in file.metadata() {
            // A model is one file afterwards, with the usual alignment.
            let is_dropped = key.starts_with(b"split.")
                || key == b"general.alignment"
                || key.is_empty()
                || (key == b"general.file_type" && self.requested.is_some())
                || (key == b"general.quantization_version" && self.requested.is_some());
            if !is_dropped {
                builder.set(key, &value)?;
            }
        }
        if self.requested.is_some() {
            builder.set(b"general.quantization_version", &GgufValue::U32(2))?;
        }
        if let Some(number) = number {
            builder.set(b"general.file_type", &GgufValue::U32(number))?;
        }
        Ok(())
    }

    /// Writes a safetensors file, as [`RewritePlan::write_gguf`] a GGUF file.
    ///
    /// # Errors
    /// [`Error::Mismatch`] also for block formats, which such files do not have.
    pub fn write_safetensors(
        &self,
        model: &ModelFile,
        to: &mut dyn Write,
        path: &std::path::Path,
        mut written: impl FnMut(u64),
    ) -> Result<()> {
        let mut header = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
        let mut offset = 0;
        for tensor in &self.tensors {
            if let TensorType::Block(format) = tensor.to {
                let what = format!("tensor {:?} is of {format}, of blocks", tensor.name);
                return Err(Error::mismatch(
                    what,
                    "--type F16, BF16 or F32, or a .gguf file",
                ));
            }
            let end = offset + tensor.bytes();
            let description = serde_json::json!({
                "dtype": tensor.to.name(),
                "shape": tensor.shape,
                "data_offsets": [offset, end],
            });
            header += &format!(",{}:{description}", serde_json::json!(tensor.name));
            offset = end;
        }
        header.push('}');
        header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
        let failed = failed_write(path);
        to.write_all(&(header.len() as u64).to_le_bytes())
            .map_err(&failed)?;
        to.write_all(header.as_bytes()).map_err(&failed)?;
        for tensor in &self.tensors {
            encode(model, tensor, &mut |bytes| {
                to.write_all(bytes).map_err(&failed)?;
                written(bytes.len() as u64);
                Ok(())
            })?;
        }
        to.flush().map_err(&failed)
    }
}

fn failed_write(path: &std::path::Path) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io {
        action: "write",
        path: path.to_owned(),
        source,
    }
}

fn check_encodable(kind: TensorType) -> Result<()> {
    let can = match kind {
        TensorType::Block(format) => format.has_encoder(),
        TensorType::Scalar(dtype) => dtype.is_float(),
        TensorType::Narrow(_) => false,
    };
    match can {
        true => Ok(()),
        false => Err(Error::unsupported(
            format!("{kind} is not encoded"),
            "F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, Q4_0 or another block format but IQ",
        )),
    }
}

/// llama.cpp's number of models whose matrices are mostly of a type.
fn file_type(kind: TensorType) -> Option<u32> {
    use BlockFormat as F;
    Some(match kind {
        TensorType::Scalar(Dtype::F32) => 0,
        TensorType::Scalar(Dtype::F16) => 1,
        TensorType::Scalar(Dtype::Bf16) => 32,
        TensorType::Block(F::Q4_0) => 2,
        TensorType::Block(F::Q4_1) => 3,
        TensorType::Block(F::Q8_0) => 7,
        TensorType::Block(F::Q5_0) => 8,
        TensorType::Block(F::Q5_1) => 9,
        TensorType::Block(F::Q2_K) => 10,
        TensorType::Block(F::Q3_K) => 11,
        TensorType::Block(F::Q4_K) => 14,
        TensorType::Block(F::Q5_K) => 16,
        TensorType::Block(F::Q6_K) => 18,
        TensorType::Block(F::TQ1_0) => 36,
        TensorType::Block(F::TQ2_0) => 37,
        TensorType::Block(F::NVFP4) => 39,
        TensorType::Block(F::Q1_0) => 40,
        _ => return None,
    })
}

/// Where the elements come from.
enum WeightSource<'a> {
    Stored(StoredTensor<'a>),
    Values(Vec<f32>),
}

/// Hands the bytes of a weight as it will be to `sink`, part by part.
fn encode(
    model: &ModelFile,
    tensor: &PlannedTensor,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let source = match model.plain_tensor(&tensor.name) {
        Some(stored) if stored.kind == tensor.to => return sink(stored.bytes),
        Some(stored) => WeightSource::Stored(stored),
        None => WeightSource::Values(model.read_weight(&tensor.name)?.values),
    };
    let elements = tensor.shape.iter().product::<u64>() as usize;
    // Blocks do not cross rows, so whole rows are whole blocks of either type.
    let row = tensor.shape.last().map_or(1, |it| (*it as usize).max(1));
    let part = row * (PART / row).max(1);
    let threads = thread::available_parallelism().map_or(1, |it| it.get());
    let mut first = 0;
    while first < elements {
        let until = elements.min(first + part * threads);
        let encoded = thread::scope(|scope| {
            let parts = (first..until).step_by(part).map(|from| {
                let source = &source;
                scope.spawn(move || encode_part(source, tensor, from, until.min(from + part)))
            });
            let parts: Vec<_> = parts.collect();
            let joined = parts.into_iter().map(|part| part.join());
            joined.collect::<Vec<_>>()
        });
        for part in encoded {
            match part {
                Ok(bytes) => sink(&bytes?)?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        first = until;
    }
    Ok(())
}

fn encode_part(
    source: &WeightSource<'_>,
    tensor: &PlannedTensor,
    from: usize,
    until: usize,
) -> Result<Vec<u8>> {
    let mut decoded = Vec::new();
    let values = match source {
        WeightSource::Values(values) => &values[from..until],
        WeightSource::Stored(stored) => {
            let place = |at: usize| stored.kind.bytes_of(at as u64).unwrap_or(0) as usize;
            decoded.resize(until - from, 0.0);
            stored
                .kind
                .decode(&stored.bytes[place(from)..place(until)], &mut decoded)?;
            &decoded
        }
    };
    if matches!(tensor.to, TensorType::Block(_))
        && let Some(at) = values.iter().position(|it| !it.is_finite())
    {
        let what = format!(
            "element {} of {:?} is {}, which {} cannot have",
            from + at,
            tensor.name,
            values[at],
            tensor.to
        );
        return Err(Error::mismatch(
            what,
            "--type F16, or a source without such elements",
        ));
    }
    let bytes = tensor.to.bytes_of(values.len() as u64).unwrap_or(0);
    let mut encoded = vec![0; bytes as usize];
    tensor.to.encode(values, &mut encoded)?;
    Ok(encoded)
}
