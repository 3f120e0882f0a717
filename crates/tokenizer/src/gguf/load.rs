//! Reading of a tokenizer from the metadata of a GGUF file.

use std::collections::BTreeSet;

use fercuda_modelfile::{Gguf, GgufArray, GgufKind, GgufValue};

use super::bpe::MergeTable;
use super::split::WordSplitter;
use super::unigram::UnigramModel;
use super::wpm::WordPieceNormal;
use super::{Framing, GgufModel, GgufTokenizer};
use crate::alphabet::{ByteAlphabet, byte_of};
use crate::ends::{generation_end_texts, without_inner_ends, without_text_ends};
use crate::error::{Result, TokenizerError};
use crate::special::{SpecialMatcher, SpecialToken};
use crate::vocabulary::{LONGEST, TextOrder, TokenKind, Vocabulary};

const HINT: &str = "a GGUF file that llama.cpp's converter has written";
/// Bytes of all texts: places in them are u32.
const TEXT_BYTES: usize = 1 << 30;

/// Typed access to the keys of a file.
struct TokenizerKeys<'a, B> {
    file: &'a Gguf<B>,
}

impl<'a, B: AsRef<[u8]>> TokenizerKeys<'a, B> {
    fn get(&self, name: &str) -> Option<GgufValue<'a>> {
        self.file.get(&format!("tokenizer.ggml.{name}"))
    }

    fn key(name: &str) -> String {
        format!("tokenizer.ggml.{name}")
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let wrong = || TokenizerError::of_type(&Self::key(name), value.kind(), "a UTF-8 string");
        value.as_str().map(Some).ok_or_else(wrong)
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(GgufValue::Bool(it)) => Ok(Some(it)),
            Some(other) => Err(TokenizerError::of_type(
                &Self::key(name),
                other.kind(),
                "a boolean",
            )),
        }
    }

    fn array(&self, name: &str, kinds: &[GgufKind]) -> Result<Option<GgufArray<'a>>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let array = value.as_array().filter(|it| kinds.contains(&it.kind()));
        let wrong = || {
            let found = value.as_array().map_or(value.kind(), |it| it.kind());
            TokenizerError::of_type(&Self::key(name), found, &format!("an array of {kinds:?}"))
        };
        array.map(Some).ok_or_else(wrong)
    }

    /// A token's id where the file has one within the vocabulary, else this one.
    fn id(&self, name: &str, default: Option<u32>, tokens: usize) -> Option<u32> {
        let within = |id: &u32| (*id as usize) < tokens;
        let named = self.get(&format!("{name}_token_id"));
        let named = named.and_then(|it| it.as_u64()?.try_into().ok());
        named.filter(within).or(default.filter(within))
    }
}

/// Reads the tokenizer of a file.
pub(crate) fn load<B: AsRef<[u8]>>(file: &Gguf<B>) -> Result<GgufTokenizer> {
    let keys = TokenizerKeys { file };
    let model = keys
        .text("model")?
        .ok_or_else(|| TokenizerError::absent("tokenizer.ggml.model"))?;
    let (model, pre) = match model {
        "gpt2" => ("gpt2", keys.text("pre")?.unwrap_or("default")),
        "gemma4" => ("gpt2", "gemma4"),
        "llama" | "t5" | "bert" => (model, ""),
        other => {
            return Err(TokenizerError::Unsupported {
                what: format!(
                    "the tokenizer {other:?} (tokenizer.ggml.model) is not known; gpt2, gemma4, \
                     llama, t5 and bert are"
                ),
                hint: "the model's tokenizer.json",
            });
        }
    };
    let bpe = match model {
        "gpt2" => Some(WordSplitter::named(pre)?),
        _ => None,
    };
    let is_byte_level = bpe.as_ref().is_some_and(|it| it.1.is_byte_level);
    let mut vocabulary = vocabulary(&keys, is_byte_level)?;
    let count = vocabulary.len();
    let adds =
        |name: &str, default| Ok::<bool, TokenizerError>(keys.flag(name)?.unwrap_or(default));
    let default = |id: u32| Some(id);
    let (bos, eos, unknown, adds_bos, adds_eos) = match (&bpe, model) {
        (Some((_, traits)), _) => {
            let plain = Some(11).filter(|_| pre != "gemma4");
            let bos = plain.filter(|_| !traits.has_no_bos);
            (bos, plain, None, traits.adds_bos, false)
        }
        (_, "llama") => (default(1), default(2), default(0), true, false),
        (_, "t5") => (None, default(1), default(2), false, true),
        _ => (default(101), None, default(100), true, false),
    };
    vocabulary.unknown = keys.id("unknown", unknown, count);
    let is_gemma4 = bpe.as_ref().is_some_and(|it| it.1.keeps_newlines);
    let mut ends = Framing {
        bos: keys.id("bos", bos, count),
        eos: keys.id("eos", eos, count),
        // Files of Gemma 4 deny it, and the model needs it.
        adds_bos: adds("add_bos_token", adds_bos)? || is_gemma4,
        adds_eos: adds("add_eos_token", adds_eos)?,
        separator: None,
        generation_ends: Vec::new(),
    };
    if model == "bert" {
        ends.adds_bos = true;
        ends.adds_eos = false;
        ends.separator = keys.id("seperator", Some(102), count);
    }
    // Before anything is made of the texts: what is a control token now is found no more.
    ends.generation_ends = generation_ends(&keys, &mut vocabulary, &ends);
    vocabulary.order = TextOrder::new(&vocabulary.table);
    let model = match bpe {
        Some((splitter, traits)) => {
            let merges = Box::new(merges(&keys, &vocabulary, traits.is_byte_level)?);
            GgufModel::Bpe {
                splitter,
                traits,
                merges,
            }
        }
        None => plain_model(&keys, model, &vocabulary)?,
    };
    let specials = specials(&keys, &vocabulary)?;
    Ok(GgufTokenizer {
        vocabulary,
        model,
        specials,
        ends,
    })
}

fn plain_model<B: AsRef<[u8]>>(
    keys: &TokenizerKeys<'_, B>,
    model: &str,
    vocabulary: &Vocabulary,
) -> Result<GgufModel> {
    let flag = |name, default| Ok::<bool, TokenizerError>(keys.flag(name)?.unwrap_or(default));
    Ok(match model {
        "llama" => GgufModel::Spm {
            adds_space_prefix: flag("add_space_prefix", true)?,
        },
        "t5" => {
            let bytes = [GgufKind::I8, GgufKind::U8];
            let characters = keys.array("precompiled_charsmap", &bytes)?;
            let characters = characters.map_or(&[][..], |it| it.bytes());
            let mut model = UnigramModel::new(vocabulary, characters)?;
            model.adds_space_prefix = flag("add_space_prefix", false)?;
            model.merges_spaces = flag("remove_extra_whitespaces", false)?;
            GgufModel::Unigram(model)
        }
        _ => {
            let lowers = flag("normalizer.lowercase", true)?;
            let strips_accents = flag("normalizer.strip_accents", lowers)?;
            GgufModel::WordPiece(WordPieceNormal {
                lowers,
                strips_accents,
            })
        }
    })
}

/// Tokens with their kinds and scores.
fn vocabulary<B: AsRef<[u8]>>(
    keys: &TokenizerKeys<'_, B>,
    is_byte_level: bool,
) -> Result<Vocabulary> {
    let texts = keys
        .array("tokens", &[GgufKind::String])?
        .ok_or_else(|| TokenizerError::absent("tokenizer.ggml.tokens"))?;
    let count = texts.len();
    if texts.bytes().len() > TEXT_BYTES {
        let what = format!("{count} tokens of {} bytes", texts.bytes().len());
        return Err(TokenizerError::malformed(what, HINT));
    }
    let per_token = |name: &str, kinds: &[GgufKind]| {
        let array = keys.array(name, kinds)?;
        match array {
            Some(array) if array.len() < count => {
                let what = format!("tokenizer.ggml.{name} has {} of {count}", array.len());
                Err(TokenizerError::malformed(what, HINT))
            }
            array => Ok(array),
        }
    };
    let kinds = per_token("token_type", &[GgufKind::I32, GgufKind::U32])?;
    let scores = per_token("scores", &[GgufKind::F32, GgufKind::I32])?;
    let mut kinds = kinds.map(|it| it.iter());
    let mut scores = scores.map(|it| it.iter());
    let mut vocabulary = Vocabulary {
        byte_tokens: vec![None; 256],
        ..Vocabulary::default()
    };
    let alphabet = ByteAlphabet::new();
    for (id, text) in texts.iter().enumerate() {
        let GgufValue::String(piece) = text else {
            continue;
        };
        let kind = kinds.as_mut().and_then(Iterator::next);
        let kind = kind.map_or(1, |it| it.as_u64().unwrap_or(0));
        let kind = TokenKind::of_number(kind);
        let score = scores.as_mut().and_then(Iterator::next);
        let score = match score {
            Some(GgufValue::F32(it)) => it,
            Some(GgufValue::I32(it)) => it as f32,
            _ => 0.0,
        };
        let is_text = !kind.is_control() && kind != TokenKind::Byte && !piece.is_empty();
        let spelled = is_byte_level && !matches!(kind, TokenKind::UserDefined) && is_text;
        let bytes = spelled.then(|| alphabet.bytes(piece)).flatten();
        let bytes = bytes.as_deref().unwrap_or(piece);
        vocabulary.pieces.push(piece, true);
        vocabulary.table.push(bytes, is_text);
        vocabulary.kinds.push(kind);
        vocabulary
            .scores
            .push(if score.is_nan() { 0.0 } else { score });
        if is_text {
            vocabulary.longest = vocabulary.longest.max(bytes.len()).min(LONGEST);
        }
        match byte_of(piece) {
            Some(byte) if !is_byte_level && !kind.is_control() => {
                vocabulary.byte_tokens[usize::from(byte)] = Some(id as u32);
            }
            _ => {}
        }
    }
    for byte in 0..=255_u8 {
        let token = &mut vocabulary.byte_tokens[usize::from(byte)];
        *token = token.or(vocabulary.table.find(&[byte]));
    }
    Ok(vocabulary)
}

/// Merges: two texts with a space between them.
fn merges<B: AsRef<[u8]>>(
    keys: &TokenizerKeys<'_, B>,
    vocabulary: &Vocabulary,
    is_byte_level: bool,
) -> Result<MergeTable> {
    let merges = keys.array("merges", &[GgufKind::String])?;
    let Some(merges) = merges else {
        // Ranks by id, as of tiktoken's files, come without merges.
        return Err(TokenizerError::absent("tokenizer.ggml.merges"));
    };
    if merges.bytes().len() > TEXT_BYTES {
        let what = format!("{} bytes of merges", merges.bytes().len());
        return Err(TokenizerError::malformed(what, HINT));
    }
    let alphabet = ByteAlphabet::new();
    let bytes = |text: &[u8]| match is_byte_level {
        true => alphabet.bytes(text).unwrap_or_else(|| text.to_vec()),
        false => text.to_vec(),
    };
    let pairs = merges.iter().filter_map(|it| {
        let GgufValue::String(merge) = it else {
            return None;
        };
        // The first text may begin with a space itself.
        let space = merge.iter().skip(1).position(|it| *it == b' ')? + 1;
        Some((bytes(&merge[..space]), bytes(&merge[space + 1..])))
    });
    Ok(MergeTable::new(vocabulary, pairs))
}

/// Marks tokens that end a generation as control tokens, and lists them.
fn generation_ends<B: AsRef<[u8]>>(
    keys: &TokenizerKeys<'_, B>,
    vocabulary: &mut Vocabulary,
    ends: &Framing,
) -> Vec<u32> {
    let count = vocabulary.len();
    let find = |text: &str| vocabulary.pieces.find(text.as_bytes());
    let mut found: BTreeSet<u32> = generation_end_texts().filter_map(find).collect();
    without_text_ends(&mut found, find);
    for id in &found {
        vocabulary.make_control(*id);
    }
    for name in ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
        found.extend(keys.id(name, None, count));
    }
    found.extend(ends.eos);
    let find = |text: &str| vocabulary.pieces.find(text.as_bytes());
    without_inner_ends(&mut found, find);
    found.into_iter().collect()
}

fn specials<B: AsRef<[u8]>>(
    keys: &TokenizerKeys<'_, B>,
    vocabulary: &Vocabulary,
) -> Result<SpecialMatcher> {
    let general = |name: &str| {
        let text = keys.file.get(&format!("general.{name}"));
        text.and_then(|it| it.as_str()).unwrap_or("").to_lowercase()
    };
    let pre = keys.text("pre")?.unwrap_or("");
    // What the files lack: of these models whitespace beside some tokens is theirs.
    let is_phi3 = ["phi-3", "phi3"]
        .iter()
        .any(|it| general("name").contains(it));
    let strips_mask = ["jina-v2-de", "jina-v2-es", "jina-v2-code"].contains(&pre)
        || ["nomic-bert-moe", "jina-bert-v3"].contains(&&*general("architecture"));
    let is_modern = general("name").contains("modern-bert");
    let mut specials = Vec::new();
    for (id, kind) in vocabulary.kinds.iter().enumerate() {
        if !kind.is_control() && *kind != TokenKind::UserDefined {
            continue;
        }
        let text = vocabulary.pieces.text(id as u32);
        let is_plain = [&b"<unk>"[..], b"<s>", b"<|endoftext|>"].contains(&text);
        let token = SpecialToken {
            id: id as u32,
            is_control: kind.is_control(),
            strips_left: (strips_mask && text == b"<mask>") || (is_modern && text == b"[MASK]"),
            strips_right: is_phi3 && !is_plain,
        };
        specials.push((token, text));
    }
    SpecialMatcher::new(&specials)
}
