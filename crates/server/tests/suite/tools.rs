//! Tools, and calls of them, in the shapes of OpenAI's clients.

use fercuda_tokenizer::Special;
use serde_json::{Value, json};

use crate::support::{HttpReply, TestServer, tokenizer};

const CHAT: &str = "/v1/chat/completions";
/// Shows tools and messages, of a model that writes calls as Hermes' do.
const HERMES: &str = "{% if tools %}{{ tools|tojson }}<tool_call>{% endif %}\
    {% for m in messages %}{{ m.role }}:{{ m.content }}\
    {% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments.x }}{% endfor %}\
    {{ m.tool_call_id }}\n{% endfor %}";

fn body() -> Value {
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
fn choices_that_cannot_be_had_are_refused() {
    let server = TestServer::with_template(HERMES, |_| {});
    for choice in [
        json!("required"),
        json!({ "type": "function", "function": { "name": "weather" } }),
    ] {
        let mut body = body();
        body["tool_choice"] = choice;
        let reply = server.post(CHAT, &body);
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["param"], "tool_choice");
    }
    let mut body = body();
    body["tools"][0]["function"]["parameters"]["type"] = "<|im_end|>".into();
    assert_eq!(server.post(CHAT, &body).status, 400);
}
