//! Grammars of calls: that tools are called, and with arguments that their schemas describe.

use fercuda_grammar::{GrammarError, GrammarSource, lark_schema, lark_text};
use serde_json::Value;

use crate::order::{ForcedTool, ToolOrder};
use crate::tool_syntax::ToolSyntax;

/// How a model writes calls, and the tokens that it writes them with.
pub(crate) struct CallNotation<'a> {
    pub(crate) syntax: ToolSyntax,
    /// The chat template, of which there are variants of one syntax.
    pub(crate) template: &'a str,
    /// A mark within a grammar: its token, if it is a control token, else its text.
    pub(crate) mark: &'a dyn Fn(&str) -> String,
}

/// The beginning of a call as JSON, up to its arguments.
fn json_head(name: &str, arguments: &str) -> String {
    format!("{{\"name\": {}, \"{arguments}\": ", Value::from(name))
}

impl CallNotation<'_> {
    /// Rules of the calls of an order: `calls`, and what it is made of.
    fn rules(&self, tools: &ToolOrder) -> Result<String, GrammarError> {
        let is_wanted = |name: &str| match &tools.forced {
            Some(ForcedTool::Named(wanted)) => name == wanted,
            _ => true,
        };
        let has_arguments = self.template.contains("[ARGS]");
        let marks = |text: &str| (self.mark)(text);
        let (mut names, mut rules) = (Vec::new(), String::new());
        for (at, tool) in tools
            .all
            .iter()
            .enumerate()
            .filter(|it| is_wanted(&it.1.name))
        {
            let head = |arguments| lark_text(&json_head(&tool.name, arguments));
            let call = match self.syntax {
                ToolSyntax::Hermes => format!("{} args{at} \"}}\"", head("arguments")),
                ToolSyntax::Llama => format!("{} args{at} \"}}\"", head("parameters")),
                ToolSyntax::Mistral if has_arguments => format!(
                    "{} {} {} args{at}",
                    marks("[TOOL_CALLS]"),
                    lark_text(&tool.name),
                    marks("[ARGS]")
                ),
                ToolSyntax::Mistral => format!("{} args{at} \"}}\"", head("arguments")),
            };
            let schema = lark_schema(tool.parameters.clone())?;
            rules.push_str(&format!("call{at}: {call}\nargs{at}: {schema}\n"));
            names.push(format!("call{at}"));
        }
        let call = match self.syntax {
            ToolSyntax::Hermes => format!(
                "call: {} \"\\n\" named \"\\n\" {}\nnamed: {}\n",
                marks("<tool_call>"),
                marks("</tool_call>"),
                names.join(" | ")
            ),
            _ => format!("call: {}\n", names.join(" | ")),
        };
        let calls = match (self.syntax, tools.is_single) {
            (ToolSyntax::Hermes, false) => "call (\"\\n\" call)*".to_owned(),
            (ToolSyntax::Mistral, false) if has_arguments => "call+".to_owned(),
            (ToolSyntax::Mistral, is_single) if !has_arguments => {
                let more = if is_single { "" } else { " (\", \" call)*" };
                format!("{} \"[\" call{more} \"]\"", marks("[TOOL_CALLS]"))
            }
            _ => "call".to_owned(),
        };
        Ok(format!("calls: {calls}\n{call}{rules}"))
    }

    /// The grammar of an answer that is calls, and nothing else.
    ///
    /// # Errors
    /// Of a tool's schema.
    pub(crate) fn of_calls(&self, tools: &ToolOrder) -> Result<GrammarSource, GrammarError> {
        let rules = self.rules(tools)?;
        Ok(GrammarSource::Generated(format!("start: calls\n{rules}")))
    }

    /// The grammar of an answer that is JSON or calls; of grammars of other sorts, `None`.
    ///
    /// # Errors
    /// Of a schema.
    pub(crate) fn of_json_or_calls(
        &self,
        tools: &ToolOrder,
        answer: &GrammarSource,
    ) -> Result<Option<GrammarSource>, GrammarError> {
        let schema = match answer {
            GrammarSource::JsonObject => serde_json::json!({ "type": "object" }),
            GrammarSource::JsonSchema(text) => match serde_json::from_str(text) {
                Ok(schema) => schema,
                // Its own compilation says what is wrong.
                Err(_) => return Ok(Some(answer.clone())),
            },
            _ => return Ok(None),
        };
        let (rules, schema) = (self.rules(tools)?, lark_schema(schema)?);
        let text = format!("start: calls | answer\nanswer: {schema}\n{rules}");
        Ok(Some(GrammarSource::Generated(text)))
    }
}
