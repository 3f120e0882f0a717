//! Calls of tools as models write them, taken out of an answer's text.
//!
//! Which syntax a model has is read off its chat template. Invariant: text that does not parse as
//! a call is text of the answer, whole and in order.

use fercuda_tokenizer::ChatValue;
use serde_json::Value;

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolSyntax {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`, as Hermes' and Qwen's models do.
    Hermes,
    /// The whole answer is `{"name": .., "parameters": ..}`, as of Llama 3.
    Llama,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]`, or `[TOOL_CALLS]name[ARGS]{..}`.
    Mistral,
}

const MISTRAL: &str = "[TOOL_CALLS]";
const MISTRAL_ARGUMENTS: &str = "[ARGS]";
const MISTRAL_ID: &str = "[CALL_ID]";
const HERMES: (&str, &str) = ("<tool_call>", "</tool_call>");
const LLAMA: &str = "<|python_tag|>";

impl ToolSyntax {
    /// That of the model of a chat template, if it is known.
    pub(crate) fn of_template(source: &str) -> Option<ToolSyntax> {
        let has = |text: &str| source.contains(text);
        if !has("tools") {
            None
        } else if has(MISTRAL) {
            Some(ToolSyntax::Mistral)
        } else if has(HERMES.0) {
            // Some write XML between these marks.
            (!has("<function=") && !has("<arg_key>")).then_some(ToolSyntax::Hermes)
        } else {
            (has("ipython") || has(LLAMA)).then_some(ToolSyntax::Llama)
        }
    }

    /// Texts of control tokens that are part of a call, and so of the text.
    pub(crate) fn shown_texts(self) -> &'static [&'static str] {
        match self {
            ToolSyntax::Hermes => &[HERMES.0, HERMES.1],
            ToolSyntax::Llama => &[LLAMA],
            ToolSyntax::Mistral => &[MISTRAL, MISTRAL_ARGUMENTS, MISTRAL_ID],
        }
    }
}

/// A call that a model has made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    /// JSON of an object.
    pub(crate) arguments: String,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ToolPart {
    Text(String),
    Call(ToolCall),
}

/// Takes calls out of text that comes in parts.
#[derive(Clone, Debug)]
pub(crate) struct ToolReader {
    syntax: ToolSyntax,
    /// Names of the tools that there are.
    names: Vec<String>,
    /// Text that is not decided.
    held: String,
    /// Whether `held` is behind the beginning of a call.
    is_within: bool,
    /// Whether anything was decided.
    has_begun: bool,
    calls: usize,
}

impl ToolReader {
    pub(crate) fn new(syntax: ToolSyntax, names: Vec<String>) -> ToolReader {
        ToolReader {
            syntax,
            names,
            held: String::new(),
            is_within: false,
            has_begun: false,
            calls: 0,
        }
    }

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Takes more text, and returns what is decided.
    pub(crate) fn push(&mut self, text: &str) -> Vec<ToolPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        match self.syntax {
            ToolSyntax::Hermes => self.read_hermes(&mut parts),
            ToolSyntax::Mistral => {
                if !self.is_within && self.read_text(MISTRAL, &mut parts) {
                    self.is_within = true;
                }
            }
            ToolSyntax::Llama => self.read_llama(&mut parts),
        }
        parts
    }

    /// Returns what is held: no more text comes.
    pub(crate) fn finish(&mut self) -> Vec<ToolPart> {
        let mut parts = Vec::new();
        let held = std::mem::take(&mut self.held);
        let is_within = std::mem::take(&mut self.is_within);
        let (calls, mark) = match (self.syntax, is_within) {
            (_, false) => (None, ""),
            (ToolSyntax::Hermes, _) => (objects(&held), HERMES.0),
            (ToolSyntax::Llama, _) => {
                let calls = objects(held.trim_start().trim_start_matches(LLAMA));
                // JSON may be an answer, too.
                let is_known = |it: &ToolCall| self.names.contains(&it.name);
                (calls.filter(|all| all.iter().all(is_known)), "")
            }
            (ToolSyntax::Mistral, _) => (mistral_calls(&held), MISTRAL),
        };
        match calls {
            Some(calls) => self.add_calls(calls, &mut parts),
            None => self.add_text(&format!("{mark}{held}"), &mut parts),
        }
        parts
    }

    fn add_text(&mut self, text: &str, parts: &mut Vec<ToolPart>) {
        // Lines between calls are of the syntax.
        let text = match self.calls > 0 {
            true => text.trim_start(),
            false => text,
        };
        if !text.is_empty() {
            self.has_begun = true;
            parts.push(ToolPart::Text(text.to_owned()));
        }
    }

    fn add_calls(&mut self, calls: Vec<ToolCall>, parts: &mut Vec<ToolPart>) {
        self.calls += calls.len();
        parts.extend(calls.into_iter().map(ToolPart::Call));
    }

    /// Decides text up to a mark, which is taken away; whether it was there. What may be the
    /// beginning of one is held.
    fn read_text(&mut self, mark: &str, parts: &mut Vec<ToolPart>) -> bool {
        let found = self.held.find(mark);
        let end = found.unwrap_or_else(|| {
            let held = self.held.as_str();
            let is_beginning = |bytes: &usize| held.ends_with(&mark[..*bytes]);
            let kept = (1..mark.len()).rev().find(is_beginning);
            held.len() - kept.unwrap_or(0)
        });
        let text: String = self.held.drain(..end).collect();
        self.add_text(&text, parts);
        if found.is_some() {
            self.held.drain(..mark.len());
        }
        found.is_some()
    }

    fn read_hermes(&mut self, parts: &mut Vec<ToolPart>) {
        loop {
            if !self.is_within {
                if !self.read_text(HERMES.0, parts) {
                    return;
                }
                self.is_within = true;
            }
            let Some(end) = self.held.find(HERMES.1) else {
                return;
            };
            let inner: String = self.held.drain(..end).collect();
            self.held.drain(..HERMES.1.len());
            self.is_within = false;
            match objects(&inner) {
                Some(calls) => self.add_calls(calls, parts),
                None => self.add_text(&format!("{}{inner}{}", HERMES.0, HERMES.1), parts),
            }
        }
    }

    fn read_llama(&mut self, parts: &mut Vec<ToolPart>) {
        if self.is_within {
            return;
        }
        if !self.has_begun {
            let text = self.held.trim_start();
            if text.starts_with('{') || text.starts_with(LLAMA) {
                self.is_within = true;
                return;
            }
            if LLAMA.starts_with(text) {
                return;
            }
        }
        let text = std::mem::take(&mut self.held);
        self.add_text(&text, parts);
    }
}

/// The call that an object is.
fn call_of(object: &Value) -> Option<ToolCall> {
    // Some models put it into another one.
    let object = object
        .get("function")
        .filter(|it| it.is_object())
        .unwrap_or(object);
    let name = object.get("name")?.as_str()?.to_owned();
    let arguments = object.get("arguments").or(object.get("parameters"));
    let arguments = match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(it @ Value::Object(_)) => it.to_string(),
        Some(_) => return None,
    };
    Some(ToolCall { name, arguments })
}

/// The calls that objects are, one behind another, perhaps with `;` between them.
fn objects(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let value = values.next()?.ok()?;
        let read = values.byte_offset();
        match &value {
            Value::Array(items) => {
                let items: Option<Vec<ToolCall>> = items.iter().map(call_of).collect();
                calls.extend(items?);
            }
            value => calls.push(call_of(value)?),
        }
        rest = rest[read..]
            .trim_start()
            .trim_start_matches(';')
            .trim_start();
    }
    Some(calls).filter(|it| !it.is_empty())
}

/// What stands behind the first `[TOOL_CALLS]`.
fn mistral_calls(text: &str) -> Option<Vec<ToolCall>> {
    if text.trim_start().starts_with(['[', '{']) && !text.contains(MISTRAL_ARGUMENTS) {
        return objects(text);
    }
    let call = |part: &str| {
        let (name, arguments) = match part.split_once(MISTRAL_ARGUMENTS) {
            Some(parts) => parts,
            None => part.split_at(part.find('{')?),
        };
        let name = name.split(MISTRAL_ID).next().unwrap_or(name).trim();
        let arguments: Value = serde_json::from_str(arguments).ok()?;
        (arguments.is_object() && !name.is_empty()).then(|| ToolCall {
            name: name.to_owned(),
            arguments: arguments.to_string(),
        })
    };
    text.split(MISTRAL).map(call).collect()
}

/// The name of a call of the answer of this number, which no two calls share.
pub(crate) fn call_id(syntax: Option<ToolSyntax>, number: &str, index: usize) -> String {
    match syntax {
        // Templates of these models want nine letters or digits.
        Some(ToolSyntax::Mistral) => {
            let tail: String = number.chars().take(6).collect();
            format!("{tail:0>6}{:03}", index % 1000)
        }
        _ => format!("call_{number}{index}"),
    }
}

/// The name of a tool that a request gives.
pub(crate) fn name_of_tool(tool: &ChatValue) -> Option<&str> {
    let is_function = matches!(tool.get("type"), Some(ChatValue::Text(it)) if it == "function");
    match tool.get("function")?.get("name")? {
        ChatValue::Text(name) if is_function && !name.is_empty() => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader gives of this text, in parts of random sizes: all text, and the calls.
    fn read(syntax: ToolSyntax, text: &str) -> (String, Vec<(String, String)>) {
        let mut random = fercuda_trials::rng();
        let mut results = Vec::new();
        for _ in 0..20 {
            let mut reader = ToolReader::new(syntax, vec!["f".to_owned(), "g".to_owned()]);
            let (mut said, mut calls) = (String::new(), Vec::new());
            let mut parts = Vec::new();
            let mut rest = text;
            while !rest.is_empty() {
                let most = rest.chars().count().min(9);
                let len = rest
                    .chars()
                    .take(random.usize(1..=most))
                    .map(char::len_utf8)
                    .sum();
                parts.extend(reader.push(&rest[..len]));
                rest = &rest[len..];
            }
            parts.extend(reader.finish());
            for part in parts {
                match part {
                    ToolPart::Text(text) => said.push_str(&text),
                    ToolPart::Call(call) => calls.push((call.name, call.arguments)),
                }
            }
            assert_eq!(reader.calls(), calls.len());
            results.push((said, calls));
        }
        assert!(results.iter().all(|it| *it == results[0]), "{results:?}");
        results.swap_remove(0)
    }

    #[test]
    fn calls_are_read_and_the_rest_is_text() {
        let call = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
        let hermes = "Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"\u{e9}\"}}\n\
            </tool_call>\n<tool_call>{\"name\":\"h\",\"arguments\":{}}</tool_call>";
        let wanted = vec![call("f", "{\"x\":\"\u{e9}\"}"), call("h", "{}")];
        assert_eq!(
            read(ToolSyntax::Hermes, hermes),
            ("Well.\n".to_owned(), wanted)
        );
        let open = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}";
        assert_eq!(read(ToolSyntax::Hermes, open).1, [call("f", "{\"x\":1}")]);
        let llama = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}; {\"name\": \"g\"}";
        let wanted = [call("f", "{\"x\":1}"), call("g", "{}")];
        assert_eq!(read(ToolSyntax::Llama, llama).1, wanted);
        assert_eq!(
            read(ToolSyntax::Llama, &format!("<|python_tag|>{llama}")).1,
            wanted
        );
        let list = "Hm[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1}}]";
        let wanted = ("Hm".to_owned(), vec![call("f", "{\"x\":1}")]);
        assert_eq!(read(ToolSyntax::Mistral, list), wanted);
        let named = "[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}";
        let wanted = vec![call("f", "{\"x\":1}"), call("g", "{}")];
        assert_eq!(read(ToolSyntax::Mistral, named).1, wanted);
        for (syntax, text) in [
            (
                ToolSyntax::Hermes,
                "a < b <tool_cal <tool_call>{\"name\": 1}</tool_call> c",
            ),
            (ToolSyntax::Hermes, "<tool_call>never ends"),
            (ToolSyntax::Llama, "{\"answer\": 42}"),
            (
                ToolSyntax::Llama,
                "{\"name\": \"unknown\", \"parameters\": {}}",
            ),
            (ToolSyntax::Llama, "  text {\"name\": \"f\"}"),
            (ToolSyntax::Llama, "<|py"),
            (ToolSyntax::Mistral, "[TOOL_CALLS]of nothing"),
            (ToolSyntax::Mistral, "[TOOL_"),
        ] {
            assert_eq!(read(syntax, text), (text.to_owned(), Vec::new()), "{text}");
        }
    }

    #[test]
    fn templates_show_their_syntax() {
        let of = ToolSyntax::of_template;
        assert_eq!(of("{% if tools %}<tool_call>"), Some(ToolSyntax::Hermes));
        assert_eq!(of("{% if tools %}<tool_call><function="), None);
        assert_eq!(
            of("{% if tools %}Environment: ipython"),
            Some(ToolSyntax::Llama)
        );
        assert_eq!(of("{{ tools }}[TOOL_CALLS]"), Some(ToolSyntax::Mistral));
        assert_eq!(of("<tool_call>"), None);
    }
}
