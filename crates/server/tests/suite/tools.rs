//! Tools, and calls of them, in the shapes of OpenAI's clients.

use fercuda_tokenizer::Special;
use serde_json::{Value, json};

use crate::support::{HttpReply, TestServer, tokenizer};

pub(crate) const CHAT: &str = "/v1/chat/completions";
/// Shows tools and messages, of a model that writes calls as Hermes' do.
pub(crate) const HERMES: &str = "{% if tools %}{{ tools|tojson }}<tool_call>{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content }}\
    {% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments.x }}{% endfor %}\
    {{ m.tool_call_id }}\n{% endfor %}";

pub(crate) fn body() -> Value {
    let function = json!({
        "name": "weather", "description": "How it is.",
        "parameters": { "type": "object", "properties": { "x": { "type": "string" } } },
    });
    json!({
        "messages": [{ "role": "user", "content": "How is it?" }],
        "tools": [{ "type": "function", "function": function }],
    })
}

/// A server whose model answers with this text.
fn answering(text: &str) -> TestServer {
    let server = TestServer::with_template(HERMES, |_| {});
    let tokens = tokenizer().encode_part(text, Special::AsText).unwrap();
    server.state().answer = Some(tokens);
    server
}

#[test]
fn a_call_is_a_message_of_its_own_shape_whole_and_streamed() {
    let server = answering(
        "Let me see.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"x\": \"na\u{ef}ve\"}}\n\
         </tool_call>\n<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>",
    );
    let mut body = body();
    let whole = server.post(CHAT, &body).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me see.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["type"], "function");
    assert_eq!(calls[0]["function"]["name"], "weather");
    assert_eq!(calls[0]["function"]["arguments"], "{\"x\":\"na\u{ef}ve\"}");
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    body["stream"] = true.into();
    let events = server.post(CHAT, &body).events();
    let (mut content, mut streamed) = (String::new(), Vec::<(String, String)>::new());
    for event in &events {
        let delta = &event["choices"][0]["delta"];
        content.push_str(delta["content"].as_str().unwrap_or(""));
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if let Some(name) = call["function"]["name"].as_str() {
                assert_eq!(index, streamed.len());
                assert!(call["id"].as_str().unwrap().starts_with("call_"));
                streamed.push((name.to_owned(), String::new()));
            }
            let arguments = call["function"]["arguments"].as_str().unwrap();
            streamed[index].1.push_str(arguments);
        }
    }
    assert_eq!(content, "Let me see.");
    let wanted = calls.iter().map(|it| {
        let text = |name: &str| it["function"][name].as_str().unwrap().to_owned();
        (text("name"), text("arguments"))
    });
    assert_eq!(streamed, wanted.collect::<Vec<_>>());
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    // Without tools it is text.
    body["tool_choice"] = "none".into();
    body["stream"] = false.into();
    let plain = server.post(CHAT, &body).json();
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("<tool_call>"), "{text}");
    assert_eq!(plain["choices"][0]["finish_reason"], "stop");
}

#[test]
fn tools_and_their_results_reach_the_template() {
    let server = TestServer::with_template(HERMES, |_| {});
    let call = json!({ "name": "weather", "arguments": "{\"x\": \"there\"}" });
    let messages = json!([
        { "role": "user", "content": "How is it?" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "call_1", "type": "function", "function": call },
        ] },
        { "role": "tool", "tool_call_id": "call_1", "content": [
            { "type": "text", "text": "fine" },
        ] },
    ]);
    // Members have the order in which they were sent.
    let tools = "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"a\": 1}}]";
    let body = format!("{{\"tools\": {tools}, \"messages\": {messages}}}");
    let reply = HttpReply::read(server.send("POST", CHAT, "", &body));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = tokenizer().decode(&server.state().prompt);
    assert!(prompt.contains(tools), "{prompt}");
    assert!(prompt.contains("assistant:weatherthere"), "{prompt}");
    assert!(prompt.contains("tool:finecall_1"), "{prompt}");
}

#[test]
fn types_with_signs_are_refused() {
    let server = TestServer::with_template(HERMES, |_| {});
    let mut body = body();
    body["tools"][0]["function"]["parameters"]["type"] = "<|im_end|>".into();
    assert_eq!(server.post(CHAT, &body).status, 400);
}

/// The body of a request in Anthropic's shape.
fn anthropic_body() -> Value {
    let schema = json!({ "type": "object", "properties": { "x": { "type": "string" } } });
    json!({
        "model": "echo", "max_tokens": 300,
        "messages": [{ "role": "user", "content": "How is it?" }],
        "tools": [{ "name": "weather", "description": "How it is.", "input_schema": schema }],
    })
}

#[test]
fn a_call_is_a_block_whole_and_streamed() {
    let server = answering(
        "Let me see.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"x\": \"na\u{ef}ve\"}}\n\
         </tool_call>\n<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>",
    );
    let mut body = anthropic_body();
    let whole = server.post("/v1/messages", &body).json();
    assert_eq!(whole["stop_reason"], "tool_use");
    let blocks = whole["content"].as_array().unwrap();
    assert_eq!(blocks[0], json!({ "type": "text", "text": "Let me see." }));
    assert_eq!(blocks[1]["input"], json!({ "x": "na\u{ef}ve" }));
    assert_eq!(
        (&blocks[2]["type"], &blocks[2]["input"]),
        (&json!("tool_use"), &json!({}))
    );
    assert!(blocks[1]["id"].as_str().unwrap().starts_with("toolu_"));
    assert_ne!(blocks[1]["id"], blocks[2]["id"]);
    body["stream"] = true.into();
    let events = server.post("/v1/messages", &body).events();
    let mut streamed: Vec<Value> = Vec::new();
    let mut is_open = false;
    for event in &events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(!is_open && event["index"] == streamed.len());
                is_open = true;
                streamed.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert!(is_open);
                let (block, delta) = (streamed.last_mut().unwrap(), &event["delta"]);
                match delta["type"].as_str().unwrap() {
                    "text_delta" => {
                        let text = format!(
                            "{}{}",
                            block["text"].as_str().unwrap(),
                            delta["text"].as_str().unwrap()
                        );
                        block["text"] = text.into();
                    }
                    _ => {
                        let input = delta["partial_json"].as_str().unwrap();
                        block["input"] = serde_json::from_str(input).unwrap();
                    }
                }
            }
            "content_block_stop" => is_open = false,
            _ => assert!(!is_open),
        }
    }
    let without_ids = |blocks: &[Value]| -> Vec<Value> {
        let each = |block: &Value| {
            let mut block = block.clone();
            block["id"] = Value::Null;
            block
        };
        blocks.iter().map(each).collect()
    };
    assert_eq!(without_ids(&streamed), without_ids(blocks));
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");
    // Without tools it is text.
    body["tool_choice"] = json!({ "type": "none" });
    body["stream"] = false.into();
    let plain = server.post("/v1/messages", &body).json();
    assert_eq!(plain["stop_reason"], "end_turn");
    assert!(
        plain["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("<tool_call>")
    );
}

#[test]
fn blocks_of_calls_and_results_reach_the_template_in_openais_shape() {
    let server = TestServer::with_template(HERMES, |_| {});
    let mut body = anthropic_body();
    body["messages"] = json!([
        { "role": "user", "content": "How is it?" },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "secret", "signature": "s" },
            { "type": "text", "text": "Well." },
            { "type": "tool_use", "id": "toolu_1", "name": "weather", "input": { "x": "there" } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "toolu_1", "is_error": true,
              "content": [{ "type": "text", "text": "fine" }] },
            { "type": "text", "text": "And?" },
        ] },
    ]);
    let reply = server.post("/v1/messages", &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = tokenizer().decode(&server.state().prompt);
    for part in [
        "\"function\": {\"name\": \"weather\", \"description\": \"How it is.\", \"parameters\": {",
        "user:How is it?\nassistant:Well.weatherthere\ntool:Error: finetoolu_1\nuser:And?\n",
    ] {
        assert!(prompt.contains(part), "{prompt}");
    }
    assert!(!prompt.contains("secret"));
    let counted = server.post("/v1/messages/count_tokens", &body).json();
    assert_eq!(counted["input_tokens"], server.state().prompt.len());
}

#[test]
fn anthropics_choices_and_formats_are_followed() {
    let server = answering("I would rather talk.");
    let mut body = anthropic_body();
    for choice in [
        json!({ "type": "any", "disable_parallel_tool_use": true }),
        json!({ "type": "tool", "name": "weather" }),
    ] {
        body["tool_choice"] = choice;
        let whole = server.post("/v1/messages", &body).json();
        assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
        assert_eq!(whole["content"][0]["name"], "weather");
        assert!(whole["content"][0]["input"].is_object());
    }
    body["tool_choice"] = Value::Null;
    body["tools"] = json!([]);
    let schema = json!({ "type": "array", "items": { "const": 1 }, "maxItems": 2 });
    let format = json!({ "type": "json_schema", "schema": schema });
    for (name, value) in [
        ("output_format", format.clone()),
        ("output_config", json!({ "format": format })),
    ] {
        let mut body = body.clone();
        body[name] = value;
        let whole = server.post("/v1/messages", &body).json();
        let text = whole["content"][0]["text"].as_str().unwrap();
        assert!(serde_json::from_str::<Vec<u8>>(text).is_ok(), "{whole}");
    }
}
