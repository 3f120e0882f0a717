//! Random texts through grammars: what is allowed is accepted, and what comes of it is what the
//! grammar describes.

use fercuda_grammar::{GrammarError, GrammarSource, TokenGrammar};
use serde_json::Value;

use crate::support::{compiler, lark, schema, tokenizer};

/// Tokens of the vocabulary of bytes.
const TOKENS: u32 = 600;

/// The token of one byte.
pub(crate) fn byte(byte: u8) -> u32 {
    let is_it =
        |token: &u32| !tokenizer().is_control(*token) && tokenizer().token_bytes(*token) == [byte];
    (0..TOKENS).find(is_it).unwrap()
}

fn allowed(grammar: &mut TokenGrammar) -> Vec<u32> {
    let allowed = grammar.allowed().unwrap();
    let tokens: Vec<u32> = (0..TOKENS).filter(|it| allowed.has(*it)).collect();
    let mut logits = vec![0.0; TOKENS as usize + 40];
    allowed.mask(&mut logits);
    let kept = (0..).zip(&logits).filter(|(_, it)| **it == 0.0);
    assert_eq!(kept.map(|it| it.0).collect::<Vec<u32>>(), tokens);
    tokens
}

/// A random text of a grammar, if one ends within so many tokens. Quotes are preferred, so that
/// texts of JSON end.
fn walk(source: &GrammarSource, random: &mut fastrand::Rng) -> Option<String> {
    let mut grammar = compiler().compile(source).unwrap();
    let mut chosen = Vec::new();
    for step in 0..400 {
        if grammar.has_ended() {
            return Some(tokenizer().decode(&chosen));
        }
        let tokens = allowed(&mut grammar);
        let (ends, others): (Vec<u32>, Vec<u32>) = tokens
            .into_iter()
            .partition(|it| tokenizer().ends_generation(*it));
        if !ends.is_empty() && (others.is_empty() || random.f32() < 0.2 || step > 40) {
            assert!(grammar.accept(ends[0]).unwrap());
            return Some(tokenizer().decode(&chosen));
        }
        let plain: Vec<u32> = others
            .iter()
            .copied()
            .filter(|it| {
                let bytes = tokenizer().token_bytes(*it);
                bytes == b"\"" || bytes == b"}" || bytes == b"]"
            })
            .collect();
        let from = match plain.is_empty() || random.f32() < 0.5 {
            true => &others,
            false => &plain,
        };
        let token = from[random.usize(..from.len())];
        if random.f32() < 0.1 {
            // A token that is taken back leaves no trace.
            let before = allowed(&mut grammar);
            let other = others[random.usize(..others.len())];
            grammar.accept(other).unwrap();
            grammar.take_back(1).unwrap();
            assert_eq!(allowed(&mut grammar), before);
        }
        let mut twin = grammar.clone();
        let ended = grammar.accept(token).unwrap();
        assert_eq!(twin.accept(token).unwrap(), ended);
        chosen.push(token);
    }
    None
}

fn texts(source: &GrammarSource, random: &mut fastrand::Rng) -> Vec<String> {
    let all: Vec<String> = (0..12).filter_map(|_| walk(source, random)).collect();
    assert!(!all.is_empty(), "{source:?}");
    all
}

#[test]
fn texts_of_schemas_are_what_they_describe() {
    let mut random = fercuda_trials::rng();
    let object = schema(
        r##"{"type":"object","properties":{"name":{"type":"string","maxLength":8},
        "age":{"type":"integer","minimum":0,"maximum":150},
        "tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3},"in":{"$ref":"#/$defs/in"}},
        "required":["name","age","in"],"additionalProperties":false,
        "$defs":{"in":{"type":["boolean","null"]}}}"##,
    );
    for text in texts(&object, &mut random) {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|it| panic!("{text}: {it}"));
        let members = value.as_object().unwrap();
        // In the order of the schema.
        let known = ["name", "age", "tags", "in"];
        let places = members
            .keys()
            .map(|it| known.iter().position(|known| known == it).unwrap());
        assert!(places.is_sorted(), "{text}");
        assert!(
            value["name"].as_str().unwrap().chars().count() <= 8,
            "{text}"
        );
        assert!(value["age"].as_u64().unwrap() <= 150, "{text}");
        assert!(value["in"].is_null() || value["in"].is_boolean(), "{text}");
        let tags = members
            .get("tags")
            .map_or(&[][..], |it| it.as_array().unwrap());
        assert!(
            tags.len() <= 3 && tags.iter().all(|it| *it == "a" || *it == "b"),
            "{text}"
        );
        assert!(
            !text.contains(&" ".repeat(34)),
            "blanks are bounded: {text}"
        );
    }
    for text in texts(&GrammarSource::JsonObject, &mut random) {
        match serde_json::from_str::<Value>(&text) {
            Ok(value) => assert!(value.is_object(), "{text}"),
            // JSON has numbers that the reader has not.
            Err(error) => assert!(
                error.to_string().starts_with("number out of range"),
                "{text}: {error}"
            ),
        }
    }
}

#[test]
fn texts_of_expressions_choices_and_rules_match() {
    let mut random = fercuda_trials::rng();
    for text in texts(
        &GrammarSource::Regex("[a-c]{2,5}-[0-9]{3}".to_owned()),
        &mut random,
    ) {
        let (letters, digits) = text.split_once('-').unwrap();
        assert!((2..=5).contains(&letters.len()), "{text}");
        assert!(
            letters.bytes().all(|it| (b'a'..=b'c').contains(&it)),
            "{text}"
        );
        assert!(
            digits.len() == 3 && digits.bytes().all(|it| it.is_ascii_digit()),
            "{text}"
        );
    }
    let all = ["a\"\\\n\t", "\u{fc}ber", "|", "<|im_end|>", "\u{7f}\u{1}"].map(str::to_owned);
    for text in texts(&GrammarSource::Choice(all.to_vec()), &mut random) {
        assert!(all.contains(&text), "{text:?}");
    }
    for text in texts(
        &lark("start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]{1,2}/"),
        &mut random,
    ) {
        assert!(text.split('+').all(|it| it.parse::<u8>().is_ok()), "{text}");
    }
    // A control token by its name is one, and its text is none.
    let mut grammar = compiler()
        .compile(&lark("start: <|im_start|> \"x\""))
        .unwrap();
    let begin = tokenizer().token_of_piece("<|im_start|>").unwrap();
    assert_eq!(allowed(&mut grammar), [begin]);
    assert!(!grammar.accept(begin).unwrap());
    assert!(grammar.accept(byte(b'x')).unwrap() && grammar.has_ended());
    // Behind the end nothing but an end may come.
    let ends = allowed(&mut grammar);
    assert!(
        ends.iter().all(|it| tokenizer().ends_generation(*it)),
        "{ends:?}"
    );
}

#[test]
fn a_token_that_may_not_follow_is_an_error_and_stays_one() {
    let mut grammar = compiler()
        .compile(&GrammarSource::Choice(vec!["yes".to_owned()]))
        .unwrap();
    assert!(!grammar.accept(byte(b'y')).unwrap());
    for token in [byte(b'n'), 5_000_000] {
        let mut wrong = grammar.clone();
        assert!(matches!(
            wrong.accept(token),
            Err(GrammarError::Stuck { .. })
        ));
        assert!(wrong.allowed().is_err() && !wrong.has_ended());
    }
    assert!(!grammar.accept(byte(b'e')).unwrap());
    assert!(grammar.accept(byte(b's')).unwrap());
}
