//! Grammars in requests: OpenAI's formats, and the members of vLLM and llama.cpp.

use fercuda_grammar::GrammarSource;
use fercuda_tokenizer::ChatValue;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::members::{RequestMembers, wrong_type};
use crate::order::refuse;

/// A grammar with the member that it comes from.
type Found = Vec<(&'static str, GrammarSource)>;

/// A schema: an object, or its JSON as text. `blanks` is an expression of those between its tokens.
///
/// # Errors
/// If it is no schema.
pub(crate) fn schema_of(
    place: &str,
    value: &ChatValue,
    blanks: Option<&str>,
) -> Result<GrammarSource, ApiError> {
    let mut schema = match value {
        ChatValue::Object(_) | ChatValue::Bool(_) => value.to_json(),
        ChatValue::Text(text) => serde_json::from_str(text).map_err(|error| {
            ApiError::of(place.to_owned(), format!("the schema is no JSON: {error}"))
        })?,
        other => return Err(wrong_type(place.to_owned(), other, "an object")),
    };
    if let (Some(blanks), Some(members)) = (blanks, schema.as_object_mut()) {
        members.insert(
            "x-guidance".to_owned(),
            json!({ "whitespace_pattern": blanks }),
        );
    }
    Ok(GrammarSource::JsonSchema(schema.to_string()))
}

/// OpenAI's `response_format`.
fn read_format(body: &mut RequestMembers, found: &mut Found) -> Result<(), ApiError> {
    let name = "response_format";
    let Some(mut format) = body.object(name)? else {
        return Ok(());
    };
    let Some(kind) = format.text("type")? else {
        return Err(ApiError::of("response_format.type", "it is missing"));
    };
    match kind.as_str() {
        "text" => {}
        "json_object" => found.push(match format.take("schema") {
            // As llama.cpp has it.
            Some(schema) => (name, schema_of("response_format.schema", &schema, None)?),
            None => (name, GrammarSource::JsonObject),
        }),
        "json_schema" => {
            let Some(mut inner) = format.object("json_schema")? else {
                return Err(ApiError::of("response_format.json_schema", "it is missing"));
            };
            let place = inner.place("schema");
            let Some(schema) = inner.take("schema") else {
                return Err(ApiError::of(place, "it is missing"));
            };
            found.push((name, schema_of(&place, &schema, None)?));
        }
        other => {
            let shown: String = other.chars().take(40).collect();
            let message = format!("{shown:?} is not \"text\", \"json_object\" or \"json_schema\"");
            return Err(ApiError::of("response_format.type", message));
        }
    }
    Ok(())
}

/// vLLM's members, each with its name within `structured_outputs`.
const GUIDED: [(&str, &str); 5] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("guided_json_object", "json_object"),
];

/// Members of an object by these names.
fn read_guided(
    members: &mut RequestMembers,
    names: impl Iterator<Item = (&'static str, &'static str)>,
    blanks: Option<&str>,
    found: &mut Found,
) -> Result<(), ApiError> {
    for (member, shown) in names {
        let place = members.place(member);
        let source = match shown {
            "guided_json" => {
                let Some(schema) = members.take(member) else {
                    continue;
                };
                Some(schema_of(&place, &schema, blanks)?)
            }
            "guided_choice" => members.texts(member)?.map(GrammarSource::Choice),
            "guided_regex" => members.text(member)?.map(GrammarSource::Regex),
            "guided_grammar" => members.text(member)?.map(GrammarSource::Lark),
            _ => members
                .truth(member)?
                .filter(|it| *it)
                .map(|_| GrammarSource::JsonObject),
        };
        found.extend(source.map(|it| (shown, it)));
    }
    Ok(())
}

/// Takes the grammar of an answer from the body, with the member that it comes from.
///
/// # Errors
/// Which member is wrong, or that there are several grammars.
pub(crate) fn read_grammar(
    body: &mut RequestMembers,
) -> Result<Option<(&'static str, GrammarSource)>, ApiError> {
    let mut found = Vec::new();
    read_format(body, &mut found)?;
    let blanks = body.text("guided_whitespace_pattern")?;
    read_guided(
        body,
        GUIDED.map(|it| (it.0, it.0)).into_iter(),
        blanks.as_deref(),
        &mut found,
    )?;
    if let Some(mut outputs) = body.object("structured_outputs")? {
        let blanks = outputs.text("whitespace_pattern")?;
        let names = GUIDED.map(|it| (it.1, it.0)).into_iter();
        read_guided(&mut outputs, names, blanks.as_deref(), &mut found)?;
        let has_tag = outputs.take("structural_tag").is_some();
        refuse("structured_outputs", has_tag, "structural tags are")?;
        for option in ["disable_any_whitespace", "disable_additional_properties"] {
            let is_set = outputs.truth(option)? == Some(true);
            refuse("structured_outputs", is_set, &format!("{option} is"))?;
        }
        // There is one way to follow a grammar.
        outputs.truth("disable_fallback")?;
        if let Some(name) = outputs.left() {
            let message = "it is not known; try json, regex, choice, grammar or json_object";
            return Err(ApiError::of(outputs.place(&name), message));
        }
    }
    // llama.cpp's.
    if let Some(schema) = body.take("json_schema") {
        found.push(("json_schema", schema_of("json_schema", &schema, None)?));
    }
    if let Some(text) = body.text("grammar")?.filter(|it| !it.is_empty()) {
        found.push(("grammar", GrammarSource::Lark(text)));
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => {
            let message = format!(
                "an answer follows one grammar, and {} has another",
                found[0].0
            );
            Err(ApiError::of(found[1].0, message))
        }
    }
}

/// What an answer follows, and its format as the answer shows it.
type NamedFormat = (Option<(&'static str, GrammarSource)>, Value);

/// The format of a response, whose members are not within another object.
///
/// # Errors
/// Which member is wrong.
pub(crate) fn read_named_format(
    member: &'static str,
    mut format: RequestMembers,
) -> Result<NamedFormat, ApiError> {
    let kind = format.text("type")?.unwrap_or_default();
    let place = format.place("schema");
    match kind.as_str() {
        "text" => Ok((None, json!({ "type": kind }))),
        "json_object" => Ok((
            Some((member, GrammarSource::JsonObject)),
            json!({ "type": kind }),
        )),
        "json_schema" => {
            let Some(schema) = format.take("schema") else {
                return Err(ApiError::of(place, "it is missing"));
            };
            let shown = json!({
                "type": kind, "name": format.text("name")?, "schema": schema.to_json(),
                "description": format.text("description")?, "strict": format.truth("strict")?,
            });
            Ok((Some((member, schema_of(&place, &schema, None)?)), shown))
        }
        other => {
            let shown: String = other.chars().take(40).collect();
            let message = format!("{shown:?} is not \"text\", \"json_object\" or \"json_schema\"");
            Err(ApiError::of(format.place("type"), message))
        }
    }
}

/// The schema of arguments of a tool that names none.
pub(crate) fn any_arguments() -> Value {
    json!({ "type": "object" })
}
