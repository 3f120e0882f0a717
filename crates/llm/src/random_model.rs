//! Models with random weights: the shapes of real ones, for tests and measurements.
//!
//! Their texts are random too; times and memory are those of a real model.

use std::io::Write;

use fercuda_modelfile::{GgufBuilder, GgufKind, GgufValue, TensorType};
use fercuda_tensor::Dtype;

use crate::error::{LlmError, unsupported};

type Result<T> = std::result::Result<T, LlmError>;

/// Elements that are drawn for a matrix; a larger one repeats them.
const DRAWN: u64 = 1 << 22;
/// Texts of the tokens behind those of bytes.
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// How conversations are written, in Jinja.
const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Shape of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Its name on the command line.
    pub name: &'static str,
    /// Name of its architecture in files.
    pub architecture: &'static str,
    /// Number of layers.
    pub layers: u64,
    /// Elements of a token's vector.
    pub hidden: u64,
    /// Heads of queries.
    pub heads: u64,
    /// Heads of keys and values.
    pub shared_heads: u64,
    /// Elements of a head.
    pub head_length: u64,
    /// Elements of the gated unit.
    pub feed_forward: u64,
    /// Number of tokens.
    pub vocabulary: u64,
    /// Positions.
    pub context: u64,
    /// Whether one matrix is for tokens and for logits.
    pub is_tied: bool,
}

/// Shapes that are known by name.
pub const SHAPES: [ModelShape; 5] = [
    ModelShape {
        name: "tiny",
        architecture: "llama",
        layers: 2,
        hidden: 256,
        heads: 4,
        shared_heads: 2,
        head_length: 64,
        feed_forward: 512,
        vocabulary: 512,
        context: 512,
        is_tied: true,
    },
    ModelShape {
        name: "smollm2-135m",
        architecture: "llama",
        layers: 30,
        hidden: 576,
        heads: 9,
        shared_heads: 3,
        head_length: 64,
        feed_forward: 1536,
        vocabulary: 49_152,
        context: 8192,
        is_tied: true,
    },
    ModelShape {
        name: "qwen3-4b",
        architecture: "qwen3",
        layers: 36,
        hidden: 2560,
        heads: 32,
        shared_heads: 8,
        head_length: 128,
        feed_forward: 9728,
        vocabulary: 151_936,
        context: 40_960,
        is_tied: true,
    },
    ModelShape {
        name: "qwen3-8b",
        architecture: "qwen3",
        layers: 36,
        hidden: 4096,
        heads: 32,
        shared_heads: 8,
        head_length: 128,
        feed_forward: 12_288,
        vocabulary: 151_936,
        context: 40_960,
        is_tied: false,
    },
    ModelShape {
        name: "llama3-8b",
        architecture: "llama",
        layers: 32,
        hidden: 4096,
        heads: 32,
        shared_heads: 8,
        head_length: 128,
        feed_forward: 14_336,
        vocabulary: 128_256,
        context: 8192,
        is_tied: false,
    },
];

/// Text of a byte as vocabularies of byte-level pairs write it: printable ones as they are, others
/// behind U+0100.
fn byte_text(byte: u8) -> String {
    let is_own = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = match is_own(byte) {
        true => u32::from(byte),
        false => 256 + (0..byte).filter(|it| !is_own(*it)).count() as u32,
    };
    char::from_u32(code).unwrap_or('?').to_string()
}

impl ModelShape {
    fn matrices(&self) -> Vec<(String, Vec<u64>)> {
        let hidden = self.hidden;
        let of_q = self.heads * self.head_length;
        let of_k = self.shared_heads * self.head_length;
        let mut all = vec![(
            "token_embd.weight".to_owned(),
            vec![self.vocabulary, hidden],
        )];
        for layer in 0..self.layers {
            let mut add = |part: &str, shape: &[u64]| {
                all.push((format!("blk.{layer}.{part}.weight"), shape.to_vec()));
            };
            add("attn_norm", &[hidden]);
            add("attn_q", &[of_q, hidden]);
            add("attn_k", &[of_k, hidden]);
            add("attn_v", &[of_k, hidden]);
            if self.architecture == "qwen3" {
                add("attn_q_norm", &[self.head_length]);
                add("attn_k_norm", &[self.head_length]);
            }
            add("attn_output", &[hidden, of_q]);
            add("ffn_norm", &[hidden]);
            add("ffn_gate", &[self.feed_forward, hidden]);
            add("ffn_up", &[self.feed_forward, hidden]);
            add("ffn_down", &[hidden, self.feed_forward]);
        }
        all.push(("output_norm.weight".to_owned(), vec![hidden]));
        if !self.is_tied {
            all.push(("output.weight".to_owned(), vec![self.vocabulary, hidden]));
        }
        all
    }

    fn describe(&self, file: &mut GgufBuilder) -> Result<()> {
        let text = |text: &'static str| GgufValue::String(text.as_bytes());
        file.set(b"general.architecture", &text(self.architecture))?;
        file.set(b"general.name", &text(self.name))?;
        for (key, number) in [
            ("block_count", self.layers),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.shared_heads),
            ("attention.key_length", self.head_length),
            ("attention.value_length", self.head_length),
            ("context_length", self.context),
        ] {
            let key = format!("{}.{key}", self.architecture);
            file.set(key.as_bytes(), &GgufValue::U32(number as u32))?;
        }
        let epsilon = format!("{}.attention.layer_norm_rms_epsilon", self.architecture);
        file.set(epsilon.as_bytes(), &GgufValue::F32(1e-5))?;
        let base = format!("{}.rope.freq_base", self.architecture);
        file.set(base.as_bytes(), &GgufValue::F32(1e6))?;
        file.set(b"tokenizer.ggml.model", &text("gpt2"))?;
        file.set(b"tokenizer.ggml.pre", &text("gpt-2"))?;
        let bytes = (0..=255).map(byte_text);
        let control = CONTROL.map(str::to_owned);
        let first = 256 + CONTROL.len() as u64;
        let others = (first..self.vocabulary).map(|number| format!("token {number}"));
        let tokens: Vec<String> = bytes.chain(control).chain(others).collect();
        let texts = tokens.iter().map(|it| GgufValue::String(it.as_bytes()));
        file.set_array(b"tokenizer.ggml.tokens", GgufKind::String, texts)?;
        let kinds = (0..tokens.len() as u64).map(|number| match (256..first).contains(&number) {
            true => GgufValue::I32(3),
            false => GgufValue::I32(1),
        });
        file.set_array(b"tokenizer.ggml.token_type", GgufKind::I32, kinds)?;
        file.set_array(b"tokenizer.ggml.merges", GgufKind::String, [])?;
        file.set(b"tokenizer.ggml.eos_token_id", &GgufValue::U32(258))?;
        file.set(b"tokenizer.ggml.bos_token_id", &GgufValue::U32(256))?;
        file.set(b"tokenizer.ggml.add_bos_token", &GgufValue::Bool(false))?;
        file.set(b"tokenizer.chat_template", &text(TEMPLATE))?;
        Ok(())
    }

    /// Writes a model of this shape as GGUF, whose matrices have elements of that type. `progress`
    /// gets the bytes of tensors that are written, and those of all.
    ///
    /// # Errors
    /// [`LlmError::Model`] of a type that rows do not fit or that has no encoder;
    /// [`LlmError::Write`].
    pub fn write(
        &self,
        to: impl Write,
        kind: TensorType,
        seed: u64,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<()> {
        let mut file = GgufBuilder::new();
        self.describe(&mut file)?;
        let vectors = TensorType::Scalar(Dtype::F32);
        let kind_of = |shape: &[u64]| if shape.len() > 1 { kind } else { vectors };
        let matrices = self.matrices();
        let mut all = 0;
        for (name, shape) in &matrices {
            let kind = kind_of(shape);
            file.add_tensor(name, kind, shape)?;
            all += kind.bytes_of(shape.iter().product()).unwrap_or_default();
        }
        let mut random = fastrand::Rng::with_seed(seed);
        let drawn: Vec<f32> = (0..DRAWN).map(|_| 2.0 * random.f32() - 1.0).collect();
        let mut writer = file.start(to)?;
        let mut written = 0;
        let mut encoded: Option<(u64, Vec<u8>)> = None;
        for (_, shape) in &matrices {
            let count: u64 = shape.iter().product();
            let mut left = kind_of(shape).bytes_of(count).unwrap_or_default();
            written += left;
            if shape.len() == 1 {
                let ones: Vec<u8> = (0..count).flat_map(|_| 1f32.to_le_bytes()).collect();
                writer.write(&ones)?;
                continue;
            }
            let width = shape[1];
            if encoded.as_ref().is_none_or(|(own, _)| *own != width) {
                let scale = 1.7 / (width as f32).sqrt();
                let values: Vec<f32> = drawn.iter().map(|it| it * scale).collect();
                encoded = Some((width, encode(kind, &values)?));
            }
            let Some((_, bytes)) = &encoded else {
                continue;
            };
            while left > 0 {
                let part = left.min(bytes.len() as u64);
                writer.write(&bytes[..part as usize])?;
                left -= part;
            }
            progress(written, all);
        }
        writer.finish()?;
        Ok(())
    }
}

fn encode(kind: TensorType, values: &[f32]) -> Result<Vec<u8>> {
    let count = values.len() as u64;
    let Some(bytes) = kind.bytes_of(count) else {
        return Err(unsupported(
            format!("{count} elements are no whole blocks of {kind}"),
            "another type",
        ));
    };
    let mut to = vec![0; bytes as usize];
    kind.encode(values, &mut to)?;
    Ok(to)
}
