//! Grammars in GBNF: texts that they have, beside a reader of the notation that goes back.

use crate::support::{compiler, lark};
use crate::walks::byte;

/// A random grammar without names that call themselves, as a text and as what it has.
enum Expression {
    Text(String),
    /// Characters, and whether all others are meant.
    Class(String, bool),
    Any,
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    Repeated(Box<Expression>, usize, Option<usize>),
}

const LETTERS: [char; 4] = ['a', 'b', '"', '\n'];

impl Expression {
    fn random(random: &mut fastrand::Rng, depth: usize) -> Self {
        let letter = |random: &mut fastrand::Rng| LETTERS[random.usize(..4)];
        let inner = |random: &mut fastrand::Rng| Self::random(random, depth - 1);
        match random.usize(..if depth == 0 { 3 } else { 6 }) {
            0 => {
                let count = random.usize(..3);
                Self::Text((0..count).map(|_| letter(random)).collect())
            }
            1 => {
                let letters = (0..random.usize(1..3)).map(|_| letter(random)).collect();
                Self::Class(letters, random.usize(..3) == 0)
            }
            2 => Self::Any,
            3 => Self::Sequence((0..random.usize(1..4)).map(|_| inner(random)).collect()),
            4 => Self::Choice((0..random.usize(1..4)).map(|_| inner(random)).collect()),
            _ => {
                let (least, more) = (random.usize(..3), random.usize(..3));
                let most = random.bool().then_some(least + more);
                Self::Repeated(Box::new(inner(random)), least, most)
            }
        }
    }

    fn write(&self, out: &mut String) {
        let escaped = |it: char| match it {
            '"' => "\\x22".to_owned(),
            '\n' => "\\n".to_owned(),
            it => it.to_string(),
        };
        let all = |out: &mut String, parts: &[Expression], between: &str| {
            out.push('(');
            for (at, part) in parts.iter().enumerate() {
                out.push_str(if at > 0 { between } else { "" });
                part.write(out);
            }
            out.push(')');
        };
        match self {
            Self::Text(text) => {
                let text: String = text.chars().map(escaped).collect();
                out.push_str(&format!("\"{text}\""));
            }
            Self::Class(letters, is_other) => {
                let sign = if *is_other { "^" } else { "" };
                let letters: String = letters.chars().map(escaped).collect();
                out.push_str(&format!("[{sign}{letters}]"));
            }
            Self::Any => out.push('.'),
            Self::Sequence(parts) => all(out, parts, " "),
            Self::Choice(parts) => all(out, parts, "\n | # one more\n"),
            Self::Repeated(inner, least, most) => {
                out.push('(');
                inner.write(out);
                out.push(')');
                out.push_str(&match (least, most) {
                    (0, None) => "*".to_owned(),
                    (1, None) => "+".to_owned(),
                    (0, Some(1)) => "?".to_owned(),
                    (least, None) => format!("{{{least},}}"),
                    (least, Some(most)) if least == most => format!("{{{least}}}"),
                    (least, Some(most)) => format!("{{{least},{most}}}"),
                });
            }
        }
    }

    /// Places at which it may end in the text, from each of those places on.
    fn ends(&self, text: &[char], from: &[usize]) -> Vec<usize> {
        let mut all = Vec::new();
        match self {
            Self::Text(own) => {
                let own: Vec<char> = own.chars().collect();
                let fits = from.iter().filter(|it| text[**it..].starts_with(&own));
                all.extend(fits.map(|it| it + own.len()));
            }
            Self::Class(letters, is_other) => {
                let fits = |it: &&usize| {
                    text.get(**it)
                        .is_some_and(|it| letters.contains(*it) != *is_other)
                };
                all.extend(from.iter().filter(fits).map(|it| it + 1));
            }
            Self::Any => all.extend(from.iter().filter(|it| **it < text.len()).map(|it| it + 1)),
            Self::Sequence(parts) => {
                all.extend_from_slice(from);
                for part in parts {
                    all = part.ends(text, &all);
                }
            }
            Self::Choice(parts) => {
                for part in parts {
                    all.extend(part.ends(text, from));
                }
            }
            Self::Repeated(inner, least, most) => {
                let mut places = from.to_vec();
                for _ in 0..*least {
                    places = inner.ends(text, &places);
                }
                all.extend_from_slice(&places);
                for _ in *least..most.unwrap_or(least + text.len() + 1) {
                    places = inner.ends(text, &places);
                    all.extend_from_slice(&places);
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Whether a grammar has a text whole.
fn has(source: &str, text: &str) -> bool {
    let Ok(mut grammar) = compiler().compile(&lark(source)) else {
        // No text follows it.
        return false;
    };
    for it in text.bytes() {
        let token = byte(it);
        if grammar.has_ended() || !grammar.allowed().unwrap().has(token) {
            return false;
        }
        grammar.accept(token).unwrap();
    }
    if grammar.has_ended() {
        return true;
    }
    let allowed = grammar.allowed().unwrap();
    let tokenizer = crate::support::tokenizer();
    let mut ends = tokenizer.generation_ends().iter();
    ends.any(|it| allowed.has(*it))
}

#[test]
fn random_grammars_have_the_texts_that_they_describe() {
    let mut random = fercuda_trials::rng();
    let mut both = [0, 0];
    for _ in 0..150 {
        let expression = Expression::random(&mut random, 3);
        let mut source = "# of random parts\nroot ::= ".to_owned();
        expression.write(&mut source);
        for _ in 0..12 {
            let text: String = (0..random.usize(1..6))
                .map(|_| LETTERS[random.usize(..4)])
                .collect();
            let chars: Vec<char> = text.chars().collect();
            let wanted = expression.ends(&chars, &[0]).contains(&chars.len());
            assert_eq!(has(&source, &text), wanted, "{text:?} of {source}");
            both[usize::from(wanted)] += 1;
        }
    }
    assert!(both.iter().all(|it| *it > 50), "{both:?}");
}

#[test]
fn rules_that_name_each_other_have_their_texts() {
    let sums = r#"
# Sums of products, as llama.cpp's examples have them.
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#;
    assert!(has(sums, "a1 +(2*b)= c\n"));
    assert!(has(sums, "1=2\nx=3\n"));
    assert!(!has(sums, "1=\n"));
    assert!(!has(sums, "1+=2\n"));
    let later = "root ::=\n  my-rule |\n  \"z\"\nmy-rule ::= \"x\" (\n \"y\" |\n root)\n";
    for (text, is_there) in [("xy", true), ("xxz", true), ("z", true), ("xyz", false)] {
        assert_eq!(has(later, text), is_there, "{text}");
    }
    // The longest terminal is not all that there is.
    assert!(has("root ::= [a-z]+ \"z\"", "azz"));
    assert!(has("root ::= \"ab\" | \"abc\" \"d\"", "abcd"));
    let unicode = "root ::= [\\u00e4-\\u00e6\\U0001F600]{2} \"\\x41\" [^\\]\\-]";
    assert!(has(unicode, "\u{e4}\u{1f600}A["));
    assert!(!has(unicode, "\u{e4}\u{e3}A["));
    assert!(!has(unicode, "\u{e4}\u{e5}A]"));
}

#[test]
fn bounds_of_64_bits_are_nearer_ones() {
    let source = fercuda_grammar::GrammarSource::JsonSchema(
        r#"{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}"#
            .to_owned(),
    );
    let mut grammar = compiler().compile(&source).unwrap();
    for it in "-123456789012".bytes() {
        let token = byte(it);
        assert!(grammar.allowed().unwrap().has(token));
        grammar.accept(token).unwrap();
    }
}

#[test]
fn what_is_no_grammar_is_named_with_its_line() {
    for (source, wanted) in [
        ("roof ::= \"a\"", "no rule root"),
        ("root ::= \"a\"\nx ::= y", "no rule y, of line 2"),
        ("root ::= \"a\"\nroot ::= \"b\"", "a second rule root"),
        ("root ::= (\"a\"", "an open bracket in line 1"),
        ("root ::= \"a", "a text that does not end"),
        ("root ::= [z-a]", "down to"),
        ("root ::= []", "an empty class"),
        ("root ::= \"a\"{3,1}", "below the least"),
        ("root ::= \"a\"{5000}", "more than 4096"),
        ("root ::= \"a\"{,3}", "braces without a number"),
        ("root ::= * \"a\"", "a repetition of nothing"),
        ("root ::= \"\\q\"", "a backslash"),
        ("root ::= \"\\xq1\"", "without its digits"),
        ("root ::= \"\\ud800\"", "no character"),
        ("root ::= \"a\" )", "a sign that ends no rule"),
        (
            "root ::= \"a\"\n\nother \"b\"",
            "a rule without ::= in line 3",
        ),
        ("root ::= !<|im_end|>", "left out"),
        ("# no rule\n", "no rule root"),
        ("root ::= <nothing>", "unknown special token: \"<nothing>\""),
        ("root ::= <[99999999]>", "99999999"),
    ] {
        let error = compiler().compile(&lark(source)).unwrap_err().to_string();
        assert!(error.contains(wanted), "{source}: {error}");
        // Nothing of the translation.
        assert!(
            !error.contains("r0_") && !error.contains("1 | start"),
            "{error}"
        );
        assert_eq!(error.matches("try").count(), 1, "{error}");
    }
    let error = compiler()
        .compile(&lark("root := \"a\""))
        .unwrap_err()
        .to_string();
    assert!(error.contains("root ::= "), "{error}");
}

#[test]
fn brackets_nest_as_deep_as_a_source_may() {
    let (open, close) = ("(\"b\" ".repeat(60), ")?*".repeat(60));
    for mark in ["", "\u{feff}"] {
        let source = format!("{mark}root ::= {open}\"a\"{close}");
        let text = format!("{}a", "b".repeat(60));
        assert!(has(&source, &text) && has(&source, "") && has(&source, "bb"));
        assert!(!has(&source, "a"));
    }
}

#[test]
fn many_counted_repetitions_are_refused_at_once() {
    for (source, is_known) in [
        (format!("root ::= {}", "[a-z]{0,4096} ".repeat(257)), false),
        (format!("start: {}", "/[a-z]/{0,9} ".repeat(257)), false),
        (format!("root ::= {}", "[a-z]{3} ".repeat(256)), true),
    ] {
        let begin = std::time::Instant::now();
        let done = compiler().compile(&lark(&source));
        assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
        match done {
            Ok(_) => assert!(is_known),
            Err(error) => assert!(error.to_string().contains("257 repetitions"), "{error}"),
        }
    }
}

#[test]
fn any_bytes_are_a_grammar_or_an_error() {
    let mut random = fercuda_trials::rng();
    let parts = [
        "root ::= ",
        "\"a\"",
        "[b-",
        "^",
        "]",
        "(",
        ")",
        "|",
        "\n",
        "{2",
        ",",
        "}",
        "*",
        "x ::= ",
        "\\u00",
        "<",
        ">",
        "#",
        ".",
        "é",
    ];
    for _ in 0..400 {
        let mut source = "root ::= ".to_owned();
        for _ in 0..random.usize(..14) {
            source.push_str(parts[random.usize(..parts.len())]);
        }
        if let Ok(mut grammar) = compiler().compile(&lark(&source)) {
            grammar.allowed().unwrap();
        }
    }
}
