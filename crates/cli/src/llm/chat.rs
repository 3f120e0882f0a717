//! `fercuda chat`: a conversation with a language model.

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::Result;
use fercuda_tokenizer::{ChatRequest, ChatTemplate, ChatValue};

use super::{LoadedModel, ModelArgs, SamplerArgs, show, wants_figures};
use crate::out::{alert, note, say};
use crate::status::{ExitStatus, bail_usage};

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
  echo 'Name three rivers.' | fercuda chat model.gguf")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text of the system message.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// End an answer after so many tokens.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    #[command(flatten)]
    sampler: SamplerArgs,
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
    let mut model = args.model.load()?;
    let Some(template) = std::mem::replace(&mut model.template, Ok(None))? else {
        bail_usage!(
            "the model has no chat template\ntry: fercuda generate, or an instruction model"
        );
    };
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal {
        note!("/help lists commands; Ctrl-C stops an answer, Ctrl-D ends");
    }
    let mut system = args.system.clone();
    let mut conversation = Conversation::begin(system.as_deref());
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if is_terminal {
            show("> ");
        }
        // Here Ctrl-C ends the program.
        model.interrupted.store(true, Ordering::Relaxed);
        let Some(line) = lines.next().transpose()? else {
            break;
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
                true => answer(args, &mut model, &template, &mut conversation)?,
                false => alert!("there is no message yet"),
            },
            _ if word.starts_with('/') => alert!("{word} is no command\ntry: /help"),
            _ => {
                conversation.messages.push(("user", line.to_owned()));
                answer(args, &mut model, &template, &mut conversation)?;
            }
        }
    }
    Ok(ExitStatus::Success.into())
}

/// Generates an answer and shows it. One that cannot be generated is reported, and the message is
/// taken back.
fn answer(
    args: &Args,
    model: &mut LoadedModel,
    template: &ChatTemplate,
    conversation: &mut Conversation,
) -> Result<()> {
    let prompt = template.render(&conversation.request())?;
    let tokens = model.tokenizer.encode_prompt(&prompt)?;
    let context = model.engine.context();
    if tokens.len() as u64 >= context {
        conversation.messages.pop();
        alert!(
            "the conversation has {} tokens, the context {context}\ntry: /clear, or a larger --context",
            tokens.len()
        );
        return Ok(());
    }
    let config = args.sampler.config();
    let generated = model.generate(tokens, args.max_tokens as usize, config, show)?;
    say!("");
    if generated.finished.is_none() {
        note!("stopped");
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
