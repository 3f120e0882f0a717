//! Mutated vocabularies and templates, and texts made to take long.

use std::time::{Duration, Instant};

use fercuda_tokenizer::{Special, Tokenizer};
use fercuda_trials::{Work, corpus, try_mutations};

use crate::property::holds_for;
use crate::support::{NAMES, from_gguf, from_json, gguf_bytes, reference};

/// Characters of control tokens, and of what looks like bytes.
const ODD: [char; 15] = [
    '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '>', '/', 's', '\u{e9}', '\u{2581}', '0', '\n',
];

const WORK: Work = Work {
    name: "tokenizers",
    least: 150,
    ci_seconds: 2,
    soak: 200_000,
};

#[test]
fn any_mutated_vocabulary_or_template_is_used_or_refused() {
    let mut inputs = corpus(env!("CARGO_MANIFEST_DIR"), WORK.name);
    inputs.extend(NAMES.map(gguf_bytes));
    let json = |name: &str| std::fs::read(reference(&format!("{name}.json"))).unwrap();
    inputs.extend(NAMES.map(json));
    try_mutations(env!("CARGO_MANIFEST_DIR"), WORK, &inputs, holds_for);
}

#[test]
fn long_words_take_no_quadratic_time() {
    let within = Duration::from_secs(20);
    let longs =
        ["a", "ab", " ", "\n", "\u{301}", "0", "!", "\u{4e2d}"].map(|it| it.repeat(100_000));
    for tokenizer in NAMES.map(from_gguf) {
        for text in &longs {
            let begin = Instant::now();
            tokenizer.encode(text, Special::AsText).unwrap();
            assert!(begin.elapsed() < within, "{:?}", text.chars().next());
        }
    }
}

#[test]
fn random_texts_come_back_and_become_no_control_token() {
    let mut random = fercuda_trials::rng();
    let tokenizers: Vec<Tokenizer> =
        vec![from_gguf("bytes"), from_gguf("pieces"), from_json("bytes")];
    for _ in 0..300 {
        let len = random.usize(0..40);
        let one = |random: &mut fastrand::Rng| match random.u8(0..6) {
            0 => random.char(..),
            1 => ' ',
            _ => random.choice(ODD).unwrap_or('x'),
        };
        let text: String = (0..len).map(|_| one(&mut random)).collect();
        for tokenizer in &tokenizers {
            let tokens = tokenizer.encode_part(&text, Special::AsText).unwrap();
            assert!(
                tokens.iter().all(|it| !tokenizer.is_control(*it)),
                "{text:?}"
            );
            // SentencePiece's models spell a space so.
            let is_pieces = tokenizer.token_of_piece("<0x41>").is_some();
            let wanted = if is_pieces {
                text.replace('\u{2581}', " ")
            } else {
                text.clone()
            };
            assert_eq!(tokenizer.decode(&tokens), wanted, "{tokens:?}");
        }
    }
}
