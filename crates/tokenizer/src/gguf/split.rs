//! Pre-tokenizers of byte-pair models: how a text is split into words, by the name that
//! `tokenizer.ggml.pre` has.
//!
//! Expressions run on an engine without backtracking, so time is linear in the text. It has no
//! look-ahead; what `\s+(?!\S)` says is done behind it: a run of whitespace before a word leaves
//! its last character to that word ([`Blanks`]).

use regex::Regex;

use crate::error::{Result, TokenizerError};

/// What happens to a match of whitespace alone that has something behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blanks {
    /// Nothing: the expression never looks ahead.
    Whole,
    /// Its last character is left to what follows, unless that character ends a line.
    LeaveLast,
    /// The same, also where it ends a line.
    LeaveAnyLast,
    /// It is cut into runs of 512, 256, ... 4, 2 characters.
    Halving,
}

/// One pass over the words of the pass before.
#[derive(Debug)]
enum SplitPass {
    /// Matches are words, and so is what lies between two matches.
    Matches(Regex, Blanks),
    /// Matches, runs of digits, are cut into threes from their end; if asked, only where no word
    /// goes on behind them.
    DigitThrees(Regex, bool),
}

/// A pre-tokenizer.
#[derive(Debug)]
pub(crate) struct WordSplitter {
    passes: Vec<SplitPass>,
}

/// How a family of pre-tokenizers differs from byte-pair models in general.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BpeTraits {
    /// A word that is a token is not merged.
    pub(crate) ignores_merges: bool,
    /// A BOS comes first unless the file says otherwise.
    pub(crate) adds_bos: bool,
    /// There is no BOS unless the file names one.
    pub(crate) has_no_bos: bool,
    /// Symbols are bytes, and tokens spell them in the alphabet of GPT-2.
    pub(crate) is_byte_level: bool,
    /// A space is read as U+2581.
    pub(crate) escapes_spaces: bool,
    /// A line of newlines alone is a token where there is one.
    pub(crate) keeps_newlines: bool,
}

/// `'s`, `'re` and so on, in either case.
const SHORT: &str = "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])";
/// The same in lower case.
const LOWER_SHORT: &str = "'(?:[sdmt]|ll|ve|re)";
/// One character before a word that is none of these.
const LEAD: &str = r"[^\r\n\p{L}\p{N}]?";
/// Letters and marks of words that begin with capitals, and of the rest of those words.
const UPPER: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
const LOWER: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
/// Hiragana, katakana and the common ideographs.
const IDEOGRAPHS: &str = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+";
/// ASCII punctuation and symbols.
const MARKS: &str = r"[!-/:-@\[-`{-~]";

/// Alternatives in the order in which they are tried.
fn any_of(alternatives: &[&str]) -> String {
    alternatives.join("|")
}

/// The family of GPT-2: a space belongs to the word behind it.
fn gpt2() -> (String, Blanks) {
    let symbols = r" ?[^\s\p{L}\p{N}]+";
    let all = any_of(&[LOWER_SHORT, r" ?\p{L}+", r" ?\p{N}+", symbols, r"\s+"]);
    (all, Blanks::LeaveAnyLast)
}

/// The family of Llama 3: any one character belongs to the word behind it, and line ends to what
/// is before them.
fn llama3(words: &[&str], numbers: &str, symbols: &str, lines: &str) -> (String, Blanks) {
    let rest = [numbers, symbols, lines, r"\s+"];
    (any_of(&[words, &rest].concat()), Blanks::LeaveLast)
}

/// Words that begin with capitals or do not, each with what is short behind it.
fn cased(upper: &str, lower: &str, end: &str) -> [String; 2] {
    [
        format!("{LEAD}{upper}*{lower}+{end}"),
        format!("{LEAD}{upper}+{lower}*{end}"),
    ]
}

fn cased_family(numbers: &str, end: &str) -> (String, Blanks) {
    let [capital, lower] = cased(UPPER, LOWER, end);
    let symbols = r" ?[^\s\p{L}\p{N}]+[\r\n/]*";
    llama3(&[&capital, &lower], numbers, symbols, r"\s*[\r\n]+")
}

/// Words of DeepSeek's later models.
fn deepseek_words(symbols: &str, lines: &str) -> (String, Blanks) {
    let marked = format!("{MARKS}[A-Za-z]+");
    let words = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+";
    let all = any_of(&[&marked, words, symbols, lines, r"\s+"]);
    (all, Blanks::LeaveLast)
}

const LETTERS: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+";
const SYMBOLS: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*";
const LINES: &str = r"\s*[\r\n]+";
/// Words that end at a space or at punctuation, of several scripts.
const BLOOM: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+";
/// Letters that have case, of the scripts that DeepSeek's first models list. Not theirs: Armenian,
/// Georgian, some later Latin and Cyrillic, letters of mathematics.
const CASED: &str = concat!(
    r"[\p{Lu}\p{Ll}\p{Lt}--[",
    r"\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8f}\x{2d00}-\x{2d2d}\x{a790}-\x{a7ff}",
    r"\x{ab30}-\x{ab6f}\x{10570}-\x{105bf}\x{10d50}-\x{10d8f}\x{16e40}-\x{1dfff}]]",
);
/// Of East Asia: ideographs and the other scripts up to them, and Hangul.
const EAST: &str = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+";

impl WordSplitter {
    /// The pre-tokenizer of this name.
    pub(crate) fn named(name: &str) -> Result<(WordSplitter, BpeTraits)> {
        let Some((passes, traits)) = passes_of(name) else {
            return Err(TokenizerError::Unsupported {
                what: format!("the pre-tokenizer {name:?} (tokenizer.ggml.pre) is not known"),
                hint: "the model's tokenizer.json, or a later version of feRcuda",
            });
        };
        Ok((WordSplitter { passes }, traits))
    }

    /// The words of a text, all of it.
    pub(crate) fn words<'a>(&self, text: &'a str, mut each: impl FnMut(&'a str)) {
        self.split(0, text, &mut each);
    }

    fn split<'a>(&self, pass: usize, text: &'a str, each: &mut dyn FnMut(&'a str)) {
        if text.is_empty() {
            return;
        }
        let mut next = |word| self.split(pass + 1, word, each);
        match self.passes.get(pass) {
            None => each(text),
            Some(SplitPass::Matches(regex, blanks)) => {
                split_by(regex, *blanks, text, &mut next);
            }
            Some(SplitPass::DigitThrees(digits, is_word)) => {
                split_digits(digits, *is_word, text, &mut next);
            }
        }
    }
}

fn split_by<'a>(regex: &Regex, blanks: Blanks, text: &'a str, each: &mut dyn FnMut(&'a str)) {
    let mut at = 0;
    while let Some(found) = regex.find_at(text, at) {
        let (from, mut to) = (found.start(), found.end());
        if from > at {
            each(&text[at..from]);
        }
        if to == from {
            // No expression here matches nothing; go on all the same.
            let step = text[from..].chars().next().map_or(1, char::len_utf8);
            to = (from + step).min(text.len());
            if to == from {
                return;
            }
        }
        let matched = &text[from..to];
        let is_blank = blanks != Blanks::Whole && matched.chars().all(char::is_whitespace);
        if is_blank {
            to = from + split_blank(blanks, matched, to == text.len(), each);
        } else {
            each(matched);
        }
        at = to;
    }
    if at < text.len() {
        each(&text[at..]);
    }
}

/// Splits a run of whitespace, and returns how many bytes of it.
fn split_blank<'a>(
    blanks: Blanks,
    run: &'a str,
    is_last: bool,
    each: &mut dyn FnMut(&'a str),
) -> usize {
    let ends_line = run.ends_with(['\r', '\n']) && blanks != Blanks::LeaveAnyLast;
    if blanks == Blanks::Halving && !ends_line {
        return split_halving(run, is_last, each);
    }
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    let keep = match is_last || ends_line || last == run.len() {
        true => run.len(),
        false => run.len() - last,
    };
    each(&run[..keep]);
    keep
}

/// Takes 512 characters, 256, ... 4, then 2 and 1, whatever fits before the last one.
fn split_halving<'a>(run: &'a str, is_last: bool, each: &mut dyn FnMut(&'a str)) -> usize {
    let ends: Vec<usize> = run
        .char_indices()
        .map(|(at, it)| at + it.len_utf8())
        .collect();
    let mut taken = 0;
    while taken < ends.len() {
        let left = ends.len() - taken;
        let fits = |len: &usize| *len < left || (*len == left && is_last);
        let len = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];
        let len = len.into_iter().find(fits).unwrap_or(1);
        let from = taken.checked_sub(1).map_or(0, |it| ends[it]);
        if left == 1 && !is_last && taken > 0 {
            // It may belong to the word behind.
            return from;
        }
        each(&run[from..ends[taken + len - 1]]);
        taken += len;
    }
    run.len()
}

fn split_digits<'a>(digits: &Regex, is_word: bool, text: &'a str, each: &mut dyn FnMut(&'a str)) {
    let mut at = 0;
    for found in digits.find_iter(text) {
        let next = text[found.end()..].chars().next();
        if is_word && next.is_some_and(|it| it.is_alphanumeric() || it == '_') {
            continue;
        }
        if found.start() > at {
            each(&text[at..found.start()]);
        }
        let run = found.as_str();
        let ends: Vec<usize> = run
            .char_indices()
            .map(|(at, it)| at + it.len_utf8())
            .collect();
        let (mut taken, mut from) = (0, 0);
        while taken < ends.len() {
            let len = match (ends.len() - taken) % 3 {
                0 => 3,
                first => first,
            };
            taken += len;
            each(&run[from..ends[taken - 1]]);
            from = ends[taken - 1];
        }
        at = found.end();
    }
    if at < text.len() {
        each(&text[at..]);
    }
}

/// Threes of what this expression matches.
fn threes(digits: &str, is_word: bool) -> Option<SplitPass> {
    Regex::new(digits)
        .ok()
        .map(|digits| SplitPass::DigitThrees(digits, is_word))
}

fn pass((expression, blanks): (String, Blanks)) -> Option<SplitPass> {
    // Expressions of this file: a test compiles each.
    Regex::new(&expression)
        .ok()
        .map(|regex| SplitPass::Matches(regex, blanks))
}

fn whole(expression: &str) -> Option<SplitPass> {
    pass((expression.to_owned(), Blanks::Whole))
}

/// Passes of the pre-tokenizers that split off digits, ideographs or punctuation first.
fn layered_passes(name: &str) -> Option<Vec<Option<SplitPass>>> {
    let digits = || whole(r"\p{N}{1,3}");
    let deepseek3 = || deepseek_words(r" ?[\p{P}\p{S}]+[\r\n]*", LINES);
    Some(match name {
        "deepseek-llm" => vec![
            whole(r"[\r\n]"),
            whole(&format!(r"\s?[{CASED}]+")),
            whole(
                r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
            ),
            whole(r"\s+$"),
            whole(EAST),
            whole(r"\p{N}+"),
        ],
        "deepseek-coder" => vec![
            whole(r"[\r\n]"),
            whole(r"\s?\p{L}+"),
            whole(r"\s?\p{P}+"),
            whole(EAST),
            whole(r"\p{N}"),
        ],
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
            vec![digits(), whole(IDEOGRAPHS), pass(deepseek3())]
        }
        "spark2_5" => vec![
            digits(),
            whole(IDEOGRAPHS),
            pass(deepseek_words(r" ?[\p{P}\p{S}]+", r"[\r\n]")),
            whole(r"\p{N}"),
        ],
        "youtu" => {
            let scripts = [
                r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+",
                r"[\x{ff01}\x{2026}“”‘’—\x{ff1a}-\x{ff1b}\x{ff0c}\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+",
                r"[\x{3105}-\x{312f}]+",
                IDEOGRAPHS,
            ];
            let end = format!("(?:{SHORT})?");
            vec![whole(&any_of(&scripts)), pass(cased_family(r"\p{N}", &end))]
        }
        "falcon" => vec![
            whole(r"[\p{P}$+<=>^~|`]+"),
            pass(gpt2()),
            whole("[0-9][0-9][0-9]"),
        ],
        "default" => vec![
            whole(r"[\p{P}$+<=>^~|]+"),
            pass(gpt2()),
            whole(r"\p{N}+"),
            whole("[0-9][0-9][0-9]"),
        ],
        "chameleon" => vec![
            whole("<sentinel:[0-9]+>"),
            whole("IMGIMG[A-I]{1,4}Z"),
            whole(r"[\t\n]|    |  "),
            whole(r"\p{N}"),
            whole(&format!(r"\p{{P}}|{MARKS}")),
            pass(gpt2()),
        ],
        "tiny_aya" | "cohere2moe" => {
            let end = format!("(?:{SHORT})?");
            vec![
                threes(r"\p{Nd}+", true),
                pass(cased_family(r"\p{N}{1,3}", &end)),
            ]
        }
        "superbpe" => vec![whole(r"\p{N}+"), threes(r"\p{Nd}+", false)],
        "afmoe" => {
            let scripts = [
                // Ideographs, kana.
                r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{30ff}",
                // Half-width katakana, radicals, Thai, Lao, Khmer.
                r"\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{e40}-\x{eff}\x{1780}-\x{17ff}",
                // Burmese, Hangul.
                r"\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}",
                r"\x{1100}-\x{11ff}",
            ];
            let scripts = format!("[{}]+", scripts.concat());
            vec![threes(r"\p{N}+", false), whole(&scripts), pass(deepseek3())]
        }
        "laguna" => vec![
            whole(r"[^\n]+|\n+"),
            pass(llama3(&[SHORT, LETTERS], r"\p{N}", SYMBOLS, LINES)),
        ],
        "minicpm5" => vec![
            digits(),
            pass(llama3(&[SHORT, LETTERS], r"\p{N}+", SYMBOLS, LINES)),
        ],
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => vec![whole(r"\p{N}"), pass(gpt2())],
        "viking" => vec![whole(BLOOM), whole(r"\p{N}")],
        _ => return None,
    })
}

/// The expression of the pre-tokenizers that have one.
fn single_pass(name: &str) -> Option<(String, Blanks)> {
    let words = [SHORT, LETTERS];
    let end = format!("(?:{SHORT})?");
    Some(match name {
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "jina-v5-nano" | "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4" | "glm5" => {
            llama3(&words, r"\p{N}{1,3}", SYMBOLS, LINES)
        }
        "jais-2" => {
            let (all, _) = llama3(&words, r"\p{N}{1,3}", SYMBOLS, LINES);
            (all, Blanks::Halving)
        }
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "stablelm2" | "megrez" | "hunyuan"
        | "solar-open" | "grok-2" => llama3(&words, r"\p{N}", SYMBOLS, LINES),
        "qwen35" => {
            let marked = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+";
            let symbols = r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*";
            llama3(&[SHORT, marked], r"\p{N}", symbols, LINES)
        }
        "ufakzeka" => llama3(&[LETTERS], r"\p{N}", SYMBOLS, LINES),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => {
            llama3(&words, r"\p{N}", SYMBOLS, r"\s*[\r\n]")
        }
        "seed-coder" => llama3(&words, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", LINES),
        "exaone-moe" => {
            let word = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+";
            let symbols = r" ?[^\s\p{L}\p{N}]+[\r\n/]?";
            llama3(&[SHORT, word], r"\p{N}", symbols, r"\s*[\r\n]")
        }
        "tekken" => cased_family(r"\p{N}", ""),
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" | "granite-embed-multi-97m" => {
            cased_family(r"\p{N}{1,3}", &end)
        }
        "kimi-k2" => {
            let without = |class: &str| format!(r"[{class}&&[^\p{{Han}}]]");
            let [capital, lower] = cased(&without(UPPER), &without(LOWER), &end);
            let words = [r"\p{Han}+", &capital, &lower];
            llama3(&words, r"\p{N}{1,3}", SYMBOLS, LINES)
        }
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de"
        | "a.x-4.0" | "mellum" | "modern-bert" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe"
        | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4" => gpt2(),
        "poro-chat" | "bloom" | "gpt3-finnish" => (BLOOM.to_owned(), Blanks::Whole),
        "gemma4" | "granite-embed-multi-311m" | "sarvam-moe" => {
            (r"[^\n]+|\n+".to_owned(), Blanks::Whole)
        }
        "whitespace" => (r"\S+".to_owned(), Blanks::Whole),
        _ => return None,
    })
}

fn passes_of(name: &str) -> Option<(Vec<SplitPass>, BpeTraits)> {
    let passes = match layered_passes(name) {
        Some(passes) => passes,
        None => vec![pass(single_pass(name)?)],
    };
    let passes: Option<Vec<SplitPass>> = passes.into_iter().collect();
    let llama3 = [
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    ];
    let is_llama3 = llama3.contains(&name);
    let whole_words = [
        "minicpm5",
        "youtu",
        "glm4",
        "glm5",
        "tekken",
        "granite-embed-multi-97m",
    ];
    let spaced = ["gemma4", "granite-embed-multi-311m", "sarvam-moe"];
    let traits = BpeTraits {
        ignores_merges: is_llama3 || whole_words.contains(&name),
        adds_bos: is_llama3
            || ["tekken", "chameleon", "gemma4", "granite-embed-multi-311m"].contains(&name),
        has_no_bos: ["chatglm-bpe", "glm4", "glm5"].contains(&name),
        is_byte_level: !spaced.contains(&name) && name != "whitespace",
        escapes_spaces: spaced.contains(&name),
        keeps_newlines: ["gemma4", "granite-embed-multi-311m"].contains(&name),
    };
    passes.map(|it| (it, traits))
}
