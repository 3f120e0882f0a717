//! Vectors of small vocabularies, by both ways to read one.

use std::time::{Duration, Instant};

use fercuda_modelfile::Gguf;
use fercuda_tokenizer::{Special, Tokenizer, TokenizerError};

use crate::support::{NAMES, from_gguf, from_json, gguf_with, ids, json};

/// Names of pre-tokenizers that llama.cpp knows.
const PRE_TOKENIZERS: &str = "\
    a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe \
    command-r dbrx deepseek-coder deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone \
    exaone-moe exaone4 f2llmv2 falcon falcon-h1 falcon3 gemma4 gigachat glm4 glm5 gpt-2 gpt-4o \
    gpt3-finnish granite-docling granite-embed-multi-311m granite-embed-multi-97m grok-2 \
    hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es jina-v1-en jina-v2-code jina-v2-de \
    jina-v2-es jina-v5-nano joyai-llm kanana2 kimi-k2 kormo laguna lfm2 llada-moe llama-bpe \
    llama-v3 llama3 llama4 megrez mellum mellum2 midm-2.0 minerva-7b minicpm5 minimax-m2 \
    modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact roberta-bpe sarvam-moe \
    seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe talkie tekken \
    tiny_aya trillion ufakzeka viking whitespace youtu";

fn stream(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let (mut text, mut said) = (String::new(), 0);
    let mut detokenizer = tokenizer.detokenizer();
    for token in tokens {
        detokenizer.push(*token, &mut text);
        assert!(text.len() >= said);
        said = text.len();
    }
    detokenizer.finish(&mut text);
    assert_eq!(detokenizer.held_bytes(), 0);
    text
}

#[test]
fn tokenizer_json_encodes_and_decodes_as_hugging_face_does() {
    for name in NAMES {
        let tokenizer = from_json(name);
        for vector in json(&format!("{name}.vectors.json")).as_array().unwrap() {
            let decoded = vector["decoded"].as_str().unwrap();
            let Some(text) = vector["text"].as_str() else {
                let tokens = ids(&vector["ids"]);
                let first = tokenizer.piece(tokens[0]).unwrap();
                let has_inner = first.chars().skip(1).any(|it| it == '\u{2581}');
                if (name == "words" && first.starts_with("##")) || (name == "unigram" && has_inner)
                {
                    // Hugging Face shows a first `##`, and drops every space of a first piece.
                    continue;
                }
                assert_eq!(stream(&tokenizer, &tokens), decoded, "{name} {tokens:?}");
                continue;
            };
            let plain = tokenizer.encode_part(text, Special::AsText).unwrap();
            let wanted = ids(&vector["plain"]);
            let is_made = |it: &u32| tokenizer.is_control(*it) && tokenizer.unknown() != Some(*it);
            if wanted.iter().any(is_made) {
                // Of a Unigram model's text Hugging Face makes control tokens, which are pieces.
                assert!(!plain.iter().any(is_made), "{name} {text:?}");
                continue;
            }
            assert_eq!(plain, wanted, "{name} {text:?}");
            let parsed = tokenizer.encode_part(text, Special::Parsed).unwrap();
            assert_eq!(parsed, ids(&vector["parsed"]), "{name} {text:?}");
            assert_eq!(stream(&tokenizer, &plain), decoded, "{name} {text:?}");
            let framed = tokenizer.encode(text, Special::Parsed).unwrap();
            let mut wanted = ids(&vector["framed"]);
            // Hugging Face writes a BOS before one that the text has; there is one here.
            let repeats =
                |it: &[u32]| it.len() > 1 && it[0] == it[1] && tokenizer.is_control(it[0]);
            if name != "words" && repeats(&wanted) {
                wanted.remove(0);
            }
            wanted.reverse();
            if name == "unigram" && repeats(&wanted) {
                wanted.remove(0);
            }
            wanted.reverse();
            assert_eq!(framed, wanted, "{name} {text:?}");
        }
    }
}

#[test]
fn gguf_encodes_as_the_tokenizer_that_it_was_made_of() {
    for name in ["bytes", "words", "unigram"] {
        let tokenizer = from_gguf(name);
        let mut compared = 0;
        for vector in json(&format!("{name}.vectors.json")).as_array().unwrap() {
            let Some(text) = vector["text"].as_str() else {
                continue;
            };
            // The models differ in what they do with spaces in a row, and with none.
            let is_odd = text.contains("  ") || text.ends_with(' ') || text.starts_with(' ');
            let has_special = text.contains("<unk>") || text.contains("<s>") || text.contains("s>");
            let has_special = has_special || text.contains("<|im");
            if name == "unigram" && (is_odd || text.is_empty() || has_special) {
                continue;
            }
            compared += 1;
            let plain = tokenizer.encode_part(text, Special::AsText).unwrap();
            assert_eq!(plain, ids(&vector["plain"]), "{name} {text:?}");
            if name == "bytes" {
                let parsed = tokenizer.encode_part(text, Special::Parsed).unwrap();
                assert_eq!(parsed, ids(&vector["parsed"]), "{name} {text:?}");
                assert_eq!(tokenizer.decode(&plain), vector["decoded"], "{text:?}");
            }
        }
        assert!(compared >= 10, "{name}: {compared}");
    }
}

#[test]
fn merges_by_score_give_back_the_text() {
    let tokenizer = from_gguf("pieces");
    for text in [
        "Hello",
        "the world",
        " two  spaces",
        "中 \u{1f600}\u{301}\0",
        "<0x41>",
        "</s>",
    ] {
        let tokens = tokenizer.encode(text, Special::AsText).unwrap();
        assert_eq!(tokens[0], 1, "a BOS comes first");
        assert!(
            tokens[1..].iter().all(|it| !tokenizer.is_control(*it)),
            "{text:?} {tokens:?}"
        );
        assert_eq!(tokenizer.decode(&tokens), text);
    }
}

#[test]
fn ends_come_once_whoever_writes_them() {
    for tokenizer in [from_gguf("bytes"), from_json("bytes")] {
        let with = tokenizer.encode("<s>hello", Special::Parsed).unwrap();
        let without = tokenizer.encode("hello", Special::Parsed).unwrap();
        assert_eq!(with, without);
        assert_eq!(with.iter().filter(|it| **it == 1).count(), 1);
        let text = tokenizer.encode("<s>hello", Special::AsText).unwrap();
        assert!(text.len() > with.len());
        assert_eq!(tokenizer.bos(), Some(1));
        let ends = ["</s>", "<|im_end|>"].map(|it| tokenizer.token_of_piece(it).unwrap());
        assert_eq!(tokenizer.generation_ends(), ends);
        assert!(ends.iter().all(|it| tokenizer.ends_generation(*it)));
    }
}

#[test]
fn bytes_of_a_run_are_held_until_the_run_ends() {
    let tokenizer = from_gguf("pieces");
    let byte = |it: u8| tokenizer.token_of_piece(&format!("<0x{it:02X}>")).unwrap();
    let run: Vec<u32> = "é".bytes().map(byte).collect();
    let mut text = String::new();
    let mut detokenizer = tokenizer.detokenizer_behind(false);
    detokenizer.push(run[0], &mut text);
    detokenizer.push(run[1], &mut text);
    assert_eq!((&*text, detokenizer.held_bytes()), ("", 2));
    let mut whole = text.clone();
    detokenizer.finish(&mut whole);
    assert_eq!(whole, "é");
    // A byte more, and no byte of the run is text.
    let bytes = [run[0], run[1], byte(0xff)];
    assert_eq!(tokenizer.decode(&bytes), "\u{fffd}\u{fffd}\u{fffd}");
}

#[test]
fn every_token_has_its_piece_and_bytes() {
    for tokenizer in NAMES.map(from_json).iter().chain(&NAMES.map(from_gguf)) {
        let count = tokenizer.vocabulary_size() as u32;
        for token in 0..count {
            let piece = tokenizer.piece(token).unwrap();
            assert_eq!(tokenizer.token_of_piece(&piece), Some(token));
            assert!(!tokenizer.token_bytes(token).is_empty(), "{piece:?}");
        }
        assert_eq!(tokenizer.piece(count), None);
        assert!(tokenizer.token_bytes(count).is_empty());
        assert!(!tokenizer.is_control(count));
    }
}

#[test]
fn every_pre_tokenizer_gives_back_the_text_in_linear_time() {
    let runs = [
        "a", "A", "1", " ", "\n", "!", "\u{301}", "aA", " a", "'s", "1a", "\u{4e2d}",
    ];
    let runs = runs.map(|it| it.repeat(10_000));
    let mixed =
        "Hello WORLD's  12345 \u{c9}cole\n\n \u{e01}\u{4e2d}\u{6587}() IMGIMGABZ \t<|im_end|>";
    let names: Vec<&str> = PRE_TOKENIZERS.split_whitespace().collect();
    assert!(names.len() >= 80);
    for name in names {
        let file = Gguf::parse(gguf_with(name, "bytes")).unwrap();
        let tokenizer = Tokenizer::from_gguf(&file).unwrap();
        let is_spelled = [
            "gemma4",
            "granite-embed-multi-311m",
            "sarvam-moe",
            "whitespace",
        ];
        if is_spelled.contains(&name) {
            // Their vocabularies are not spelled in bytes, as this one is.
            continue;
        }
        let begin = Instant::now();
        for text in runs.iter().map(String::as_str).chain([mixed]) {
            let tokens = tokenizer.encode_part(text, Special::AsText).unwrap();
            assert!(
                tokenizer.decode(&tokens) == text,
                "{name} {:?}",
                text.get(..2)
            );
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{name}");
    }
    let file = Gguf::parse(gguf_with("of-no-model", "bytes")).unwrap();
    let error = Tokenizer::from_gguf(&file).unwrap_err();
    assert!(
        matches!(error, TokenizerError::Unsupported { .. }),
        "{error}"
    );
}
