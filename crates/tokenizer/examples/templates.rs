//! Comparison of rendered templates with a file that `make_references.py` has written.
#![expect(clippy::print_stdout, reason = "a program")]

use std::error::Error;

use fercuda_tokenizer::{ChatRequest, ChatTemplate, ChatValue};

fn list(case: &ChatValue, name: &str) -> Option<Vec<ChatValue>> {
    match case.get(name) {
        Some(ChatValue::List(items)) => Some(items.clone()),
        _ => None,
    }
}

fn text<'a>(case: &'a ChatValue, name: &str) -> Option<&'a str> {
    match case.get(name) {
        Some(ChatValue::Text(text)) => Some(text),
        _ => None,
    }
}

fn rendered(case: &ChatValue) -> Result<String, Box<dyn Error>> {
    let mut request = ChatRequest::new(list(case, "messages").unwrap_or_default());
    request.tools = list(case, "tools");
    request.documents = list(case, "documents");
    request.add_generation_prompt = case.get("add_generation_prompt") != Some(&false.into());
    if let Some(ChatValue::Object(variables)) = case.get("variables") {
        request.variables = variables.clone();
    }
    let template = text(case, "template").unwrap_or("");
    let template = ChatTemplate::with_tokens(template, Vec::new(), Vec::new())?;
    Ok(template.render(&request)?.text().to_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args()
        .nth(1)
        .ok_or("the name of a file of cases is missing")?;
    let ChatValue::List(cases) = ChatValue::from_json(&std::fs::read_to_string(file)?)? else {
        return Err("no list of cases".into());
    };
    let (mut same, mut both_fail) = (0, 0);
    for case in &cases {
        let name = text(case, "name").unwrap_or("");
        match (rendered(case), text(case, "text")) {
            (Ok(is), Some(wanted)) if is == wanted => same += 1,
            (Err(_), None) => both_fail += 1,
            (is, wanted) => println!(
                "{name}\n  is     {is:?}\n  wanted {wanted:?} {:?}",
                text(case, "error")
            ),
        }
    }
    println!("{same} equal, {both_fail} fail in both, of {}", cases.len());
    Ok(())
}
