//! Anthropic's messages.

use serde_json::{Value, json};

use crate::support::{HttpReply, TestServer};

fn body() -> Value {
    json!({
        "model": "echo", "max_tokens": 1000, "system": [{ "type": "text", "text": "Be brief." }],
        "messages": [{ "role": "user", "content": "one two three" }],
    })
}

#[test]
fn messages_have_the_same_text_whole_and_streamed() {
    let server = TestServer::start();
    let mut body = body();
    let whole = server.post("/v1/messages", &body).json();
    let text = "system\nBe brief.\nuser\none two three\nassistant\n";
    assert_eq!(whole["content"], json!([{ "type": "text", "text": text }]));
    assert_eq!(
        (&whole["stop_reason"], &whole["role"]),
        (&json!("end_turn"), &json!("assistant"))
    );
    let prompt = server.state().prompt.len();
    let usage = &whole["usage"];
    let number = |name: &str| usage[name].as_u64().unwrap() as usize;
    assert_eq!(
        number("input_tokens") + number("cache_read_input_tokens"),
        prompt
    );
    assert_eq!(number("output_tokens"), prompt + 1);
    body["stream"] = true.into();
    let reply = server.post("/v1/messages", &body);
    let raw = reply.text();
    let names: Vec<&str> = raw
        .lines()
        .filter_map(|it| it.strip_prefix("event: "))
        .collect();
    let events = reply.events();
    let kinds: Vec<&str> = events
        .iter()
        .map(|it| it["type"].as_str().unwrap())
        .collect();
    assert_eq!(names, kinds);
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    let end = ["content_block_stop", "message_delta", "message_stop"];
    assert_eq!(kinds[kinds.len() - 3..], end);
    let texts = events.iter().filter_map(|it| it["delta"]["text"].as_str());
    assert_eq!(texts.collect::<String>(), text);
    let delta = &events[events.len() - 2];
    assert_eq!(delta["delta"]["stop_reason"], "end_turn");
    assert_eq!(delta["usage"], *usage);
    body["stop_sequences"] = json!(["two th"]);
    body["stream"] = false.into();
    let stopped = server.post("/v1/messages", &body).json();
    assert_eq!(stopped["stop_reason"], "stop_sequence");
    assert_eq!(stopped["stop_sequence"], "two th");
    body["max_tokens"] = 2.into();
    assert_eq!(
        server.post("/v1/messages", &body).json()["stop_reason"],
        "max_tokens"
    );
    let counted = server.post("/v1/messages/count_tokens", &body).json();
    assert_eq!(counted, json!({ "input_tokens": prompt }));
}

#[test]
fn errors_have_the_shape_of_the_api() {
    let server = TestServer::with(|config| config.api_key = Some("secret".to_owned()));
    let reply = server.post("/v1/messages", &body());
    assert_eq!(reply.status, 401);
    let error = reply.json();
    assert_eq!(error["type"], "error");
    assert_eq!(error["error"]["type"], "authentication_error");
    let with_key = |body: &Value| {
        let (path, key) = ("/v1/messages", "X-Api-Key: secret\r\n");
        HttpReply::read(server.send("POST", path, key, &body.to_string()))
    };
    assert_eq!(with_key(&body()).status, 200);
    let wrong = [
        ("max_tokens", Value::Null, "it is missing"),
        ("temperature", json!(1.5), "not between 0 and 1"),
        ("top_k", json!(-1), "less than 0"),
        ("thinking", json!({ "type": "enabled" }), "not supported"),
        ("output_config", json!({ "format": {} }), "not supported"),
        ("tools", json!([{}]), "it is missing"),
        (
            "tools",
            json!([{ "type": "bash_20250124", "name": "bash" }]),
            "not supported",
        ),
        (
            "tools",
            json!([{ "name": "f", "input_schema": 5 }]),
            "no JSON schema",
        ),
        ("tool_choice", json!({ "type": "any" }), "no tools"),
        ("tool_choice", json!({ "type": "some" }), "not auto"),
        ("output_format", json!({ "type": "json_schema" }), "missing"),
        (
            "output_format",
            json!({ "type": "json_schema", "schema": { "type": "objec" } }),
            "Invalid type",
        ),
        (
            "messages",
            json!([{ "role": "user", "content": [{ "type": "image" }] }]),
            "only text",
        ),
        (
            "messages",
            json!([{ "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "toolu_1", "content": "x" }] }]),
            "toolu_1",
        ),
        ("messages", json!([]), "there is none"),
        (
            "messages",
            json!([{ "role": "system", "content": "x" }]),
            "a role of",
        ),
        (
            "messages",
            json!([{ "role": "assistant", "content": "x" }]),
            "to go on",
        ),
        ("model", Value::Null, "requests without one"),
    ];
    for (name, value, message) in wrong {
        let mut body = body();
        body[name] = value;
        let reply = with_key(&body);
        assert_eq!(reply.status, 400, "{body}");
        let error = &reply.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        let text = error["message"].as_str().unwrap();
        assert!(
            text.contains(name) && text.contains(message),
            "{body}: {text}"
        );
    }
}
