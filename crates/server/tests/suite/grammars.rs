//! Answers that follow grammars: formats, guided answers, and tools that have to be called.

use fercuda_tokenizer::Special;
use serde_json::{Value, json};

use crate::support::{TestServer, tokenizer};
use crate::tools::{CHAT, HERMES, body};

/// The text of an answer to a request with these members.
fn answer(server: &TestServer, members: &Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 200 });
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    let reply = server.post(CHAT, &body);
    assert_eq!(reply.status, 200, "{members}: {}", reply.text());
    let whole = reply.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{whole}");
    whole["choices"][0]["message"]["content"].clone()
}

/// A server whose model would say this, if no grammar were in its way.
fn saying(template: &str, text: &str) -> TestServer {
    let server = TestServer::with_template(template, |_| {});
    let tokens = tokenizer().encode_part(text, Special::AsText).unwrap();
    server.state().answer = Some(tokens);
    server
}

#[test]
fn answers_follow_what_the_request_names() {
    let server = TestServer::start();
    let schema = json!({
        "type": "object", "properties": { "b": { "type": "integer" }, "a": { "type": "boolean" } },
        "required": ["b", "a"], "additionalProperties": false,
    });
    let named = json!({ "name": "x", "strict": true, "schema": schema });
    for members in [
        json!({ "response_format": { "type": "json_schema", "json_schema": named } }),
        json!({ "response_format": { "type": "json_object", "schema": schema } }),
        json!({ "guided_json": schema }),
        json!({ "guided_json": schema.to_string() }),
        json!({ "structured_outputs": { "json": schema } }),
        json!({ "json_schema": schema }),
    ] {
        let text = answer(&server, &members);
        let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        let names: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(names, ["b", "a"], "{members}: {text}");
        assert!(value["b"].is_i64() && value["a"].is_boolean(), "{text}");
    }
    let object = answer(
        &server,
        &json!({ "response_format": { "type": "json_object" } }),
    );
    let object: Value = serde_json::from_str(object.as_str().unwrap()).unwrap();
    assert!(object.is_object());
    for members in [
        json!({ "guided_choice": ["1e", "e1"] }),
        json!({ "structured_outputs": { "choice": ["1e", "e1"] } }),
        json!({ "guided_regex": "1e|e1" }),
        json!({ "structured_outputs": { "regex": "(1e|e1)" } }),
        json!({ "guided_grammar": "start: \"1e\" | E\nE: \"e1\"" }),
        json!({ "structured_outputs": { "grammar": "start: \"1e\" | \"e1\"" } }),
        json!({ "grammar": "start: \"1e\" | \"e1\"" }),
    ] {
        let text = answer(&server, &members);
        assert!(
            ["1e", "e1"].contains(&text.as_str().unwrap()),
            "{members}: {text}"
        );
    }
    let blanks = json!({ "guided_json": { "const": [1, 1] }, "guided_whitespace_pattern": "e" });
    let text = answer(&server, &blanks);
    assert!(text.as_str().unwrap().replace('e', "") == "[1,1]", "{text}");
    // A completion, streamed.
    let body = json!({ "prompt": "x", "stream": true, "guided_regex": "[ab]{7}", "max_tokens": 9 });
    let events = server.post("/v1/completions", &body).events();
    let texts = events
        .iter()
        .filter_map(|it| it["choices"][0]["text"].as_str());
    let text: String = texts.collect();
    assert!(
        text.len() == 7 && text.bytes().all(|it| b"ab".contains(&it)),
        "{text}"
    );
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "stop"
    );
}

#[test]
fn what_cannot_be_followed_is_refused_with_its_member() {
    let server = TestServer::start();
    let unsatisfiable = json!({ "type": "integer", "minimum": 3, "maximum": 1 });
    for (members, param, said) in [
        (
            json!({ "guided_json": unsatisfiable }),
            "guided_json",
            "no text follows",
        ),
        (json!({ "guided_json": "{" }), "guided_json", "no JSON"),
        (json!({ "guided_json": 5 }), "guided_json", "not an object"),
        (
            json!({ "guided_json": { "type": "objec" } }),
            "guided_json",
            "Invalid type",
        ),
        (
            json!({ "guided_regex": "(" }),
            "guided_regex",
            "unclosed group",
        ),
        (json!({ "guided_choice": [] }), "guided_choice", "0 texts"),
        (
            json!({ "guided_choice": [1] }),
            "guided_choice",
            "a list of texts",
        ),
        (
            json!({ "guided_grammar": "start: x" }),
            "guided_grammar",
            "unknown name",
        ),
        (json!({ "grammar": "root ::= a" }), "grammar", "no rule a"),
        (
            json!({ "guided_regex": "a", "guided_choice": ["a"] }),
            "guided_choice",
            "one grammar",
        ),
        (
            json!({ "structured_outputs": { "structural_tag": "x" } }),
            "structured_outputs",
            "tags",
        ),
        (
            json!({ "structured_outputs": { "regx": "a" } }),
            "structured_outputs",
            "not known",
        ),
        (
            json!({ "guided_json": { "allOf": [{ "multipleOf": 101 }, { "multipleOf": 103 }] } }),
            "guided_json",
            "multipleOf",
        ),
        (
            json!({ "response_format": { "json_schema": { "schema": {} } } }),
            "response_format",
            "missing",
        ),
        (
            json!({ "response_format": { "type": "yaml" } }),
            "response_format",
            "yaml",
        ),
        (
            json!({ "response_format": { "type": "json_schema" } }),
            "response_format",
            "missing",
        ),
    ] {
        let mut body = json!({ "messages": [{ "role": "user", "content": "x" }] });
        for (name, value) in members.as_object().unwrap() {
            body[name] = value.clone();
        }
        let reply = server.post(CHAT, &body);
        let error = reply.json()["error"].take();
        assert_eq!(
            (reply.status, error["param"].as_str()),
            (400, Some(param)),
            "{error}"
        );
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    }
    // None of them has kept its place in the queue, or reached the engine.
    assert_eq!(server.state().submitted, 0);
    assert_eq!(answer(&server, &json!({ "guided_choice": ["1"] })), "1");
}

#[test]
fn an_answer_that_is_stuck_is_an_error_of_its_own_and_of_no_other() {
    let server = TestServer::start();
    server.state().sticks = true;
    let mut body = json!({ "prompt": "x", "guided_regex": "aa", "n": 1 });
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 500);
    assert!(
        reply.text().contains("the grammar cannot be followed"),
        "{}",
        reply.text()
    );
    body["guided_regex"] = Value::Null;
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.metric("fercuda:requests_failed_total"), 1.0);
}

#[test]
fn tools_that_have_to_be_called_are_called() {
    let other = json!({ "type": "function", "function": {
        "name": "an\"other", "parameters": { "$ref": "#/$defs/p", "$defs": { "p": {
            "type": "object", "properties": { "n": { "type": "integer", "maximum": 9 } },
            "required": ["n"], "additionalProperties": false } } } } });
    let llama = "{% if tools %}ipython{{ tools|tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
    let mistral = llama.replace("ipython", "[TOOL_CALLS]");
    let newer = llama.replace("ipython", "[TOOL_CALLS][ARGS]");
    for template in [HERMES, llama, &mistral, &newer] {
        let server = saying(template, "I would rather talk.");
        let mut body = body();
        body["tools"].as_array_mut().unwrap().push(other.clone());
        body["max_tokens"] = 300.into();
        for (choice, name) in [
            (json!("required"), None),
            (
                json!({ "type": "function", "function": { "name": "weather" } }),
                Some("weather"),
            ),
            (
                json!({ "type": "function", "function": { "name": "an\"other" } }),
                Some("an\"other"),
            ),
        ] {
            body["tool_choice"] = choice;
            for is_parallel in [true, false] {
                body["parallel_tool_calls"] = is_parallel.into();
                let reply = server.post(CHAT, &body);
                assert_eq!(reply.status, 200, "{template}: {}", reply.text());
                let choice = reply.json()["choices"][0].take();
                assert_eq!(
                    choice["finish_reason"], "tool_calls",
                    "{template}: {choice}"
                );
                let calls = choice["message"]["tool_calls"].as_array().unwrap();
                assert!(!calls.is_empty() && (is_parallel || calls.len() == 1));
                for call in calls {
                    let called = call["function"]["name"].as_str().unwrap();
                    assert!(name.is_none_or(|it| it == called), "{choice}");
                    let arguments = call["function"]["arguments"].as_str().unwrap();
                    let arguments: Value = serde_json::from_str(arguments).unwrap();
                    if called != "weather" {
                        assert!(arguments["n"].as_i64().unwrap() <= 9, "{choice}");
                    }
                    assert!(arguments.is_object());
                }
                assert!(choice["message"]["content"].is_null(), "{choice}");
            }
        }
    }
}

#[test]
fn beside_tools_an_answer_is_json_or_calls() {
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"x\": \"a\"}}\n</tool_call>";
    for (said, is_call) in [(call, true), ("{\"a\": 1}", false), ("Well, no.", true)] {
        let server = saying(HERMES, said);
        let mut body = body();
        body["response_format"] = json!({ "type": "json_schema", "json_schema": { "schema": {
            "type": "object", "properties": { "a": { "const": 1 } }, "required": ["a"],
            "additionalProperties": false } } });
        let whole = server.post(CHAT, &body).json();
        let choice = &whole["choices"][0];
        if choice["finish_reason"] == "tool_calls" {
            assert!(is_call, "{choice}");
            assert_eq!(
                choice["message"]["tool_calls"][0]["function"]["name"],
                "weather"
            );
        } else {
            let text = choice["message"]["content"].as_str().unwrap();
            assert_eq!(
                serde_json::from_str::<Value>(text).unwrap(),
                json!({ "a": 1 })
            );
            assert!(said != call, "{choice}");
        }
        body["response_format"] = Value::Null;
        body["guided_regex"] = "a".into();
        let reply = server.post(CHAT, &body);
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["param"], "guided_regex");
    }
}

#[test]
fn tools_of_one_name_are_refused() {
    let server = TestServer::with_template(crate::tools::HERMES, |_| {});
    let mut body = crate::tools::body();
    let tool = body["tools"][0].clone();
    body["tools"] = json!([tool, tool]);
    let reply = server.post(CHAT, &body);
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(
        reply.text().contains("several are named"),
        "{}",
        reply.text()
    );
}

#[test]
fn choices_of_tools_that_are_not_there_are_refused() {
    let server = saying(HERMES, "x");
    for (choice, said) in [
        (
            json!({ "type": "function", "function": { "name": "other" } }),
            "\"other\"",
        ),
        (json!("sometimes"), "required"),
        (json!({ "type": "function" }), "required"),
    ] {
        let mut body = body();
        body["tool_choice"] = choice;
        let reply = server.post(CHAT, &body);
        let error = reply.json()["error"].take();
        assert_eq!(
            (reply.status, error["param"].as_str()),
            (400, Some("tool_choice"))
        );
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    }
    let mut body = body();
    body["tools"] = json!([]);
    body["tool_choice"] = "required".into();
    assert_eq!(server.post(CHAT, &body).status, 400);
    let mut body = self::body();
    body["tool_choice"] = "required".into();
    body["tools"][0]["function"]["parameters"] = json!({ "type": "objec" });
    let reply = server.post(CHAT, &body);
    assert_eq!(
        (reply.status, &reply.json()["error"]["param"]),
        (400, &json!("tools"))
    );
}
