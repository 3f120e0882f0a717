//! Refusals: sources without meaning, grammars that no text follows, and what errors say.

use std::time::Instant;

use fercuda_grammar::{GrammarError, GrammarSource, MOST_RULES, MOST_SOURCE};

use crate::support::{compiler, lark, schema};

fn refusal(source: &GrammarSource) -> GrammarError {
    match compiler().compile(source) {
        Ok(_) => panic!("{source:?} was compiled"),
        Err(error) => error,
    }
}

#[test]
fn what_has_no_meaning_is_refused_with_its_place() {
    let regex = |text: &str| GrammarSource::Regex(text.to_owned());
    for (source, said) in [
        (
            schema("{\"type\":\n1,}"),
            "no JSON: trailing comma at line 2 column 3",
        ),
        (schema("[]"), "the JSON schema is [], not an object"),
        (schema(r#"{"type":"objec"}"#), "Invalid type: objec"),
        (schema(r##"{"$ref":"#/$defs/x"}"##), "#/$defs/x"),
        (schema(r#"{"not":{"required":["a"]}}"#), "[\"not\"]"),
        (schema(r#"{"multipleOf":10001}"#), "multipleOf 10001"),
        (
            schema(r#"{"items":{"multipleOf":1e12}}"#),
            "multipleOf 1000000000000",
        ),
        (
            schema(r#"{"allOf":[{"type":"integer","multipleOf":101},{"multipleOf":103}]}"#),
            "a multiple of each multipleOf",
        ),
        (
            schema(r##"{"$ref":"#/$defs/a","multipleOf":13,"$defs":{"a":{"multipleOf":0.11}}}"##),
            "a multiple of each multipleOf",
        ),
        (
            lark("start: %json {\"multipleOf\": 101, \"anyOf\": [{\"multipleOf\": 103}]}"),
            "a multiple of each multipleOf",
        ),
        (regex("[0-9{3}"), "unclosed character class"),
        (regex("(?=a)b"), "look-ahead"),
        (regex(""), "empty"),
        (GrammarSource::Choice(Vec::new()), "a choice of 0 texts"),
        (GrammarSource::Choice(vec![String::new()]), "an empty text"),
        (schema("{\"const\": 9007199254740993}"), "beyond 2^53"),
        (
            schema("{\"anyOf\": [{\"enum\": [{\"a\": -9223372036854775807}]}]}"),
            "-9223372036854775807",
        ),
        (
            schema("{\"type\": \"integer\", \"minimum\": 1000000000000000000}"),
            "minimum 1000000000000000000",
        ),
        (lark(""), "empty"),
        (lark("start: \"a\n"), "1(10): lexer error"),
        (lark("start: foo\n"), "unknown name: \"foo\""),
        (lark("root ::= a"), "GBNF has no rule a"),
        (
            lark("start: %json {\"multipleOf\" : 123456}"),
            "multipleOf 123456",
        ),
        (lark("start: %json {\"\\u006dultipleOf\" : 123456}"), "\\u"),
        (lark("start: <|nothing|>"), "<|nothing|>"),
    ] {
        let error = refusal(&source);
        assert!(matches!(error, GrammarError::Source { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(said), "{text}");
        assert!(
            text.contains("\ntry: ") && !text.contains("<non-verbose/>"),
            "{text}"
        );
    }
    let text = refusal(&regex("[0-9{3}")).to_string();
    assert!(!text.contains("start"), "{text}");
}

#[test]
fn what_no_text_follows_is_refused() {
    for source in [
        schema(r#"{"type":"integer","minimum":5,"maximum":3}"#),
        schema(r#"{"type":"object","properties":{"a":false},"required":["a"]}"#),
        schema(r##"{"$ref":"#"}"##),
        schema(r#"{"type":"string","pattern":"^a+$","format":"date-time"}"#),
        GrammarSource::Regex("[^\\s\\S]".to_owned()),
        lark("start: start \"a\""),
    ] {
        let error = refusal(&source);
        let is_it = matches!(error, GrammarError::Unsatisfiable { .. });
        assert!(is_it, "{source:?}: {error:?}");
    }
}

#[test]
fn sizes_are_bounded() {
    let long = "a".repeat(MOST_RULES + 1);
    let most = MOST_SOURCE + 1;
    for source in [
        GrammarSource::Regex(long.clone()),
        lark(&format!("start: \"{long}\"")),
        schema(&format!("{{\"const\":\"{}\"}}", "a".repeat(most))),
        GrammarSource::Choice(vec!["a".repeat(most)]),
        GrammarSource::Choice(vec!["a".to_owned(); 4097]),
        GrammarSource::Regex(format!("{}a{}", "(".repeat(65), ")".repeat(65))),
        lark(&format!(
            "start: {}\"a\"{}",
            "(".repeat(9000),
            ")".repeat(9000)
        )),
    ] {
        let text = refusal(&source).to_string();
        assert!(text.contains("more than") || text.contains("over") || text.contains("not of 1"));
    }
    // As deep as JSON may be.
    let deep = format!("{}true{}", "{\"items\":".repeat(200), "}".repeat(200));
    assert!(
        refusal(&schema(&deep))
            .to_string()
            .contains("recursion limit")
    );
}

#[test]
fn multiples_that_are_apart_or_have_small_common_ones_are_compiled() {
    for text in [
        r#"{"properties":{"a":{"multipleOf":9973},"b":{"multipleOf":9967}}}"#,
        r#"{"allOf":[{"type":"number","multipleOf":0.25},{"multipleOf":0.5},{"multipleOf":20}]}"#,
    ] {
        compiler().compile(&schema(text)).unwrap();
    }
}

/// As many texts as there may be, and many members of which each may be left out.
#[test]
fn wide_grammars_are_followed_to_their_end() {
    let texts: Vec<String> = (0..4096).map(|it| format!("{it:04}")).collect();
    let members: Vec<String> = (0..500)
        .map(|it| format!(r#""p{it}":{{"type":"integer"}}"#))
        .collect();
    let object = format!(
        r#"{{"type":"object","properties":{{{}}},"additionalProperties":false}}"#,
        members.join(",")
    );
    for (source, text) in [
        (GrammarSource::Choice(texts), "3071"),
        (schema(&object), r#"{"p7":1,"p499":22}"#),
    ] {
        let mut grammar = compiler().compile(&source).unwrap();
        for byte in text.bytes() {
            let token = crate::walks::byte(byte);
            assert!(grammar.allowed().unwrap().has(token), "{text}");
            grammar.accept(token).unwrap();
        }
        assert!(grammar.has_ended(), "{text}");
    }
}

/// The largest grammars take seconds at most, and no more of a stack than there is.
#[test]
fn long_chains_are_compiled_and_followed() {
    let begun = Instant::now();
    let rules: String = (0..1400)
        .map(|it| format!("a{it}: \"a\" a{}\n", it + 1))
        .collect();
    let source = lark(&format!("start: a0\n{rules}a1400: \"b\"\n"));
    let terminals: String = (0..1400)
        .map(|it| format!("A{it}: \"a\" A{}\n", it + 1))
        .collect();
    let terminals = lark(&format!("start: A0\n{terminals}A1400: \"b\"\n"));
    for source in [source, terminals] {
        let mut grammar = compiler().compile(&source).unwrap();
        let (a, b) = (crate::walks::byte(b'a'), crate::walks::byte(b'b'));
        for _ in 0..1400 {
            let allowed = grammar.allowed().unwrap();
            assert!(allowed.has(a) && !allowed.has(b));
            assert!(!grammar.accept(a).unwrap());
        }
        assert!(grammar.allowed().unwrap().has(b));
        assert!(grammar.accept(b).unwrap());
    }
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}
