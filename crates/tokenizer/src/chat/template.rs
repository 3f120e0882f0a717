//! A compiled chat template, and what it is rendered with.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Environment, Value};

use super::data::ChatValue;
use super::filters::{NOW, add_clock, environment};
use super::limits::{RenderedText, with_large_stack};
use super::marks::{ControlTexts, PromptMarks};
use super::source::rewritten;
use crate::error::{Result, TokenizerError};
use crate::prompt::Prompt;
use crate::tokenizer::Tokenizer;

const NAME: &str = "chat";
/// Names under which a message's reasoning is given; the first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
const REPORT: &str = "report it with the template, and use another one (--chat-template) till then";

/// A chat template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: Vec<(&'static str, String)>,
    control: ControlTexts,
}

/// A conversation to render.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// Objects with a `role`, a `content` and what else the template reads.
    pub messages: Vec<ChatValue>,
    /// Tools that the model may call, as JSON schemas.
    pub tools: Option<Vec<ChatValue>>,
    /// Documents that the model may read.
    pub documents: Option<Vec<ChatValue>>,
    /// Whether the beginning of an answer follows.
    pub add_generation_prompt: bool,
    /// Variables besides, as `enable_thinking`.
    pub variables: Vec<(String, ChatValue)>,
    /// The time that the template sees; without it the present, in UTC.
    pub now: Option<SystemTime>,
}

impl ChatRequest {
    /// Messages that an answer follows.
    pub fn new(messages: Vec<ChatValue>) -> ChatRequest {
        ChatRequest {
            messages,
            add_generation_prompt: true,
            ..ChatRequest::default()
        }
    }
}

impl ChatTemplate {
    /// Compiles a template for the model of this tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError::Template`] with the line at which it does not parse, or is beyond a limit.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let piece = |token: Option<u32>| token.and_then(|it| tokenizer.piece(it));
        let tokens = [
            ("bos_token", piece(tokenizer.bos())),
            ("eos_token", piece(tokenizer.eos())),
        ];
        let tokens = tokens
            .into_iter()
            .filter_map(|(name, it)| Some((name, it?)));
        Self::with_tokens(source, tokens.collect(), tokenizer.control_texts())
    }

    /// Compiles a template with the special tokens that it may name, and the texts of control
    /// tokens that messages must not turn into.
    ///
    /// # Errors
    /// As of [`ChatTemplate::new`].
    pub fn with_tokens(
        source: &str,
        tokens: Vec<(&'static str, String)>,
        control: Vec<String>,
    ) -> Result<ChatTemplate> {
        let compiled = rewritten(source).map_err(|excess| TokenizerError::Template {
            line: excess.line,
            what: excess.what,
            hint: "a template within these limits (--chat-template)",
        })?;
        let environment = in_thread(|| {
            let mut environment = environment();
            add_clock(&mut environment);
            let added = environment.add_template_owned(NAME, compiled);
            added.map_err(|error| failed(&error))?;
            Ok(environment)
        })?;
        Ok(ChatTemplate {
            environment,
            source: source.to_owned(),
            tokens,
            control: ControlTexts::new(control)?,
        })
    }

    /// The text that it was compiled from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`TokenizerError::Template`] with the line that fails, and [`TokenizerError::Messages`] for
    /// messages that are no objects, and for texts with control tokens that the template itself
    /// looks for.
    pub fn render(&self, request: &ChatRequest) -> Result<Prompt> {
        for (index, message) in request.messages.iter().enumerate() {
            if !matches!(message, ChatValue::Object(_)) {
                return Err(TokenizerError::Messages {
                    what: format!("message {index} is no object"),
                    hint: "objects with a role and a content",
                });
            }
        }
        let lists = [&request.tools, &request.documents].into_iter().flatten();
        let variables = request.variables.iter().map(|it| &it.1);
        let values = request.messages.iter().chain(lists.flatten());
        let values: Vec<&ChatValue> = values.chain(variables).collect();
        let plain = in_thread(|| self.rendered(request, |it| it.clone()))?;
        let Some(marks) = PromptMarks::choose(&values, &self.source, &self.control)? else {
            return Ok(Prompt {
                text: plain,
                ..Prompt::default()
            });
        };
        let marked = in_thread(|| self.rendered(request, |it| marks.mark(it, &self.control)))?;
        let prompt = marks.unmark(&marked);
        if prompt.text != plain {
            return Err(TokenizerError::Messages {
                what: "a message has the text of a control token, which the template looks for: \
                    what becomes of the message is not known"
                    .to_owned(),
                hint: "the message without that text",
            });
        }
        Ok(prompt)
    }

    fn rendered(
        &self,
        request: &ChatRequest,
        mark: impl Fn(&ChatValue) -> ChatValue,
    ) -> Result<String> {
        let list = |items: &[ChatValue]| -> Value {
            items.iter().map(|it| mark(it).to_template()).collect()
        };
        let optional = |items: &Option<Vec<ChatValue>>| match items {
            Some(items) => list(items),
            None => Value::from(()),
        };
        let messages = request.messages.iter().map(aliased);
        let messages: Vec<ChatValue> = messages.collect();
        let now = request
            .now
            .and_then(|it| it.duration_since(UNIX_EPOCH).ok());
        let mut variables: Vec<(&str, Value)> = vec![
            ("messages", list(&messages)),
            ("tools", optional(&request.tools)),
            ("documents", optional(&request.documents)),
            (
                "add_generation_prompt",
                Value::from(request.add_generation_prompt),
            ),
        ];
        let tokens = self.tokens.iter();
        variables.extend(tokens.map(|(name, text)| (*name, Value::from(text.as_str()))));
        for (name, value) in &request.variables {
            variables.push((name, mark(value).to_template()));
        }
        if let Some(now) = now {
            variables.push((NOW, Value::from(now.as_secs())));
        }
        let template = self.environment.get_template(NAME);
        let template = template.map_err(|error| failed(&error))?;
        let mut text = RenderedText::default();
        template
            .render_captured_to(Value::from_pairs(variables), &mut text)
            .map_err(|error| failed(&error))?;
        Ok(text.into_text())
    }
}

/// Runs `work` in a thread with a large stack.
fn in_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    with_large_stack(work).unwrap_or_else(|what| {
        Err(TokenizerError::Template {
            line: 0,
            what,
            hint: REPORT,
        })
    })
}

/// A message without members that are null, and with its reasoning under each name that templates
/// read.
fn aliased(message: &ChatValue) -> ChatValue {
    let ChatValue::Object(members) = message else {
        return message.clone();
    };
    let present = members.iter().filter(|it| it.1 != ChatValue::Null);
    let mut members: Vec<(String, ChatValue)> = present.cloned().collect();
    let value = |name: &&str| {
        members
            .iter()
            .find(|it| it.0 == **name)
            .map(|it| it.1.clone())
    };
    let Some(reasoning) = REASONING.iter().find_map(&value) else {
        return ChatValue::Object(members);
    };
    let thinking = value(&"thinking").unwrap_or(reasoning.clone());
    members.retain(|it| it.0 != "thinking");
    members.insert(0, ("thinking".to_owned(), thinking));
    match members.iter_mut().find(|it| it.0 == REASONING[0]) {
        Some(member) => member.1 = reasoning,
        None => members.push((REASONING[0].to_owned(), reasoning)),
    }
    ChatValue::Object(members)
}

fn failed(error: &minijinja::Error) -> TokenizerError {
    // The first cause has the message, the outermost error the line in the template.
    let mut what = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        what = format!("{what}: {cause}");
        source = cause.source();
    }
    TokenizerError::Template {
        line: error.line().unwrap_or(0),
        what,
        hint: REPORT,
    }
}
