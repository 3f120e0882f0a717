//! `fercuda chat`: a conversation with a language model.

use std::io::{self, BufRead, IsTerminal as _, Read as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use fercuda_llm::{EngineConfig, FinishReason, LlmError};
use fercuda_tokenizer::{ChatRequest, ChatTemplate, ChatValue, TokenizerError};

use super::adapter_args::AdapterArgs;
use super::draft_args::DraftArgs;
use super::{
    Generated, LoadedModel, MOST_PROMPT, ModelArgs, NO_NUMBERS, SamplerArgs, TemplateArgs, show,
    wants_figures, watch_interrupts,
};
use crate::errors::report;
use crate::out::{alert, note, say};
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::bytes;

const COMMANDS: &str = "\
/clear         forget the conversation
/system TEXT   set the system message, and forget the conversation
/again         answer the last message again
/history       show the conversation
/help          show this
/exit          end";

/// Talk with a language model, line by line.
#[derive(clap::Args)]
#[command(after_help = "\
A line is a message; one that begins with / is a command: /help lists them.
Ctrl-C stops an answer, and the conversation goes on; at the prompt it ends the
program, as Ctrl-D does. The model's chat template makes the conversation; texts
of control tokens in messages stay text.

Examples:
  fercuda chat smollm2.gguf
  fercuda chat model.gguf --system 'Answer in one sentence.' --temperature 0.7
  fercuda chat model.gguf --lora trained/checkpoint-500 --lora-scale 0.5
  echo 'Name three rivers.' | fercuda chat model.gguf")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    adapter: AdapterArgs,
    #[command(flatten)]
    template: TemplateArgs,
    /// Text of the system message.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// End an answer after so many tokens.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    #[command(flatten)]
    sampler: SamplerArgs,
    #[command(flatten)]
    draft: DraftArgs,
}

/// Messages so far: roles and texts.
struct Conversation {
    messages: Vec<(&'static str, String)>,
}

impl Conversation {
    fn begin(system: Option<&str>) -> Self {
        let system = system.map(|text| ("system", text.to_owned()));
        Self {
            messages: system.into_iter().collect(),
        }
    }

    /// Takes what came behind the last message of the user.
    fn back_to_user(&mut self) -> bool {
        let last = self.messages.iter().rposition(|(role, _)| *role == "user");
        self.messages.truncate(last.map_or(0, |at| at + 1));
        last.is_some()
    }

    fn request(&self) -> ChatRequest {
        let messages = self.messages.iter();
        ChatRequest::new(
            messages
                .map(|(role, text)| ChatValue::message(role, text))
                .collect(),
        )
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let adapters = args.adapter.open()?;
    let options = adapters.options(EngineConfig::default());
    let mut model = args.draft.load(&args.model, options)?;
    model.adapt(&adapters)?;
    let Some(template) = args.template.of(&mut model)? else {
        bail_usage!(
            "the model has no chat template\ntry: --chat-template, or fercuda generate, or an \
             instruction model"
        );
    };
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal {
        note!("/help lists commands; Ctrl-C stops an answer, Ctrl-D ends");
    }
    let mut system = args.system.clone();
    let mut conversation = Conversation::begin(system.as_deref());
    let interrupted = watch_interrupts()?;
    let mut stdin = io::stdin().lock();
    loop {
        if is_terminal {
            show("> ");
        }
        // Here Ctrl-C ends the program.
        interrupted.store(true, Ordering::Relaxed);
        let line = match read_line(&mut stdin)? {
            ChatLine::Text(line) => line,
            ChatLine::TooLong => {
                let most = bytes(MOST_PROMPT);
                alert!("a line has more than {most}, and is left out\ntry: a shorter one");
                continue;
            }
            ChatLine::End => break,
        };
        let line = line.trim();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" => continue,
            "/exit" | "/quit" => break,
            "/help" => say!("{COMMANDS}"),
            "/clear" => conversation = Conversation::begin(system.as_deref()),
            "/system" => {
                system = Some(rest.trim().to_owned()).filter(|text| !text.is_empty());
                conversation = Conversation::begin(system.as_deref());
            }
            "/history" => {
                for (role, text) in &conversation.messages {
                    say!("{role}: {text}");
                }
            }
            "/again" => match conversation.back_to_user() {
                true => answer(
                    args,
                    (&mut model, &template),
                    &mut conversation,
                    &interrupted,
                )?,
                false => alert!("there is no message yet"),
            },
            _ if word.starts_with('/') => alert!("{word} is no command\ntry: /help"),
            _ => {
                conversation.messages.push(("user", line.to_owned()));
                answer(
                    args,
                    (&mut model, &template),
                    &mut conversation,
                    &interrupted,
                )?;
            }
        }
    }
    Ok(ExitStatus::Success.into())
}

/// A line of a conversation.
enum ChatLine {
    Text(String),
    /// One that is longer than lines may be; it was read and left.
    TooLong,
    End,
}

/// Reads a line. What is no UTF-8 in it becomes U+FFFD, as in a prompt.
fn read_line(from: &mut impl BufRead) -> io::Result<ChatLine> {
    let mut line = Vec::new();
    let most = MOST_PROMPT + 1;
    let count = from.by_ref().take(most).read_until(b'\n', &mut line)?;
    if count == 0 {
        return Ok(ChatLine::End);
    }
    if count as u64 == most && line.last() != Some(&b'\n') {
        drop(line);
        from.skip_until(b'\n')?;
        return Ok(ChatLine::TooLong);
    }
    Ok(ChatLine::Text(String::from_utf8_lossy(&line).into_owned()))
}

/// Whether an error is one of a message, with which a conversation cannot go on, and not of the
/// device.
fn is_of_message(error: &anyhow::Error) -> bool {
    let is_request = |it: &LlmError| matches!(it, LlmError::Request { .. });
    error.is::<TokenizerError>() || error.downcast_ref().is_some_and(is_request)
}

/// Generates an answer and shows it. One that cannot be generated is reported, and the message is
/// taken back.
fn answer(
    args: &Args,
    (model, template): (&mut LoadedModel, &ChatTemplate),
    conversation: &mut Conversation,
    interrupted: &AtomicBool,
) -> Result<()> {
    let generated = match generate(args, (model, template), conversation, interrupted) {
        Ok(Some(generated)) => generated,
        Ok(None) => {
            conversation.messages.pop();
            return Ok(());
        }
        Err(error) if is_of_message(&error) => {
            conversation.messages.pop();
            report(&error, ExitStatus::Failure);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    say!("");
    match generated.finished {
        None => note!("stopped"),
        Some(FinishReason::Failed) => {
            conversation.messages.pop();
            alert!("{NO_NUMBERS}");
            return Ok(());
        }
        Some(_) => {}
    }
    if wants_figures() {
        alert!(
            "first token after {:.2?}, then {:.1} a second",
            generated.first,
            generated.rate()
        );
    }
    conversation.messages.push(("assistant", generated.text));
    Ok(())
}

/// The answer to a conversation; `None` for one that is too long, which is reported.
fn generate(
    args: &Args,
    (model, template): (&mut LoadedModel, &ChatTemplate),
    conversation: &Conversation,
    interrupted: &AtomicBool,
) -> Result<Option<Generated>> {
    let prompt = template.render(&conversation.request())?;
    let tokens = model.tokenizer.encode_prompt(&prompt)?;
    let context = model.engine.context();
    if tokens.len() as u64 >= context {
        alert!(
            "the conversation has {} tokens, the context {context}\ntry: /clear, or a larger --context",
            tokens.len()
        );
        return Ok(None);
    }
    let request = (tokens, args.max_tokens as usize);
    let how = (args.sampler.config(), None);
    let generated = model.generate(request, how, interrupted, show)?;
    Ok(Some(generated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_whole_or_left() {
        let long = "x".repeat(MOST_PROMPT as usize);
        let input = format!("one\n\n{long}\n{long}y\nlast");
        let mut input = [input.as_bytes(), b"\xff\n"].concat();
        input.truncate(input.len() - 1);
        let mut from = &input[..];
        let mut read = || match read_line(&mut from).unwrap() {
            ChatLine::Text(text) => Some(text.trim().len()),
            ChatLine::TooLong => Some(usize::MAX),
            ChatLine::End => None,
        };
        assert_eq!(read(), Some(3));
        assert_eq!(read(), Some(0));
        assert_eq!(read(), Some(long.len()));
        assert_eq!(read(), Some(usize::MAX));
        // "last" and U+FFFD.
        assert_eq!(read(), Some(7));
        assert_eq!(read(), None);
    }
}
